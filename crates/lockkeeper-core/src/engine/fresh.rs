//! What was granted a moment ago, and does not listen to the store yet.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::engine::tenure::Tenure;
use crate::kit::locked;

/// What is held for less than this does not listen.
const LISTEN_AFTER: Duration = Duration::from_millis(10);

/// Where all were given back sooner time and again, they are looked at more and more rarely, so many times twice as rarely
/// at most: each look wakes our thread, which a process that waits among many others pays for every lock it gets.
const DOUBLED_MAX: u32 = 5;

/// From so many on the list is rid of what is gone before it grows.
const FEW: usize = 64;

/// Only tests have something else than tenures.
#[derive(Debug)]
pub(crate) struct Fresh<T = Tenure> {
    tenures: Mutex<Vec<Arc<T>>>,
    /// Somebody will take them. Cleared before they are taken and set after one was added, in one order with the list's
    /// lock (Acquire and Release): whoever adds one that is not taken finds it cleared.
    awaited: AtomicBool,
    /// How often in a row nobody had any of them any more. Relaxed: a hint.
    in_vain: AtomicU32,
}

impl<T> Default for Fresh<T> {
    fn default() -> Self {
        Fresh { tenures: Mutex::default(), awaited: AtomicBool::new(false), in_vain: AtomicU32::new(0) }
    }
}

impl<T> Fresh<T> {
    /// One more. `true` if nobody is going to take it: the caller must see to that, after [`pause`](Self::pause).
    pub(crate) fn add(&self, tenure: &Arc<T>) -> bool {
        let mut tenures = locked(&self.tenures);
        let is_full = FEW <= tenures.len() && tenures.len() == tenures.capacity();
        let gone = if is_full { tenures.extract_if(.., |it| is_gone(it)).collect() } else { Vec::new() };
        tenures.push(tenure.clone());
        drop(tenures);
        drop(gone);
        !self.awaited.load(Ordering::Acquire) && !self.awaited.swap(true, Ordering::AcqRel)
    }

    /// How long to wait before they are taken.
    pub(crate) fn pause(&self) -> Duration {
        LISTEN_AFTER * (1 << self.in_vain.load(Ordering::Relaxed).min(DOUBLED_MAX))
    }

    /// All that somebody still has, for whoever said that it would take them; and whether that one goes on: where there were
    /// several, more are likely to come soon, and to stay costs one wake-up for them where to be called again costs two.
    pub(crate) fn take(&self) -> (Vec<Arc<T>>, bool) {
        self.awaited.store(false, Ordering::Release);
        let all = std::mem::take(&mut *locked(&self.tenures));
        // Somebody may have come meanwhile and called another.
        let goes_on = 1 < all.len() && !self.awaited.swap(true, Ordering::AcqRel);
        let held: Vec<_> = all.into_iter().filter(|it| !is_gone(it)).collect();
        let in_vain =
            if held.is_empty() { self.in_vain.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.in_vain.store(in_vain, Ordering::Relaxed);
        (held, goes_on)
    }
}

/// Nobody but the list has it.
fn is_gone<T>(tenure: &Arc<T>) -> bool {
    Arc::strong_count(tenure) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_all_is_given_back_soon_the_thread_is_woken_less_and_less_often() {
        let fresh = Fresh::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(fresh.add(&Arc::new(())), "somebody must take it");
            pauses.push(fresh.pause().as_millis());
            assert_eq!(fresh.take(), (vec![], false), "it was given back meanwhile");
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 320, 320]);
        let held = Arc::new(());
        fresh.add(&held);
        assert_eq!(fresh.take(), (vec![held], false));
        assert_eq!(fresh.pause(), LISTEN_AFTER, "holders hear the store again soon");
    }

    #[test]
    fn what_was_given_back_takes_no_room_until_it_is_looked_at() {
        let (fresh, held) = (Fresh::default(), Arc::new(0));
        fresh.add(&held);
        for number in 0..100_000 {
            fresh.add(&Arc::new(number));
            assert!(locked(&fresh.tenures).len() <= FEW, "{number}");
        }
        assert_eq!(fresh.take().0, [held]);
    }

    #[test]
    fn where_many_come_whoever_takes_them_stays_and_is_not_called_for_each() {
        let fresh = Fresh::default();
        let mut called = 0;
        for _ in 0..10 {
            for _ in 0..3 {
                called += u32::from(fresh.add(&Arc::new(())));
            }
            let (held, goes_on) = fresh.take();
            assert!(held.is_empty() && goes_on);
        }
        assert_eq!(called, 1, "by the first");
        assert!(!fresh.take().1, "nobody came: it goes");
        assert!(fresh.add(&Arc::new(())), "and the next one calls again");
    }
}
