//! The line of one key in this process: who holds, whether one of us is at the store, who waits.
//!
//! Only rules: it knows no store, wakes nobody, and reads the clock only where it decides something, because that costs a
//! third of an in-process lock.
//!
//! ```text
//!  arrive ─▶ this owner holds ─────────────────────▶ one level deeper
//!            nobody waits ─┬─ readers here ────────▶ joins them, same fence
//!                          ├─ fits beside us ──────▶ represents us at the store, or holds if the line is all
//!                          └─ otherwise ──────┐
//!            somebody waits ──────────────────┴────▶ stands in line
//!  give back, step down, lose, be seated ──────────▶ call those at the head who may go on now
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::{Clock, Moment, Span};
use crate::engine::ask::Ask;
use crate::engine::hold::{Hold, Holding, Room};
use crate::engine::keeper::Keeper;
use crate::engine::tenure::Tenure;
use crate::engine::waiter::{Call, Waiter};
use crate::key::Key;
use crate::observe::GrantedBy;
use crate::spi::claim::Load;

/// The bounds of every line, from the locker's settings.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "a bound is named after what it bounds")]
pub(crate) struct Bounds {
    pub(crate) waiters_max: usize,
    pub(crate) depth_max: u32,
    pub(crate) hand_on_count_max: u64,
    pub(crate) hand_on_span_max: Duration,
}

/// What a line needs to know to decide.
pub(super) struct Rules<'a> {
    pub(super) bounds: &'a Bounds,
    /// Nobody but this locker can reach the store: the line is the whole lock.
    pub(super) is_whole_lock: bool,
    pub(super) clock: &'a Clock,
    /// The last counter given without asking a store.
    pub(super) counter: &'a mut u64,
}

impl Rules<'_> {
    /// A tenure that no store knows of, for this caller.
    #[inline]
    fn private_hold(&mut self, key: &Key, ask: &Ask, now: Moment) -> Hold {
        *self.counter += 1;
        let tenure = Arc::new(Tenure::private(key.clone(), ask.ttl, ask.load, *self.counter));
        Hold::new(tenure, now, ask.max_hold, ask.owner.clone())
    }
}

/// The answer to an arrival.
pub(crate) enum Arrival {
    /// Nobody is in the way, and the local line is the whole lock: it is yours.
    Held(Hold),
    /// The owner holds it already; one level deeper now.
    Reentered(Hold),
    /// Other readers of this process hold it; the rounds must look at the latest then.
    Joined(Hold, Moment),
    /// The owner holds it already, as deep as is allowed.
    TooDeep,
    /// The owner holds it in a way that this request would wait for, for ever.
    InTheWay(Load),
    /// Nobody of us is at the store: go there for this process.
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

/// What happened to a guard that was given back.
pub(crate) enum Release {
    /// Others share the tenure: an outer guard of the same owner, or readers.
    StillHeld,
    /// The next callers of this process have it.
    HandedOn(Calls),
    /// The tenure is over, and nobody of us waits: leave the store.
    Ended,
    /// The tenure is over, and others of us go on: leave the store.
    Over(Calls),
    /// It was lost before.
    Stale,
}

/// Who was called, to be woken when no lock of the queue is held.
#[must_use = "those who were called must be woken"]
pub(crate) struct Calls {
    wakers: SmallVec<[Waker; 1]>,
    /// When the rounds must look at what was given, at the latest.
    pub(crate) due: Moment,
}

impl Calls {
    pub(crate) fn none() -> Self {
        Calls { wakers: SmallVec::new(), due: Moment::NEVER }
    }

    pub(crate) fn wake(self) {
        self.wakers.into_iter().for_each(Waker::wake);
    }

    fn add(&mut self, waiter: &Waiter, call: Call) {
        self.wakers.extend(waiter.call(call));
    }

