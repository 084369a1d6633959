//! The witness: looks at every guard in the world after every step, and knows what must never be.

use std::ops::AddAssign;
use std::sync::{Arc, Mutex, Weak};

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Fence, Guard};

use super::executor::ProcessId;

/// Sees every guard that a user holds. Clones share what it has seen.
#[derive(Clone, Debug, Default)]
pub struct Witness(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    guards: Vec<Sighting>,
    newest: Option<Fence>,
    counts: Counts,
    verdict: Option<String>,
}

#[derive(Debug)]
struct Sighting {
    guard: Weak<Guard>,
    process: ProcessId,
    fence: Fence,
    over: bool,
}

/// What happened in a run, for whoever wonders whether anything did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Guards received, reentries not counted.
    pub granted: u64,
    /// Guards whose tenure another guard of the process had before.
    pub handed_on: u64,
    /// Guards received by an owner that already had one.
    pub reentered: u64,
    /// Guards that ended before their holder wanted.
    pub lost: u64,
    /// Requests that were dropped half-way.
    pub cancelled: u64,
    /// Requests that ended without a guard.
    pub refused: u64,
    /// Processes that died.
    pub crashed: u64,
    /// Processes that were stopped for a while.
    pub paused: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.granted += other.granted;
        self.handed_on += other.handed_on;
        self.reentered += other.reentered;
        self.lost += other.lost;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.crashed += other.crashed;
        self.paused += other.paused;
    }
}

impl Witness {
    /// A user received a guard. `prompt`: its process was not paused while it waited.
    pub fn received(&self, process: ProcessId, guard: Guard, prompt: bool) -> Arc<Guard> {
        let mut book = locked(&self.0);
        let (fence, valid) = (guard.fence(), guard.is_valid());
        book.counts.granted += 1;
        if prompt && !valid {
            book.accuse(format!("process {process} was given a guard ({fence}) that was over already"));
        }
        if let (true, Some(newest)) = (valid, book.newest) {
            if fence <= newest {
                book.accuse(format!("process {process} was given fence {fence} after {newest}"));
            }
            book.counts.handed_on += u64::from(fence.counter() == newest.counter());
        }
        if valid {
            book.newest = book.newest.max(Some(fence));
        }
        book.see(process, guard)
    }

    /// An owner received a second guard beside its first.
    pub fn reentered(&self, process: ProcessId, outer: &Guard, inner: Guard) -> Arc<Guard> {
        if inner.fence() != outer.fence() && !outer.is_valid() {
            // The outer one was over: this is a grant like any other.
            return self.received(process, inner, false);
        }
        let mut book = locked(&self.0);
        book.counts.reentered += 1;
        if inner.fence() != outer.fence() {
            let (outer, inner) = (outer.fence(), inner.fence());
            book.accuse(format!("process {process} reentered {outer} and was given {inner}"));
        }
        book.see(process, inner)
    }

    /// A guard goes to another task of its process.
    pub fn passed_on(&self, process: ProcessId, guard: Guard) -> Arc<Guard> {
        locked(&self.0).see(process, guard)
    }

    /// A process died: nobody is left to believe in its guards.
    pub fn crashed(&self, process: ProcessId) {
        let mut book = locked(&self.0);
        book.counts.crashed += 1;
        book.guards.retain(|it| it.process != process);
    }

    /// Count something.
    pub fn count(&self, what: impl FnOnce(&mut Counts)) {
        what(&mut locked(&self.0).counts);
    }

    /// Look at every guard: at most one tenure may be valid, and what is over stays over.
    pub fn look(&self) {
        let mut book = locked(&self.0);
        let mut valid: Option<(ProcessId, Fence)> = None;
        let mut accusation = None;
        book.guards.retain_mut(|it| {
            let Some(guard) = it.guard.upgrade() else {
                return false;
            };
            if !guard.is_valid() {
                it.over = true;
            } else if it.over {
                accusation =
                    Some(format!("{} of process {} was over and is valid again", it.fence, it.process));
            } else {
                let other =
                    valid.replace((it.process, it.fence)).filter(|other| *other != (it.process, it.fence));
                if let Some((process, fence)) = other {
                    let (fence_2, process_2) = (it.fence, it.process);
                    accusation = Some(format!(
                        "{fence} of process {process} and {fence_2} of {process_2} are both valid"
                    ));
                }
            }
            true
        });
        if let Some(what) = accusation {
            book.accuse(what);
        }
    }

    /// Say that something is wrong. The first word counts: what follows may only be its echo.
    pub fn accuse(&self, what: String) {
        locked(&self.0).accuse(what);
    }

    /// What is wrong, if anything.
    pub fn verdict(&self) -> Option<String> {
        locked(&self.0).verdict.clone()
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        locked(&self.0).counts
    }
}

impl Book {
    fn see(&mut self, process: ProcessId, guard: Guard) -> Arc<Guard> {
        let (fence, over, guard) = (guard.fence(), !guard.is_valid(), Arc::new(guard));
        self.guards.push(Sighting { guard: Arc::downgrade(&guard), process, fence, over });
        guard
    }

    fn accuse(&mut self, what: String) {
        self.verdict.get_or_insert(what);
    }
}
