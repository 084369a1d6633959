//! Which database crates can be in one program with the SQLite store: cargo lets one version of `libsqlite3-sys` into a
//! lock file, because it links a C library. `cargo xtask together` asks the resolver, and runs the guide's fenced writes through
//! them, on files and on a server; it needs the registry, so tests do not.

mod fenced;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::shell;

const PAGE: &str = "docs/guides/platforms.md";

/// What must resolve beside the feature `sqlite`, as lines of a manifest; the page lists them.
const BESIDE: &[(&str, &str)] = &[
    ("sqlx", r#"{ version = "0.8", features = ["postgres"] }"#),
    ("sqlx", r#"{ version = "0.8", features = ["sqlite"] }"#),
    ("sqlx", r#"{ version = "0.9", features = ["postgres"] }"#),
    ("sqlx", r#"{ version = "0.9", features = ["sqlite"] }"#),
    ("sea-orm", r#"{ version = "1", features = ["sqlx-postgres"] }"#),
    ("sea-orm", r#"{ version = "1", features = ["sqlx-sqlite"] }"#),
    ("diesel", r#"{ version = "2", features = ["sqlite"] }"#),
    ("deadpool-sqlite", r#""0.12""#),
    ("rusqlite", r#""0.32""#),
    ("rusqlite", r#""0.33""#),
    ("rusqlite", r#""0.34""#),
    ("rusqlite", r#""0.35""#),
    ("rusqlite", r#""0.36""#),
    ("rusqlite", r#""0.37""#),
    ("rusqlite", r#""0.38""#),
    ("rusqlite", r#""0.39""#),
    ("rusqlite", r#""0.40""#),
    ("rusqlite", r#""0.41""#),
];

/// Resolve each of them in a package of its own; then build and run the fenced writes of the guide. With a word only those
/// programs that have it in their names.
pub(crate) fn check(word: Option<&str>) -> Result<(), String> {
    // diesel speaks to servers through libraries of C.
    for (library, package) in [("libmariadb", "libmariadb-dev"), ("libpq", "libpq-dev")] {
        shell::output("pkg-config", &["--exists", library])
            .map_err(|it| format!("{it}\nhint: apt-get install {package}"))?;
    }
    let package = Package::new()?;
    for (name, wanted) in BESIDE.iter().filter(|_| word.is_none()) {
        package.write("\"sqlite\"", &format!("{name} = {wanted}\n"), "fn main() {}\n")?;
        let title = format!("the feature `sqlite` beside {name} = {wanted}");
        package.cargo(&title, &["generate-lockfile", "--quiet"], &[])?;
    }
    let mut programs = fenced::programs(&shell::root())?;
    programs.retain(|it| word.is_none_or(|word| it.name.contains(word)));
    if programs.is_empty() {
        return Err("there is no such program".to_owned());
    }
    programs.iter().try_for_each(|it| package.run(it))
}

/// A package outside of this workspace.
struct Package {
    folder: PathBuf,
}

impl Package {
    fn new() -> Result<Self, String> {
        let folder = shell::root().join("target/together");
        let source = folder.join("src");
        fs::create_dir_all(&source).map_err(|it| format!("{}: {it}", source.display()))?;
        Ok(Package { folder })
    }

    /// The library with these features, and these beside it.
    fn write(&self, features: &str, dependencies: &str, program: &str) -> Result<(), String> {
        let facade = shell::root().join("crates/lockkeeper");
        let manifest = format!(
            "[package]\nname = \"together\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
             lockkeeper = {{ path = \"{}\", features = [{features}] }}\n{dependencies}",
            facade.display()
        );
        write(&self.folder.join("Cargo.toml"), &manifest)?;
        write(&self.folder.join("src/main.rs"), program)?;
        // What was resolved before must not help.
        let _ = fs::remove_file(self.folder.join("Cargo.lock"));
        Ok(())
    }

    fn cargo(&self, title: &str, words: &[&str], after: &[&str]) -> Result<(), String> {
        let manifest = self.folder.join("Cargo.toml").display().to_string();
        shell::step(title, "cargo", &[words, &["--manifest-path", &manifest], after].concat())
    }

    /// Build and run one, in a folder where nothing was.
    fn run(&self, program: &fenced::Program) -> Result<(), String> {
        self.write(program.features, &program.dependencies, &program.code)?;
        let data = self.folder.join("data");
        let _ = fs::remove_dir_all(&data);
        fs::create_dir(&data).map_err(|it| format!("{}: {it}", data.display()))?;
        let target = self.folder.join("target").display().to_string();
        let file = data.join("shop.db").display().to_string();
        let title = format!("a fenced write by {}", program.name);
        self.cargo(&title, &["run", "--quiet", "--target-dir", &target], &["--", &file])
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|it| format!("{}: {it}", file.display()))
}

/// Without the registry: the page names the range of `rusqlite` that the manifest has, and promises what is resolved.
pub(crate) fn tidy(root: &Path, complaints: &mut Vec<String>) {
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    if let Err(error) = fenced::programs(root) {
        complaints.push(error);
    }
    match range(&read("Cargo.toml")) {
        Some(words) if read(PAGE).contains(&words) => {}
        Some(words) => complaints.push(format!("{PAGE}: it does not say \"{words}\"")),
        None => complaints.push("Cargo.toml: the range of rusqlite is written in another way now".to_owned()),
    }
    compare(&read(PAGE), BESIDE, complaints);
}

/// Each row of the page that says yes is resolved, and what is resolved has a row that says yes.
fn compare(page: &str, beside: &[(&str, &str)], complaints: &mut Vec<String>) {
    let table = page.split("\n| beside |").nth(1).and_then(|it| it.split("\n\n").next()).unwrap_or_default();
    let rows = table.lines().filter_map(|it| it.strip_prefix('|')?.split_once(" | yes"));
    let promised: BTreeSet<String> = rows.flat_map(|(what, _)| versions(what)).collect();
    let resolved: BTreeSet<String> =
        beside.iter().filter_map(|(name, it)| Some(format!("{name} {}", version(it)?))).collect();
    for it in promised.difference(&resolved) {
        complaints
            .push(format!("{PAGE}: it says that {it} goes with `sqlite`; `BESIDE` in together.rs lacks it"));
    }
    for it in resolved.difference(&promised) {
        complaints.push(format!("{PAGE}: it does not say that {it} goes with `sqlite`"));
    }
}

/// The versions that a row names: `` `sqlx` 0.8, 0.9 (…) `` are two, `` `rusqlite` 0.32 to 0.41 `` are ten.
fn versions(row: &str) -> Vec<String> {
    let row = row.split('(').next().unwrap_or_default();
    let Some((name, all)) = row.trim().strip_prefix('`').and_then(|it| it.split_once('`')) else {
        return Vec::new();
    };
    if let Some((Some(oldest), Some(newest))) =
        all.trim().split_once(" to ").map(|it| (minor(it.0), minor(it.1)))
    {
        return (oldest..=newest).map(|it| format!("{name} 0.{it}")).collect();
    }
    all.split(',').map(|it| format!("{name} {}", it.trim())).collect()
}

fn minor(version: &str) -> Option<u32> {
    version.strip_prefix("0.")?.parse().ok()
}

/// The version in a line of a manifest: the first text in quotes.
fn version(line: &str) -> Option<&str> {
    line.split('"').nth(1)
}

/// `>=0.32, <0.42` in the words of the page.
fn range(manifest: &str) -> Option<String> {
    let (_, rest) = manifest.split_once("\nrusqlite = { version = \">=0.")?;
    let (oldest, rest) = rest.split_once(", <0.")?;
    let newest: u32 = rest.split_once('"')?.0.parse().ok()?;
    Some(format!("`rusqlite` 0.{oldest} to 0.{}", newest.checked_sub(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_told_with_the_newest_that_is_in_it() {
        let manifest = "x = 1\nrusqlite = { version = \">=0.32, <0.42\", features = [\"bundled\"] }\n";
        assert_eq!(range(manifest).as_deref(), Some("`rusqlite` 0.32 to 0.41"));
        assert_eq!(range("\nrusqlite = \"0.37\""), None);
    }

    #[test]
    fn what_the_page_promises_and_what_is_resolved_are_one_list() {
        let page = "\n| beside | goes |\n|---|---|\n| `a` 0.9 to 0.11 | yes, the same |\n| `b` 1, 0.2 (also `c` 7) | yes |\n\
                    | `a` 0.8 and older | no |\n\nMore.\n";
        let complaints = |beside: &[(&str, &str)]| {
            let mut complaints = Vec::new();
            compare(page, beside, &mut complaints);
            complaints
        };
        let all = [
            ("a", "\"0.9\""),
            ("a", "\"0.10\""),
            ("a", "\"0.11\""),
            ("b", "{ version = \"1\", x = 1 }"),
            ("b", "\"0.2\""),
        ];
        assert_eq!(complaints(&all), Vec::<String>::new());
        assert!(complaints(&all[1..])[0].contains("that a 0.9 goes"));
        assert!(complaints(&[&all[..], &[("d", "\"3\"")]].concat())[0].contains("d 3"));
    }
}
