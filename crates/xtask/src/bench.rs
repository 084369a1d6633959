//! The benchmarks: built like a release, run in one go, written to `docs/benchmarks.md`.

use std::fs;

use crate::shell;

const PAGE: &str = "docs/benchmarks.md";
const PROGRAM: &str = "target/release/lockkeeper-bench";
const HEADING: &str = "\n## ";

/// Run the suites that are named, or all of them. Their sections of the page are written anew.
pub(crate) fn run(suites: &[&str]) -> Result<(), String> {
    shell::step("build", "cargo", &["build", "--profile", "bench", "--package", "lockkeeper-bench"])?;
    let (tables, kept) = shell::output_even_if_failed(PROGRAM, suites)?;
    shell::say(&tables);
    let page = if suites.is_empty() {
        introduction()
    } else {
        fs::read_to_string(PAGE).map_err(|it| of_page(&it))?
    };
    fs::write(PAGE, renewed(&page, &tables, &stamp()?)).map_err(|it| of_page(&it))?;
    kept
}

/// What things cost as their number grows: a page of its own.
pub(crate) fn growth(words: &[&str]) -> Result<(), String> {
    shell::step("build", "cargo", &["build", "--profile", "bench", "--package", "lockkeeper-bench"])?;
    let at = |path: &str| shell::root().join(path).display().to_string();
    let (page, plot) = (at("docs/growth.md"), at("docs/growth.svg"));
    let words = [&["growth", "--page", &page, "--plot", &plot][..], words].concat();
    let grown = shell::step("growth", &at(PROGRAM), &words);
    // Also if a store had no answer: the page is there, and says so.
    if shell::root().join("docs/growth.md").exists() {
        let summary = at("docs/SUMMARY.md");
        let text = fs::read_to_string(&summary).map_err(|it| format!("{summary}: {it}"))?;
        fs::write(&summary, listed(&text)?).map_err(|it| format!("{summary}: {it}"))?;
    }
    grown
}

/// The list of all pages with that of growth, after the benchmarks.
fn listed(summary: &str) -> Result<String, String> {
    const BEFORE: &str = "- [Benchmarks](benchmarks.md)\n";
    const GROWTH: &str = "- [Growth](growth.md)\n";
    if summary.contains(GROWTH) {
        return Ok(summary.to_owned());
    }
    let (before, after) = summary.split_once(BEFORE).ok_or("docs/SUMMARY.md does not list the benchmarks")?;
    Ok(format!("{before}{BEFORE}{GROWTH}{after}"))
}

fn of_page(error: &std::io::Error) -> String {
    format!("{PAGE}: {error}")
}

fn introduction() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "# Benchmarks\n\nWritten by `cargo xtask bench`. Each row measures both sides in one run, in turns, on one \
         machine\n({cores} cores, everything on loopback or in one process). Only the ratios carry over to other \
         machines.\nA suite that runs alone renews its own section, so sections may come from different runs.\n"
    )
}

/// What a section is of: the sources, the day and the machine.
fn stamp() -> Result<String, String> {
    let commit = shell::output("git", &["rev-parse", "--short", "HEAD"])?;
    let changed = !shell::output("git", &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    let day = shell::output("date", &["-u", "+%-d %B %Y"])?;
    let kernel = shell::output("uname", &["-sr"])?;
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Ok(stamp_of(commit.trim(), changed, day.trim(), &kernel, &processor))
}

fn stamp_of(commit: &str, changed: bool, day: &str, kernel: &str, processor: &str) -> String {
    // What a distribution appends to the kernel's version says nothing to others.
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    let model = processor.lines().find_map(|it| it.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("a processor that does not say its name", |it| it.1.trim());
    let changed = if changed { ", with changes that were not committed" } else { "" };
    format!("Measured at {commit}{changed}, {day}, on {kernel}, {model}.")
}

/// The page with the sections of `tables` in the place of those with the same heading, or at its end.
fn renewed(page: &str, tables: &str, stamp: &str) -> String {
    let sections = |text: &str| -> Vec<String> {
        let parts: Vec<&str> = text.split(HEADING).collect();
        parts.iter().map(|it| it.trim_end().to_owned()).collect()
    };
    let heading = |section: &String| section.lines().next().map(str::to_owned);
    let mut all = sections(page);
    for new in sections(tables).into_iter().skip(1) {
        let new = match new.split_once('\n') {
            Some((title, rest)) => format!("{title}\n\n{stamp}\n{rest}"),
            None => new,
        };
        match all.iter_mut().skip(1).find(|it| heading(it) == heading(&new)) {
            Some(old) => *old = new,
            None => all.push(new),
        }
    }
    all.join(&format!("\n{HEADING}")) + "\n"
}

#[cfg(test)]
mod tests {
    use super::{listed, renewed, stamp_of};

    #[test]
    fn a_section_says_what_it_is_of() {
        let processor = "processor\t: 0\nmodel name\t: Some Chip 9\nmodel name\t: Some Chip 9\n";
        assert_eq!(
            stamp_of("abc1234", true, "19 November 2026", "Linux 6.1.0-9-amd64\n", processor),
            "Measured at abc1234, with changes that were not committed, 19 November 2026, on Linux 6.1.0, Some Chip 9."
        );
        let plain = stamp_of("abc1234", false, "1 May 2027", "Linux 7.0\n", "");
        assert_eq!(
            plain,
            "Measured at abc1234, 1 May 2027, on Linux 7.0, a processor that does not say its name."
        );
    }

    #[test]
    fn a_section_takes_the_place_of_the_one_with_its_heading() {
        let page = "# All\n\nwords\n\n## One\n\nold 1\n\n## Two\n\nold 2\n";
        let renewed = renewed(page, "\n## Two\n\nnew 2\n\n## Three\n\nnew 3\n", "Now.");
        let all =
            "# All\n\nwords\n\n## One\n\nold 1\n\n## Two\n\nNow.\n\nnew 2\n\n## Three\n\nNow.\n\nnew 3\n";
        assert_eq!(renewed, all);
    }

    #[test]
    fn a_page_that_holds_nothing_yet_gets_all_sections() {
        assert_eq!(renewed("# All\n", "\n## One\n\nx\n", "Now."), "# All\n\n## One\n\nNow.\n\nx\n");
    }

    #[test]
    fn the_page_of_growth_is_listed_once_beside_the_benchmarks() {
        let once = listed("- [Benchmarks](benchmarks.md)\n- [Rivals](rivals.md)\n").unwrap();
        assert_eq!(once, "- [Benchmarks](benchmarks.md)\n- [Growth](growth.md)\n- [Rivals](rivals.md)\n");
        assert_eq!(listed(&once).as_deref(), Ok(once.as_str()));
        assert!(listed("- [Rivals](rivals.md)\n").is_err());
    }
}
