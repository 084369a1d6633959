//! The end of the process: what is idle is given back, and it waits a moment for what is not confirmed yet.
//!
//! A short `main` that drops its guard would else end before the store hears of it, and leave the lock for the ttl. What
//! waits is a counter, and the list of those who keep something idle is never waited for: a fork may have copied a lock in the
//! middle of its use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, Weak};
use std::time::Duration;

use crate::clock::{Clock, pause_thread};

static OPEN: Count = Count::none();

/// The longest wait that a locker asked for, in nanoseconds. Relaxed: it only grows, and nothing else hangs on it.
static WAIT_MAX: AtomicU64 = AtomicU64::new(0);

/// Between two looks at what is open. Nobody is woken at the end of a process.
const NAP: Duration = Duration::from_micros(200);

/// How much is open in this process; in the upper half how many forks it is away from the first. A fork has none of the
/// tasks that its parent counted. Acquire and Release: who finds nothing open sees all that the tasks did.
struct Count(AtomicU64);

impl Count {
    const fn none() -> Self {
        Count(AtomicU64::new(0))
    }

    fn add(&self, forks: u32) {
        self.change(|(theirs, count)| {
            Some(packed(forks, if theirs == forks { count.saturating_add(1) } else { 1 }))
        });
    }

    fn take(&self, forks: u32) {
        self.change(|(theirs, count)| (theirs == forks).then(|| packed(forks, count.saturating_sub(1))));
    }

    fn change(&self, to: impl Fn((u32, u32)) -> Option<u64>) {
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |it| to(unpacked(it)));
    }

    fn is_none(&self, forks: u32) -> bool {
        let (theirs, count) = unpacked(self.0.load(Ordering::Acquire));
        theirs != forks || count == 0
    }
}

fn packed(forks: u32, count: u32) -> u64 {
    (u64::from(forks) << 32) | u64::from(count)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
fn unpacked(both: u64) -> (u32, u32) {
    ((both >> 32) as u32, both as u32)
}

/// Who may have something to give back when the process ends, though nobody drops it: a locker in a `static`.
pub(crate) trait Ending: Send + Sync {
    /// Begin to give it back, as tasks that are [`Open`].
    fn begin_to_end(self: Arc<Self>);
}

static ENDING: Mutex<Vec<Weak<dyn Ending>>> = Mutex::new(Vec::new());

/// How often to try for the list. Whoever has it is quick; in a fork nobody may have it, for ever.
const LIST_TRIES: u32 = 1000;

fn ending() -> Option<MutexGuard<'static, Vec<Weak<dyn Ending>>>> {
    (0..LIST_TRIES).find_map(|_| {
        std::hint::spin_loop();
        ENDING.try_lock().ok()
    })
}

/// The end of the process ends this, too, and waits so long for it. `false` if that could not be noted now.
pub(crate) fn end_with_process(it: Weak<dyn Ending>, wait: Duration) -> bool {
    let Some(mut all) = ending() else { return false };
    watch(wait);
    all.retain(|it| it.strong_count() != 0);
    all.push(it);
    true
}

/// The end waits so long from now on, if it did not wait longer.
fn watch(wait: Duration) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| lockkeeper_fork::at_exit(end));
    WAIT_MAX.fetch_max(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// A task that the end of the process waits for.
pub(crate) struct Open {
    forks: u32,
}

impl Open {
    /// One more, for which the end waits so long.
    pub(crate) fn new(wait: Duration) -> Self {
        watch(wait);
        let forks = lockkeeper_fork::forks();
        OPEN.add(forks);
        Open { forks }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.take(self.forks);
    }
}

/// Called where the thread's own variables are gone: nothing here may use one, so others do the work.
fn end() {
    let ending: Vec<_> = ending().map(|it| it.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default();
    ending.into_iter().for_each(Ending::begin_to_end);
    wait_until_none();
}

fn wait_until_none() {
    let clock = Clock::boot();
    let until = clock.now().after(Duration::from_nanos(WAIT_MAX.load(Ordering::Relaxed)));
    while !OPEN.is_none(lockkeeper_fork::forks()) && clock.now() < until {
        pause_thread(NAP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_counted_and_the_tasks_of_a_parent_are_not() {
        let (open, parent, child) = (Count::none(), 0, 1);
        assert!(open.is_none(parent));
        open.add(parent);
        open.add(parent);
        open.take(parent);
        assert!(!open.is_none(parent));
        assert!(open.is_none(child), "a fork does not wait for what it inherited");
        open.add(child);
        open.take(parent);
        assert!(!open.is_none(child), "who is not of this process takes nothing away");
        open.take(child);
        assert!(open.is_none(child));
        open.take(child);
        assert!(open.is_none(child), "there is nothing less than nothing");
    }
}
