//! A tenure: the time this process holds one key, from the store's grant to the leave or the loss.
//!
//! Guards share it, the queue hands it on, the rounds renew it. Whoever holds the place does the next
//! verb: at rest it lies in the tenure; a renewal or a release takes it out.
//!
//! ```text
//!             grant                  release, nobody next          leave confirmed
//!   (keeper) ───────▶ held, at rest ────────────────────▶ leaving ───────────────▶ gone
//!                        │   ▲                               ▲
//!                 renew  ▼   │ confirmed                     │
//!                     renewing ── deadline passed, or ─▶ lost ┘
//!                                 store says no
//! ```

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::{self, DynPlace, Grant};
use crate::clock::Moment;
use crate::error::LostReason;
use crate::fence::{Fence, HANDOFF_MAX};
use crate::key::Key;

pub(crate) struct Tenure {
    pub(crate) key: Key,
    pub(crate) ttl: Duration,
    counter: u64,
    /// How often it was handed on. Changed only by the queue, under its lock.
    handoffs: AtomicU64,
    valid_until: AtomicU64,
    renew_at: AtomicU64,
    /// When to ask, before it must be renewed, whether somebody outside waits.
    ask_at: AtomicU64,
    /// When we learnt that somebody outside waits; `NEVER` while we know of nobody.
    wanted_since: AtomicU64,
    /// `handoffs` at that time.
    wanted_from: AtomicU64,
    lost: AtomicU8,
    /// Somebody was told that the deadline has passed; no renewal may make that untrue.
    over: AtomicBool,
    rest: Mutex<Rest>,
}

#[derive(Default)]
struct Rest {
    place: Option<Box<dyn DynPlace>>,
    private: bool,
    ended: bool,
    /// Who wants to know the answer to the leave.
    on_left: Option<oneshot::Sender<backend::Result<()>>>,
    listeners: Option<Box<Listeners>>,
}

/// Those who await the loss. Boxed, because most tenures have none.
#[derive(Default)]
struct Listeners {
    wakers: Vec<(u64, Waker)>,
    made: u64,
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("key", &self.key).field("fence", &self.fence()).finish_non_exhaustive()
    }
}

/// What is left to do when a tenure ends.
pub(crate) enum End {
    /// Leave the store with this place.
    Leave(Box<dyn DynPlace>),
    /// The place is out for a renewal and leaves when it returns.
    Out,
    /// The store was never asked.
    Nothing,
}

/// What a place found when it came back to rest.
pub(crate) enum Returned {
    /// It lies at rest again.
    Resting,
    /// The tenure ended meanwhile: the bringer must leave with it.
    Ended(Box<dyn DynPlace>),
}

impl Tenure {
    pub(crate) fn new(
        key: Key,
        ttl: Duration,
        place: Box<dyn DynPlace>,
        grant: &Grant,
        asked_at: Moment,
        valid_until: Moment,
    ) -> Self {
        let wanted_since = if grant.wanted { asked_at } else { Moment::NEVER };
        Tenure {
            key,
            ttl,
            counter: grant.counter,
            handoffs: AtomicU64::new(0),
            valid_until: AtomicU64::new(valid_until.as_nanos()),
            renew_at: AtomicU64::new(asked_at.after(ttl / 3).as_nanos()),
            ask_at: AtomicU64::new(u64::MAX),
            wanted_since: AtomicU64::new(wanted_since.as_nanos()),
            wanted_from: AtomicU64::new(0),
            lost: AtomicU8::new(0),
            over: AtomicBool::new(false),
            rest: Mutex::new(Rest { place: Some(place), ..Rest::default() }),
        }
    }

    /// A tenure in a store that nobody else can reach: it has no place there and never expires.
    pub(crate) fn private(key: Key, ttl: Duration, counter: u64) -> Self {
        let never = || AtomicU64::new(u64::MAX);
        Tenure {
            key,
            ttl,
            counter,
            handoffs: AtomicU64::new(0),
            valid_until: never(),
            renew_at: never(),
            ask_at: never(),
            wanted_since: never(),
            wanted_from: AtomicU64::new(0),
            lost: AtomicU8::new(0),
            over: AtomicBool::new(false),
            rest: Mutex::new(Rest { private: true, ..Rest::default() }),
        }
    }

    /// The fence of the present guard.
    pub(crate) fn fence(&self) -> Fence {
        Fence::new(self.counter, self.handoffs.load(Ordering::Relaxed))
    }

    pub(crate) fn handoffs(&self) -> u64 {
        self.handoffs.load(Ordering::Relaxed)
    }

