//! A hold: a tenure as one caller has it, and those of one key together.

use std::sync::Arc;

use crate::clock::{Clock, Moment, Span};
use crate::engine::ask::Ask;
use crate::engine::tenure::Tenure;
use crate::fence::Fence;
use crate::key::Key;
use crate::owner::Owner;
use crate::spi::claim::Load;

/// What a guard is made of.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) fence: Fence,
    pub(crate) until: Moment,
    pub(crate) owner: Option<Owner>,
}

impl Hold {
    /// The hold of whoever has the tenure from `now` on.
    #[inline]
    pub(crate) fn new(tenure: Arc<Tenure>, now: Moment, ask: &Ask) -> Self {
        if ask.at_least != Span::ZERO {
            tenure.keep_until(now.after(ask.at_least.into()));
        }
        if !tenure.is_private {
            tenure.stay.set_warm(ask.warm);
        }
        Hold {
            fence: tenure.fence(),
            tenure,
            until: now.after(ask.max_hold.into()),
            owner: ask.owner.clone(),
        }
    }

    /// Its number, for somebody who will remember it.
    #[inline]
    pub(crate) fn told_fence(&self) -> Fence {
        self.tenure.stay.number();
        self.fence
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.tenure.valid_until().min(self.until)
    }

    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        self.tenure.is_valid(now) && now < self.until
    }

    pub(crate) fn is_valid_by(&self, clock: &Clock) -> bool {
        is_valid_by(&self.tenure, self.until, clock)
    }

    /// The moment at which to judge it.
    #[inline]
    pub(crate) fn judged_at(&self, clock: &Clock) -> Moment {
        judged_at(&self.tenure, self.until, clock)
    }
}

/// Whether it is held now.
fn is_valid_by(tenure: &Tenure, until: Moment, clock: &Clock) -> bool {
    let now = judged_at(tenure, until, clock);
    tenure.is_valid(now) && now < until
}

/// The present moment, without reading the clock for what never ends by itself.
#[inline]
fn judged_at(tenure: &Tenure, until: Moment, clock: &Clock) -> Moment {
    let endless = until == Moment::NEVER && tenure.valid_until() == Moment::NEVER;
    if endless { Moment::from_nanos(0) } else { clock.now() }
}

/// A tenure in a line, with all guards that share it: those of one owner, or readers.
///
/// It and whatever contains it are moved with every in-process lock, so they are kept small.
pub(super) struct Holding {
    pub(super) tenure: Arc<Tenure>,
    pub(super) until: Moment,
    /// Whose guards they are. Readers have a list of their own.
    owner: Option<Owner>,
    /// Guards that are out, each level of each owner counted.
    guards: u32,
    /// Readers who joined since somebody outside waits.
    pub(super) joined_while_wanted: u32,
    /// Levels of each reader that has an owner.
    #[expect(clippy::box_collection, reason = "a holding is moved often and rarely has such readers")]
    readers: Option<Box<Vec<(Owner, u32)>>>,
}

/// The list of readers, where this is the first of them and can come again.
#[expect(clippy::box_collection, reason = "a holding is moved often and rarely has such readers")]
#[inline]
fn first_reader(hold: &Hold) -> Option<Box<Vec<(Owner, u32)>>> {
    let owner = hold.owner.as_ref().filter(|_| hold.tenure.load() == Load::READER)?;
    Some(Box::new(vec![(owner.clone(), 1)]))
}

/// The number of guards of what is idle. A field of its own would be moved with every in-process lock.
const IDLE: u32 = u32::MAX;

impl Holding {
    /// The last guard is given back, and the tenure stays.
    pub(super) fn rest(&mut self) {
        (self.guards, self.until, self.owner, self.readers) = (IDLE, Moment::NEVER, None, None);
    }

    /// Nobody has it, and it stays for the next of us.
    pub(super) fn is_idle(&self) -> bool {
        self.guards == IDLE
    }

