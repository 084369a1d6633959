//! One caller in a line: what it asks for, and what it is called for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::engine::ask::Ask;
use crate::engine::hold::Hold;
use crate::engine::keeper::Keeper;
use crate::observe::GrantedBy;

/// What a waiter is called for.
pub(crate) enum Call {
    /// The lock is yours, and how it came to you.
    Held(Hold, GrantedBy),
    /// You represent this process now, perhaps from a place in line that another began.
    Represent(Option<Keeper>),
    /// The queue was closed.
    Closed,
}

/// One caller in a line.
pub(crate) struct Waiter {
    pub(super) ask: Ask,
    pub(super) ticket: u64,
    slot: Mutex<Slot>,
}

enum Slot {
    Waiting(Option<Waker>),
    Called(Call),
    Gone,
}

impl Waiter {
    pub(super) fn new(ask: Ask, ticket: u64) -> Self {
        Waiter { ask, ticket, slot: Mutex::new(Slot::Waiting(None)) }
    }

    #[must_use = "the waker must be woken outside the queue's lock"]
    pub(super) fn call(&self, call: Call) -> Option<Waker> {
        match std::mem::replace(&mut *self.slot(), Slot::Called(call)) {
            Slot::Waiting(waker) => waker,
            Slot::Called(_) | Slot::Gone => None,
        }
    }

    /// The caller goes away. What comes back is what it was called for, if it was called already.
    pub(super) fn go(&self) -> Option<Call> {
        match std::mem::replace(&mut *self.slot(), Slot::Gone) {
            Slot::Called(call) => Some(call),
            Slot::Waiting(_) | Slot::Gone => None,
        }
    }

    /// Resolve when called.
    pub(crate) fn poll_called(&self, cx: &Context<'_>) -> Poll<Call> {
        let mut slot = self.slot();
        match std::mem::replace(&mut *slot, Slot::Gone) {
            Slot::Called(call) => Poll::Ready(call),
            Slot::Waiting(_) | Slot::Gone => {
                *slot = Slot::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
