//! The witness: looks at every guard in the world after every step, and knows what must never be.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::{Arc, Mutex, Weak};

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Fence, Key, Leadership, Load, MultiGuard, SharedFence};

use super::executor::ProcessId;
use super::held::Held;
use super::meetings::ROLE;

/// Sees every guard that a user holds. Clones share what it has seen.
#[derive(Clone, Debug, Default)]
pub struct Witness(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    guards: Vec<Sighting>,
    newest: HashMap<Key, Newest>,
    counts: Counts,
    verdict: Option<String>,
}

/// The largest fences of one key that a user was given.
#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    alone: u64,
    shared: u64,
}

impl Newest {
    /// What a fence must be above: those who share come after everybody who was alone, and in no order among themselves.
    fn below(self, load: Load) -> u64 {
        if load.is_exclusive() { self.alone.max(self.shared) } else { self.alone }
    }

    fn see(&mut self, load: Load, fence: u64) {
        let newest = if load.is_exclusive() { &mut self.alone } else { &mut self.shared };
        *newest = (*newest).max(fence);
    }
}

#[derive(Debug)]
struct Sighting {
    guard: Weak<dyn Lives>,
    key: Key,
    load: Load,
    process: ProcessId,
    fence: u64,
    over: bool,
}

/// A guard, as far as the witness looks at it all the time.
trait Lives: std::fmt::Debug + Send + Sync {
    fn lives(&self) -> bool;
}

impl Lives for Held {
    fn lives(&self) -> bool {
        self.is_valid()
    }
}

impl Lives for Leadership {
    fn lives(&self) -> bool {
        self.is_valid()
    }
}

impl Lives for MultiGuard {
    fn lives(&self) -> bool {
        self.is_valid()
    }
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
    /// Guards received while others of the same key were valid.
    pub shared: u64,
    /// Guards of several keys.
    pub together: u64,
    /// Guards of one who wrote that became those of a reader.
    pub downgraded: u64,
    /// Jobs that ran to their end.
    pub ran: u64,
    /// Times that somebody was told that a latch is open.
    pub opened: u64,
    /// Times that somebody was told that a round at a barrier opened.
    pub met: u64,
    /// Roles received.
    pub led: u64,
    /// Leaders seen.
    pub seen: u64,
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
        self.shared += other.shared;
        self.together += other.together;
        self.downgraded += other.downgraded;
        self.ran += other.ran;
        self.opened += other.opened;
        self.met += other.met;
        self.led += other.led;
        self.seen += other.seen;
        self.lost += other.lost;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.crashed += other.crashed;
        self.paused += other.paused;
    }
}

impl Witness {
    /// A user received a guard. `prompt`: its process was not paused while it waited.
    pub fn received(&self, process: ProcessId, guard: impl Into<Held>, prompt: bool) -> Arc<Held> {
        let guard = guard.into();
        let mut book = locked(&self.0);
        let (fence, load, valid) = (guard.fence(), guard.load(), guard.is_valid());
        book.counts.granted += 1;
        if prompt && !valid {
            book.accuse(format!("process {process} was given a guard ({fence}) that was over already"));
        }
        if valid {
            let newest = book.newest.entry(guard.key().clone()).or_default();
            let (before, below) = (*newest, newest.below(load));
            newest.see(load, fence);
            if fence <= below {
                book.accuse(format!("process {process} was given fence {fence} after {below}"));
            }
            let counter = |it: u64| Fence::from_u64(it).counter();
            let same = 0 < before.alone && counter(fence) == counter(before.alone.max(before.shared));
            book.counts.handed_on += u64::from(same);
            book.counts.shared += u64::from(book.is_beside_another(&guard));
        }
        book.see(process, guard)
    }

    /// A user received all of several keys.
    pub fn received_together(
        &self,
        process: ProcessId,
        guard: MultiGuard,
        keys: &[(Key, Load)],
    ) -> Arc<MultiGuard> {
        let (guard, mut book) = (Arc::new(guard), locked(&self.0));
        book.counts.together += 1;
        let valid = guard.is_valid();
        for (key, load) in keys {
            let alone = guard.fence(key.as_str()).map(Fence::get);
            let Some(fence) = alone.or_else(|| guard.shared_fence(key.as_str()).map(SharedFence::get)) else {
                book.accuse(format!("process {process} was given several keys, and {key} is not among them"));
                continue;
            };
            let newest = book.newest.entry(key.clone()).or_default();
            let below = newest.below(*load);
            if valid {
                newest.see(*load, fence);
            }
            if valid && fence <= below {
                book.accuse(format!("process {process} was given fence {fence} of {key} after {below}"));
            }
            let (lives, over): (Weak<dyn Lives>, bool) =
                (Arc::downgrade(&(guard.clone() as Arc<dyn Lives>)), !valid);
            book.guards.push(Sighting { guard: lives, key: key.clone(), load: *load, process, fence, over });
        }
        guard
    }

