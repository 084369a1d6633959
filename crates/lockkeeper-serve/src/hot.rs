//! Which names are asked for most: a sketch of fixed size, however many names there are. And how many locks were lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::LostReason;
use lockkeeper_core::observe::{Event, Observer};

/// Names that are remembered at a time.
const NAMES_MAX: usize = 64;

/// An observer that remembers the names that a locker is asked for most, and how many of its locks were lost.
///
/// It has room for 64 names and never grows. A name that finds no room takes the place of the one that was asked for least, and
/// takes over its count: counts may be too large by that, never too small, and a name that makes up more than a
/// 64th of all is always there.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Locker, Memory};
/// use lockkeeper_serve::HotNames;
///
/// let hot = HotNames::default();
/// let locker = Locker::builder(Memory::default()).observer(hot.clone()).build();
/// for _ in 0..3 {
///     locker.lock("orders/42").await?.release().await?;
/// }
/// assert!(format!("{hot:?}").contains("orders/42"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct HotNames(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    sketch: Mutex<Sketch>,
    /// Held locks that were lost. Relaxed: only counted.
    lost: AtomicU64,
}

impl HotNames {
    fn sketch(&self) -> MutexGuard<'_, Sketch> {
        self.0.sketch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many held locks were lost: not renewed in time, broken by hand, or held for too long.
    pub(crate) fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// The names, those that were asked for most first.
    pub(crate) fn hottest(&self) -> Vec<Hot> {
        self.sketch().hottest()
    }
}

impl Observer for HotNames {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Arrived { key, .. } => self.sketch().count(key.as_str()),
            // Most have not waited, and then there is nothing to remember.
            Event::Granted { key, local, remote, .. } if !(*local + *remote).is_zero() => {
                self.sketch().waited(key.as_str(), *local + *remote);
            }
            Event::Lost { reason: LostReason::Expired | LostReason::Taken | LostReason::MaxHold, .. } => {
                self.0.lost.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// A name, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hot {
    pub(crate) name: String,
    /// How often it was counted, at most.
    pub(crate) count: u64,
    /// By how much that may be too large.
    pub(crate) surplus: u64,
    /// How long those who got it had waited, together.
    pub(crate) waited: Duration,
}

/// The names that were counted most, as Metwally's "space saving" finds them.
#[derive(Debug, Default)]
pub(crate) struct Sketch(Vec<Hot>);

impl Sketch {
    /// Once more.
    pub(crate) fn count(&mut self, name: &str) {
        if let Some(at) = self.0.iter().position(|it| it.name == name) {
            self.0[at].count += 1;
            // What is counted often stands in front and is found at once.
            if 0 < at && self.0[at - 1].count < self.0[at].count {
                self.0.swap(at - 1, at);
            }
        } else if self.0.len() < NAMES_MAX {
            self.0.push(Hot { name: name.to_owned(), count: 1, surplus: 0, waited: Duration::ZERO });
        } else if let Some(least) = self.0.iter_mut().min_by_key(|it| it.count) {
            let surplus = least.count;
            *least = Hot { name: name.to_owned(), count: surplus + 1, surplus, waited: Duration::ZERO };
        }
    }

    fn waited(&mut self, name: &str, span: Duration) {
        if let Some(it) = self.0.iter_mut().find(|it| it.name == name) {
            it.waited += span;
        }
    }

    pub(crate) fn hottest(&self) -> Vec<Hot> {
        let mut all = self.0.clone();
        all.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.name.cmp(&other.name)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is counted, a name is never told to be rarer than it is, and those above a 64th of all are there.
    #[test]
    fn what_is_hot_is_found_among_a_hundred_thousand_names() {
        let mut sketch = Sketch::default();
        for round in 0..100_000_u32 {
            sketch.count(&format!("rare/{round}"));
            if round % 10 == 0 {
                sketch.count("hot");
            }
            if round % 20 == 0 {
                sketch.count("warm");
            }
        }
        let all = sketch.hottest();
        assert_eq!(all.len(), NAMES_MAX);
        for (name, real) in [("hot", 10_000), ("warm", 5_000)] {
            let found = all.iter().find(|it| it.name == name).unwrap();
            assert!(found.count - found.surplus <= real && real <= found.count, "{found:?}");
        }
        assert_eq!(all[0].name, "hot");
    }

    #[test]
    fn waits_add_up_for_names_that_are_known() {
        let mut sketch = Sketch::default();
        sketch.count("a");
        sketch.waited("a", Duration::from_secs(1));
        sketch.waited("a", Duration::from_secs(2));
        sketch.waited("unknown", Duration::from_secs(9));
        assert_eq!(sketch.hottest()[0].waited, Duration::from_secs(3));
    }
}
