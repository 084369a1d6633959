//! The warden: a small process that kills the command and all that comes from it when lockkeeper cannot.
//!
//! Lockkeeper tells it through a pipe until when they may live, a moment on the boot clock that both
//! share. If that moment passes (lockkeeper is stopped, starved or hangs) or the pipe closes without a
//! goodbye (lockkeeper is gone), they are killed. The warden lives in a session of its own, where no
//! Ctrl-C and no Ctrl-Z reaches it.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use lockkeeper::spi::{Clock, Moment};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{self, Pid, Signal};

use crate::exit::{self, Failure, Result};
use crate::run::cgroup::Cgroup;
use crate::run::child;
use crate::run::tree::Tree;

/// The hidden first argument that makes this program a warden.
pub(crate) const WARDEN: &str = "__warden";

/// What is sent instead of a moment to say goodbye.
const GOODBYE: Moment = Moment::from_nanos(0);

/// The warden as lockkeeper sees it.
pub(crate) struct Warden {
    group: Pid,
    tree: Tree,
    line: ChildStdin,
    told: Moment,
    /// Closed when it ends.
    life: ChildStdout,
    process: Child,
}

impl Warden {
    /// Start a warden for a group and its tree, and wait until it stands.
    pub(crate) fn start(group: Pid, tree: &Tree) -> Result<Self> {
        let failed = |it: io::Error| Failure::system("the warden of the command cannot be started", &it);
        let mut process = child::this_program(WARDEN)?
            .arg(group.as_raw_pid().to_string())
            .arg(tree.root.as_raw_pid().to_string())
            .arg(&tree.mark)
            .args(tree.cgroup.iter().map(Cgroup::path))
            // The store's URL may hold a password; the warden has no use for it.
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (Some(line), Some(mut life)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(failed(io::Error::other("it has no pipes")));
        };
        life.read_exact(&mut [0]).map_err(failed)?;
        // A warden that does not read must not hold us up.
        rustix::io::ioctl_fionbio(&line, true).map_err(|it| failed(it.into()))?;
        Ok(Warden { group, tree: tree.clone(), line, told: GOODBYE, life, process })
    }

    /// Which process it is.
    pub(crate) fn pid(&self) -> Option<Pid> {
        child::pid(self.process.id()).ok()
    }

    /// Tell it until when the group may live. If somebody killed it, start another one.
    pub(crate) fn tell(&mut self, until: Moment) -> Result<()> {
        if until == self.told {
            return Ok(());
        }
        self.told = until;
        match self.send(until) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                let _ = self.process.try_wait();
                *self = Warden::start(self.group, &self.tree.clone())?;
                self.told = until;
                let _ = self.send(until);
            }
            // A full pipe: it has stopped reading and cannot be helped.
            _ => {}
        }
        Ok(())
    }

    /// Tell it that it is no longer needed.
    pub(crate) fn dismiss(&mut self) {
        let _ = self.send(GOODBYE);
    }

    /// See it go, so that no zombie is left where nobody reaps them. One that somebody stopped is left behind.
    pub(crate) fn reap(mut self) {
        if let Ok(true) = readable(&self.life, NAP_MAX) {
            let _ = self.process.wait();
        }
    }

    fn send(&mut self, moment: Moment) -> io::Result<()> {
        // Eight bytes at once: a pipe never splits so few.
        self.line.write_all(&moment.as_nanos().to_le_bytes())
    }
}

// ===== The other side of the pipe: `lockkeeper __warden GROUP LOCKKEEPER MARK [CGROUP]` =====

/// Be a warden until dismissed.
pub(crate) fn stand_guard(mut args: impl Iterator<Item = OsString>) -> u8 {
    let mut pid = || args.next().and_then(|it| it.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let (Some(group), Some(root)) = (pid(), pid()) else { return exit::USAGE };
    let Some(mark) = args.next().and_then(|it| it.into_string().ok()) else { return exit::USAGE };
    let cgroup = args.next().map(|it| Cgroup::at(it.into()));
    let tree = Tree { root, mark, cgroup };
    let _ = process::setsid();
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"lockkeeper-ward");
    // If lockkeeper is gone by now this fails, and there is somebody to be killed.
    let mut ready = io::stdout().lock();
    let _ = ready.write_all(b"!").and_then(|()| ready.flush());
    if must_kill() {
        let _ = process::kill_process_group(group, Signal::KILL);
        kill_all(&tree);
    }
    0
}

/// Kill until nobody is left: whoever is about to be killed may start another one meanwhile.
fn kill_all(tree: &Tree) {
    let clock = Clock::boot();
    let until = clock.now().after(KILL_MAX);
    let us = process::getpid();
    while clock.now() < until {
        tree.send(Signal::KILL, &[us]);
        if tree.living(&[us]).is_empty() {
            break;
        }
        nap(Duration::from_millis(5));
    }
    // If lockkeeper lives, it removes the group itself.
    if process::getppid() != Some(tree.root) {
        tree.fell();
    }
}

/// A killed process that hangs in the kernel is not waited for.
const KILL_MAX: Duration = Duration::from_secs(5);

/// Wait for the goodbye (`false`), the end of the time, or the end of lockkeeper (`true`).
fn must_kill() -> bool {
    let (clock, mut until) = (Clock::boot(), Moment::NEVER);
    loop {
        let now = clock.now();
        if until <= now {
            return true;
        }
        match next_word(until - now) {
            Ok(None) => {}
            Ok(Some(GOODBYE)) => return false,
            Ok(Some(moment)) => until = moment,
            Err(_) => return true,
        }
    }
}

/// `poll` counts on a clock that stops in suspend; short naps keep us close to the boot clock.
const NAP_MAX: Duration = Duration::from_secs(1);

/// What lockkeeper says within this time. It is read without a buffer: what lies in one would not wake `poll`.
fn next_word(span: Duration) -> rustix::io::Result<Option<Moment>> {
    let (stdin, mut word) = (io::stdin(), [0; 8]);
    if !readable(&stdin, span.min(NAP_MAX))? {
        return Ok(None);
    }
    match rustix::io::read(&stdin, &mut word)? {
        8 => Ok(Some(Moment::from_nanos(u64::from_le_bytes(word)))),
        _ => Err(rustix::io::Errno::PIPE),
    }
}

/// Wait for nothing but time.
fn nap(span: Duration) {
    let _ = rustix::event::poll(&mut [], Some(&timeout(span)));
}

fn timeout(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos().into(),
    }
}

/// Whether there is something to read, or the end of it, within this time.
fn readable(from: impl AsFd, span: Duration) -> rustix::io::Result<bool> {
    match rustix::event::poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&timeout(span))) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        answer => answer.map(|it| it > 0),
    }
}