    fn give(&mut self, waiter: &Waiter, hold: Hold, by: GrantedBy, due: Moment) {
        self.due = self.due.min(hold.until).min(due);
        self.add(waiter, Call::Held(hold, by));
    }
}

pub(super) struct Line {
    room: Room,
    /// One of us is at the store for all of us.
    representing: bool,
    waiters: Waiters,
}

/// Those who wait. Boxed, because most lines have none.
#[derive(Default)]
struct Waiters(Option<Box<Crowd>>);

#[derive(Default)]
struct Crowd {
    line: VecDeque<Arc<Waiter>>,
    tickets: u64,
}

impl Waiters {
    fn iter(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.0.iter().flat_map(|it| it.line.iter())
    }

    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |it| it.line.len())
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn front(&self) -> Option<&Arc<Waiter>> {
        self.0.as_ref()?.line.front()
    }

    fn pop_front(&mut self) -> Option<Arc<Waiter>> {
        self.0.as_mut()?.line.pop_front()
    }

    fn stand(&mut self, ask: &Ask) -> Arc<Waiter> {
        let crowd = self.0.get_or_insert_default();
        crowd.tickets += 1;
        let waiter = Arc::new(Waiter::new(ask.clone(), crowd.tickets));
        crowd.line.push_back(waiter.clone());
        waiter
    }

    fn position(&self, waiter: &Waiter) -> Option<usize> {
        let line = &self.0.as_ref()?.line;
        let at = line.binary_search_by_key(&waiter.ticket, |it| it.ticket).ok()?;
        std::ptr::eq(Arc::as_ptr(&line[at]), waiter).then_some(at)
    }

    fn remove(&mut self, at: usize) {
        if let Some(crowd) = &mut self.0 {
            crowd.line.remove(at);
        }
    }
}

impl Line {
    /// The line of a key of which nothing is held, begun by its first caller.
    #[inline]
    pub(super) fn begin(key: &Key, ask: &Ask, now: Moment, rules: &mut Rules<'_>) -> (Self, Arrival) {
        let (room, arrival) = if rules.is_whole_lock {
            let hold = rules.private_hold(key, ask, now);
            (Room::One(Holding::of(&hold)), Arrival::Held(hold))
        } else {
            (Room::Empty(Box::new(key.clone())), Arrival::Represent)
        };
        let line = Line { room, representing: !rules.is_whole_lock, waiters: Waiters::default() };
        (line, arrival)
    }

    pub(super) fn key(&self) -> &Key {
        self.room.key()
    }

    /// What is held, and until when at the longest.
    pub(super) fn held(&self) -> impl Iterator<Item = (&Arc<Tenure>, Moment)> {
        self.room.holdings().iter().map(|it| (&it.tenure, it.until))
    }

    /// Whether nothing is left that needs a line.
    pub(super) fn is_over(&self) -> bool {
        !self.representing && self.waiters.is_empty() && self.room.is_left()
    }

    /// One more caller.
    pub(super) fn arrive(&mut self, ask: &Ask, rules: &mut Rules<'_>) -> Arrival {
        if let Some(arrival) = self.reenter(ask, rules) {
            return arrival;
        }
        if self.waiters.is_empty() {
            if let Some((hold, due)) = self.join(ask, rules) {
                return Arrival::Joined(hold, due);
            }
            if !self.representing && self.room.fits(ask.load) {
                return self.go_on(ask, rules).map_or(Arrival::Represent, Arrival::Held);
            }
        }
        if !ask.patient {
            return Arrival::Busy;
        }
        if rules.bounds.waiters_max <= self.waiters.len() {
            return Arrival::Full;
        }
        Arrival::Wait(self.waiters.stand(ask))
    }

    /// The owner is inside already: deeper, or refused at once if it would wait for itself.
    fn reenter(&mut self, ask: &Ask, rules: &Rules<'_>) -> Option<Arrival> {
        let owner = ask.owner.as_ref()?;
        for holding in self.room.holdings_mut() {
            let depth = holding.depth_of(owner);
            if depth == 0 || !holding.is_valid_by(rules.clock) {
                continue;
            }
            let (inside, asked) = (holding.load(), ask.load);
            let covers =
                inside == asked || (inside.is_exclusive() && (asked.is_exclusive() || asked == Load::READER));
            if covers && (inside.is_exclusive() || inside == Load::READER) {
                if rules.bounds.depth_max <= depth {
                    return Some(Arrival::TooDeep);
                }
                holding.enter(Some(owner));
                return Some(Arrival::Reentered(holding.hold_for(Some(owner.clone()))));
            }
            if !inside.fits_beside(asked) {
                return Some(Arrival::InTheWay(inside));
            }
        }
        None
    }

