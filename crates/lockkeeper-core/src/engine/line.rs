//! The line of one key in this process: who holds, who of us is at the store, who waits.
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

use std::sync::Arc;

use crate::clock::{Moment, Span};
use crate::engine::ask::Ask;
use crate::engine::calls::Calls;
use crate::engine::hold::{Hold, Holding, Room};
use crate::engine::keeper::Keeper;
use crate::engine::representing::Representing;
use crate::engine::rules::{Bounds, Rules};
use crate::engine::since::Since;
use crate::engine::tenure::Tenure;
use crate::engine::waiter::{Call, Waiter, Waiters};
use crate::key::Key;
use crate::observe::GrantedBy;
use crate::spi::claim::Load;
use crate::spi::fault::Fault;

/// The answer to an arrival.
pub(crate) enum Arrival {
    /// Nobody is in the way, and the local line is the whole lock: it is yours.
    Held(Hold),
    /// The owner holds it already; one level deeper now.
    Reentered(Hold),
    /// It was idle in this process: yours, without a word to the store.
    Retaken(Hold),
    /// It was idle in this process and is of no use to you: leave the store with it, and arrive again.
    Cooled(Arc<Tenure>),
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

/// What a caller stands behind.
pub(crate) enum Before {
    /// So many others, if that is known.
    Others(Option<u64>),
    /// Whoever represents it hears nothing usable of the store.
    Outage(Fault),
}

/// Whether a tenure may be shared by those who read.
pub(crate) enum Lowering {
    Begun,
    /// Its owner holds it more than once.
    Nested,
    /// It was lost before.
    Gone,
}

pub(super) struct Line {
    room: Room,
    /// Those of us who are at the store for all of us.
    representing: Representing,
    waiters: Waiters,
}

impl Line {
    /// The line of a key of which nothing is held, begun by its first caller.
    #[inline]
    pub(super) fn begin(key: &Key, ask: &Ask, now: Moment, rules: &mut Rules<'_>) -> (Self, Arrival) {
        if rules.is_whole_lock {
            let hold = rules.private_hold(key, ask, now);
            return (Line::held_by(&hold), Arrival::Held(hold));
        }
        let room = Room::Empty(Box::new(key.clone()));
        (
            Line { room, representing: Representing::one(ask.load), waiters: Waiters::default() },
            Arrival::Represent,
        )
    }

    /// The line of a key that has one holder, and nobody else is here.
    #[inline]
    pub(super) fn held_by(hold: &Hold) -> Self {
        let room = Room::One(Holding::of(hold));
        Line { room, representing: Representing::default(), waiters: Waiters::default() }
    }

    /// Whether this tenure and no other is held.
    #[inline]
    pub(super) fn is_held_by(&self, tenure: &Arc<Tenure>) -> bool {
        matches!(&self.room, Room::One(holding) if Arc::ptr_eq(&holding.tenure, tenure))
    }

    /// Whether nothing is left of the line once the guard that is out comes back.
    #[inline]
    pub(super) fn ends_with_one_guard(&self) -> bool {
        let alone = matches!(&self.room, Room::One(holding) if holding.has_one_guard());
        alone && self.representing.is_empty() && self.waiters.is_empty()
    }

    /// The line is over, and what its one holding was. As if it were dropped, but in the caller's own code, as it is for
    /// nearly every in-process lock.
    #[inline]
    pub(super) fn end(self) -> Option<Arc<Tenure>> {
        let Line { room, waiters, .. } = self;
        waiters.end();
        if let Room::One(holding) = room { Some(holding.end()) } else { None }
    }

