//! The local queue: callers of this process stand in one line per key.
//!
//! A line exists only while its key is held, contended or waited for, so idle keys cost nothing. What a line decides is in
//! `line.rs`; here are the table of lines and its locks.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use crate::clock::{Clock, Moment};
use crate::engine::ask::Ask;
use crate::engine::hold::Hold;
use crate::engine::keeper::Keeper;
use crate::engine::line::{Arrival, Bounds, Calls, Line, Release, Rules};
use crate::engine::tenure::Tenure;
use crate::engine::waiter::{Call, Waiter};
use crate::key::Key;

const SHARDS: usize = 64;

pub(crate) struct Queue {
    bounds: Bounds,
    /// Nobody but this locker can reach the store, so the line is the whole lock and the store is not asked.
    is_whole_lock: bool,
    clock: Clock,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Default)]
struct Shard {
    lines: HashTable<Line>,
    /// The last counter given without asking a store. A key is always in the same shard, so its fences grow.
    counter: u64,
    closed: bool,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("lines", &self.len()).finish()
    }
}

impl Queue {
    pub(crate) fn new(bounds: Bounds, is_whole_lock: bool, clock: Clock) -> Self {
        Queue { bounds, is_whole_lock, clock, shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// Whether the local line is the whole lock.
    pub(crate) fn is_whole_lock(&self) -> bool {
        self.is_whole_lock
    }

    /// How many keys have a line.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|it| lock(it).lines.len()).sum()
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// The shard of a hash: from its top bits, because the table inside uses the low ones.
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::try_from(hash >> 32).unwrap_or(0) % SHARDS])
    }

    fn rules<'a>(&'a self, counter: &'a mut u64) -> Rules<'a> {
        Rules { bounds: &self.bounds, is_whole_lock: self.is_whole_lock, clock: &self.clock, counter }
    }

    /// A caller arrives, at `now` as far as that matters to it.
    pub(crate) fn arrive(&self, key: &Key, ask: &Ask, now: Moment) -> Arrival {
        let hash = key.hash64();
        let mut shard = self.shard(hash);
        let Shard { lines, counter, closed } = &mut *shard;
        if *closed {
            return Arrival::Closed;
        }
        let mut rules = self.rules(counter);
        if let Some(line) = lines.find_mut(hash, |it| it.key() == key) {
            return line.arrive(ask, &mut rules);
        }
        let (line, arrival) = Line::begin(key, ask, now, &mut rules);
        lines.insert_unique(hash, line, |it| it.key().hash64());
        arrival
    }

    /// The representative holds now. `None` if the queue was closed meanwhile.
    pub(crate) fn seat(&self, hold: &Hold) -> Option<Calls> {
        self.on_line(&hold.tenure.key, |line, rules| line.seat(hold, rules))
    }

    /// A background representative holds for whoever is next.
    pub(crate) fn seat_next(&self, tenure: &Arc<Tenure>) -> Release {
        let seated = self.on_line(&tenure.key, |line, rules| line.seat_next(tenure, rules));
        seated.unwrap_or_else(|| Release::Over(Calls::none()))
    }

    /// The representative gives up, perhaps from a place in the store's line. What comes back is a keeper that nobody
    /// wants, and whom to wake.
    pub(crate) fn step_down(&self, key: &Key, mut keeper: Option<Keeper>) -> (Option<Keeper>, Calls) {
        let calls = self.on_line(key, |line, rules| line.step_down(&mut keeper, rules));
        (keeper, calls.unwrap_or_else(Calls::none))
    }

    /// A guard is given back.
    pub(crate) fn release(&self, hold: &Hold) -> Release {
        let released = self.on_line(&hold.tenure.key, |line, rules| line.release(hold, rules));
        released.unwrap_or(Release::Stale)
    }

    /// A tenure is lost: whoever is next goes to the store anew.
    pub(crate) fn detach(&self, tenure: &Arc<Tenure>) -> Calls {
        let calls = self.on_line(&tenure.key, |line, rules| line.detach(tenure, rules));
        calls.unwrap_or_else(Calls::none)
    }

    /// A caller goes away. What comes back is what it was called for, if it was called already, and whom to wake.
    pub(crate) fn withdraw(&self, key: &Key, waiter: &Arc<Waiter>) -> (Option<Call>, Calls) {
        let calls = self.on_line(key, |line, rules| line.withdraw(waiter, rules));
        (waiter.go(), calls.unwrap_or_else(Calls::none))
    }

    /// How many callers stand before this one, the holder included.
    pub(crate) fn ahead_of(&self, key: &Key, waiter: &Waiter) -> Option<u64> {
        let hash = key.hash64();
        self.shard(hash).lines.find(hash, |it| it.key() == key)?.ahead_of(waiter)
    }

    /// Visit every tenure that is held, with its end if it has one.
    pub(crate) fn for_each_held(&self, mut visit: impl FnMut(&Arc<Tenure>, Moment)) {
        for shard in &self.shards {
            lock(shard).lines.iter().flat_map(Line::held).for_each(|(tenure, until)| visit(tenure, until));
        }
    }

    /// Refuse everybody from now on. What comes back is whom to wake and what is held.
    pub(crate) fn close(&self) -> (Vec<Calls>, Vec<Arc<Tenure>>) {
        let (mut all_calls, mut all_tenures) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.closed = true;
            for line in shard.lines.drain() {
                let (calls, tenures) = line.close();
                all_calls.push(calls);
                all_tenures.extend(tenures);
            }
        }
        (all_calls, all_tenures)
    }

    /// Run `f` on a line, and end the line if nothing is left of it. `None` if there is no such line.
    fn on_line<T>(&self, key: &Key, f: impl FnOnce(&mut Line, &mut Rules<'_>) -> T) -> Option<T> {
        let hash = key.hash64();
        let mut shard = self.shard(hash);
        let Shard { lines, counter, .. } = &mut *shard;
        let mut entry = lines.find_entry(hash, |it| it.key() == key).ok()?;
        let out = f(entry.get_mut(), &mut self.rules(counter));
        if entry.get().is_over() {
            drop(entry.remove());
            let (len, capacity) = (lines.len(), lines.capacity());
            if 64 < capacity && len < capacity / 8 {
                lines.shrink_to(len * 2, |it| it.key().hash64());
            }
        }
        Some(out)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
