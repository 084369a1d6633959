//! Callers in a line: what each asks for and is called for, and all of them in their order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::engine::ask::Ask;
use crate::engine::hold::Hold;
use crate::engine::keeper::Keeper;
use crate::kit::locked;
use crate::observe::GrantedBy;
use crate::spi::fault::Fault;

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
        match std::mem::replace(&mut *locked(&self.slot), Slot::Called(call)) {
            Slot::Waiting(waker) => waker,
            Slot::Called(_) | Slot::Gone => None,
        }
    }

    /// The caller goes away. What comes back is what it was called for, if it was called already.
    pub(super) fn go(&self) -> Option<Call> {
        match std::mem::replace(&mut *locked(&self.slot), Slot::Gone) {
            Slot::Called(call) => Some(call),
            Slot::Waiting(_) | Slot::Gone => None,
        }
    }

    /// Resolve when called.
    pub(crate) fn poll_called(&self, cx: &Context<'_>) -> Poll<Call> {
        let mut slot = locked(&self.slot);
        match std::mem::replace(&mut *slot, Slot::Gone) {
            Slot::Called(call) => Poll::Ready(call),
            Slot::Waiting(_) | Slot::Gone => {
                *slot = Slot::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

/// Those who wait. Boxed, because most lines have none.
#[derive(Default)]
pub(super) struct Waiters(Option<Box<Crowd>>);

#[derive(Default)]
struct Crowd {
    line: VecDeque<Arc<Waiter>>,
    tickets: u64,
    /// Why whoever represents them hears nothing of the store just now.
    outage: Option<Fault>,
}

impl Waiters {
    /// As if it were dropped, but in the caller's own code: see [`Line::end`](super::line::Line::end).
    #[inline]
    pub(super) fn end(self) {
        if let Some(crowd) = self.0 {
            drop(crowd);
        }
    }

    /// What those who represent this line last heard of the store: nothing usable, or an answer.
    pub(super) fn set_outage(&mut self, outage: Option<Fault>) {
        match (&mut self.0, outage) {
            (Some(crowd), outage) => crowd.outage = outage,
            (None, Some(outage)) => self.0.get_or_insert_default().outage = Some(outage),
            (None, None) => {}
        }
    }

    pub(super) fn outage(&self) -> Option<&Fault> {
        self.0.as_ref()?.outage.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.0.iter().flat_map(|it| it.line.iter())
    }

    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |it| it.line.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn front(&self) -> Option<&Arc<Waiter>> {
        self.0.as_ref()?.line.front()
    }

    pub(super) fn pop_front(&mut self) -> Option<Arc<Waiter>> {
        self.0.as_mut()?.line.pop_front()
    }

    pub(super) fn stand(&mut self, ask: &Ask) -> Arc<Waiter> {
        let crowd = self.0.get_or_insert_default();
        crowd.tickets += 1;
        let waiter = Arc::new(Waiter::new(ask.clone(), crowd.tickets));
        crowd.line.push_back(waiter.clone());
        waiter
    }

    pub(super) fn position(&self, waiter: &Waiter) -> Option<usize> {
        let line = &self.0.as_ref()?.line;
        let at = line.binary_search_by_key(&waiter.ticket, |it| it.ticket).ok()?;
        std::ptr::eq(Arc::as_ptr(&line[at]), waiter).then_some(at)
    }

    pub(super) fn remove(&mut self, at: usize) {
        if let Some(crowd) = &mut self.0 {
            crowd.line.remove(at);
        }
    }
}
