//! The locks that people would take instead: their libraries into `target/rivals`, then one run beside ours.
//!
//! Never part of the test command: it needs other languages and their libraries. What cannot be had is no error; its
//! rows say why.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{servers, shell};

const SOURCES: &str = "crates/lockkeeper-bench/rivals";
/// What a folder was made from; without it the folder is not complete.
const MADE_FROM: &str = "made-from";
/// Why there is nothing in a folder.
const WHY_NOT: &str = "why-not";

/// A language that rivals are written in: its files, and the calls that make its program. `@` stands for its folder.
struct Language {
    name: &'static str,
    files: &'static [&'static str],
    calls: &'static [&'static [&'static str]],
}

const LANGUAGES: &[Language] = &[
    Language {
        name: "python",
        files: &["rival.py", "requirements.txt"],
        calls: &[&[
            "python3",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            "@/lib",
            "--requirement",
            "requirements.txt",
        ]],
    },
    Language {
        name: "node",
        files: &["rival.mjs", "package.json"],
        calls: &[&["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]],
    },
    Language {
        name: "go",
        files: &["rival.go", "go.mod", "go.sum"],
        calls: &[&["go", "build", "-o", "@/rival", "."]],
    },
    Language {
        name: "java",
        files: &["Rival.java", "pom.xml"],
        calls: &[
            &["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DoutputDirectory=@/jars"],
            &["javac", "-cp", "@/jars/*", "-d", "@", "Rival.java"],
        ],
    },
];

/// `bench rivals [STORE…] [--seconds N] [--turns N]`, or `--prepare` alone: get and build what others wrote, and measure nothing.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let root = shell::root();
    let folder = root.join("target/rivals");
    for language in LANGUAGES {
        prepare(language, &root.join(SOURCES).join(language.name), &folder.join(language.name))?;
    }
    // Where it cannot be had, its section says so.
    if let Err(why) = servers::get(&["mysql"]) {
        shell::say(&format!("xtask: no MySQL: {why}"));
    }
    if words == ["--prepare"] {
        return Ok(());
    }
    let packages = ["--package", "lockkeeper-bench", "--package", "lockkeeper-cli"];
    let bins = ["--bin", "lockkeeper-bench", "--bin", "lockkeeper"];
    shell::step("build", "cargo", &[&["build", "--profile", "bench"], &packages[..], &bins].concat())?;
    let built = root.join("target/release/lockkeeper");
    fs::copy(&built, folder.join("lockkeeper")).map_err(|it| of(&built, &it))?;
    let at = |path: PathBuf| path.display().to_string();
    let (programs, page) = (at(folder), at(root.join("docs/rivals.md")));
    let program = at(root.join("target/release/lockkeeper-bench"));
    let first = ["rivals", "--programs", &programs, "--page", &page];
    shell::step("rivals", &program, &[&first[..], words].concat())
}

/// Make the program of a language, unless it was made from the same files.
fn prepare(language: &Language, sources: &Path, home: &Path) -> Result<(), String> {
    let mut made_from = String::new();
    for file in language.files {
        let path = sources.join(file);
        made_from += &fs::read_to_string(&path).map_err(|it| of(&path, &it))?;
    }
    if fs::read_to_string(home.join(MADE_FROM)).is_ok_and(|it| it == made_from) {
        return Ok(());
    }
    if home.exists() {
        fs::remove_dir_all(home).map_err(|it| of(home, &it))?;
    }
    fs::create_dir_all(home).map_err(|it| of(home, &it))?;
    for file in language.files {
        fs::copy(sources.join(file), home.join(file)).map_err(|it| of(home, &it))?;
    }
    shell::say(&format!("xtask: making the rivals of {}", language.name));
    let done = language.calls.iter().try_for_each(|words| call(words, home));
    let (file, text) = match &done {
        Ok(()) => (MADE_FROM, &made_from),
        Err(why) => (WHY_NOT, why),
    };
    if let Err(why) = &done {
        shell::say(&format!("xtask: no rivals of {}: {why}", language.name));
    }
    fs::write(home.join(file), text).map_err(|it| of(home, &it))
}

/// Or why it failed, in one line for the page.
fn call(words: &[&str], home: &Path) -> Result<(), String> {
    let at = home.display().to_string();
    let words: Vec<String> = words.iter().map(|it| it.replace('@', &at)).collect();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(home).stdin(Stdio::null());
    let out = command.output().map_err(|it| format!("`{}` cannot be run here ({it})", words[0]))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    shell::say(&said);
    Err(format!("`{}` could not get or build its libraries here ({})", words[0], out.status))
}

fn of(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("lockkeeper-rivals-{name}-{}", std::process::id()))
    }

    #[test]
    fn every_file_of_every_language_is_there() {
        for language in LANGUAGES {
            for file in language.files {
                let path = shell::root().join(SOURCES).join(language.name).join(file);
                assert!(path.is_file(), "{}", path.display());
            }
        }
    }

    #[test]
    fn what_cannot_be_made_says_why_and_what_was_made_is_kept() {
        let (sources, home) = (scratch("sources"), scratch("home"));
        fs::create_dir_all(&sources).unwrap();
        fs::write(sources.join("a"), "one").unwrap();
        let language = |calls| Language { name: "x", files: &["a"], calls };
        prepare(&language(&[&["no-such-program-at-all"]]), &sources, &home).unwrap();
        assert!(
            fs::read_to_string(home.join(WHY_NOT))
                .unwrap()
                .contains("`no-such-program-at-all` cannot be run")
        );
        prepare(&language(&[&["false"]]), &sources, &home).unwrap();
        assert!(fs::read_to_string(home.join(WHY_NOT)).unwrap().contains("`false` could not get or build"));
        prepare(&language(&[&["cp", "a", "@/b"]]), &sources, &home).unwrap();
        assert!(!home.join(WHY_NOT).exists() && home.join("b").is_file());
        // The same files: nothing is called.
        prepare(&language(&[&["false"]]), &sources, &home).unwrap();
        assert!(!home.join(WHY_NOT).exists());
        fs::remove_dir_all(&sources).unwrap();
        fs::remove_dir_all(&home).unwrap();
    }
}
