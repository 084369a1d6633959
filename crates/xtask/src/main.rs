//! What people and CI run: `cargo xtask test`, `cargo xtask bench`, `cargo xtask tidy`,
//! `cargo xtask features`, `cargo xtask package`, `cargo xtask book`, `cargo xtask torture`.

mod again;
mod bench;
mod errors;
mod examples;
mod features;
mod image;
mod install;
mod licences;
mod matrix;
mod mutants;
mod programs;
mod publish;
mod rivals;
mod sale;
mod servers;
mod shell;
mod tidy;
mod times;
mod together;
mod torture;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  test           install what is missing, then check format, lints, tidy rules and docs, and run every test
  test --quick   the same without servers to install and without release builds
  bench [SUITE]  run the benchmarks, all or those named, and write their sections of docs/benchmarks.md
  bench sale     the flash sale on Redis and MariaDB, and write its figures to docs/guides/flash-sale.md
  bench rivals [STORE…] [--seconds N] [--turns N] | --prepare
                 what people would take instead, beside ours, in about twenty minutes; gets other languages' libraries, or does
                 only that; renews the sections of docs/rivals.md
  bench growth [STORE…] [--most N]
                 what things cost as their number grows, to a million or to N; writes docs/growth.md
  tests [WORD]   build all test programs, and run those with a word in their names, or all, several at once
  mutants [NAME] plant mistakes into a copy, all or those named; the test that each names must turn red
  torture [STORE…] [--seconds N] [--seed N] [--faults A,B] [--write]
                 break real servers and clients while locks are fought for; --write renews docs/torture.md. Exit code 1: a
                 promise was broken; 2: it could not be run
  torture 2pc [--crashes N] [--lost N] [--seed N] [--calm] [--write]
                 kill coordinators of two-phase commit and their servers; --write renews docs/torture-2pc.md
  torture --mutants [NAME…]
                 plant mistakes into a copy, all or those named; the torture must catch each
  matrix [SERVER…]
                 the suites, the faults and a short torture on newer servers, all or those named; writes docs/matrix.md
  servers NAME…  get newer servers from Debian's newer suites into target/servers: mysql, redis, valkey, …
  tidy           check the habits of this house
  errors         write docs/guides/error-texts.md, the list of all texts of errors
  features       lint the crates whose features people choose with each of them alone, with all and with none
  together [WORD]
                 ask the registry whether the SQLite store resolves beside sqlx, diesel and others; build and run
                 fenced writes through them, on SQLite, PostgreSQL and MariaDB; or only those with a word in their names
  image          build the container image as `Containerfile` says, with docker or podman or by hand; run and measure it
  tutorial       the first ten minutes as written, everything built anew; fails if they take longer than ten minutes
  reference      make the reference as docs.rs does, with the nightly compiler
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
    if let ["torture", words @ ..] = words.as_slice() {
        return torture::run(words).unwrap_or_else(|it| {
            shell::complain(&it);
            ExitCode::from(torture::NOT_RUN)
        });
    }
    let done = match words.as_slice() {
        ["test"] => install::missing().and_then(|()| servers::get_for_tests()).and_then(|()| test()),
        ["test", "--quick"] => test(),
        ["tests", names @ ..] => test_programs(names),
        ["bench", "sale"] => sale::run(),
        ["bench", "rivals", words @ ..] => rivals::run(words),
        ["bench", "growth", words @ ..] => bench::growth(words),
        ["bench", suites @ ..] => bench::run(suites),
        ["servers", names @ ..] => servers::get(names),
        ["matrix", names @ ..] => matrix::run(names),
        ["mutants", names @ ..] => {
            install::missing().and_then(|()| servers::get_for_tests()).and_then(|()| mutants::run(names))
        }
        ["tidy"] => tidy::check().and_then(|()| mutants::check()).and_then(|()| licences::check()),
        ["errors"] => errors::write(),
        ["features"] => features::check(),
        ["together"] => together::check(None),
        ["together", word] => together::check(Some(word)),
        ["image"] => image::make(),
        ["tutorial"] => tutorial(),
        ["reference"] => publish::reference(),
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
    features::check_some()?;
    test_programs(&[])?;
    shell::step(
        "examples of the reference",
        "cargo",
        &["test", "--workspace", "--all-features", "--no-fail-fast", "--doc"],
    )?;
    mutants::run_some()?;
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
    let run =
        programs::run("tests", &[&["test", "--workspace", "--all-features"], &kinds[..]].concat(), named)?;
    again::judge("tests", &run)
}

/// Not part of `test`: it builds everything once more, and what it measures is a figure only on a quiet machine.
fn tutorial() -> Result<(), String> {
    let test = ["test", "--package", "lockkeeper-cli", "--all-features", "--test", "first_ten_minutes"];
    let args = [&test[..], &["--", "--nocapture"]].concat();
    shell::step_with("the first ten minutes", "cargo", &args, "TUTORIAL_COLD", "1")
}

/// A crate of its own, so that this one stays small: it is the first thing that a fresh clone compiles.
fn book() -> Result<(), String> {
    // With the features of the whole workspace, with which the tests were built.
    let build = ["build", "--quiet", "--workspace", "--all-features", "--bin", "lockkeeper-book"];
    shell::step("book: build", "cargo", &build)?;
    let program = shell::root().join("target/debug/lockkeeper-book");
    shell::step("book", &program.display().to_string(), &[])
}
