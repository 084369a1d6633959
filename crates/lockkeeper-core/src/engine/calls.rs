//! Who was called while a lock of the queue was held: whoever held it wakes them afterwards.

use std::task::Waker;

use smallvec::SmallVec;

use crate::clock::Moment;
use crate::engine::hold::Hold;
use crate::engine::waiter::{Call, Waiter};
use crate::observe::GrantedBy;

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

    pub(super) fn add(&mut self, waiter: &Waiter, call: Call) {
        self.wakers.extend(waiter.call(call));
    }

    pub(super) fn give(&mut self, waiter: &Waiter, hold: Hold, by: GrantedBy, due: Moment) {
        self.due = self.due.min(hold.until).min(due);
        self.add(waiter, Call::Held(hold, by));
    }
}