    /// Readers of this process share one tenure, as long as it is good and others outside do not wait too long.
    ///
    /// A hold that ends by itself is not shared: its end would be the end of all.
    fn join(&mut self, ask: &Ask, rules: &Rules<'_>) -> Option<(Hold, Moment)> {
        if ask.load != Load::READER || ask.max_hold != Span::ENDLESS {
            return None;
        }
        let may_share = |it: &&mut Holding| {
            it.load() == Load::READER && it.until == Moment::NEVER && it.tenure.ttl == ask.ttl
        };
        let holding = self.room.holdings_mut().iter_mut().find(may_share)?;
        let (tenure, now) = (&holding.tenure, rules.clock.now());
        let joined = u64::from(holding.joined_while_wanted);
        if !may_go_on(tenure, joined, rules.bounds, now) {
            return None;
        }
        if tenure.wanted_since().is_some() {
            holding.joined_while_wanted += 1;
        }
        let due = tenure.ask_within(now, rules.bounds.hand_on_span_max);
        holding.enter(ask.owner.as_ref());
        Some((holding.hold_for(ask.owner.clone()), due))
    }

    /// This caller fits beside us: it holds if the line is the whole lock, otherwise it represents us.
    fn go_on(&mut self, ask: &Ask, rules: &mut Rules<'_>) -> Option<Hold> {
        if !rules.is_whole_lock {
            self.representing = true;
            return None;
        }
        let now = rules.clock.now();
        let hold = rules.private_hold(self.room.key(), ask, now);
        self.room.add(Holding::of(&hold));
        Some(hold)
    }

    /// Call everybody at the head who may go on now. One of them may take over the part of a representative.
    fn advance(&mut self, keeper: &mut Option<Keeper>, rules: &mut Rules<'_>, calls: &mut Calls) {
        while let Some(head) = self.waiters.front().cloned() {
            if let Some((hold, due)) = self.join(&head.ask, rules) {
                calls.give(&head, hold, GrantedBy::Sharing, due);
            } else if !self.representing && self.room.fits(head.ask.load) {
                match self.go_on(&head.ask, rules) {
                    Some(hold) => calls.give(&head, hold, GrantedBy::Store, Moment::NEVER),
                    None => calls.add(&head, Call::Represent(keeper.take_if(|it| it.fits(&head.ask)))),
                }
            } else {
                return;
            }
            self.waiters.pop_front();
        }
    }

    /// The representative holds now.
    pub(super) fn seat(&mut self, hold: &Hold, rules: &mut Rules<'_>) -> Calls {
        debug_assert!(self.representing, "only a representative is seated");
        self.representing = false;
        self.room.add(Holding::of(hold));
        let mut calls = Calls::none();
        self.advance(&mut None, rules, &mut calls);
        calls
    }

    /// A background representative holds for whoever is next.
    pub(super) fn seat_next(&mut self, tenure: &Arc<Tenure>, rules: &mut Rules<'_>) -> Release {
        debug_assert!(self.representing, "only a representative is seated");
        self.representing = false;
        let mut calls = Calls::none();
        let fitting = self.waiters.front().is_some_and(|it| tenure.fits(&it.ask));
        let next = if fitting { self.waiters.pop_front() } else { None };
        let Some(next) = next else {
            self.advance(&mut None, rules, &mut calls);
            return Release::Over(calls);
        };
        let owner = next.ask.owner.clone();
        let hold = Hold::new(tenure.clone(), rules.clock.now(), next.ask.max_hold, owner);
        self.room.add(Holding::of(&hold));
        calls.give(&next, hold, GrantedBy::HandOn, tenure.renew_at());
        self.advance(&mut None, rules, &mut calls);
        Release::HandedOn(calls)
    }

