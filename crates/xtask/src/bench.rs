//! The benchmarks: built like a release, run in one go, written to `docs/benchmarks.md`.

use std::fs;

use crate::shell;

const PAGE: &str = "docs/benchmarks.md";
const PROGRAM: &str = "target/release/lockkeeper-bench";

/// Run the suites that are named, or all of them; only a whole run writes the page.
pub(crate) fn run(suites: &[&str]) -> Result<(), String> {
    shell::step("build", "cargo", &["build", "--profile", "bench", "--package", "lockkeeper-bench"])?;
    let (tables, kept) = shell::output_even_if_failed(PROGRAM, suites)?;
    shell::say(&tables);
    if !suites.is_empty() {
        return kept;
    }
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let text = format!(
        "# Benchmarks\n\nWritten by `cargo xtask bench`. Each row measures both sides in one run, in turns, on one \
         machine\n({cores} cores, everything on loopback or in one process). Only the ratios carry over to other \
         machines.\n{tables}"
    );
    fs::write(PAGE, text).map_err(|it| format!("{PAGE}: {it}"))?;
    kept
}
