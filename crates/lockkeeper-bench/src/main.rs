//! Benchmarks: ours beside the limit or a rival, in one run, as ratios. `cargo xtask bench` calls this.

mod in_process;
mod macros;
mod measure;
mod names;
mod processes;
mod report;
mod sql;
mod sqlite;

use std::error::Error;
use std::process::ExitCode;

use report::Row;

type Outcome = Result<Vec<Row>, Box<dyn Error>>;
type Suite = (&'static str, fn() -> Outcome);

/// Every suite, by the name that the command line knows.
const SUITES: &[Suite] = &[
    ("in-process", in_process::run),
    ("macros", macros::run),
    ("names", names::run),
    ("sqlite", sqlite::run),
    ("processes", processes::run),
    ("postgres", sql::postgres),
    ("mysql", sql::mysql),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|it| it == processes::WORKER) {
        return ended(processes::work(&words[1..]));
    }
    if words.first().is_some_and(|it| it == sql::WORKER) {
        return ended(sql::work(&words[1..]));
    }
    ended(run(&words))
}

fn run(wanted: &[String]) -> Result<(), Box<dyn Error>> {
    if let Some(unknown) = wanted.iter().find(|it| !SUITES.iter().any(|suite| suite.0 == it.as_str())) {
        let known: Vec<_> = SUITES.iter().map(|it| it.0).collect();
        return Err(format!("there is no suite `{unknown}`; known are {}", known.join(", ")).into());
    }
    let mut rows = Vec::new();
    for (name, suite) in
        SUITES.iter().filter(|it| wanted.is_empty() || wanted.iter().any(|word| word == it.0))
    {
        report::say(&format!("running {name}"));
        rows.extend(suite()?);
    }
    report::print(&rows);
    match rows.iter().find(|it| !it.within()) {
        None => Ok(()),
        Some(row) => Err(format!("a bound is not kept: {}", row.what).into()),
    }
}

fn ended(outcome: Result<(), Box<dyn Error>>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::say(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}
