//! What to write, if a command to run was given as `flock` and `nice` take it: without the two dashes.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::help;

/// The hint that belongs to this error, if what is missing are the dashes. Other mistakes are told by clap alone.
pub(crate) fn hint(error: &clap::Error, args: impl Iterator<Item = OsString>) -> Option<String> {
    let args: Vec<String> = args.map(|it| it.to_string_lossy().into_owned()).collect();
    let (usage, mut before) = usage(&args)?;
    if before.iter().any(|it| it == "--") {
        return None;
    }
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, _) => {}
        // The first word that nobody expected begins the command. An option that nobody knows is only misspelt.
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) if !word.starts_with('-') => {
            before = &before[..before.iter().position(|it| it == word).unwrap_or(before.len())];
        }
        _ => return None,
    }
    // A `-c` behind the command's first word is the command's own: `run NAME sh -c …`.
    let scripted = before.iter().any(|it| is_script(it));
    (!scripted).then(|| format!("write `--` before the command: `{usage}`"))
}

/// How to use the subcommand, if it runs a command, and what stands behind its name.
fn usage(args: &[String]) -> Option<(&'static str, &[String])> {
    let mut at = 0;
    while args.get(at)?.starts_with('-') {
        at += if matches!(args[at].as_str(), "--url" | "--config") { 2 } else { 1 };
    }
    let usage = match args[at].as_str() {
        "run" => help::RUN_USAGE,
        "once" => help::ONCE_USAGE,
        "elect" => help::ELECT_USAGE,
        _ => return None,
    };
    Some((usage, &args[at + 1..]))
}

/// `-c`, also with its script or behind other letters: `-cmake`, `-nc`.
fn is_script(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|it| it.trim_start_matches(['n', 's']).starts_with('c'))
}
