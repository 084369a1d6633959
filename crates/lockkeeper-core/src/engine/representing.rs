//! Who represents this process at the store for one key: one caller, or as many as fit there side by side.
//!
//! Permits of one name are claims of their own, so their callers need not wait for each other's answers: they go together, and
//! k of them cost about one trip instead of k. Readers share one place, and whoever wants the lock for itself fits beside
//! nobody, so of these there is one. It goes also while we read: others hear of it then, and so it waits for one longest read
//! of all processes and not for ours first and theirs after it.

use crate::engine::ask::Ask;
use crate::engine::hold::Room;
use crate::spi::claim::Load;

/// The most who go at once. Each has a place of its own at the store; those behind them follow when one comes back.
const AT_ONCE_MAX: u16 = 64;

/// They all have the same weight: a list of them would be moved with every in-process lock.
#[derive(Default)]
pub(super) struct Representing {
    count: u16,
    /// It wants the lock for itself.
    alone: bool,
    weight: u32,
}

impl Representing {
    /// The first of them.
    pub(super) fn one(load: Load) -> Self {
        Representing { count: 1, alone: load.is_exclusive(), weight: load.weight }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether somebody is on its way who wants the lock for itself: whoever comes later must not pass it.
    pub(super) fn is_alone(&self) -> bool {
        self.alone && !self.is_empty()
    }

    /// Whether one more may go: beside them and all that this process holds, or to wait until those of us who read have gone.
    pub(super) fn may_add(&self, ask: &Ask, room: &Room) -> bool {
        let load = ask.load;
        if self.is_empty() {
            return room.fits(load, 1) || (ask.patient && load.is_exclusive() && room.is_read());
        }
        let alike = load.weight == self.weight && load != Load::READER && !self.alone;
        alike && self.count < AT_ONCE_MAX && room.fits(load, u32::from(self.count) + 1)
    }

    pub(super) fn add(&mut self, load: Load) {
        *self = Representing { count: self.count + 1, ..Representing::one(load) };
    }

    /// One came back, with the lock or without.
    pub(super) fn remove(&mut self) {
        debug_assert!(0 < self.count, "more came back than went");
        self.count = self.count.saturating_sub(1);
    }
}
