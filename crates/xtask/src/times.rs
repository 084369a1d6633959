//! How long tests take: every test program is run through us, which read its words and look at the clock.
//!
//! The stable test runner prints no times. It starts tests in the order of their names, a fixed number at once, and
//! prints a line when one ends: so each began when the one ended that made room for it.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::shell;

const SHOWN: usize = 10;
/// Something that a test left behind may keep the pipe open; what matters was read long before.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);

/// Run tests with cargo, then tell which were slowest, also if some failed.
pub(crate) fn of_tests(what: &str, args: &[&str]) -> Result<(), String> {
    let file = file();
    // Is there if an earlier run was interrupted.
    drop(fs::remove_file(&file));
    let host = shell::output("rustc", &["--version", "--verbose"])?;
    let host = host.lines().find_map(|it| it.strip_prefix("host: ")).unwrap_or_default();
    let setting = format!("CARGO_TARGET_{}_RUNNER", host.to_uppercase().replace('-', "_"));
    // A copy: the build may write this program anew while the tests run.
    let copy = shell::root().join("target/xtask-timed");
    let own = std::env::current_exe().map_err(|it| it.to_string())?;
    fs::copy(own, &copy).map_err(|it| format!("{}: {it}", copy.display()))?;
    let done = shell::step_with(what, "cargo", args, &setting, &format!("{} timed", copy.display()));
    shell::say(&report(&fs::read_to_string(&file).unwrap_or_default()));
    done
}

fn file() -> PathBuf {
    shell::root().join("target/test-times")
}

#[expect(clippy::disallowed_methods, reason = "a span of a test is shown, nothing is decided by it")]
fn now() -> Instant {
    Instant::now()
}

/// What cargo calls instead of a test program: run it, and write down how long each test took.
pub(crate) fn run(words: &[&str]) -> Result<ExitCode, String> {
    let (program, args) = words.split_first().ok_or("name a program")?;
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::piped());
    // A test that calls cargo wants no help from us.
    for (name, _) in std::env::vars_os().filter(|it| it.0.to_string_lossy().ends_with("_RUNNER")) {
        command.env_remove(name);
    }
    let start = now();
    let mut child = command.spawn().map_err(|it| format!("cannot run {program}: {it}"))?;
    let (sender, lines) = mpsc::channel();
    let stdout = child.stdout.take();
    std::thread::spawn(move || stdout.map(|it| pass_on(it, &sender)));
    let status = child.wait().map_err(|it| it.to_string())?;
    let total = now() - start;
    let mut ended = Vec::new();
    while let Ok((name, at)) = lines.recv_timeout(LAST_WORDS_MAX) {
        ended.push((name, at - start));
    }
    let name = name_of(program);
    let mut rows = vec![("all".to_owned(), total)];
    rows.extend(spans(&ended, threads(args)));
    let rows = rows.iter().map(|(test, span)| format!("{}\t{name}\t{test}\n", span.as_millis()));
    let kept = OpenOptions::new().create(true).append(true).open(file());
    let text = rows.collect::<Vec<_>>().concat();
    kept.and_then(|mut it| it.write_all(text.as_bytes())).map_err(|it| it.to_string())?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        None => Err(format!("{program} was ended: {status}")),
    }
}

/// Copy what the program prints, and tell of every test that ended.
fn pass_on(stdout: impl Read, ends: &mpsc::Sender<(String, Instant)>) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
        let at = now();
        // Whoever listened has gone: the tests go on.
        drop(std::io::stdout().write_all(&line));
        if let Some(name) = ended_in(&String::from_utf8_lossy(&line)) {
            drop(ends.send((name.to_owned(), at)));
        }
        line.clear();
    }
}

/// The test of which a line says that it ended.
fn ended_in(line: &str) -> Option<&str> {
    let (name, result) = line.trim_end().strip_prefix("test ")?.rsplit_once(" ... ")?;
    let known = result == "ok" || result == "FAILED" || result.starts_with("ignored");
    // `#[should_panic]` is noted behind the name.
    known.then(|| name.split(" - ").next().unwrap_or(name))
}

