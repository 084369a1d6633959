//! The torture on real servers, and the planted mistakes that it must catch.

use std::fs;
use std::process::{Command, Stdio};
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

/// `torture --mutants …` plants mistakes; everything else is for the program.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    match words {
        ["--mutants", names @ ..] => plant(names),
        words => torture(words),
    }
}

fn torture(words: &[&str]) -> Result<(), String> {
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
    let program = shell::root().join("target/debug").join(PACKAGE);
    shell::step("torture", &program.display().to_string(), &all)
}

/// A mistake that the torture must catch, with what to run for it.
struct Planted {
    patch: Patch,
    words: String,
}

fn plant(names: &[&str]) -> Result<(), String> {
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
    let copy = Copy::make(&shell::root().join("target/mutants"), None)?;
    let mut rows = Vec::new();
    let mut survived = 0;
    for it in all.iter().filter(|it| names.is_empty() || names.contains(&it.patch.name.as_str())) {
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
    if survived == 0 { Ok(()) } else { Err(format!("{survived} of {} mistakes were not caught", rows.len())) }
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
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &RUN_MAX.as_secs().to_string()]);
    command.arg(build.join("debug").join(PACKAGE)).args(planted.words.split(' '));
    command.args(["--mutant", name]).stdin(Stdio::null());
    let out = command.output().map_err(|it| format!("cannot run {command:?}: {it}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let last = text.lines().last().unwrap_or_default().to_owned();
    let said = String::from_utf8_lossy(&out.stderr);
    let broken: Vec<&str> = said.lines().filter(|it| is_complaint(it)).collect();
    match out.status.code() {
        Some(1) => Ok(format!("{}\n{last}", broken.join("\n"))),
        Some(0) => Err(format!("every promise was kept\n{last}")),
        _ => Err(format!("the torture itself failed ({})\n{said}", out.status)),
    }
}

fn is_complaint(line: &str) -> bool {
    ["G: ", "F: ", "orphan: ", "late: ", "stuck: "].iter().any(|it| line.starts_with(it))
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
