//! Running the built `lockkeeper` on a throw-away store. Every wait has a generous end, so that a hang fails.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod serving;
pub(crate) mod typist;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// Nothing in these tests takes nearly as long.
pub(crate) const HANG: Duration = Duration::from_secs(120);

/// A store in a folder of its own, gone with the value.
pub(crate) struct Store {
    pub(crate) folder: TempDir,
    url: Option<String>,
}

impl Store {
    pub(crate) fn new() -> Self {
        Store { folder: TempDir::new().unwrap(), url: None }
    }

    /// A store of somebody else, such as a server.
    pub(crate) fn at(url: impl Into<String>) -> Self {
        Store { url: Some(url.into()), ..Store::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone().unwrap_or_else(|| format!("sqlite:{}", self.path("locks.db").display()))
    }

    /// `lockkeeper ARG…` on this store.
    pub(crate) fn lockkeeper<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = lockkeeper(args);
        command.env("LOCKKEEPER_URL", self.url());
        command
    }

    /// Run `lockkeeper ARG…` on this store to its end.
    pub(crate) fn output<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        output(&mut self.lockkeeper(args))
    }

    /// What `show --json NAME` says.
    pub(crate) fn shown(&self, name: &str) -> serde_json::Value {
        let shown = self.output(["show", "--json", "--", name]);
        assert_eq!(code(&shown), 0, "{shown:?}");
        serde_json::from_slice(&shown.stdout).unwrap()
    }

    /// A command that tells its fence and holds the lock until its input is closed: `run ARG… -- …`.
    pub(crate) fn holder(&self, args: &[&str]) -> Talking {
        let args = ["run"].iter().chain(args).chain(&["--", "sh", "-c", "echo $LOCKKEEPER_FENCE; exec cat"]);
        Talking::start(self.lockkeeper(args).stdin(Stdio::piped()))
    }

    /// The same, when it holds the lock.
    pub(crate) fn holding(&self, args: &[&str]) -> (Talking, u64) {
        let holder = self.holder(args);
        let fence = holder.fence();
        (holder, fence)
    }

    /// Run `true` under `run ARG…`: the exit code.
    pub(crate) fn code_of(&self, args: &[&str]) -> i32 {
        code(&self.output(["run"].iter().chain(args).chain(&["--", "true"])))
    }

    /// Nothing is held or waited for.
    pub(crate) fn expect_empty(&self) {
        assert_eq!(text(&self.output(["ls"]).stdout), "", "something is left in the store");
    }

    /// Wait until so many stand in line for a lock.
    pub(crate) fn await_waiters(&self, name: &str, count: usize) {
        until(&format!("{count} waiters"), || self.shown(name)["waiters"].as_array().unwrap().len() == count);
    }
}

/// A program that begins with no signal ignored.
///
/// Whoever runs the tests may ignore some (in the background of a script, under `nohup`), and what is ignored
/// stays so in a child.
pub(crate) fn unhardened(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM,TSTP,TTIN,TTOU,USR1,USR2", program]);
    command
}

/// `lockkeeper ARG…` with no store named.
pub(crate) fn lockkeeper<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = unhardened(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(args).env_remove("LOCKKEEPER_URL").env_remove("LOCKKEEPER_CONFIG").stdin(Stdio::null());
    command
}

/// Run to the end.
pub(crate) fn output(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    finish(child)
}

/// Wait for the end of a child, and of everybody who has its output open.
pub(crate) fn finish(child: Child) -> Output {
    let pid = child.id();
    within(&format!("process {pid} ends"), move || child.wait_with_output().unwrap())
}

/// Do something that must not take for ever.
pub(crate) fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(HANG).unwrap_or_else(|it| panic!("waiting until {what}: {it}"))
}

/// Wait for something that can only be asked for.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let tries = HANG.as_millis() / 20;
    for _ in 0..tries {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("waited in vain: {what}");
}

/// A running `lockkeeper` whose command talks to us line by line.
pub(crate) struct Talking {
    pub(crate) child: Child,
    lines: mpsc::Receiver<String>,
}

impl Talking {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines(child.stdout.take().unwrap());
        Talking { child, lines }
    }

    /// The next line of output. `None` when everybody who could write one is dead.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(HANG) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("no line came"),
        }
    }

    /// The fence that a [`Store::holder`] tells when it holds the lock.
    pub(crate) fn fence(&self) -> u64 {
        self.line().expect("it holds the lock").parse().unwrap()
    }

    /// Let a [`Store::holder`] go, and see it end well.
    pub(crate) fn let_go(mut self) {
        drop(self.child.stdin.take());
        assert_eq!(self.finish(), (0, String::new()));
    }

    pub(crate) fn expect(&self, line: &str) {
        assert_eq!(self.line().as_deref(), Some(line));
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    /// Exit code and standard error.
    pub(crate) fn finish(mut self) -> (i32, String) {
        // A command that reads its input must not end because we close it, before the signal that it was sent arrives.
        let input = self.child.stdin.take();
        let end = finish(self.child);
        drop(input);
        (code(&end), text(&end.stderr))
    }
}

fn lines(from: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            if line.map(|it| sender.send(it)).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Send a signal to a process that this test started.
pub(crate) fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Whether a process is gone or a zombie.
pub(crate) fn is_dead(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|it| it.chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

/// The exit code; `-N` if signal N ended the process.
pub(crate) fn code(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    output.status.code().unwrap_or_else(|| -output.status.signal().unwrap())
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard error of a failure, whose code must be this, and which must give a hint.
pub(crate) fn failed(output: &Output, expected: i32) -> String {
    let said = text(&output.stderr);
    assert_eq!(code(output), expected, "{said}");
    assert!(said.starts_with("lockkeeper: error: "), "{said}");
    assert!(output.stdout.is_empty(), "errors are no data");
    said
}