    /// The holding of one guard.
    #[expect(
        clippy::inline_always,
        reason = "a hold that goes through memory costs a tenth of an in-process lock"
    )]
    #[inline(always)]
    pub(super) fn of(hold: &Hold) -> Self {
        let (tenure, owner) = (hold.tenure.clone(), hold.owner.clone());
        let readers = first_reader(hold);
        Holding { tenure, until: hold.until, owner, guards: 1, joined_while_wanted: 0, readers }
    }

    /// What was idle has one guard again.
    pub(super) fn serve(&mut self, hold: &Hold) {
        debug_assert!(Arc::ptr_eq(&self.tenure, &hold.tenure), "a guard of another tenure");
        (self.guards, self.until, self.joined_while_wanted) = (1, hold.until, 0);
        (self.owner, self.readers) = (hold.owner.clone(), first_reader(hold));
    }

    /// As if it were dropped, but in the caller's own code: see [`Line::end`](super::line::Line::end).
    #[inline]
    pub(super) fn end(self) -> Arc<Tenure> {
        let Holding { tenure, owner, readers, .. } = self;
        if let Some(owner) = owner {
            drop(owner);
        }
        if let Some(readers) = readers {
            drop(readers);
        }
        tenure
    }

    pub(super) fn has_one_guard(&self) -> bool {
        self.guards == 1
    }

    /// One more guard of it.
    pub(super) fn hold_for(&self, owner: Option<Owner>) -> Hold {
        Hold { tenure: self.tenure.clone(), fence: self.tenure.fence(), until: self.until, owner }
    }

    pub(super) fn is_valid_by(&self, clock: &Clock) -> bool {
        is_valid_by(&self.tenure, self.until, clock)
    }

    pub(super) fn load(&self) -> Load {
        self.tenure.load()
    }

    /// It is one of readers from now on.
    pub(super) fn become_shared(&mut self) {
        self.tenure.become_shared();
        if let Some(owner) = self.owner.take() {
            self.readers = Some(Box::new(vec![(owner, self.guards)]));
        }
    }

    /// How deep this owner is inside.
    pub(super) fn depth_of(&self, owner: &Owner) -> u32 {
        if self.load() != Load::READER {
            return if self.owner.as_ref() == Some(owner) { self.guards } else { 0 };
        }
        let readers = self.readers.iter().flat_map(|it| it.iter());
        readers.into_iter().find(|it| it.0 == *owner).map_or(0, |it| it.1)
    }

    /// One guard more.
    pub(super) fn enter(&mut self, owner: Option<&Owner>) {
        self.guards += 1;
        let Some(owner) = owner.filter(|_| self.load() == Load::READER) else { return };
        let readers = self.readers.get_or_insert_default();
        match readers.iter_mut().find(|it| it.0 == *owner) {
            Some(it) => it.1 += 1,
            None => readers.push((owner.clone(), 1)),
        }
    }

    /// One guard less. `true` if it was the last.
    pub(super) fn leave(&mut self, owner: Option<&Owner>) -> bool {
        debug_assert!(0 < self.guards, "more guards come back than were given");
        self.guards = self.guards.saturating_sub(1);
        if let (Some(readers), Some(owner)) = (&mut self.readers, owner)
            && let Some(at) = readers.iter().position(|it| it.0 == *owner)
        {
            readers[at].1 -= 1;
            if readers[at].1 == 0 {
                readers.swap_remove(at);
            }
        }
        self.guards == 0
    }
}

/// All that is held of one key. It always knows the key, also when nothing is held.
pub(super) enum Room {
    Empty(Box<Key>),
    One(Holding),
    /// Never fewer than two.
    Several(Vec<Holding>),
}

impl Room {
    pub(super) fn key(&self) -> &Key {
        match self {
            Room::Empty(key) => key,
            Room::One(holding) => &holding.tenure.key,
            Room::Several(holdings) => &holdings[0].tenure.key,
        }
    }

    pub(super) fn holdings(&self) -> &[Holding] {
        match self {
            Room::Empty(_) => &[],
            Room::One(holding) => std::slice::from_ref(holding),
            Room::Several(holdings) => holdings,
        }
    }

    pub(super) fn holdings_mut(&mut self) -> &mut [Holding] {
        match self {
            Room::Empty(_) => &mut [],
            Room::One(holding) => std::slice::from_mut(holding),
            Room::Several(holdings) => holdings,
        }
    }

    pub(super) fn position(&self, tenure: &Arc<Tenure>) -> Option<usize> {
        self.holdings().iter().position(|it| Arc::ptr_eq(&it.tenure, tenure))
    }

    pub(super) fn add(&mut self, holding: Holding) {
        *self = match std::mem::replace(self, Room::Several(Vec::new())) {
            Room::Empty(_) => Room::One(holding),
            Room::One(first) => Room::Several(vec![first, holding]),
            Room::Several(mut holdings) => {
                holdings.push(holding);
                Room::Several(holdings)
            }
        };
    }

    /// Whether nobody holds any more.
    pub(super) fn is_left(&self) -> bool {
        self.holdings().iter().all(|it| it.guards == 0)
    }

    pub(super) fn remove(&mut self, at: usize) {
        let Room::Several(holdings) = self else {
            *self = Room::Empty(Box::new(self.key().clone()));
            return;
        };
        holdings.swap_remove(at);
        if holdings.len() == 1
            && let Some(last) = holdings.pop()
        {
            *self = Room::One(last);
        }
    }

    /// Whether somebody holds, and all who do read.
    pub(super) fn is_read(&self) -> bool {
        !matches!(self, Room::Empty(_)) && self.holdings().iter().all(|it| it.load() == Load::READER)
    }

    /// Whether so many claims of this load fit beside all that this process holds.
    pub(super) fn fits(&self, load: Load, count: u32) -> bool {
        let (mut weight, mut capacity) = (u64::from(load.weight) * u64::from(count), load.capacity);
        for other in self.holdings().iter().map(Holding::load) {
            weight += u64::from(other.weight);
            capacity = capacity.min(other.capacity);
        }
        weight <= u64::from(capacity)
    }
}