    /// The representative gives up, perhaps from a place in the store's line.
    pub(super) fn step_down(&mut self, keeper: &mut Option<Keeper>, rules: &mut Rules<'_>) -> Calls {
        self.representing = false;
        let mut calls = Calls::none();
        self.advance(keeper, rules, &mut calls);
        calls
    }

    /// A guard is given back.
    #[inline]
    pub(super) fn release(&mut self, hold: &Hold, rules: &mut Rules<'_>) -> Release {
        let Some(at) = self.room.position(&hold.tenure) else { return Release::Stale };
        if !self.room.holdings_mut()[at].leave(hold.owner.as_ref()) {
            return Release::StillHeld;
        }
        if self.waiters.is_empty() {
            // The line ends with its only holding, and is taken away as a whole.
            if self.representing || !self.room.is_left() {
                self.room.remove(at);
            }
            return Release::Ended;
        }
        let mut calls = Calls::none();
        if self.hand_on(at, rules, &mut calls) {
            return Release::HandedOn(calls);
        }
        self.room.remove(at);
        self.advance(&mut None, rules, &mut calls);
        Release::Over(calls)
    }

    /// Give the tenure to the next caller, within the bounds that keep other processes served.
    fn hand_on(&mut self, at: usize, rules: &mut Rules<'_>, calls: &mut Calls) -> bool {
        let (tenure, now) = (self.room.holdings()[at].tenure.clone(), rules.clock.now());
        let fitting = self.waiters.front().is_some_and(|it| tenure.fits(&it.ask));
        if !fitting || !may_go_on(&tenure, tenure.hand_ons_while_wanted(), rules.bounds, now) {
            return false;
        }
        if !tenure.begin_next_guard() {
            return false;
        }
        let Some(next) = self.waiters.pop_front() else { return false };
        let due = tenure.ask_within(now, rules.bounds.hand_on_span_max);
        let hold = Hold::new(tenure, now, next.ask.max_hold, next.ask.owner.clone());
        self.room.holdings_mut()[at] = Holding::of(&hold);
        calls.give(&next, hold, GrantedBy::HandOn, due);
        if next.ask.load == Load::READER {
            self.advance(&mut None, rules, calls);
        }
        true
    }

    /// A tenure is lost: whoever is next goes to the store anew.
    pub(super) fn detach(&mut self, tenure: &Arc<Tenure>, rules: &mut Rules<'_>) -> Calls {
        let mut calls = Calls::none();
        if let Some(at) = self.room.position(tenure) {
            self.room.remove(at);
            self.advance(&mut None, rules, &mut calls);
        }
        calls
    }

    /// A caller goes away. If it was the head, others may go on.
    pub(super) fn withdraw(&mut self, waiter: &Waiter, rules: &mut Rules<'_>) -> Calls {
        let mut calls = Calls::none();
        if let Some(at) = self.waiters.position(waiter) {
            self.waiters.remove(at);
            if at == 0 {
                self.advance(&mut None, rules, &mut calls);
            }
        }
        calls
    }

    /// How many callers stand before this one, the holder included.
    pub(super) fn ahead_of(&self, waiter: &Waiter) -> Option<u64> {
        u64::try_from(self.waiters.position(waiter)? + 1).ok()
    }

    /// Nobody is served any more. Whom to wake, and what is held.
    pub(super) fn close(self) -> (Calls, Vec<Arc<Tenure>>) {
        let mut calls = Calls::none();
        self.waiters.iter().for_each(|it| calls.add(it, Call::Closed));
        let tenures = self.held().map(|it| it.0.clone()).collect();
        (calls, tenures)
    }
}

/// Whether a tenure may serve one more caller of this process: it has time left, and those outside who wait for it were
/// not passed by too often or for too long.
fn may_go_on(tenure: &Tenure, served_while_wanted: u64, bounds: &Bounds, now: Moment) -> bool {
    let still_good = tenure.is_valid(now) && now.after(tenure.ttl / 4) < tenure.valid_until();
    let turn_of_others = tenure.wanted_since().is_some_and(|since| {
        bounds.hand_on_count_max <= served_while_wanted || bounds.hand_on_span_max <= now - since
    });
    still_good && !turn_of_others
}
