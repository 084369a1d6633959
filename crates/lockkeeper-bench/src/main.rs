//! Benchmarks: ours beside the limit or a rival, in one run, as ratios. `cargo xtask bench` calls this.

mod in_process;
mod measure;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    let mut rows = Vec::new();
    if chosen("in-process") {
        rows.extend(in_process::run());
    }
    report::print(&rows);
    if rows.iter().all(report::Row::within) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
