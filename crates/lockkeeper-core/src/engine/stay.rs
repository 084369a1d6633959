//! Whether a tenure may stay with its process after it was given back, and how that went so far.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whoever takes the lock says it before it has its guard, and whoever gives it back got the guard from there, which orders the
/// two; the rest are hints. Relaxed is enough for all of them.
#[derive(Default)]
pub(crate) struct Stay {
    warm: AtomicBool,
    /// It was taken again after it had been idle; and since it was last looked at.
    retaken: AtomicBool,
    touched: AtomicBool,
    /// It is known to those who choose what must go.
    listed: AtomicBool,
    /// Somebody knows the number of the present guard, or of one before it.
    numbered: AtomicBool,
}

impl Stay {
    pub(crate) fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Relaxed)
    }

    /// Whoever has it now wants it to stay, or to go.
    pub(crate) fn set_warm(&self, warm: bool) {
        self.warm.store(warm, Ordering::Relaxed);
    }

    /// It was idle and is taken again.
    pub(crate) fn retake(&self) {
        self.retaken.store(true, Ordering::Relaxed);
        self.touched.store(true, Ordering::Relaxed);
    }

    /// Whether it was ever taken again after it had been idle.
    pub(crate) fn was_retaken(&self) -> bool {
        self.retaken.load(Ordering::Relaxed)
    }

    /// Whether it was taken again since the last look.
    pub(crate) fn take_touched(&self) -> bool {
        self.touched.swap(false, Ordering::Relaxed)
    }

    /// The number of the present guard is told to somebody: the next guard needs another.
    ///
    /// A number that nobody was told is not used up, and the next guard has it. So what is taken again and again without a
    /// look at its fence does not run out of numbers, and needs no trip to the store for more.
    pub(crate) fn number(&self) {
        self.numbered.store(true, Ordering::Relaxed);
    }

    /// Whether the next guard needs another number. It has it then, and nobody knows of that yet.
    pub(crate) fn take_numbered(&self) -> bool {
        self.numbered.load(Ordering::Relaxed) && self.numbered.swap(false, Ordering::Relaxed)
    }

    /// Whether it is known to those who choose what must go. Only they change that, under their lock.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Relaxed)
    }

    /// It is known to them from now on, or not any more. What it was before.
    pub(crate) fn list(&self, listed: bool) -> bool {
        self.listed.swap(listed, Ordering::Relaxed)
    }
}
