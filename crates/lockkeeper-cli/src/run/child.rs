//! The command as a child process: started stopped, in a process group of its own, tied to our life.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command};
use std::time::Duration;

use lockkeeper::spi::Clock;
use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions};

use crate::args::{Run, Wanted};
use crate::exit::{self, Failure, Result};
use crate::run::held::Held;
use crate::run::tree::{self, Tree};
use crate::{output, text};

/// The hidden first argument that makes this program replace itself by the command.
pub(crate) const EXEC: &str = "__exec";

/// A command line that starts this very program again, even if its file was replaced meanwhile.
pub(crate) fn this_program(role: &str) -> Result<Command> {
    let path = if cfg!(target_os = "linux") {
        "/proc/self/exe".into()
    } else {
        std::env::current_exe().map_err(|it| Failure::system("this program's own file is not found", &it))?
    };
    let mut command = Command::new(path);
    command.arg0("lockkeeper").arg(role);
    Ok(command)
}

/// What the command's leader is up to.
pub(crate) enum State {
    Running,
    /// It stands still because of this signal.
    Stopped(i32),
    /// It ended and waits to be reaped.
    Ended,
}

/// The command, its process group, and whoever else comes from it.
pub(crate) struct Job {
    child: Child,
    group: Pid,
    tree: Tree,
}

impl Job {
    /// Start the command as far as just before its first instruction. [`Job::go`] lets it run: by then the
    /// warden knows it, so that there is no moment in which it could escape our death.
    pub(crate) fn prepare(args: &Run, held: &Held, wanted: &[Wanted]) -> Result<Self> {
        let tree = Tree::plant().map_err(|it| Failure::system("orphans cannot be adopted", &it))?;
        let mut command = this_program(EXEC)?;
        command
            .arg(std::process::id().to_string())
            .args(args.command())
            .envs(surroundings(held, wanted))
            .env(tree::MARK, &tree.mark)
            .process_group(0);
        let spawned = command.spawn().map_err(|it| Failure::system("no process can be started", &it));
        let started = spawned.and_then(|child| Ok((pid(child.id())?, child)));
        let (group, child) = started.inspect_err(|_| tree.fell())?;
        let mut job = Job { child, group, tree };
        match job.wait_until_prepared() {
            Ok(()) => {
                job.enter_cgroup();
                Ok(job)
            }
            Err(failure) => {
                job.send(Signal::KILL);
                job.let_go();
                Err(failure)
            }
        }
    }

    /// While it stands still nobody comes from it who would not be in the group.
    fn enter_cgroup(&mut self) {
        let refused = self.tree.cgroup.as_ref().is_some_and(|it| it.add(self.group).is_err());
        if refused && let Some(cgroup) = self.tree.cgroup.take() {
            cgroup.remove();
        }
    }

