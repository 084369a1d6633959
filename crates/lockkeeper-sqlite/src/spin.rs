//! Spinning shortly before sleeping, where that pays: waking a sleeping thread can cost more than a commit.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_core::{Clock, Moment};

/// The longest spin. Work that takes longer is worth a sleep.
const SPIN_MAX: Duration = Duration::from_micros(300);

/// After this many misses in a row we try only once in 2^`MISSES_MAX` times.
const MISSES_MAX: u32 = 5;

/// Whether to spin, learnt from how often it was in vain: on a busy machine it always is.
/// Relaxed: guesses; one that gets lost costs a spin.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    misses: AtomicU32,
    /// How many more times to sleep at once.
    skips: AtomicU32,
}

impl Spin {
    /// Until when to spin for something that usually takes `usual`. `None`: sleep at once.
    pub(crate) fn spin_until(&self, usual: Duration, now: Moment) -> Option<Moment> {
        if SPIN_MAX < usual || !has_cores() {
            return None;
        }
        // Two threads may both take the last skip; then one spins once more than it should.
        let skips = self.skips.load(Ordering::Relaxed);
        if skips != 0 {
            self.skips.store(skips - 1, Ordering::Relaxed);
            return None;
        }
        Some(now.after((usual * 4).min(SPIN_MAX)))
    }

    /// The spin was worth it.
    pub(crate) fn hit(&self) {
        self.misses.store(0, Ordering::Relaxed);
    }

    /// The spin was in vain.
    pub(crate) fn miss(&self) {
        let misses = (self.misses.load(Ordering::Relaxed) + 1).min(MISSES_MAX);
        self.misses.store(misses, Ordering::Relaxed);
        self.skips.store((1 << misses) - 1, Ordering::Relaxed);
    }
}

/// With one core, whoever spins only keeps the other from working.
fn has_cores() -> bool {
    // Relaxed: whoever does not see it finds the same number.
    static CORES: AtomicU32 = AtomicU32::new(0);
    if CORES.load(Ordering::Relaxed) == 0 {
        let cores = std::thread::available_parallelism().map_or(1, |it| u32::try_from(it.get()).unwrap_or(1));
        CORES.store(cores, Ordering::Relaxed);
    }
    1 < CORES.load(Ordering::Relaxed)
}

/// How long the thread usually takes for a batch, in nanoseconds; a moving average. Relaxed: written by one
/// thread, and a guess for all others.
#[derive(Debug, Default)]
pub(crate) struct Usual(AtomicU32);

impl Usual {
    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed).into())
    }

    /// Only the connection's thread calls this.
    pub(crate) fn add(&self, took: Duration) {
        let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        let old = self.0.load(Ordering::Relaxed);
        let new = if old == 0 { took } else { old - old / 8 + took / 8 };
        self.0.store(new, Ordering::Relaxed);
    }
}

/// Spin until `ready` answers or the time is over.
pub(crate) fn spin<T>(clock: &Clock, until: Moment, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        for _ in 0..16 {
            if let Some(it) = ready() {
                return Some(it);
            }
            std::hint::spin_loop();
        }
        if until <= clock.now() {
            return None;
        }
        // The one we wait for may be waiting for this very core.
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_spins_in_vain_spins_less_and_less() {
        let (spin, now, usual) = (Spin::default(), Moment::from_nanos(0), Duration::from_micros(10));
        let mut spins = 0;
        for _ in 0..10_000 {
            if spin.spin_until(usual, now).is_some() {
                spins += 1;
                spin.miss();
            }
        }
        assert!(spins <= 10_000 / (1 << MISSES_MAX) + MISSES_MAX, "{spins} spins");
        if has_cores() {
            assert_ne!(spins, 0);
        }
    }

    #[test]
    fn nobody_spins_for_what_takes_long() {
        assert_eq!(Spin::default().spin_until(SPIN_MAX * 2, Moment::from_nanos(0)), None);
    }

    #[test]
    fn a_spin_ends_when_its_time_is_over() {
        let clock = Clock::boot();
        assert_eq!(spin(&clock, clock.now().after(Duration::from_micros(50)), || None::<()>), None);
        assert_eq!(spin(&clock, Moment::NEVER, || Some(1)), Some(1));
    }
}
