//! How long answers take: what patience and the shortest ttl are reckoned from.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use lockkeeper_core::kit::locked;

/// How many of the last round trips count.
const KEPT: usize = 8;

/// The last round trips.
#[derive(Debug, Default)]
pub(crate) struct Trips(Mutex<VecDeque<Duration>>);

impl Trips {
    /// An answer came after this long.
    pub(crate) fn add(&self, took: Duration) {
        let mut trips = locked(&self.0);
        if trips.len() == KEPT {
            trips.pop_front();
        }
        trips.push_back(took);
    }

    /// The quickest of the last: what the network takes, whatever else is slow. Zero before the first.
    pub(crate) fn quickest(&self) -> Duration {
        locked(&self.0).iter().min().copied().unwrap_or_default()
    }

    /// The slowest of the last: what an answer may well take.
    pub(crate) fn slowest(&self) -> Duration {
        locked(&self.0).iter().max().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_count() {
        let trips = Trips::default();
        assert_eq!((trips.quickest(), trips.slowest()), (Duration::ZERO, Duration::ZERO));
        for ms in [1, 90, 5, 6, 7, 8, 9, 10] {
            trips.add(Duration::from_millis(ms));
        }
        assert_eq!((trips.quickest().as_millis(), trips.slowest().as_millis()), (1, 90));
        trips.add(Duration::from_millis(7));
        trips.add(Duration::from_millis(7));
        assert_eq!((trips.quickest().as_millis(), trips.slowest().as_millis()), (5, 10));
    }
}
