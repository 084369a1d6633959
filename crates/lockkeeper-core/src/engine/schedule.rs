//! When the next round of renewals is due. It knows no store and no locker: whoever takes a lock tells it a moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;

#[derive(Debug)]
pub(crate) struct Schedule {
    /// When the next round begins, as far as it is planned. Release by the walk, Acquire by those who compare: one of
    /// the two sees the other, because the walk sets it to "never" before it looks at the lines.
    next: AtomicU64,
    /// The shortest ttl seen, which sets the pace of idle rounds. Relaxed: a hint.
    ttl_min: AtomicU64,
    /// Something was granted since the last round. Relaxed: a hint that saves a wake-up.
    busy: AtomicBool,
    /// Whether the walk has begun. Acquire and Release, so that one caller begins it.
    started: AtomicBool,
    earlier: Arc<Notify>,
}

impl Schedule {
    pub(crate) fn new() -> Self {
        Schedule {
            next: AtomicU64::new(u64::MAX),
            ttl_min: AtomicU64::new(u64::MAX),
            busy: AtomicBool::new(false),
            started: AtomicBool::new(false),
            earlier: Arc::default(),
        }
    }

    /// A tenure began that must be looked at by `due`. `true` if nobody walks the rounds yet: the caller must see to it.
    pub(crate) fn include(&self, ttl: Duration, due: Moment) -> bool {
        let ttl = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        if ttl < self.ttl_min.load(Ordering::Relaxed) {
            self.ttl_min.fetch_min(ttl, Ordering::Relaxed);
        }
        if !self.busy.load(Ordering::Relaxed) {
            self.busy.store(true, Ordering::Relaxed);
        }
        let first = !self.started.load(Ordering::Acquire) && !self.started.swap(true, Ordering::AcqRel);
        self.no_later_than(due);
        first
    }

    /// There must be a round at this moment, such as when `max_hold` ends.
    pub(crate) fn no_later_than(&self, at: Moment) {
        if at.as_nanos() < self.next.load(Ordering::Acquire) {
            self.earlier.notify_one();
        }
    }

    /// The locker is going: let the walk notice.
    pub(crate) fn stop(&self) {
        self.earlier.notify_one();
    }

    /// A round begins: everybody who comes from now on wakes the walk again, so that nobody is missed. `true` if
    /// something was granted since the last one.
    pub(crate) fn begin_round(&self) -> bool {
        self.next.store(u64::MAX, Ordering::Release);
        self.busy.swap(false, Ordering::Relaxed)
    }

    /// A round is over, and the next is due at this moment. What comes back tells of an earlier one.
    pub(crate) fn end_round(&self, next: Moment) -> Arc<Notify> {
        self.next.store(next.as_nanos(), Ordering::Release);
        self.earlier.clone()
    }

    /// After a grant the rounds stay awake for a while, so that quick locks need not wake the thread each time.
    pub(crate) fn linger(&self) -> Duration {
        let ttl_min = Duration::from_nanos(self.ttl_min.load(Ordering::Relaxed));
        (ttl_min / 4).min(Duration::from_secs(1))
    }
}