    /// The next guard's fence, or `None` when this tenure's numbers are used up.
    pub(crate) fn next_fence(&self) -> Option<Fence> {
        let next = self.handoffs() + 1;
        if HANDOFF_MAX < next {
            return None;
        }
        self.handoffs.store(next, Ordering::Relaxed);
        Some(Fence::new(self.counter, next))
    }

    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Whether it is held, by the clock. The first `false` is final, also for a renewal that was on its way.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        if self.valid_until() <= now {
            self.over.store(true, Ordering::Release);
        }
        self.lost().is_none() && !self.over.load(Ordering::Acquire)
    }

    pub(crate) fn renew_at(&self) -> Moment {
        Moment::from_nanos(self.renew_at.load(Ordering::Relaxed))
    }

    pub(crate) fn set_renew_at(&self, at: Moment) {
        self.renew_at.store(at.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn ask_at(&self) -> Moment {
        Moment::from_nanos(self.ask_at.load(Ordering::Relaxed))
    }

    pub(crate) fn set_ask_at(&self, at: Moment) {
        self.ask_at.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// A renewal asked for at `asked_at` was confirmed. Answers may come out of order: keep the latest.
    pub(crate) fn extend(&self, asked_at: Moment, valid_until: Moment, wanted: bool) {
        self.valid_until.fetch_max(valid_until.as_nanos(), Ordering::AcqRel);
        self.set_renew_at(asked_at.after(self.ttl / 3));
        if !wanted {
            self.wanted_since.store(Moment::NEVER.as_nanos(), Ordering::Relaxed);
        } else if self.wanted_since().is_none() {
            self.wanted_from.store(self.handoffs(), Ordering::Relaxed);
            self.wanted_since.store(asked_at.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Since when somebody outside waits, as far as we know.
    pub(crate) fn wanted_since(&self) -> Option<Moment> {
        let since = Moment::from_nanos(self.wanted_since.load(Ordering::Relaxed));
        (since != Moment::NEVER).then_some(since)
    }

    /// How often it was handed on since somebody outside waits.
    pub(crate) fn handoffs_while_wanted(&self) -> u64 {
        self.handoffs() - self.wanted_from.load(Ordering::Relaxed).min(self.handoffs())
    }

    pub(crate) fn lost(&self) -> Option<LostReason> {
        match self.lost.load(Ordering::Acquire) {
            0 => None,
            1 => Some(LostReason::Expired),
            2 => Some(LostReason::Taken),
            3 => Some(LostReason::MaxHold),
            _ => Some(LostReason::Closed),
        }
    }

    /// Mark as lost and tell everybody who listens. Final; the first reason stays. `false` if it was lost before.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        let code = match reason {
            LostReason::Expired => 1,
            LostReason::Taken => 2,
            LostReason::MaxHold => 3,
            LostReason::Closed => 4,
        };
        let first = self.lost.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first {
            let listeners = self.rest().listeners.take();
            listeners.into_iter().flat_map(|it| it.wakers).for_each(|(_, waker)| waker.wake());
        }
        first
    }

    /// Resolve when the tenure is lost. `ticket` is the listener's own, `None` at first.
    pub(crate) fn poll_lost(&self, ticket: &mut Option<u64>, cx: &Context<'_>) -> Poll<LostReason> {
        let mut rest = self.rest();
        if let Some(reason) = self.lost() {
            return Poll::Ready(reason);
        }
        let Listeners { wakers, made } = &mut **rest.listeners.get_or_insert_default();
        let mine = ticket.and_then(|id| wakers.iter_mut().find(|it| it.0 == id));
        if let Some((_, waker)) = mine {
            waker.clone_from(cx.waker());
        } else {
            *made += 1;
            wakers.push((*made, cx.waker().clone()));
            *ticket = Some(*made);
        }
        Poll::Pending
    }

    pub(crate) fn stop_listening(&self, ticket: u64) {
        if let Some(listeners) = &mut self.rest().listeners {
            listeners.wakers.retain(|it| it.0 != ticket);
        }
    }

    /// Take the place for a renewal; `None` if it is out already or the tenure has ended.
    pub(crate) fn take_to_renew(&self) -> Option<Box<dyn DynPlace>> {
        self.rest().place.take()
    }

    /// Bring the place back from a renewal.
    pub(crate) fn bring_back(&self, place: Box<dyn DynPlace>) -> Returned {
        let mut rest = self.rest();
        if rest.ended {
            return Returned::Ended(place);
        }
        rest.place = Some(place);
        Returned::Resting
    }

    /// End the tenure.
    pub(crate) fn end(&self) -> End {
        let mut rest = self.rest();
        rest.ended = true;
        match rest.place.take() {
            Some(place) => End::Leave(place),
            None if rest.private => End::Nothing,
            None => End::Out,
        }
    }

    /// Hear the answer to a leave that somebody else will do.
    pub(crate) fn when_left(&self) -> oneshot::Receiver<backend::Result<()>> {
        let (sender, receiver) = oneshot::channel();
        self.rest().on_left = Some(sender);
        receiver
    }

    /// Tell whoever waits in [`Tenure::when_left`].
    pub(crate) fn tell_left(&self, answer: backend::Result<()>) {
        if let Some(sender) = self.rest().on_left.take() {
            let _ = sender.send(answer);
        }
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
