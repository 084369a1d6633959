//! The local queue: callers of this process stand in one line per key, and one of them represents it.
//!
//! A line exists only while its key is held, contended or waited for, so idle keys cost nothing.
//!
//! ```text
//!              arrive                grant                    release
//!   no line ───────────▶ contending ───────▶ held ──┬─ next may have it ──▶ held (next fence)
//!                            ▲                      ├─ next must ask ─────▶ contending
//!                            └── next represents ◀──┴─ nobody ────────────▶ no line
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hashbrown::HashTable;

use crate::clock::{Clock, Moment, Span};
use crate::engine::keeper::Keeper;
use crate::engine::tenure::Tenure;
use crate::fence::Fence;
use crate::key::Key;
use crate::owner::Owner;

const SHARDS: usize = 64;

/// What a caller asks of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) owner: Option<Owner>,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Span,
    /// `false` for a try.
    pub(crate) patient: bool,
}

/// The bounds of the queue, from the locker's settings.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "a bound is named after what it bounds")]
pub(crate) struct Bounds {
    pub(crate) waiters_max: usize,
    pub(crate) depth_max: u32,
    pub(crate) hand_on_count_max: u64,
    pub(crate) hand_on_span_max: Duration,
}

/// The answer to an arrival.
pub(crate) enum Arrival {
    /// Nobody was here, and the local line is the whole lock: it is yours.
    Held(Hold),
    /// The owner holds it already; one level deeper now.
    Reentered(Hold),
    /// The owner holds it already, as deep as is allowed.
    TooDeep,
    /// Nobody is here: go to the store for this process.
    Represent,
    /// Stand in line.
    Wait(Arc<Waiter>),
    /// A try, and somebody is here.
    Busy,
    /// Too many wait.
    Full,
    /// The queue was closed.
    Closed,
}

/// What a guard is made of.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) fence: Fence,
    pub(crate) since: Moment,
    pub(crate) until: Moment,
}

/// What happened to a guard that was given back.
pub(crate) enum Release {
    /// An outer guard of the same owner still holds.
    StillHeld,
    /// The next caller of this process has it, until then at the longest.
    HandedOn(Option<Waker>, Hold),
    /// The tenure is over: leave the store. Wake whoever represents us next.
    Over(Option<Waker>),
    /// It was lost before.
    Stale,
}

/// What a waiter is called for.
pub(crate) enum Call {
    /// The lock is yours.
    Held(Hold),
    /// You represent this process now, perhaps from a place in line that another began.
    Represent(Option<Keeper>),
    /// The queue was closed.
    Closed,
}

/// One caller in a line.
pub(crate) struct Waiter {
    ask: Ask,
    ticket: u64,
    slot: Mutex<Slot>,
}

enum Slot {
    Waiting(Option<Waker>),
    Called(Call),
    Gone,
}

struct Line {
    state: State,
    waiters: VecDeque<Arc<Waiter>>,
    tickets: u64,
}

enum State {
    Contending(Key),
    Held(Holding),
}

impl Line {
    fn key(&self) -> &Key {
        match &self.state {
            State::Contending(key) => key,
            State::Held(holding) => &holding.held.tenure.key,
        }
    }

    /// Send the next caller to the store.
    fn let_next_contend(&mut self) -> Option<Waker> {
        let next = self.waiters.pop_front()?;
        self.state = State::Contending(self.key().clone());
        next.call(Call::Represent(None))
    }

    /// Let a caller hold.
    fn give_to(&mut self, next: &Waiter, held: Hold) -> Release {
        self.state = State::Held(Holding { held: held.clone(), owner: next.ask.owner.clone(), depth: 1 });
        Release::HandedOn(next.call(Call::Held(held.clone())), held)
    }
}

/// Whether a line goes on.
#[derive(PartialEq, Eq)]
enum Fate {
    Stays,
    Ends,
}

struct Holding {
    held: Hold,
    owner: Option<Owner>,
    depth: u32,
}

pub(crate) struct Queue {
    bounds: Bounds,
    /// Nobody but this locker can reach the store, so the line is the whole lock and the store is not asked.
    is_whole_lock: bool,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Default)]
