//! What all parts of one locker share: the store, the clock, the queue, the settings, the background.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_fork::Origin;
use tokio::sync::Notify;

use crate::clock::{Clock, Moment};
use crate::engine::background::Background;
use crate::engine::line::Calls;
use crate::engine::queue::Queue;
use crate::engine::schedule::Schedule;
use crate::error::{Error, Result};
use crate::observe::{Event, Observer};
use crate::spi::backend::{DynBackend, Profile};
use crate::spi::claim::Label;

/// How a locker behaves; each has a setter on [`LockerBuilder`](crate::LockerBuilder).
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) wait: Duration,
    pub(crate) outage_max: Duration,
    pub(crate) hand_on_span_max: Duration,
}

/// How many times `outage_max` a request may go unanswered while the store answers others.
const QUEUED_MAX: u32 = 12;

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) backend: Box<dyn DynBackend>,
    pub(crate) profile: Profile,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) queue: Queue,
    pub(crate) schedule: Schedule,
    pub(crate) background: Background,
    pub(crate) label: Arc<Label>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    /// The process that made the locker.
    pub(crate) made_in: Origin,
    /// When the store last answered anybody. Relaxed: a hint by which a store that serves others is told from a silent one.
    pub(crate) answered_at: AtomicU64,
    /// Set once, before the queue is closed. Release and Acquire: whoever sees it set also sees the closed queue's wake-up.
    pub(crate) closed: AtomicBool,
    /// Tells whoever waits at the store that the locker was closed.
    pub(crate) closing: Notify,
}

impl Engine {
    /// Tell the observers. One that panics hurts nobody but itself: this is called from `Drop`, too.
    pub(crate) fn observe(&self, event: &Event<'_>) {
        for observer in &self.observers {
            let _ = catch_unwind(AssertUnwindSafe(|| observer.observe(event)));
        }
    }

    /// Wake those whom the queue called, and see to it that the rounds look at what they were given.
    pub(crate) fn tell(&self, calls: Calls) {
        self.schedule.no_later_than(calls.due);
        calls.wake();
    }

    /// The store answered somebody at this moment.
    pub(crate) fn heard(&self, now: Moment) {
        self.answered_at.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// Until when somebody who asked at `asked_at` has patience with the store: while it answers others, ours may stand
    /// in a queue of the client. There is an end to that, too.
    pub(crate) fn patient_until(&self, asked_at: Moment) -> Moment {
        let outage_max = self.settings.outage_max;
        let heard = Moment::from_nanos(self.answered_at.load(Ordering::Relaxed)).max(asked_at);
        heard.after(outage_max).min(asked_at.after(outage_max.saturating_mul(QUEUED_MAX)))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether this process made the locker. A fork has none of its threads, and its connections are the parent's.
    pub(crate) fn is_here(&self) -> bool {
        self.made_in.is_here()
    }

    /// # Errors
    /// [`Error::Forked`] if this process did not make the locker.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked { made_in: self.made_in.pid() }) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.schedule.stop();
    }
}