    pub(super) fn key(&self) -> &Key {
        self.room.key()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// What is held, or idle.
    pub(super) fn held(&self) -> &[Holding] {
        self.room.holdings()
    }

    /// Whether this tenure is idle.
    pub(super) fn is_idle(&self, tenure: &Arc<Tenure>) -> bool {
        matches!(&self.room, Room::One(holding) if holding.is_idle() && Arc::ptr_eq(&holding.tenure, tenure))
    }

    /// The only guard is given back, and the tenure stays if it can. `None` if not: then nothing has happened.
    pub(super) fn rest(&mut self, now: Moment) -> Option<Since> {
        let Room::One(holding) = &mut self.room else { return None };
        let tenure = &holding.tenure;
        let stays = tenure.is_good(now)
            && now < tenure.renew_at()
            && tenure.kept_until() <= now
            && tenure.wanted_since().is_none();
        stays.then(|| {
            holding.rest();
            holding.tenure.end_hold()
        })
    }

    /// Whether nothing is left that needs a line.
    pub(super) fn is_over(&self) -> bool {
        self.representing.is_empty() && self.waiters.is_empty() && self.room.is_left()
    }

    /// One more caller, at `now` as far as that matters to what is idle.
    pub(super) fn arrive(&mut self, ask: &Ask, now: Moment, rules: &mut Rules<'_>) -> Arrival {
        if let Some(arrival) = self.retake(ask, now) {
            return arrival;
        }
        if let Some(arrival) = self.reenter(ask, rules) {
            return arrival;
        }
        if self.waiters.is_empty() {
            if let Some((hold, due)) = self.join(ask, rules) {
                return Arrival::Joined(hold, due);
            }
            if self.may_go(ask, rules) {
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

    /// What is idle is taken by whoever wants just that, as long as it is good; otherwise it must go.
    fn retake(&mut self, ask: &Ask, now: Moment) -> Option<Arrival> {
        let Room::One(holding) = &mut self.room else { return None };
        if !holding.is_idle() {
            return None;
        }
        debug_assert!(
            self.waiters.is_empty() && self.representing.is_empty(),
            "nobody waits for what is idle"
        );
        let tenure = &holding.tenure;
        if tenure.fits(ask) && tenure.is_good(now) && tenure.retake() {
            let hold = Hold::new(tenure.clone(), now, ask);
            holding.serve(&hold);
            return Some(Arrival::Retaken(hold));
        }
        let tenure = tenure.clone();
        self.room.remove(0);
        Some(Arrival::Cooled(tenure))
    }

    /// The owner is inside already: deeper, or refused at once if it would wait for itself.
    fn reenter(&mut self, ask: &Ask, rules: &Rules<'_>) -> Option<Arrival> {
        let owner = ask.owner.as_ref().filter(|_| ask.reenters)?;
        let mut has: Option<Load> = None;
        for holding in self.room.holdings_mut() {
            let depth = holding.depth_of(owner);
            if depth == 0 || !holding.is_valid_by(rules.clock) {
                continue;
            }
            let (inside, asked) = (holding.load(), ask.load);
            if holding.tenure.is_lowering() {
                // It stands in line until it can join.
                let fits = Load::READER.fits_beside(asked);
                return (!fits).then_some(Arrival::InTheWay(Load::READER));
            }
            let covers =
                inside == asked || (inside.is_exclusive() && (asked.is_exclusive() || asked == Load::READER));
            if covers && (inside.is_exclusive() || inside == Load::READER) {
                if rules.bounds.depth_max <= depth {
                    return Some(Arrival::TooDeep);
                }
                holding.enter(Some(owner));
                return Some(Arrival::Reentered(holding.hold_for(Some(owner.clone()))));
            }
            let all = has.map_or(inside, |it| it.with(inside));
            if !all.fits_beside(asked) {
                return Some(Arrival::InTheWay(all));
            }
            has = Some(all);
        }
        None
    }

    /// Readers of this process share one tenure, as long as it is good and others outside do not wait too long.
    ///
    /// A hold that ends by itself is not shared: its end would be the end of all.
    fn join(&mut self, ask: &Ask, rules: &Rules<'_>) -> Option<(Hold, Moment)> {
        let may_join = ask.load == Load::READER && ask.max_hold == Span::ENDLESS;
        if !may_join || self.representing.is_alone() {
            return None;
        }
        let now = rules.clock.now();
        // There may be a newer one beside one whose turn is over.
        let may_share = |it: &&mut Holding| {
            let alike = it.load() == Load::READER && it.until == Moment::NEVER && it.tenure.ttl == ask.ttl;
            alike && may_go_on(&it.tenure, u64::from(it.joined_while_wanted), rules.bounds, now)
        };
        let holding = self.room.holdings_mut().iter_mut().find(may_share)?;
        let tenure = &holding.tenure;
        if tenure.wanted_since().is_some() {
            holding.joined_while_wanted += 1;
        }
        let due = tenure.ask_within(now, rules.bounds.hand_on_span_max);
        holding.enter(ask.owner.as_ref());
        Some((holding.hold_for(ask.owner.clone()), due))
    }

    /// Whether this caller may go on. Where the line is the whole lock there is no store at which it could wait for us.
    fn may_go(&self, ask: &Ask, rules: &Rules<'_>) -> bool {
        let room = &self.room;
        if rules.is_whole_lock { room.fits(ask.load, 1) } else { self.representing.may_add(ask, room) }
    }

    /// This caller fits beside us: it holds if the line is the whole lock, otherwise it represents us.
    fn go_on(&mut self, ask: &Ask, rules: &mut Rules<'_>) -> Option<Hold> {
        if !rules.is_whole_lock {
            self.representing.add(ask.load);
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
            } else if self.may_go(&head.ask, rules) {
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

    /// What a representative heard of the store: nothing usable, or an answer.
    pub(super) fn set_outage(&mut self, outage: Option<Fault>) {
        self.waiters.set_outage(outage);
    }

    pub(super) fn outage(&self) -> Option<&Fault> {
        self.waiters.outage()
    }

    /// The representative holds now.
    pub(super) fn seat(&mut self, hold: &Hold, rules: &mut Rules<'_>) -> Calls {
        self.representing.remove();
        self.set_outage(None);
        self.room.add(Holding::of(hold));
        let mut calls = Calls::none();
        self.advance(&mut None, rules, &mut calls);
        calls
    }

    /// A background representative holds for whoever is next.
    pub(super) fn seat_next(&mut self, tenure: &Arc<Tenure>, rules: &mut Rules<'_>) -> Release {
        self.representing.remove();
        self.set_outage(None);
        let mut calls = Calls::none();
        let fitting = self.waiters.front().is_some_and(|it| tenure.fits(&it.ask));
        let next = if fitting { self.waiters.pop_front() } else { None };
        let Some(next) = next else {
            self.advance(&mut None, rules, &mut calls);
            return Release::Over(calls);
        };
        let hold = Hold::new(tenure.clone(), rules.clock.now(), &next.ask);
        self.room.add(Holding::of(&hold));
        calls.give(&next, hold, GrantedBy::HandOn, tenure.renew_at());
        self.advance(&mut None, rules, &mut calls);
        Release::HandedOn(calls)
    }

    /// The representative gives up, perhaps from a place in the store's line.
    pub(super) fn step_down(&mut self, keeper: &mut Option<Keeper>, rules: &mut Rules<'_>) -> Calls {
        self.representing.remove();
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
            if !self.representing.is_empty() || !self.room.is_left() {
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
        // Whoever is on its way to have it alone came before all who wait here.
        if !fitting
            || self.representing.is_alone()
            || now < tenure.kept_until()
            || !may_go_on(&tenure, tenure.hand_ons_while_wanted(), rules.bounds, now)
        {
            return false;
        }
        if !tenure.begin_next_guard() {
            return false;
        }
        let Some(next) = self.waiters.pop_front() else { return false };
        let due = tenure.ask_within(now, rules.bounds.hand_on_span_max);
        let hold = Hold::new(tenure, now, &next.ask);
        self.room.holdings_mut()[at] = Holding::of(&hold);
        calls.give(&next, hold, GrantedBy::HandOn, due);
        // The one behind may have waited only because the one before it did not fit.
        if !next.ask.load.is_exclusive() {
            self.advance(&mut None, rules, calls);
        }
        true
    }

    /// The only guard of a tenure is about to share it.
    pub(super) fn begin_lowering(&mut self, tenure: &Arc<Tenure>) -> Lowering {
        let Some(at) = self.room.position(tenure) else { return Lowering::Gone };
        if !self.room.holdings()[at].has_one_guard() {
            return Lowering::Nested;
        }
        tenure.begin_lowering();
        Lowering::Begun
    }

    /// A tenure became one of readers: those of us who wait to read may join it.
    pub(super) fn lowered(&mut self, tenure: &Arc<Tenure>, rules: &mut Rules<'_>) -> Calls {
        let mut calls = Calls::none();
        if let Some(at) = self.room.position(tenure).filter(|_| tenure.is_lowering()) {
            self.room.holdings_mut()[at].become_shared();
            self.advance(&mut None, rules, &mut calls);
        }
        calls
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

    /// What a caller stands behind: how many others, the holder included, or an outage.
    pub(super) fn before(&self, waiter: &Waiter) -> Before {
        if let Some(fault) = self.outage() {
            return Before::Outage(fault.clone());
        }
        Before::Others(self.waiters.position(waiter).and_then(|it| u64::try_from(it + 1).ok()))
    }

    /// Nobody is served any more. Whom to wake, and what is held.
    pub(super) fn close(self) -> (Calls, Vec<Arc<Tenure>>) {
        let mut calls = Calls::none();
        self.waiters.iter().for_each(|it| calls.add(it, Call::Closed));
        let tenures = self.held().iter().map(|it| it.tenure.clone()).collect();
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