struct Shard {
    lines: HashTable<Line>,
    /// The last counter given without asking a store. A key is always in the same shard, so its fences grow.
    counter: u64,
    closed: bool,
}

impl Shard {
    /// A tenure that no store knows of.
    fn private_tenure(&mut self, key: &Key, ttl: Duration) -> Arc<Tenure> {
        self.counter += 1;
        Arc::new(Tenure::private(key.clone(), ttl, self.counter))
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("lines", &self.len()).finish()
    }
}

impl Queue {
    pub(crate) fn new(bounds: Bounds, is_whole_lock: bool) -> Self {
        Queue { bounds, is_whole_lock, shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// Whether the local line is the whole lock.
    pub(crate) fn is_whole_lock(&self) -> bool {
        self.is_whole_lock
    }

    /// A tenure for a representative who need not ask the store.
    pub(crate) fn private_tenure(&self, key: &Key, ttl: Duration) -> Arc<Tenure> {
        self.shard(key.hash64()).private_tenure(key, ttl)
    }

    /// How many keys have a line.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|it| lock(it).lines.len()).sum()
    }

    /// The cap on callers in one line.
    pub(crate) fn waiters_max(&self) -> usize {
        self.bounds.waiters_max
    }

    /// The cap on reentry.
    pub(crate) fn depth_max(&self) -> u32 {
        self.bounds.depth_max
    }

    /// The shard of a hash: from its top bits, because the table inside uses the low ones.
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::try_from(hash >> 32).unwrap_or(0) % SHARDS])
    }

    /// A caller arrives. If nobody is here it must represent the process, and the line is its own from now on; where the
    /// line is the whole lock, it holds.
    /// The clock is read only where it decides something: it costs a third of an in-process lock.
    pub(crate) fn arrive(&self, key: &Key, ask: &Ask, now: Moment, clock: &Clock) -> Arrival {
        let hash = key.hash64();
        let mut shard = self.shard(hash);
        if shard.closed {
            return Arrival::Closed;
        }
        if let Some(line) = shard.lines.find_mut(hash, |it| it.key() == key) {
            return self.join(line, ask, clock);
        }
        let (state, arrival) = if self.is_whole_lock {
            let tenure = shard.private_tenure(key, ask.ttl);
            let fence = tenure.fence();
            let held = Hold::new(tenure, fence, now, ask.max_hold);
            let holding = Holding { held: held.clone(), owner: ask.owner.clone(), depth: 1 };
            (State::Held(holding), Arrival::Held(held))
        } else {
            (State::Contending(key.clone()), Arrival::Represent)
        };
        let line = Line { state, waiters: VecDeque::new(), tickets: 0 };
        shard.lines.insert_unique(hash, line, |it| it.key().hash64());
        arrival
    }

    fn join(&self, line: &mut Line, ask: &Ask, clock: &Clock) -> Arrival {
        if let State::Held(holding) = &mut line.state
            && ask.owner.is_some()
            && holding.owner == ask.owner
            && holding.held.is_valid_by(clock)
        {
            if self.bounds.depth_max <= holding.depth {
                return Arrival::TooDeep;
            }
            holding.depth += 1;
            return Arrival::Reentered(holding.held.clone());
        }
        if !ask.patient {
            return Arrival::Busy;
        }
        if self.bounds.waiters_max <= line.waiters.len() {
            return Arrival::Full;
        }
        line.tickets += 1;
        let slot = Mutex::new(Slot::Waiting(None));
        let waiter = Arc::new(Waiter { ask: ask.clone(), ticket: line.tickets, slot });
        line.waiters.push_back(waiter.clone());
        Arrival::Wait(waiter)
    }

    /// The representative holds now. `Err` gives the tenure back if the queue was closed meanwhile.
    pub(crate) fn seat(&self, held: Hold, owner: Option<Owner>) -> Result<(), Hold> {
        let hash = held.tenure.key.hash64();
        let mut shard = self.shard(hash);
        match shard.lines.find_mut(hash, |it| *it.key() == held.tenure.key) {
            Some(line) => {
                debug_assert!(matches!(line.state, State::Contending(_)), "only a representative is seated");
                line.state = State::Held(Holding { held, owner, depth: 1 });
                Ok(())
            }
            None => Err(held),
        }
    }

    /// A background representative holds for whoever is next.
    pub(crate) fn seat_next(&self, tenure: &Arc<Tenure>, now: Moment) -> Release {
        self.on_line(&tenure.key, Release::Over(None), |line| {
            let Some(next) = line.waiters.pop_front() else { return (Release::Over(None), Fate::Ends) };
            if next.ask.ttl != tenure.ttl {
                return (Release::Over(next.call(Call::Represent(None))), Fate::Stays);
            }
            let held = Hold::new(tenure.clone(), tenure.fence(), now, next.ask.max_hold);
            (line.give_to(&next, held), Fate::Stays)
        })
    }

    /// The representative gives up, perhaps from a place in the store's line. The next caller takes its
    /// part, or the line ends. What comes back is a keeper that nobody wants, and somebody to wake.
    pub(crate) fn step_down(&self, key: &Key, keeper: Option<Keeper>) -> (Option<Keeper>, Option<Waker>) {
        let mut keeper = keeper;
        let waker = self.on_line(key, None, |line| {
            let Some(next) = line.waiters.pop_front() else { return (None, Fate::Ends) };
            let fitting = keeper.take_if(|it| it.fits(next.ask.ttl));
            (next.call(Call::Represent(fitting)), Fate::Stays)
        });
        (keeper, waker)
    }

    /// A guard is given back. The clock is read only if somebody waits.
    pub(crate) fn release(&self, tenure: &Arc<Tenure>, clock: &Clock) -> Release {
        self.on_line(&tenure.key, Release::Stale, |line| {
            let State::Held(holding) = &mut line.state else { return (Release::Stale, Fate::Stays) };
            if !Arc::ptr_eq(&holding.held.tenure, tenure) {
                return (Release::Stale, Fate::Stays);
            }
            holding.depth -= 1;
            if 0 < holding.depth {
                return (Release::StillHeld, Fate::Stays);
            }
            if line.waiters.is_empty() {
                return (Release::Over(None), Fate::Ends);
            }
            match self.hand_on(line, tenure, clock.now()) {
                Some(handed_on) => (handed_on, Fate::Stays),
                None => (Release::Over(line.let_next_contend()), Fate::Stays),
            }
        })
    }

    /// Give the tenure to the next caller, within the bounds that keep other processes served.
    fn hand_on(&self, line: &mut Line, tenure: &Arc<Tenure>, now: Moment) -> Option<Release> {
        let next = line.waiters.front().filter(|it| it.ask.ttl == tenure.ttl)?;
        let still_good = tenure.is_valid(now) && now.after(tenure.ttl / 4) < tenure.valid_until();
        let turn_of_others = tenure.wanted_since().is_some_and(|since| {
            self.bounds.hand_on_count_max <= tenure.hand_ons_while_wanted()
                || self.bounds.hand_on_span_max <= now - since
        });
        if !still_good || turn_of_others {
            return None;
        }
        let fence = tenure.next_fence()?;
        let held = Hold::new(tenure.clone(), fence, now, next.ask.max_hold);
        let next = line.waiters.pop_front()?;
        Some(line.give_to(&next, held))
    }

    /// A tenure is lost: whoever is next goes to the store anew.
    pub(crate) fn detach(&self, tenure: &Arc<Tenure>) -> Option<Waker> {
        self.on_line(&tenure.key, None, |line| match &line.state {
            State::Held(holding) if Arc::ptr_eq(&holding.held.tenure, tenure) => {
                let fate = if line.waiters.is_empty() { Fate::Ends } else { Fate::Stays };
                (line.let_next_contend(), fate)
            }
            State::Held(_) | State::Contending(_) => (None, Fate::Stays),
        })
    }

    /// A caller goes away. What comes back is what it was called for, if it was called already.
    pub(crate) fn withdraw(&self, key: &Key, waiter: &Arc<Waiter>) -> Option<Call> {
        let hash = key.hash64();
        let mut shard = self.shard(hash);
        if let Some(line) = shard.lines.find_mut(hash, |it| it.key() == key)
            && let Ok(at) = line.waiters.binary_search_by_key(&waiter.ticket, |it| it.ticket)
            && Arc::ptr_eq(&line.waiters[at], waiter)
        {
            line.waiters.remove(at);
        }
        drop(shard);
        match std::mem::replace(&mut *lock(&waiter.slot), Slot::Gone) {
            Slot::Called(call) => Some(call),
            Slot::Waiting(_) | Slot::Gone => None,
        }
    }

    /// How many callers stand before this one, the holder included.
    pub(crate) fn ahead_of(&self, key: &Key, waiter: &Waiter) -> Option<u64> {
        let hash = key.hash64();
        let shard = self.shard(hash);
        let line = shard.lines.find(hash, |it| it.key() == key)?;
        let at = line.waiters.binary_search_by_key(&waiter.ticket, |it| it.ticket).ok()?;
        u64::try_from(at + 1).ok()
    }

    /// Visit every tenure that is held.
    pub(crate) fn for_each_held(&self, mut visit: impl FnMut(&Hold)) {
        for shard in &self.shards {
            for line in &lock(shard).lines {
                if let State::Held(holding) = &line.state {
                    visit(&holding.held);
                }
            }
        }
    }

    /// Refuse everybody from now on. What comes back is whom to wake and what is held.
    pub(crate) fn close(&self) -> (Vec<Waker>, Vec<Arc<Tenure>>) {
        let (mut wakers, mut tenures) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.closed = true;
            for line in shard.lines.drain() {
                wakers.extend(line.waiters.iter().filter_map(|it| it.call(Call::Closed)));
                if let State::Held(holding) = line.state {
                    tenures.push(holding.held.tenure);
                }
            }
        }
        (wakers, tenures)
    }

    /// Run `f` on a line and end the line if `f` says so. `absent` is the answer if there is no such line.
    fn on_line<T>(&self, key: &Key, absent: T, f: impl FnOnce(&mut Line) -> (T, Fate)) -> T {
        let hash = key.hash64();
        let mut shard = self.shard(hash);
        let Ok(mut entry) = shard.lines.find_entry(hash, |it| it.key() == key) else { return absent };
        let (out, fate) = f(entry.get_mut());
        if fate == Fate::Ends {
            drop(entry.remove());
            let (len, capacity) = (shard.lines.len(), shard.lines.capacity());
            if 64 < capacity && len < capacity / 8 {
                shard.lines.shrink_to(len * 2, |it| it.key().hash64());
            }
        }
        out
    }
}

