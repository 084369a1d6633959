//! Every test program, several at once: most of them wait for servers most of the time, and one after the other the
//! machine would idle.
//!
//! Cargo builds the programs and would run them one by one. It is given a runner, which only notes what it was to run,
//! and how; then we run all of them, those that wait most first, those that need the machine for themselves last.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::shell;
use crate::times::{self, Times};

/// Programs at once beyond the number of cores. Each runs as many tests at once as there are cores, and keeps about a
/// third of two cores busy.
const MORE_THAN_CORES: usize = 1;
/// What takes longest begins first, or the rest would wait for it at the end.
const FIRST: &[&str] = &[
    "lockkeeper-zookeeper",
    "lockkeeper-etcd",
    "lockkeeper-twophase",
    "lockkeeper-sql",
    "lockkeeper-nemesis",
    "lockkeeper-redlock",
];
/// Crowds: these want the whole machine, each for itself.
const ALONE: &[&str] =
    &["lockkeeper-sql: mysql_crowds", "lockkeeper-sql: postgres_crowds", "lockkeeper-sqlite: crowd"];
/// No program takes a quarter of it, on a busy machine either. One that does not end would stop the whole command for ever.
const ENDS_WITHIN: Duration = Duration::from_secs(20 * 60);
/// How lines begin that are shown also if all is well: what a reader of the tutorial waits for.
const FIGURES: &[&str] = &["the program was built in ", "the tutorial took "];
/// Something that a test left behind may keep a pipe open; what matters was read long before.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);

/// Build the tests with cargo, run them, and tell which were slowest, also if some failed.
///
/// Only those with one of these words in their names, if there are any.
pub(crate) fn run(what: &str, args: &[&str], named: &[&str]) -> Result<Run, String> {
    let mut programs = gather(what, args)?;
    if let Some(gone) = ALONE.iter().find(|it| !programs.iter().any(|program| program.name == **it)) {
        return Err(format!(
            "{what}: there is no `{gone}`, which was to run alone; mend the list in programs.rs"
        ));
    }
    programs.retain(|it| named.is_empty() || named.iter().any(|word| it.name.contains(word)));
    if programs.is_empty() {
        return Err(format!("{what}: there is no such program"));
    }
    let count = programs.len();
    shell::say(&format!("xtask: {what}: {count} programs"));
    let (alone, mut beside): (Vec<Program>, Vec<Program>) =
        programs.into_iter().partition(|it| ALONE.contains(&it.name.as_str()));
    beside.sort_by_key(Program::rank);
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut ends = all_of(beside, cores + MORE_THAN_CORES);
    ends.extend(all_of(alone, 1));
    let mut all = Times::default();
    for (program, end) in &ends {
        if let Ok(end) = end {
            all.add(&program.name, end.total, &end.tests);
        }
    }
    shell::say(&all.report());
    ends.retain(|it| it.1.as_ref().map_or(true, |end| !end.status.success()));
    Ok(Run { count, failed: ends })
}

/// What a run of all programs came to.
pub(crate) struct Run {
    /// How many were run.
    pub(crate) count: usize,
    /// Those that did not end well.
    pub(crate) failed: Vec<(Program, Result<End, String>)>,
}

/// A test program as cargo would run it.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) words: Vec<String>,
    pub(crate) folder: PathBuf,
    pub(crate) variables: BTreeMap<String, String>,
}

/// How a program ended.
pub(crate) struct End {
    pub(crate) status: ExitStatus,
    pub(crate) printed: String,
    total: Duration,
    tests: Vec<(String, Duration)>,
}

fn file() -> PathBuf {
    shell::root().join("target/test-programs")
}

/// Let cargo build all test programs, and learn how it would run them.
fn gather(what: &str, args: &[&str]) -> Result<Vec<Program>, String> {
    // Is there if an earlier run was interrupted.
    drop(fs::remove_file(file()));
    let host = shell::output("rustc", &["--version", "--verbose"])?;
    let host = host.lines().find_map(|it| it.strip_prefix("host: ")).unwrap_or_default();
    let setting = format!("CARGO_TARGET_{}_RUNNER", host.to_uppercase().replace('-', "_"));
    // A copy: the build may write this program anew while we are called.
    let copy = shell::root().join("target/xtask-note");
    let own = std::env::current_exe().map_err(|it| it.to_string())?;
    fs::copy(own, &copy).map_err(|it| format!("{}: {it}", copy.display()))?;
    let runner = format!("{} note", copy.display());
    shell::step_with(&format!("{what}: build"), "cargo", args, &setting, &runner)?;
    fs::read_to_string(file()).unwrap_or_default().lines().map(Program::read).collect()
}

