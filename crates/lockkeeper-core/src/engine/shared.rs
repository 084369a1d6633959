//! What all parts of one locker share: the store, the clock, the queue, the settings, the background.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_fork::Origin;
use tokio::sync::{Notify, watch};

use crate::clock::{Clock, Moment, Span};
use crate::engine::background::Background;
use crate::engine::calls::Calls;
use crate::engine::fresh::Fresh;
use crate::engine::order::Order;
use crate::engine::queue::Queue;
use crate::engine::schedule::Schedule;
use crate::engine::seen::Seen;
use crate::engine::warmth::Warmth;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::observe::{Answer, Event, Observer, TraceContext, Verb};
use crate::spi::backend::Profile;
use crate::spi::claim::Label;
use crate::spi::erased::DynBackend;
use crate::spi::fault::Fault;

/// How a locker behaves; each has a setter on [`LockerBuilder`](crate::LockerBuilder).
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Span,
    pub(crate) wait: Span,
    pub(crate) outage_max: Duration,
    pub(crate) hand_on_span_max: Duration,
    pub(crate) warm: bool,
}

/// How many times `outage_max` a request may go unanswered while the store answers others.
const QUEUED_MAX: u32 = 12;

/// What all write is dear, and patience is told in seconds: an answer that comes so soon after another changes nothing.
const HEARD_APART: Duration = Duration::from_millis(1);

/// A store that answers nobody for so long stands still: longer than any answer takes, shorter than most people wait.
const SILENT_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) backend: Box<dyn DynBackend>,
    pub(crate) profile: Profile,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) queue: Queue,
    pub(crate) schedule: Schedule,
    /// The store's alarm, from when the locker was made until the rounds begin: what is told in between must not be missed.
    pub(crate) alarm: Mutex<Option<watch::Receiver<u64>>>,
    /// What was granted lately, and does not listen yet.
    pub(crate) fresh: Fresh,
    /// What counters were granted lately.
    pub(crate) seen: Seen,
    /// What may stay after it was given back.
    pub(crate) warmth: Warmth,
    pub(crate) background: Background,
    pub(crate) label: Arc<Label>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    /// Whether locks are nested in opposite orders, if that was asked for.
    pub(crate) order: Option<Order>,
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
    #[inline]
    pub(crate) fn observe(&self, event: &Event<'_>) {
        for observer in &self.observers {
            let _ = catch_unwind(AssertUnwindSafe(|| observer.observe(event)));
        }
    }

    /// The same for an arrival that was granted at once.
    #[inline]
    pub(crate) fn observe_at_once(&self, arrived: &Event<'_>, granted: &Event<'_>) {
        for observer in &self.observers {
            let _ = catch_unwind(AssertUnwindSafe(|| observer.observe_at_once(arrived, granted)));
        }
    }

    /// From which span this caller asks, if an observer makes traces.
    pub(crate) fn trace(&self, key: &Key) -> Option<TraceContext> {
        let of = |it: &Arc<dyn Observer>| catch_unwind(AssertUnwindSafe(|| it.trace(key))).ok().flatten();
        self.observers.iter().find_map(of)
    }

    /// Whether anybody wants to know. Without that no clock is read and nothing is counted for observers.
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        !self.observers.is_empty()
    }

    /// The present moment, if anybody wants to know how long something takes.
    pub(crate) fn now_if_observed(&self) -> Moment {
        if self.is_observed() { self.clock.now() } else { Moment::from_nanos(0) }
    }

    /// Tell the observers that the store answered a verb.
    pub(crate) fn answered(&self, key: &Key, verb: Verb, asked_at: Moment, answer: Answer) {
        if self.is_observed() {
            let took = self.clock.now() - asked_at;
            self.observe(&Event::Asked { key, verb, took, answer });
        }
    }

    /// Wake those whom the queue called, and see to it that the rounds look at what they were given.
    pub(crate) fn tell(&self, calls: Calls) {
        self.schedule.no_later_than(calls.due);
        calls.wake();
    }

    /// The store answered somebody at this moment.
    pub(crate) fn heard(&self, now: Moment) {
        if Moment::from_nanos(self.answered_at.load(Ordering::Relaxed)).after(HEARD_APART) <= now {
            self.answered_at.fetch_max(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Until when somebody who asked at `asked_at` has patience with the store: while it answers others, ours may stand
    /// in a queue of the client. There is an end to that, too.
    pub(crate) fn patient_until(&self, asked_at: Moment) -> Moment {
        let outage_max = self.settings.outage_max;
        let heard = Moment::from_nanos(self.answered_at.load(Ordering::Relaxed)).max(asked_at);
        heard.after(outage_max).min(asked_at.after(outage_max.saturating_mul(QUEUED_MAX)))
    }

    /// From when on a store that has answered nobody since `asked_at` stands still, as far as anybody can tell.
    pub(crate) fn silent_from(&self, asked_at: Moment) -> Moment {
        let heard = Moment::from_nanos(self.answered_at.load(Ordering::Relaxed)).max(asked_at);
        heard.after(SILENT_AFTER.min(self.settings.outage_max))
    }

    /// When to look whether it does.
    pub(crate) fn look_for_silence(&self, asked_at: Moment, now: Moment) -> Moment {
        let silent_from = self.silent_from(asked_at);
        if now < silent_from { silent_from } else { now.after(SILENT_AFTER) }
    }

    /// What is told of it then.
    pub(crate) fn silence(&self) -> Fault {
        Fault::transient(self.profile.name, "taking the lock", "the store does not answer")
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether this process made the locker. A fork has none of its threads, and its connections are the parent's.
    pub(crate) fn is_here(&self) -> bool {
        self.made_in.is_here()
    }

    /// Begin to use the locker on this thread: its background runs from now on.
    ///
    /// # Errors
    /// [`Error::Forked`] if this process did not make the locker; [`Error::Unavailable`] if there is no thread left.
    pub(crate) fn start(&self) -> Result<()> {
        self.check_process()?;
        self.background.start()
    }

    /// # Errors
    /// [`Error::Forked`] if this process did not make the locker.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked { made_in: self.made_in.pid() }) }
    }
}
