//! Since when a lock is held, as observers were told: each end is told once.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Moment;

/// The end of a hold was told.
const ENDED: u64 = u64::MAX;

/// When the present hold began, 0 until a caller has its guard, [`ENDED`] when its end was told. Not touched if nobody
/// observes. Whoever changes it tells what the old value says, so each end is told once. Relaxed is enough: it says when,
/// and guards nothing.
#[derive(Default)]
pub(crate) struct Began(AtomicU64);

impl Began {
    /// The next caller has no guard yet.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// A caller has a guard. `true` if the hold begins with it.
    pub(crate) fn begin(&self, now: Moment) -> bool {
        let now = now.as_nanos().clamp(1, ENDED - 1);
        self.0.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The hold begins, and nobody else knows of it yet.
    pub(crate) fn begin_unseen(&self, now: Moment) {
        self.0.store(now.as_nanos().clamp(1, ENDED - 1), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Since {
        Since(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn end(&self) -> Since {
        Since(self.0.swap(ENDED, Ordering::Relaxed))
    }
}

/// When a hold began, as far as observers know of it.
#[derive(Clone, Copy)]
pub(crate) struct Since(u64);

impl Since {
    /// Of what nobody observes.
    pub(crate) const UNTOLD: Since = Since(0);

    /// Whether its end was told already.
    pub(crate) fn is_over(self) -> bool {
        self.0 == ENDED
    }

    /// When it began; `None` if that was not told, or if its end was told already.
    pub(crate) fn began(self) -> Option<Moment> {
        (self.0 != 0 && !self.is_over()).then_some(Moment::from_nanos(self.0))
    }
}
