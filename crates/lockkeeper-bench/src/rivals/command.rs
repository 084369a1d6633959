//! `lockkeeper run` beside flock(1): what a lock costs a script.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::Answer;
use crate::measure::{median, rate, time};
use crate::report::say;

const FREE_TIMES: usize = 40;
/// Scripts side by side.
const LOOPS: usize = 4;

/// One program.
pub(super) struct Row {
    name: &'static str,
    /// A free lock, from start to end; or why there is none.
    free: Result<Duration, String>,
    /// Commands per second of several scripts on one lock.
    rate: f64,
}

/// `programs` is where the other rivals are; the command is built beside them.
pub(super) fn run(programs: &Path, span: Duration) -> Answer<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let command = programs.join("lockkeeper");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let ours = [
        command.display().to_string(),
        "run".to_owned(),
        "--url".to_owned(),
        format!("sqlite:{}", at("locks.db")),
        "job".to_owned(),
        "--".to_owned(),
        "true".to_owned(),
    ];
    let theirs = ["flock".to_owned(), at("file"), "true".to_owned()];
    Ok(vec![measure("**`lockkeeper run`**, SQLite file", &ours, span), measure("flock(1)", &theirs, span)])
}

fn measure(name: &'static str, words: &[String], span: Duration) -> Row {
    say(&format!("command: {name}"));
    if let Err(why) = once(words) {
        return Row { name, free: Err(why), rate: 0.0 };
    }
    let mut spans: Vec<Duration> = (0..FREE_TIMES).map(|_| time(&mut || drop(once(words)))).collect();
    let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..LOOPS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    count.fetch_add(u64::from(once(words).is_ok()), Ordering::Relaxed);
                }
            });
        }
        thread::sleep(span);
        done.store(true, Ordering::Relaxed);
    });
    Row { name, free: Ok(median(&mut spans)), rate: rate(count.into_inner(), span) }
}

fn once(words: &[String]) -> Result<(), String> {
    let mut command = Command::new(PathBuf::from(&words[0]));
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("it ended with {status}")),
        Err(error) => Err(format!("it cannot be started here: {error}")),
    }
}

pub(super) const TITLE: &str = "The command";

pub(super) fn section(rows: &[Row], how: &str) -> String {
    let mut out = format!(
        "{TITLE}\n\n{how}\n\n| who | a free lock around `true` | 4 scripts on one lock, commands per second |\n|---|---|---|\n"
    );
    for row in rows {
        let _ = match &row.free {
            Ok(free) => writeln!(out, "| {} | {free:.1?} | {:.0} |", row.name, row.rate),
            Err(why) => {
                writeln!(out, "| {} | not measured: {why} | not measured, for the same reason |", row.name)
            }
        };
    }
    out + "\nflock(1) holds between processes of one machine only, has no fence, no line and no lease; the kernel gives its lock back. \
           `lockkeeper run` opens a database file for each command.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_started_says_so_in_its_row_and_the_others_are_measured() {
        let words = |it: &str| [it.to_owned()];
        let rows = [
            measure("here", &words("true"), Duration::from_millis(1)),
            measure("refuses", &words("false"), Duration::from_millis(1)),
            measure("absent", &words("no-such-program-at-all"), Duration::from_millis(1)),
        ];
        let section = section(&rows, "How.");
        assert!(!section.contains("| here | not measured"), "{section}");
        assert!(section.contains("| refuses | not measured: it ended with"), "{section}");
        assert!(section.contains("| absent | not measured: it cannot be started here"), "{section}");
    }
}
