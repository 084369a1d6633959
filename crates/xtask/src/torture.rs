//! The torture on real servers, and the planted mistakes that it must catch.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::Duration;

use crate::mutants::copy::Copy;
use crate::mutants::patch::Patch;
use crate::{mutants, shell};

const PACKAGE: &str = "lockkeeper-nemesis";
const PAGE: &str = "docs/torture.md";
/// What is written about two-phase commit.
const PAGE_2PC: &str = "docs/torture-2pc.md";
/// The section of the page that is written here.
const HEADING: &str = "\n## Mistakes that were planted";
/// For one mistake, so that one that makes everything stand still is seen, too.
const RUN_MAX: Duration = Duration::from_secs(10 * 60);

/// The exit code of a run that says nothing, as the program has it: 1 is for promises.
pub(crate) const NOT_RUN: u8 = 2;

/// `torture --mutants …` plants mistakes; everything else is for the program.
pub(crate) fn run(words: &[&str]) -> Result<ExitCode, String> {
    match words {
        ["--mutants", names @ ..] => plant(names),
        words => torture(words),
    }
}

/// The program's own exit code: whoever calls us must be able to tell a broken promise from a server that did not start.
fn torture(words: &[&str]) -> Result<ExitCode, String> {
    shell::step("build", "cargo", &["build", "--package", PACKAGE])?;
    let page = if words.first() == Some(&"2pc") { PAGE_2PC } else { PAGE };
    let page = shell::root().join(page).display().to_string();
    let mut all = Vec::new();
    for word in words {
        all.push(*word);
        if *word == "--write" {
            all.push(&page);
        }
    }
    shell::say("xtask: torture");
    let status = Command::new(sound_program()).args(&all).status();
    let status = status.map_err(|it| format!("the torture cannot be run: {it}"))?;
    match status.code() {
        Some(0) => Ok(ExitCode::SUCCESS),
        Some(1) => {
            shell::complain("a promise was broken");
            Ok(ExitCode::FAILURE)
        }
        _ => Err(format!("the torture could not be run, and says nothing ({status})")),
    }
}

fn sound_program() -> PathBuf {
    shell::root().join("target/debug").join(PACKAGE)
}

/// A mistake that the torture must catch, with what to run for it.
struct Planted {
    patch: Patch,
    words: String,
}

