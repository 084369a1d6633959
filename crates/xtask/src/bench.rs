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
    fs::write(PAGE, renewed(&page, &tables)).map_err(|it| of_page(&it))?;
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

/// The page with the sections of `tables` in the place of those with the same heading, or at its end.
fn renewed(page: &str, tables: &str) -> String {
    let sections = |text: &str| -> Vec<String> {
        let parts: Vec<&str> = text.split(HEADING).collect();
        parts.iter().map(|it| it.trim_end().to_owned()).collect()
    };
    let heading = |section: &String| section.lines().next().map(str::to_owned);
    let mut all = sections(page);
    for new in sections(tables).into_iter().skip(1) {
        match all.iter_mut().skip(1).find(|it| heading(it) == heading(&new)) {
            Some(old) => *old = new,
            None => all.push(new),
        }
    }
    all.join(&format!("\n{HEADING}")) + "\n"
}

#[cfg(test)]
mod tests {
    use super::{listed, renewed};

    #[test]
    fn a_section_takes_the_place_of_the_one_with_its_heading() {
        let page = "# All\n\nwords\n\n## One\n\nold 1\n\n## Two\n\nold 2\n";
        let renewed = renewed(page, "\n## Two\n\nnew 2\n\n## Three\n\nnew 3\n");
        assert_eq!(renewed, "# All\n\nwords\n\n## One\n\nold 1\n\n## Two\n\nnew 2\n\n## Three\n\nnew 3\n");
    }

    #[test]
    fn a_page_that_holds_nothing_yet_gets_all_sections() {
        assert_eq!(renewed("# All\n", "\n## One\n\nx\n"), "# All\n\n## One\n\nx\n");
    }

    #[test]
    fn the_page_of_growth_is_listed_once_beside_the_benchmarks() {
        let once = listed("- [Benchmarks](benchmarks.md)\n- [Rivals](rivals.md)\n").unwrap();
        assert_eq!(once, "- [Benchmarks](benchmarks.md)\n- [Growth](growth.md)\n- [Rivals](rivals.md)\n");
        assert_eq!(listed(&once).as_deref(), Ok(once.as_str()));
        assert!(listed("- [Rivals](rivals.md)\n").is_err());
    }
}
