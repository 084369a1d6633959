//! The local queue: callers of this process stand in one line per key.
//!
//! A line exists only while its key is held, contended or waited for, so idle keys cost nothing. What a line decides is in
//! `line.rs`; here are the table of lines and its locks.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::clock::{Clock, Moment};
use crate::engine::ask::Ask;
use crate::engine::calls::Calls;
use crate::engine::hold::Hold;
use crate::engine::keeper::Keeper;
use crate::engine::line::{Arrival, Before, Line, Lowering, Release};
use crate::engine::rules::{Bounds, Rules};
use crate::engine::since::Since;
use crate::engine::tenure::Tenure;
use crate::engine::waiter::{Call, Waiter};
use crate::key::Key;
use crate::kit::locked;
use crate::spi::fault::Fault;

const SHARDS: usize = 64;

pub(crate) struct Queue {
    bounds: Bounds,
    /// Nobody but this locker can reach the store, so the line is the whole lock and the store is not asked.
    is_whole_lock: bool,
    clock: Clock,
    shards: Box<[Mutex<Shard>]>,
}

/// How the short way of giving back ended.
pub(crate) enum Alone {
    /// There is more to it: nothing has happened.
    Not,
    /// The line is over; the tenure must be ended, too.
    Over,
    /// The line is over, no store knows of the tenure, and nobody wants to hear of its end: nothing is left to do.
    Unheard,
}

