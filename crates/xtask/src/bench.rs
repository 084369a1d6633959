//! The benchmarks: built like a release, run in one go, written to `docs/benchmarks.md`.

use std::fs;

use crate::shell;

const PAGE: &str = "docs/benchmarks.md";

/// Run the suites that are named, or all of them; only a whole run writes the page.
pub(crate) fn run(suites: &[&str]) -> Result<(), String> {
    let packages = ["--package", "lockkeeper-bench", "--package", "lockkeeper-redis-bench"];
    shell::step("build", "cargo", &[&["build", "--profile", "bench"], packages.as_slice()].concat())?;
    if let ["redis", workloads @ ..] = suites {
        return shell::step("redis", "target/release/redis-bench", workloads);
    }
    let (table, kept) = shell::output_even_if_failed("target/release/lockkeeper-bench", suites)?;
    shell::say(&table);
    if !suites.is_empty() {
        return kept;
    }
    let (redis, redis_ran) = shell::output_even_if_failed("target/release/redis-bench", &[])?;
    shell::say(&redis);
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let text = format!(
        "# Benchmarks\n\nWritten by `cargo xtask bench`. Each row measures both sides in one run, in turns, on one \
         machine\n({cores} cores, everything on loopback or in one process). Only the ratios carry over to other \
         machines.\n\n{table}\n## Redis\n\nBeside bare commands on the same client and beside rslock, on one \
         throw-away server whose own statistics count\nthe commands.\n\n```text\n{redis}```\n"
    );
    fs::write(PAGE, text).map_err(|it| format!("{PAGE}: {it}"))?;
    kept.and(redis_ran)
}