    /// Wait until it stands still, or has failed to.
    fn wait_until_prepared(&self) -> Result<()> {
        let events = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        loop {
            match process::waitid(WaitId::Pid(self.group), events) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::system("the new process cannot be watched", &error)),
                // Asking for the state takes note of this stop, so that nobody takes it for a Ctrl-Z.
                Ok(_) => return self.state().map(drop),
            }
        }
    }

    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Let it run, for the first time or after it was stopped.
    pub(crate) fn go(&self) {
        self.send(Signal::CONT);
    }

    /// Send a signal to the whole group. It is there until its leader is reaped.
    pub(crate) fn send(&self, signal: Signal) {
        let _ = process::kill_process_group(self.group, signal);
    }

    /// Send a signal to everybody who comes from the command, in its group or not.
    pub(crate) fn send_to_all(&self, signal: Signal, warden: Option<Pid>) {
        self.send(signal);
        self.tree.send(signal, warden.as_slice());
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Whoever of the command lost its parent is our child now. Its end must be noted, or it stays a zombie.
    pub(crate) fn reap_adopted(&self, warden: Option<Pid>) {
        let own: Vec<Pid> = warden.into_iter().chain([self.group]).collect();
        self.tree.reap_adopted(&own);
    }

    /// What the leader is up to. A stop is told once; the end is told until the leader is reaped.
    pub(crate) fn state(&self) -> Result<State> {
        let look = |events| process::waitid(WaitId::Pid(self.group), events | WaitIdOptions::NOHANG);
        let failed = |it| Failure::system("the command cannot be watched", &it);
        if look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).map_err(failed)?.is_some() {
            return Ok(State::Ended);
        }
        match look(WaitIdOptions::STOPPED) {
            Ok(stopped) => {
                Ok(stopped.and_then(|it| it.stopping_signal()).map_or(State::Running, State::Stopped))
            }
            // It ended between the two questions: a child that has ended cannot stop.
            Err(rustix::io::Errno::CHILD) => Ok(State::Ended),
            Err(error) => Err(failed(error)),
        }
    }

    /// The exit code of the leader, which has ended.
    pub(crate) fn reap(&mut self) -> Result<u8> {
        let status = self.child.wait().map_err(|it| Failure::system("the command's end is not told", &it))?;
        let code = status.code().map(|it| u8::try_from(it & 0xff).unwrap_or(u8::MAX));
        Ok(code.unwrap_or_else(|| exit::of_signal(status.signal().unwrap_or(0))))
    }

    /// After a kill: wait until nobody is left, and kill whoever was started meanwhile. A process that hangs in the
    /// kernel dies when it comes out: so not for ever.
    pub(crate) async fn see_off(&mut self, warden: Option<Pid>) {
        let clock = Clock::boot();
        let until = clock.now().after(SEE_OFF_MAX);
        let mut reaped = false;
        while clock.now() < until {
            reaped = reaped || matches!(self.child.try_wait(), Ok(Some(_)));
            self.reap_adopted(warden);
            let left = self.tree.living(warden.as_slice());
            if reaped && left.is_empty() && process::test_kill_process_group(self.group).is_err() {
                return;
            }
            self.tree.send(Signal::KILL, warden.as_slice());
            clock.sleep(Duration::from_millis(5)).await;
        }
        for left in self.tree.living(warden.as_slice()) {
            let left = left.as_raw_pid();
            output::say(&format!("warning: process {left} was killed but has not gone yet"));
        }
    }

    /// Nobody watches any more: whoever lives on is left alone.
    pub(crate) fn let_go(self) {
        self.tree.fell();
    }
}

/// What the command is told about its locks.
fn surroundings(held: &Held, wanted: &[Wanted]) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    if let Some(Wanted { key, .. }) = wanted.first() {
        told.extend([("LOCKKEEPER_NAME", key.to_string()), ("LOCKKEEPER_FENCE", held.fence(key))]);
    }
    if wanted.len() > 1 {
        // No name has a line break in it.
        let lines = wanted.iter().map(|it| format!("{} {}\n", held.fence(&it.key), it.key));
        told.push(("LOCKKEEPER_FENCES", lines.collect()));
    }
    told
}

const SEE_OFF_MAX: Duration = Duration::from_secs(2);

pub(crate) fn pid(number: u32) -> Result<Pid> {
    let raw = i32::try_from(number).ok().and_then(Pid::from_raw);
    raw.ok_or_else(|| Failure::new(exit::SYSTEM, format!("{number} is no process id")))
}

// ===== The other side of the fork: `lockkeeper __exec PARENT CMD ARG…` =====

/// Tie our life to our parent's, wait to be told to go on, and become the command.
///
/// This happens in a program of our own because nothing but simple calls may be made between fork and exec.
pub(crate) fn become_command(mut args: impl Iterator<Item = OsString>) -> u8 {
    let parent = args.next().and_then(|it| it.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let (Some(parent), Some(program)) = (parent, args.next()) else {
        return exit::USAGE;
    };
    #[cfg(target_os = "linux")]
    if process::set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return exit::SYSTEM;
    }
    // The parent may have died before the line above took effect; its children have another parent then.
    let orphaned = || process::getppid() != Some(parent);
    if orphaned() {
        return exit::SYSTEM;
    }
    // Our parent sees that we stand still, tells the warden, and lets us go on.
    if process::kill_process(process::getpid(), Signal::STOP).is_err() || orphaned() {
        return exit::SYSTEM;
    }
    let error = Command::new(&program).args(args).exec();
    let name = text::quoted(&program.to_string_lossy());
    let (code, text) = match error.kind() {
        std::io::ErrorKind::NotFound => (exit::NOT_FOUND, format!("there is no command {name}: {error}")),
        _ => (exit::NOT_EXECUTABLE, format!("the command {name} cannot be executed: {error}")),
    };
    output::say_raw(&Failure::new(code, text).lines());
    code
}