impl Hold {
    pub(crate) fn new(tenure: Arc<Tenure>, fence: Fence, now: Moment, max_hold: Span) -> Self {
        Hold { tenure, fence, since: now, until: now.after(max_hold.into()) }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.tenure.valid_until().min(self.until)
    }

    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        self.tenure.is_valid(now) && now < self.until
    }

    /// The same for now, without reading the clock for a hold that never ends by itself.
    pub(crate) fn is_valid_by(&self, clock: &Clock) -> bool {
        let endless = self.until == Moment::NEVER && self.tenure.valid_until() == Moment::NEVER;
        self.is_valid(if endless { Moment::from_nanos(0) } else { clock.now() })
    }
}

impl Waiter {
    #[must_use = "the waker must be woken outside the queue's lock"]
    fn call(&self, call: Call) -> Option<Waker> {
        match std::mem::replace(&mut *lock(&self.slot), Slot::Called(call)) {
            Slot::Waiting(waker) => waker,
            Slot::Called(_) | Slot::Gone => None,
        }
    }

    /// Resolve when called.
    pub(crate) fn poll_called(&self, cx: &Context<'_>) -> Poll<Call> {
        let mut slot = lock(&self.slot);
        match std::mem::replace(&mut *slot, Slot::Gone) {
            Slot::Called(call) => Poll::Ready(call),
            Slot::Waiting(_) | Slot::Gone => {
                *slot = Slot::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
