//! `lockkeeper run`: take the lock, run the command, watch both, give the lock back.
//!
//! ```text
//!   lockkeeper run ──┬── the command, in a process group of its own   (started through `__exec`)
//!     │ watch        ├── whoever comes from it and lost its parent    (`tree`)
//!     │              └── the warden, in a session of its own          (`__warden`)
//!     │
//!     ├─ the guard's deadline comes near ─▶ TERM, then KILL of all of them, before the deadline
//!     ├─ lockkeeper is stopped or starved ─▶ the warden kills all of them, before the deadline
//!     └─ lockkeeper is killed ─▶ the kernel kills the command, the warden all the others
//! ```

mod acquire;
mod cgroup;
mod child;
mod elect;
mod held;
mod once;
mod plan;
mod signals;
mod terminal;
mod tree;
mod warden;
mod watch;

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper::observe::{Event, Observer};
use lockkeeper::spi::{Clock, DynInspect, Reach};
use lockkeeper::{Error, Locker, LostReason};
use rustix::process::Signal;

use crate::args::{Run, Wanted};
use crate::exit::{self, Failure, Result};
use crate::output;
use crate::store::Target;

use acquire::Acquired;
use child::Job;
use held::Held;
use signals::Signals;
use terminal::Terminal;
use warden::Warden;
use watch::Watch;

pub(crate) use elect::elect;
pub(crate) use once::once;

/// If the arguments call for one of the helper processes: be it.
pub(crate) fn helper(mut args: impl Iterator<Item = OsString>) -> Option<u8> {
    let name = args.next()?;
    if name == child::EXEC {
        return Some(child::become_command(args));
    }
    (name == warden::WARDEN).then(|| warden::stand_guard(args))
}

/// Where a command is run: the store, and what we hear meanwhile.
struct Scene<'a> {
    target: &'a Target,
    locker: Locker,
    inspect: Arc<dyn DynInspect>,
    fault: LastFault,
    signals: Signals,
}

impl<'a> Scene<'a> {
    async fn open(target: &'a Target) -> Result<Self> {
        let store = target.open().await?;
        let fault = LastFault::default();
        let locker = store.locker.observer(fault.clone()).build();
        if locker.profile().reach == Reach::Process {
            output::say("this store is seen by this process alone: nobody else is kept out");
        }
        Ok(Scene { target, locker, inspect: store.inspect, fault, signals: Signals::listen()? })
    }

    async fn acquire(&mut self, wanted: &[Wanted], args: &Run) -> Result<Acquired> {
        let acquired = acquire::acquire(&self.locker, &*self.inspect, wanted, args, &mut self.signals).await;
        acquired.map_err(|it| self.target.failure(it))
    }
}

/// Run a command under a lock.
pub(crate) async fn run(target: &Target, args: &Run) -> Result<u8> {
    let wanted = args.wanted()?;
    let mut scene = Scene::open(target).await?;
    let acquired = scene.acquire(&wanted, args).await.map_err(|failure| match failure.code {
        exit::BUSY => Failure { code: args.conflict_exit_code, ..failure },
        _ => failure,
    });
    let held = match acquired? {
        Acquired::Held(held) => held,
        Acquired::Interrupted(signal) => return Ok(exit::of_signal(signal)),
    };
    let ended = hold(&held, &wanted, args, &scene.fault, &mut scene.signals).await;
    // Also when the command could not be started: nobody shall wait for a lock that is not used.
    let released = held.release().await;
    finish(&wanted, ended?, released, &scene.fault)
}

/// How the command ended.
enum Ending {
    /// By itself, with this code.
    Ended(u8),
    /// It was stopped, because the lock was lost or would have been.
    Stopped(LostReason),
}

/// Start the command and watch it to its end.
async fn hold(
    held: &Held,
    wanted: &[Wanted],
    args: &Run,
    fault: &LastFault,
    signals: &mut Signals,
) -> Result<Ending> {
    let acquired_at = Clock::boot().now();
    let mut terminal = Terminal::find();
    let (mut job, mut warden) = (Job::prepare(args, held, wanted)?, None);
    let ended = async {
        let warden = warden.insert(Warden::start(job.group(), job.tree())?);
        if let Some(terminal) = &mut terminal {
            terminal.give_at_start(job.group());
        }
        let watch = Watch::new(held, args, fault, &job, warden, terminal.as_mut());
        watch.of(which(wanted)).held_since(acquired_at).until_the_end(signals).await
    }
    .await;
    let warden_pid = warden.as_ref().and_then(Warden::pid);
    if !matches!(ended, Ok(None)) {
        // The leader may have gone; whoever else has not is out of time.
        job.send_to_all(Signal::KILL, warden_pid);
    }
    // In this order: the warden must not outlive the group it may kill, and the group keeps its number
    // until its leader is reaped.
    if let Some(warden) = &mut warden {
        warden.dismiss();
    }
    if let Some(terminal) = &mut terminal {
        terminal.take_back();
    }
    let ended = match ended {
        Ok(None) => job.reap().map(Ending::Ended),
        Ok(Some(reason)) => {
            job.see_off(warden_pid).await;
            Ok(Ending::Stopped(reason))
        }
        Err(failure) => {
            job.see_off(warden_pid).await;
            Err(failure)
        }
    };
    job.let_go();
    if let Some(warden) = warden {
        warden.reap();
    }
    ended
}

/// What it all comes to.
fn finish(
    wanted: &[Wanted],
    ended: Ending,
    released: lockkeeper::Result<()>,
    fault: &LastFault,
) -> Result<u8> {
    let lock = which(wanted);
    match (ended, released) {
        (Ending::Stopped(reason), _) => {
            let text = format!("{lock} was lost: {}; the command was stopped", fault.explain(reason));
            Err(Failure::new(exit::LOST, text).or_hint(|| exit::after_loss(reason).into()))
        }
        (Ending::Ended(_), Err(Error::Lost { reason, .. })) => {
            let text = format!(
                "{lock} was lost: {}; the command ended, but perhaps not under the lock",
                fault.explain(reason)
            );
            Err(Failure::new(exit::LOST, text).or_hint(|| exit::after_loss(reason).into()))
        }
        (Ending::Ended(code), Ok(())) => Ok(code),
        (Ending::Ended(code), Err(error)) => {
            let names = held::names(wanted.iter().map(|it| &it.key));
            output::say(&format!(
                "warning: the release of {names} was not confirmed: {error}; the store frees it when its ttl ends"
            ));
            Ok(code)
        }
    }
}

/// What was lost, or ends.
fn which(wanted: &[Wanted]) -> String {
    let names = held::names(wanted.iter().map(|it| &it.key));
    if wanted.len() == 1 { format!("the lock {names}") } else { format!("one of the locks {names}") }
}

/// Remembers why renewals fail, for the message if they go on failing.
#[derive(Clone, Debug, Default)]
struct LastFault(Arc<Mutex<Option<String>>>);

impl Observer for LastFault {
    fn observe(&self, event: &Event<'_>) {
        let now = match event {
            Event::Faulted { fault, .. } => Some(fault.to_string()),
            Event::Granted { .. } | Event::Renewed { .. } => None,
            _ => return,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

impl LastFault {
    /// The reason, and what stands behind it if that is known.
    fn explain(&self, reason: LostReason) -> String {
        let fault = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*fault {
            Some(fault) if reason == LostReason::Expired => format!("{reason} ({fault})"),
            _ => reason.to_string(),
        }
    }
}