/// What cargo calls instead of a test program: note it.
pub(crate) fn note(words: &[&str]) -> Result<ExitCode, String> {
    let folder = std::env::current_dir().map_err(|it| it.to_string())?;
    // What cargo tells a test, and nothing else that may stand in somebody's environment. A test that calls cargo
    // itself wants no runner.
    let told =
        |name: &str| name.starts_with("CARGO") && !name.ends_with("_RUNNER") || name == "LD_LIBRARY_PATH";
    let variables = std::env::vars_os().map(|(name, it)| (lossy(&name), lossy(&it)));
    let variables: BTreeMap<String, String> = variables.filter(|it| told(&it.0)).collect();
    let row = json!({ "words": words, "folder": folder, "variables": variables });
    let kept = OpenOptions::new().create(true).append(true).open(file());
    kept.and_then(|mut it| writeln!(it, "{row}")).map_err(|it| it.to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn lossy(text: &std::ffi::OsStr) -> String {
    text.to_string_lossy().into_owned()
}

impl Program {
    fn read(line: &str) -> Result<Self, String> {
        let row: Value = serde_json::from_str(line).map_err(|it| format!("{}: {it}", file().display()))?;
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let words: Vec<String> = row["words"].as_array().into_iter().flatten().map(text).collect();
        let variables: BTreeMap<String, String> =
            row["variables"].as_object().into_iter().flatten().map(|it| (it.0.clone(), text(it.1))).collect();
        let program = words.first().ok_or("a program without a name")?;
        let name = name_of(program, variables.get("CARGO_PKG_NAME").map(String::as_str));
        Ok(Program { name, words, folder: text(&row["folder"]).into(), variables })
    }

    /// Its place among those that run beside others.
    fn rank(&self) -> usize {
        let package = self.name.split(':').next().unwrap_or_default();
        FIRST.iter().position(|it| *it == package).unwrap_or(FIRST.len())
    }

    /// Run it to its end. What it prints is shown afterwards in one piece: all of it if it failed, else the result.
    pub(crate) fn run(&self) -> Result<End, String> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).current_dir(&self.folder).envs(&self.variables);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = times::now();
        let mut child = command.spawn().map_err(|it| format!("cannot run {}: {it}", self.words[0]))?;
        let printed = Arc::new(Mutex::new(Vec::new()));
        let (sender, ends) = mpsc::channel();
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|it| Box::new(it) as _),
            child.stderr.take().map(|it| Box::new(it) as _),
        ];
        for pipe in pipes.into_iter().flatten() {
            let (printed, sender) = (Arc::clone(&printed), sender.clone());
            thread::spawn(move || keep(pipe, &printed, &sender));
        }
        drop(sender);
        let watch = unless_ended(child.id(), ENDS_WITHIN);
        let status = child.wait().map_err(|it| it.to_string())?;
        if watch.killed_it() {
            let words =
                format!("\nIt did not end within {} minutes, and was killed.\n", ENDS_WITHIN.as_secs() / 60);
            locked(&printed).extend(words.as_bytes());
        }
        let total = times::now() - start;
        let mut ended = Vec::new();
        while let Ok((name, at)) = ends.recv_timeout(LAST_WORDS_MAX) {
            ended.push((name, at - start));
        }
        let printed = String::from_utf8_lossy(&locked(&printed)).into_owned();
        let shown = if status.success() { in_short(&printed) } else { printed.trim_end().to_owned() };
        shell::say(&format!("{}: {shown}", self.name));
        Ok(End { status, printed, total, tests: times::spans(&ended, threads()) })
    }
}

/// Whoever watches a program that may never end.
struct Watch {
    ended: mpsc::Sender<()>,
    thread: thread::JoinHandle<bool>,
}

/// Kill this process if it lives so long.
fn unless_ended(pid: u32, within: Duration) -> Watch {
    let (ended, told) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let hangs = told.recv_timeout(within) == Err(mpsc::RecvTimeoutError::Timeout);
        if hangs {
            drop(Command::new("kill").args(["-KILL", &pid.to_string()]).status());
        }
        hangs
    });
    Watch { ended, thread }
}

impl Watch {
    /// It has ended. Whether it had to be killed.
    fn killed_it(self) -> bool {
        drop(self.ended);
        self.thread.join().unwrap_or(false)
    }
}

/// What is shown of a program that ended well: its figures, if it measured some, and the result.
fn in_short(printed: &str) -> String {
    // The harness may begin a line before the test goes on with it.
    let figure = |line: &str| FIGURES.iter().find_map(|it| Some(line[line.find(it)?..].to_owned()));
    let mut shown: Vec<String> = printed.lines().filter_map(figure).collect();
    let result = printed.lines().rfind(|it| it.starts_with("test result: ")).unwrap_or("no result");
    shown.push(result.to_owned());
    shown.join("; ")
}

/// Keep what a program prints, and tell of every test that ended.
fn keep(pipe: impl Read, printed: &Mutex<Vec<u8>>, ends: &mpsc::Sender<(String, Instant)>) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
        let at = times::now();
        if let Some(name) = times::ended_in(&String::from_utf8_lossy(&line)) {
            // Whoever listened has gone: it had its time.
            drop(ends.send((name.to_owned(), at)));
        }
        locked(printed).append(&mut line);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many tests of a program run at once, by its own rule.