fn plant(names: &[&str]) -> Result<ExitCode, String> {
    let all: Vec<Planted> = mutants::patches()?
        .into_iter()
        .filter_map(|patch| patch.torture.clone().map(|words| Planted { patch, words }))
        .collect();
    if let Some(unknown) = names.iter().find(|it| !all.iter().any(|planted| planted.patch.name == **it)) {
        let known: Vec<&str> = all.iter().map(|it| it.patch.name.as_str()).collect();
        return Err(format!(
            "no mistake for the torture is called `{unknown}`; there are {}",
            known.join(", ")
        ));
    }
    let chosen: Vec<&Planted> =
        all.iter().filter(|it| names.is_empty() || names.contains(&it.patch.name.as_str())).collect();
    are_kept(&chosen)?;
    let copy = Copy::make(&shell::root().join("target/mutants"), None)?;
    let mut rows = Vec::new();
    let mut survived = 0;
    for it in chosen {
        let result = try_one(&copy, it);
        copy.renew()?;
        survived += usize::from(result.is_err());
        let told = result.unwrap_or_else(|error| format!("NOT CAUGHT: {error}"));
        shell::say(&format!("xtask: {}: {told}", it.patch.name));
        let last = told.lines().last().unwrap_or_default();
        rows.push(format!("| {} | {} | `{}` | `{last}` |", it.patch.name, it.patch.mistake, it.words));
    }
    let known: Vec<&str> = all.iter().map(|it| it.patch.name.as_str()).collect();
    write(&rows, &known)?;
    if survived != 0 {
        shell::complain(&format!("{survived} of {} mistakes were not caught", rows.len()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// What breaks a promise without any mistake, on this machine as it is now, would be taken for caught with each.
fn are_kept(chosen: &[&Planted]) -> Result<(), String> {
    shell::step("build", "cargo", &["build", "--package", PACKAGE])?;
    let each: BTreeMap<&str, &str> =
        chosen.iter().map(|it| (it.words.as_str(), it.patch.name.as_str())).collect();
    for (words, name) in each {
        shell::say(&format!("xtask: torture {words}, on the code as it is"));
        let out = ask(&sound_program(), words, "none")?;
        if out.status.code() != Some(0) {
            let said = String::from_utf8_lossy(&out.stderr);
            return Err(format!("`{words}`, which is for {name}, fails without any mistake:\n{said}"));
        }
    }
    Ok(())
}

fn ask(program: &Path, words: &str, mutant: &str) -> Result<Output, String> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &RUN_MAX.as_secs().to_string()]);
    command.arg(program).args(words.split(' ')).args(["--mutant", mutant]).stdin(Stdio::null());
    command.output().map_err(|it| format!("cannot run {command:?}: {it}"))
}

/// The last line of a run that broke a promise.
fn try_one(copy: &Copy, planted: &Planted) -> Result<String, String> {
    let name = &planted.patch.name;
    shell::say(&format!("xtask: planting {name}"));
    copy.apply(&planted.patch.file)?;
    // A build folder of its own: the program would take the place of the sound one.
    let build = shell::root().join("target/mutants/build");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--package", PACKAGE]).env("CARGO_TARGET_DIR", &build);
    let built = cargo.current_dir(copy.tree()).status().map_err(|it| format!("cannot run cargo: {it}"))?;
    if !built.success() {
        return Err("it does not compile".to_owned());
    }
    let out = ask(&build.join("debug").join(PACKAGE), &planted.words, name)?;
    judged(out.status.code(), &String::from_utf8_lossy(&out.stdout), &String::from_utf8_lossy(&out.stderr))
}

/// Whether a run caught a mistake: by a promise. A busy machine serves late whatever the code is.
fn judged(code: Option<i32>, text: &str, said: &str) -> Result<String, String> {
    let last = text.lines().rfind(|it| it.starts_with("torture: ")).unwrap_or_default();
    let broken: Vec<&str> = said.lines().filter(|it| is_complaint(it)).collect();
    match code {
        Some(1) if breaks_a_promise(last) || broken.iter().any(|it| it.starts_with(ORDER)) => {
            Ok(format!("{}\n{last}", broken.join("\n")))
        }
        Some(1) => {
            Err(format!("no promise was broken, and not all were served:\n{}\n{last}", broken.join("\n")))
        }
        Some(0) => Err(format!("every promise was kept\n{last}")),
        _ => Err(format!("the torture itself failed ({code:?})\n{said}")),
    }
}

/// The figures of the last line that must be 0.
fn breaks_a_promise(last: &str) -> bool {
    let figures = ["G=", "F=", "orphans=", "late="];
    let of = |it: &str| figures.iter().find_map(|name| it.strip_prefix(name)?.parse::<u64>().ok());
    last.split(' ').filter_map(of).any(|it| it != 0)
}

/// Of those who were passed in the line. The last line has no figure for it.
const ORDER: &str = "order: ";

fn is_complaint(line: &str) -> bool {
    ["G: ", "F: ", "orphan: ", ORDER, "late: ", "stuck: "].iter().any(|it| line.starts_with(it))
}

/// Renew the rows of those that were tried; the others stay, if there still is such a mistake.
fn write(rows: &[String], known: &[&str]) -> Result<(), String> {
    let of_page = |it: std::io::Error| format!("{PAGE}: {it}");
    let path = shell::root().join(PAGE);
    let page = if path.exists() { fs::read_to_string(&path).map_err(of_page)? } else { String::new() };
    fs::write(&path, renewed(&page, rows, known)).map_err(of_page)
}

fn renewed(page: &str, rows: &[String], known: &[&str]) -> String {
    let (before, section) = page.split_once(HEADING).unwrap_or((page.trim_end(), ""));
    let name = |row: &str| row.split('|').nth(1).map(|it| it.trim().to_owned());
    let kept = section.lines().filter(|it| it.starts_with("| ") && !it.starts_with("| mistake |"));
    let kept = kept.filter(|it| name(it).is_some_and(|it| known.contains(&it.as_str())));
    let kept = kept.filter(|it| !rows.iter().any(|row| name(row) == name(it))).map(str::to_owned);
    let mut all: Vec<String> = kept.chain(rows.iter().cloned()).collect();
    all.sort();
    format!(
        "{}\n{HEADING}\n\nA tool that finds nothing proves nothing. Each of these is planted into a copy of the code, by \
         `cargo xtask torture --mutants`, and must\nbreak a promise in a short run. Not every mistake does: some that were tried survive it or are seldom caught, and are caught by the simulation and the\ncore's own tests only. [Which, and why](decisions/0045-torture.md).\n\n| mistake | in words | run with | last \
         line |\n|---|---|---|---|\n{}\n",
        before.trim_end(),
        all.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_caught_by_a_promise_and_by_nothing_else() {
        let line = |figures: &str| format!("torture: redis grants=900 {figures} mutant=x\n");
        for figures in
            ["G=1 E=0 F=0 orphans=0 late=0", "G=0 E=0 F=2 orphans=0 late=0", "G=0 E=9 F=0 orphans=3 late=0"]
        {
            assert!(judged(Some(1), &line(figures), "G: two\nx").is_ok(), "{figures}");
            assert!(judged(Some(0), &line(figures), "").is_err(), "{figures}");
        }
        assert!(
            judged(Some(1), &line("G=0 E=0 F=0 orphans=0 late=0"), "order: k: w1 was given it\n").is_ok()
        );
        // Somebody was served late, on a machine that has other work: sound code would look the same.
        let stuck = judged(Some(1), &line("G=0 E=9 F=0 orphans=0 late=0"), "stuck: calm: w1\n");
        assert!(stuck.is_err_and(|it| it.starts_with("no promise") && it.contains("stuck: calm: w1")));
        for (code, text) in [(Some(1), ""), (Some(2), ""), (Some(124), ""), (None, "")] {
            assert!(judged(code, text, "").is_err(), "{code:?}");
        }
    }

    #[test]
    fn rows_of_mistakes_are_renewed_by_name_and_the_page_before_them_stays() {
        let row = |name: &str, last: &str| format!("| {name} | words | `redis` | `{last}` |");
        let page = renewed("# Torture\n\n## redis\n\nx\n", &[row("b", "1"), row("a", "1")], &["a", "b"]);
        assert!(page.starts_with("# Torture\n\n## redis\n\nx\n\n## Mistakes that were planted\n\n"));
        let page = renewed(&page, &[row("b", "2")], &["a", "b"]);
        assert_eq!(page.matches("| a | words | `redis` | `1` |").count(), 1);
        assert!(
            !page.contains("| b | words | `redis` | `1` |") && page.contains("| b | words | `redis` | `2` |")
        );
        assert_eq!(renewed(&page, &[], &["a", "b"]), page, "nothing grows");
        assert!(!renewed(&page, &[], &["b"]).contains("| a |"), "a mistake that is gone");
    }
}