/// How many tests run at once.
fn threads(args: &[&str]) -> usize {
    let told = args.iter().find_map(|it| it.strip_prefix("--test-threads=")?.parse().ok());
    let by_env = || std::env::var("RUST_TEST_THREADS").ok()?.parse().ok();
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    told.or_else(by_env).unwrap_or_else(cores)
}

/// How long each test took, from the moments in which they ended.
fn spans(ended: &[(String, Duration)], threads: usize) -> Vec<(String, Duration)> {
    let mut names: Vec<&str> = ended.iter().map(|it| it.0.as_str()).collect();
    names.sort_unstable();
    let began = |name: &str| {
        let place = names.iter().position(|it| *it == name).unwrap_or(0);
        place.checked_sub(threads).map_or(Duration::ZERO, |it| ended[it].1)
    };
    ended.iter().map(|(name, end)| (name.clone(), end.saturating_sub(began(name)))).collect()
}

/// `sim` of `target/debug/deps/sim-0123456789abcdef`, with the package before it.
fn name_of(program: &str) -> String {
    let stem = Path::new(program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = stem.rsplit_once('-').map_or(stem.as_str(), |it| it.0);
    std::env::var("CARGO_PKG_NAME").map_or_else(|_| name.to_owned(), |it| format!("{it}: {name}"))
}

fn report(times: &str) -> String {
    let mut rows: Vec<(u64, &str, &str)> = times
        .lines()
        .filter_map(|line| {
            let mut words = line.split('\t');
            Some((words.next()?.parse().ok()?, words.next()?, words.next()?))
        })
        .collect();
    rows.sort_unstable();
    rows.reverse();
    let (all, single): (Vec<_>, Vec<_>) = rows.into_iter().partition(|it| it.2 == "all");
    let seconds = |it: u64| format!("{}.{} s", it / 1000, it % 1000 / 100);
    let mut lines = vec![format!("\nthe {SHOWN} slowest tests, while others ran beside them:")];
    let slowest = single.iter().take(SHOWN);
    lines.extend(slowest.map(|(span, program, test)| format!("{:>9}  {program}::{test}", seconds(*span))));
    lines.push(format!("the {SHOWN} slowest test programs:"));
    let slowest = all.iter().take(SHOWN);
    lines.extend(slowest.map(|(span, program, _)| format!("{:>9}  {program}", seconds(*span))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_tell_of_an_end_are_known() {
        assert_eq!(ended_in("test a::b ... ok\n"), Some("a::b"));
        assert_eq!(ended_in("test a::b ... FAILED\n"), Some("a::b"));
        assert_eq!(ended_in("test a::b - should panic ... ok\n"), Some("a::b"));
        assert_eq!(ended_in("test a::b has been running for over 60 seconds\n"), None);
        assert_eq!(ended_in("test result: ok. 3 passed; 0 failed\n"), None);
    }

    #[test]
    fn a_test_began_when_another_made_room_for_it() {
        let ended = [("a", 5), ("c", 6), ("b", 7), ("e", 8), ("d", 20)];
        let ended = ended.map(|(name, at)| (name.to_owned(), Duration::from_secs(at)));
        let took = |threads| -> Vec<(String, u64)> {
            spans(&ended, threads).into_iter().map(|(name, span)| (name, span.as_secs())).collect()
        };
        let named = |all: [(&str, u64); 5]| all.map(|(name, span)| (name.to_owned(), span)).to_vec();
        // Two at once: a and b begin; c when a ends at 5, d when c ends at 6, e when b ends at 7.
        assert_eq!(took(2), named([("a", 5), ("c", 1), ("b", 7), ("e", 1), ("d", 14)]));
        // All at once.
        assert_eq!(took(9), named([("a", 5), ("c", 6), ("b", 7), ("e", 8), ("d", 20)]));
    }

    #[test]
    fn the_slowest_come_first_and_programs_apart() {
        let text = report("900\tkit: sim\tquick\n61500\tkit: sim\tslow\n70000\tkit: sim\tall\n");
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|it| it.contains("kit")).collect();
        assert_eq!(lines, ["61.5 s  kit: sim::slow", "0.9 s  kit: sim::quick", "70.0 s  kit: sim"]);
    }
}