fn threads() -> usize {
    let told = std::env::var("RUST_TEST_THREADS").ok().and_then(|it| it.parse().ok());
    told.unwrap_or_else(|| thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// Run all, so many at once.
fn all_of(programs: Vec<Program>, at_once: usize) -> Vec<(Program, Result<End, String>)> {
    let waiting = Mutex::new(VecDeque::from(programs));
    let ends = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(next) = locked(&waiting).pop_front() else { return };
                    let end = next.run();
                    locked(&ends).push((next, end));
                }
            });
        }
    });
    ends.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// `sim` of `target/debug/deps/sim-0123456789abcdef`, with the package before it.
fn name_of(program: &str, package: Option<&str>) -> String {
    let stem = Path::new(program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = stem.rsplit_once('-').map_or(stem.as_str(), |it| it.0);
    package.map_or_else(|| name.to_owned(), |it| format!("{it}: {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(script: &str) -> Program {
        Program {
            name: "kit: script".to_owned(),
            words: ["sh", "-c", script].map(str::to_owned).to_vec(),
            folder: std::env::temp_dir(),
            variables: BTreeMap::from([("CARGO_PKG_NAME".to_owned(), "kit".to_owned())]),
        }
    }

    #[test]
    fn a_program_runs_as_it_was_noted_and_its_end_is_told() {
        let row = json!({
            "words": ["/x/deps/real-0123abcd", "--exact"], "folder": "/x/kit", "variables": { "CARGO_PKG_NAME": "kit" },
        });
        let noted = Program::read(&row.to_string()).unwrap();
        assert_eq!((noted.name.as_str(), noted.folder.as_path()), ("kit: real", Path::new("/x/kit")));
        let end = program("echo test a::b ... ok; test $CARGO_PKG_NAME = kit").run().unwrap();
        assert!(end.status.success() && end.tests.len() == 1 && end.tests[0].0 == "a::b");
        assert_eq!(program("exit 101").run().unwrap().status.code(), Some(101));
    }

    #[test]
    fn what_does_not_end_is_killed_and_told() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let watch = unless_ended(child.id(), Duration::from_millis(1));
        assert!(!child.wait().unwrap().success());
        assert!(watch.killed_it());
        let mut child = Command::new("true").spawn().unwrap();
        let watch = unless_ended(child.id(), ENDS_WITHIN);
        assert!(child.wait().unwrap().success());
        assert!(!watch.killed_it());
    }

    #[test]
    fn what_a_program_measured_is_shown_also_if_all_is_well() {
        let printed = "running 1 test\ntest a ... the program was built in 0.4 minutes\nthe tutorial took 0.6 minutes without \
                       the reading\nok\n\ntest result: ok. 1 passed\n";
        assert_eq!(
            in_short(printed),
            "the program was built in 0.4 minutes; the tutorial took 0.6 minutes without the reading; test result: ok. 1 passed"
        );
        assert_eq!(in_short("killed\n"), "no result");
    }

    #[test]
    fn all_are_run_and_what_cannot_be_run_is_an_error_of_its_own() {
        let mut missing = program("");
        missing.words = vec!["/nowhere/at/all".to_owned()];
        let ends = all_of(vec![program("true"), missing, program("false"), program("true")], 3);
        let good = ends.iter().filter(|it| it.1.as_ref().is_ok_and(|it| it.status.success())).count();
        let not_run = ends.iter().filter(|it| it.1.is_err()).count();
        assert_eq!((ends.len(), good, not_run), (4, 2, 1));
    }

    /// Each waits for the other: one after the other they would wait for ever.
    #[test]
    fn programs_run_side_by_side() {
        let folder = std::env::temp_dir().join(format!("lockkeeper-xtask-side-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let meet = |mine: &str, other: &str| {
            let mut one = program(&format!("touch {mine}; while ! test -e {other}; do sleep 0.01; done"));
            one.folder.clone_from(&folder);
            one
        };
        let ends = all_of(vec![meet("a", "b"), meet("b", "a")], 2);
        fs::remove_dir_all(&folder).unwrap();
        assert!(ends.iter().all(|it| it.1.as_ref().is_ok_and(|it| it.status.success())));
    }

    #[test]
    fn what_waits_most_begins_first() {
        let named = |name: &str| Program { name: name.to_owned(), ..program("") };
        let mut all =
            ["lockkeeper-core: locking", "lockkeeper-sql: tls", "lockkeeper-zookeeper: real"].map(named);
        all.sort_by_key(Program::rank);
        assert_eq!(all[0].name, "lockkeeper-zookeeper: real");
        assert_eq!(all[2].name, "lockkeeper-core: locking");
    }
}
