//! Running other programs, and speaking to whoever watches.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
}

/// Tell something on standard error.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

pub(crate) fn complain(text: &str) {
    say(&format!("xtask: error: {text}"));
}

/// Run a program in the open; its failure is ours.
pub(crate) fn step(what: &str, program: &str, args: &[&str]) -> Result<(), String> {
    run(what, Command::new(program).args(args))
}

/// As [`step`], with one more environment variable.
pub(crate) fn step_with(
    what: &str,
    program: &str,
    args: &[&str],
    key: &str,
    value: &str,
) -> Result<(), String> {
    run(what, Command::new(program).args(args).env(key, value))
}

fn run(what: &str, command: &mut Command) -> Result<(), String> {
    say(&format!("xtask: {what}"));
    let status = command.status().map_err(|it| format!("{what}: cannot run {command:?}: {it}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status}): {command:?}")) }
}

/// Run a program and read what it writes; its failure is ours.
pub(crate) fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let (text, done) = output_even_if_failed(program, args)?;
    done.map(|()| text)
}

/// Run a program, read what it writes, and tell how it ended.
pub(crate) fn output_even_if_failed(
    program: &str,
    args: &[&str],
) -> Result<(String, Result<(), String>), String> {
    let mut command = Command::new(program);
    command.args(args).stderr(Stdio::inherit());
    let out = command.output().map_err(|it| format!("cannot run {command:?}: {it}"))?;
    let text = String::from_utf8(out.stdout).map_err(|it| format!("{command:?} wrote no UTF-8: {it}"))?;
    let done =
        if out.status.success() { Ok(()) } else { Err(format!("{command:?} failed ({})", out.status)) };
    Ok((text, done))
}
