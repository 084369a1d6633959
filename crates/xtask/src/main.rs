//! What people and CI run: `cargo xtask test`, `cargo xtask bench`, `cargo xtask tidy`,
//! `cargo xtask features`, `cargo xtask package`, `cargo xtask book`.

mod bench;
mod examples;
mod features;
mod install;
mod licences;
mod mutants;
mod programs;
mod publish;
mod sale;
mod servers;
mod shell;
mod tidy;
mod times;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  test           install what is missing, then check format, lints, tidy rules and docs, and run every test
  test --quick   the same without servers to install and without release builds
  bench [SUITE]  run the benchmarks, all or those named, and write their sections of docs/benchmarks.md
  bench sale     the flash sale on Redis and MariaDB, and write its figures to docs/guides/flash-sale.md
  tests [WORD]   build all test programs, and run those with a word in their names, or all, several at once
  mutants [NAME] plant mistakes into a copy, all or those named; the test that each names must turn red
  servers NAME…  get newer servers from Debian's newer suites into target/servers: mysql, redis, valkey, …
  tidy           check the habits of this house
  features       lint the library and the command with each feature alone, with all and with none
  package        pack every public crate as a release would, and check what each says of itself
  book           build the book of all guides into target/book, and check its links
  help           this text
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["note", program @ ..] = words.as_slice() {
        return programs::note(program).unwrap_or_else(|it| {
            shell::complain(&it);
            ExitCode::FAILURE
        });
    }
    let done = match words.as_slice() {
        ["test"] => install::missing().and_then(|()| servers::get_for_tests()).and_then(|()| test()),
        ["test", "--quick"] => test(),
        ["tests", names @ ..] => test_programs(names),
        ["bench", "sale"] => sale::run(),
        ["bench", suites @ ..] => bench::run(suites),
        ["servers", names @ ..] => servers::get(names),
        ["mutants", names @ ..] => mutants::run(names),
        ["tidy"] => tidy::check().and_then(|()| mutants::check()).and_then(|()| licences::check()),
        ["features"] => features::check(),
        ["package"] => publish::check(),
        ["book"] => book(),
        ["help" | "--help"] | [] => {
            shell::say(HELP);
            Ok(())
        }
        _ => Err(format!("`{}` is no command\n\n{HELP}", words.join(" "))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            shell::complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Everything that must be true before a change may land, cheap things first.
fn test() -> Result<(), String> {
    shell::step("format", "cargo", &["fmt", "--all", "--check"])?;
    tidy::check()?;
    mutants::check()?;
    licences::check()?;
    shell::step(
        "lints",
        "cargo",
        &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
    )?;
    publish::check()?;
    // Default features must compile alone too: no backend, no client crate.
    shell::step(
        "lints of the bare facade",
        "cargo",
        &["clippy", "--package", "lockkeeper", "--", "-D", "warnings"],
    )?;
    test_programs(&[])?;
    shell::step(
        "examples of the reference",
        "cargo",
        &["test", "--workspace", "--all-features", "--no-fail-fast", "--doc"],
    )?;
    mutants::run_simulated()?;
    shell::step_with(
        "docs",
        "cargo",
        &["doc", "--workspace", "--no-deps", "--all-features"],
        "RUSTDOCFLAGS",
        "-D warnings",
    )?;
    book()
}

/// All but the examples of the reference, which cargo runs itself.
fn test_programs(named: &[&str]) -> Result<(), String> {
    let kinds = ["--lib", "--bins", "--tests", "--examples"];
    programs::run("tests", &[&["test", "--workspace", "--all-features"], &kinds[..]].concat(), named)
}

/// A crate of its own, so that this one stays small: it is the first thing that a fresh clone compiles.
fn book() -> Result<(), String> {
    shell::step("book", "cargo", &["run", "--quiet", "--package", "lockkeeper-book"])
}