    /// A user received the role.
    pub fn leads(&self, process: ProcessId, role: Leadership) -> Arc<Leadership> {
        let (role, mut book) = (Arc::new(role), locked(&self.0));
        book.counts.led += 1;
        let (fence, over) = (role.term().get(), !role.is_valid());
        let Ok(key) = Key::new(ROLE) else { return role };
        let newest = book.newest.entry(key.clone()).or_default();
        let below = newest.below(Load::MUTEX);
        if !over {
            newest.see(Load::MUTEX, fence);
        }
        if !over && fence <= below {
            book.accuse(format!("process {process} leads in term {fence} after {below}"));
        }
        let guard: Weak<dyn Lives> = Arc::downgrade(&(role.clone() as Arc<dyn Lives>));
        book.guards.push(Sighting { guard, key, load: Load::MUTEX, process, fence, over });
        role
    }

    /// An owner received a second guard beside its first.
    pub fn reentered(&self, process: ProcessId, outer: &Held, inner: impl Into<Held>) -> Arc<Held> {
        let inner = inner.into();
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

    /// One who wrote reads now, or still writes where the store cannot do that.
    pub fn downgraded(&self, process: ProcessId, guard: Held) -> Arc<Held> {
        let mut book = locked(&self.0);
        if !guard.load().is_exclusive() {
            book.counts.downgraded += 1;
            let (fence, newest) = (guard.fence(), book.newest.entry(guard.key().clone()).or_default());
            let below = newest.alone;
            newest.see(guard.load(), fence);
            if guard.is_valid() && fence <= below {
                book.accuse(format!(
                    "process {process} reads with fence {fence} what was written with {below}"
                ));
            }
        }
        book.see(process, guard)
    }

    /// A guard goes to another task of its process.
    pub fn passed_on(&self, process: ProcessId, guard: Held) -> Arc<Held> {
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

    /// Look at every guard: what is valid at once fits together, and what is over stays over.
    pub fn look(&self) {
        let mut book = locked(&self.0);
        let mut rooms: HashMap<Key, Vec<Inside>> = HashMap::new();
        let mut accusation = None;
        book.guards.retain_mut(|it| {
            let Some(guard) = it.guard.upgrade() else {
                return false;
            };
            if !guard.lives() {
                it.over = true;
            } else if it.over {
                accusation =
                    Some(format!("{} of process {} was over and is valid again", it.fence, it.process));
            } else {
                let inside = Inside { process: it.process, fence: it.fence, load: it.load };
                let room = rooms.entry(it.key.clone()).or_default();
                // Guards of one tenure weigh as much as one: those of an owner, or readers of a process.
                if !room.iter().any(|it| (it.process, it.fence) == (inside.process, inside.fence)) {
                    room.push(inside);
                }
            }
            true
        });
        accusation = accusation.or_else(|| rooms.values().find_map(|it| too_many(it)));
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
    fn see(&mut self, process: ProcessId, guard: Held) -> Arc<Held> {
        let (fence, over, guard) = (guard.fence(), !guard.is_valid(), Arc::new(guard));
        let (key, load) = (guard.key().clone(), guard.load());
        let lives: Weak<dyn Lives> = Arc::downgrade(&(guard.clone() as Arc<dyn Lives>));
        self.guards.push(Sighting { guard: lives, key, load, process, fence, over });
        guard
    }

    fn is_beside_another(&self, guard: &Held) -> bool {
        let others = self.guards.iter().filter(|it| it.key == *guard.key());
        others.filter_map(|it| it.guard.upgrade()).any(|it| it.lives())
    }

    fn accuse(&mut self, what: String) {
        self.verdict.get_or_insert(what);
    }
}

/// A tenure that is valid now.
struct Inside {
    process: ProcessId,
    fence: u64,
    load: Load,
}

/// What is wrong with a room in which these are valid at once.
fn too_many(room: &[Inside]) -> Option<String> {
    let weight: u64 = room.iter().map(|it| u64::from(it.load.weight)).sum();
    let capacity = room.iter().map(|it| it.load.capacity).min()?;
    if weight <= u64::from(capacity) {
        return None;
    }
    let who = |it: &Inside| format!("{} of process {} ({})", it.fence, it.process, it.load);
    let who: Vec<String> = room.iter().map(who).collect();
    Some(format!("{} are both valid", who.join(" and ")))
}