#[derive(Default)]
struct Shard {
    lines: HashTable<Line>,
    /// The last counter given without asking a store. A key is always in the same shard, so its fences grow.
    counter: u64,
    closed: bool,
    /// The last tenure that was given back and had no place in a store, for the next one: to make and to drop one with every
    /// in-process lock would cost a seventh of it.
    spare: Option<Arc<Tenure>>,
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
        self.shards.iter().map(|it| locked(it).lines.len()).sum()
    }

    /// The keys that somebody waits for in this process, and how many.
    pub(crate) fn waiting(&self) -> Vec<(Key, usize)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = locked(shard);
            let waited = shard.lines.iter().map(|it| (it, it.waiting())).filter(|it| 0 < it.1);
            all.extend(waited.map(|(line, count)| (line.key().clone(), count)));
        }
        all
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// The shard of a hash: from its top bits, because the table inside uses the low ones.
    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        locked(&self.shards[usize::try_from(hash >> 32).unwrap_or(0) % SHARDS])
    }

    #[inline]
    fn rules<'a>(&'a self, counter: &'a mut u64, spare: &'a mut Option<Arc<Tenure>>) -> Rules<'a> {
        Rules { bounds: &self.bounds, is_whole_lock: self.is_whole_lock, clock: &self.clock, counter, spare }
    }

    /// The lock of a key that has no line, where the line is the whole lock, for a hold that never ends by itself. If
    /// anybody observes, it is asked for at `now`.
    /// [`Queue::arrive`] would give the same; this is the way of nearly every in-process lock, and each detour through memory would be seen in its price.
    #[inline]
    pub(crate) fn take_free(&self, key: &Key, ask: &Ask, now: Option<Moment>) -> Option<Hold> {
        if !self.is_whole_lock {
            return None;
        }
        let hash = key.hash64();
        let mut shard = self.shard(hash);
        let Shard { lines, counter, closed, spare } = &mut *shard;
        if *closed {
            return None;
        }
        let Entry::Vacant(entry) = lines.entry(hash, |it| it.key() == key, |it| it.key().hash64()) else {
            return None;
        };
        // It never ends by itself, so it does not matter when it began.
        let hold = self.rules(counter, spare).private_hold(key, ask, Moment::NEVER);
        if let Some(now) = now {
            hold.tenure.since.begin_unseen(now);
        }
        entry.insert(Line::held_by(&hold));
        Some(hold)
    }

    /// Give back what nobody shares and nobody waits for, and end its line. The counterpart of [`Queue::take_free`], for
    /// every store.
    #[inline]
    pub(crate) fn release_alone(&self, hold: &Hold) -> Alone {
        let hash = hold.tenure.key.hash64();
        let mut shard = self.shard(hash);
        let found = shard.lines.find_entry(hash, |it| it.is_held_by(&hold.tenure));
        let Ok(entry) = found.map_err(drop) else { return Alone::Not };
        if !entry.get().ends_with_one_guard() {
            return Alone::Not;
        }
        let ended = entry.remove().0.end();
        shrink(&mut shard.lines);
        // Whoever awaits its loss has a share in it. The guard's and ours are two, and nobody can make a third from them.
        if !hold.tenure.is_private || Arc::strong_count(&hold.tenure) != 2 {
            return Alone::Over;
        }
        shard.spare = ended;
        Alone::Unheard
    }

    /// Give back what nobody shares and nobody waits for, and let it stay: since when it was held, for
    /// observers. `None` if it cannot: then nothing has happened.
    pub(crate) fn rest(&self, hold: &Hold, now: Moment) -> Option<Since> {
        let hash = hold.tenure.key.hash64();
        let mut shard = self.shard(hash);
        let line = shard.lines.find_mut(hash, |it| it.is_held_by(&hold.tenure));
        line.filter(|it| it.ends_with_one_guard())?.rest(now)
    }

    /// Take away what is idle. `false` if it is not, or not any more: then nothing has happened.
    pub(crate) fn cool(&self, tenure: &Arc<Tenure>) -> bool {
        let hash = tenure.key.hash64();
        let mut shard = self.shard(hash);
        let Ok(entry) = shard.lines.find_entry(hash, |it| it.is_idle(tenure)).map_err(drop) else {
            return false;
        };
        drop(entry.remove());
        shrink(&mut shard.lines);
        true
    }

    /// Whether nobody has it, and it stays.
    pub(crate) fn is_idle(&self, tenure: &Arc<Tenure>) -> bool {
        let hash = tenure.key.hash64();
        self.shard(hash).lines.find(hash, |it| it.is_idle(tenure)).is_some()
    }

    /// All that is idle.
    pub(crate) fn idle(&self) -> Vec<Arc<Tenure>> {
        let mut idle = Vec::new();
        self.for_each_held(|tenure, _, is_idle| idle.extend(is_idle.then(|| tenure.clone())));
        idle
    }

    /// A caller arrives, at `now` as far as that matters to it.
    pub(crate) fn arrive(&self, key: &Key, ask: &Ask, now: Moment) -> Arrival {
        let hash = key.hash64();
        let mut shard = self.shard(hash);
        let Shard { lines, counter, closed, spare } = &mut *shard;
        if *closed {
            return Arrival::Closed;
        }
        let mut rules = self.rules(counter, spare);
        if let Ok(mut entry) = lines.find_entry(hash, |it| it.key() == key) {
            let arrival = entry.get_mut().arrive(ask, now, &mut rules);
            if let Arrival::Cooled(_) = arrival {
                drop(entry.remove());
            }
            return arrival;
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

    /// The only guard of a tenure is about to share it.
    pub(crate) fn begin_lowering(&self, tenure: &Arc<Tenure>) -> Lowering {
        let begun = self.on_line(&tenure.key, |line, _| line.begin_lowering(tenure));
        begun.unwrap_or(Lowering::Gone)
    }

    /// A tenure is one of readers now. Twice is harmless.
    pub(crate) fn lowered(&self, tenure: &Arc<Tenure>) -> Calls {
        let calls = self.on_line(&tenure.key, |line, rules| line.lowered(tenure, rules));
        calls.unwrap_or_else(Calls::none)
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

    /// What a representative heard of the store: nothing usable, or an answer. Those behind it are told so when their time is over.
    pub(crate) fn set_outage(&self, key: &Key, outage: Option<Fault>) {
        self.on_line(key, |line, _| line.set_outage(outage));
    }

    /// What whoever represented this line last heard of the store, if it was nothing usable.
    pub(crate) fn outage(&self, key: &Key) -> Option<Fault> {
        let hash = key.hash64();
        self.shard(hash).lines.find(hash, |it| it.key() == key)?.outage().cloned()
    }

    /// What a caller stands behind.
    pub(crate) fn before(&self, key: &Key, waiter: &Waiter) -> Before {
        let hash = key.hash64();
        let shard = self.shard(hash);
        shard.lines.find(hash, |it| it.key() == key).map_or(Before::Others(None), |it| it.before(waiter))
    }

    /// Visit every tenure that is held, with its end if it has one, and whether it is idle.
    pub(crate) fn for_each_held(&self, mut visit: impl FnMut(&Arc<Tenure>, Moment, bool)) {
        for shard in &self.shards {
            let shard = locked(shard);
            let held = shard.lines.iter().flat_map(Line::held);
            held.for_each(|it| visit(&it.tenure, it.until, it.is_idle()));
        }
    }

    /// Refuse everybody from now on. What comes back is whom to wake and what is held.
    pub(crate) fn close(&self) -> (Vec<Calls>, Vec<Arc<Tenure>>) {
        let (mut all_calls, mut all_tenures) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let mut shard = locked(shard);
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
        let Shard { lines, counter, spare, .. } = &mut *shard;
        let mut entry = lines.find_entry(hash, |it| it.key() == key).ok()?;
        let out = f(entry.get_mut(), &mut self.rules(counter, spare));
        if entry.get().is_over() {
            drop(entry.remove());
            shrink(lines);
        }
        Some(out)
    }
}

/// Give memory back after a crowd.
#[inline]
fn shrink(lines: &mut HashTable<Line>) {
    let (len, capacity) = (lines.len(), lines.capacity());
    if 64 < capacity && len < capacity / 8 {
        lines.shrink_to(len * 2, |it| it.key().hash64());
    }
}
