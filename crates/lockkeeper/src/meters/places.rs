//! A place for each thread: whoever is alone where it counts needs no locked instruction.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many threads have a place of their own at a time. Those beyond share one.
const PLACES: usize = 64;

/// A bit for each place that a living thread has. Whoever gives a place back does so with Release, whoever takes it with
/// Acquire: so the next thread sees what the last one counted there.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A thread's place, given back when the thread ends.
struct Mine(Option<usize>);

impl Mine {
    fn take() -> Self {
        let mut taken = TAKEN.load(Ordering::Relaxed);
        loop {
            let free = (!taken).trailing_zeros();
            let Some(bit) = 1_u64.checked_shl(free) else { return Mine(None) };
            match TAKEN.compare_exchange_weak(taken, taken | bit, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Mine(usize::try_from(free).ok()),
                Err(now) => taken = now,
            }
        }
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            TAKEN.fetch_and(!(1 << place), Ordering::Release);
        }
    }
}

thread_local! {
    static MINE: Mine = Mine::take();
}

/// One of something for each thread that used it, and one for all others.
#[derive(Debug)]
pub(super) struct Places<T> {
    own: [OnceLock<Box<T>>; PLACES],
    shared: T,
}

impl<T: Default> Default for Places<T> {
    fn default() -> Self {
        Places { own: std::array::from_fn(|_| OnceLock::new()), shared: T::default() }
    }
}

impl<T: Default> Places<T> {
    /// This thread's, and whether it is alone there: nobody else writes to it.
    #[inline]
    pub(super) fn mine(&self) -> (&T, bool) {
        // A thread that is ending has none any more.
        match MINE.try_with(|it| it.0) {
            Ok(Some(place)) => (self.own[place].get_or_init(Box::default), true),
            _ => (&self.shared, false),
        }
    }

    pub(super) fn all(&self) -> Vec<&T> {
        self.own.iter().filter_map(OnceLock::get).map(|it| &**it).chain([&self.shared]).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn threads_that_live_at_a_time_never_share_a_place_of_their_own() {
        let (places, met) = (Places::<AtomicU64>::default(), Barrier::new(PLACES + 8));
        let alone: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..PLACES + 8)
                .map(|_| {
                    scope.spawn(|| {
                        let (mine, alone) = places.mine();
                        met.wait();
                        (std::ptr::from_ref(mine).addr(), alone)
                    })
                })
                .collect();
            threads.into_iter().map(|it| it.join().unwrap()).filter(|it| it.1).map(|it| it.0).collect()
        });
        assert!(!alone.is_empty() && alone.len() <= PLACES);
        assert_eq!(alone.iter().collect::<BTreeSet<_>>().len(), alone.len(), "two had the same");
        // They are all free again: as many more find room, and no more numbers are needed for them.
        let before = places.all().len();
        for _ in 0..PLACES {
            std::thread::scope(|scope| _ = scope.spawn(|| places.mine().1).join());
        }
        assert_eq!(places.all().len(), before);
    }
}
