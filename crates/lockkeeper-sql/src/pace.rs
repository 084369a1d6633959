//! How often to look at a line when nobody can call us: as often as the line is likely to move.
//!
//! The next in line looks after an eighth of the time since the line last moved, so that looking adds little
//! to however long the holders hold. Those behind look less often, in proportion to their number.

use std::time::Duration;

use lockkeeper_core::Moment;

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The pace of one who waits.
#[derive(Debug)]
pub(crate) struct Pace {
    /// How many waited before us when we last looked, and since when that many.
    stood: Option<(i64, Moment)>,
    /// How long the last holders held, smoothed; `None` until one was seen to go.
    held_for: Option<Duration>,
    last: Duration,
}

impl Pace {
    pub(crate) const fn new() -> Self {
        Pace { stood: None, held_for: None, last: PAUSE_MIN }
    }

    /// We looked at `now` and `waiting_before` stand between us and the lock. How long to pause, at most `most`.
    pub(crate) fn pause(&mut self, now: Moment, waiting_before: i64, most: Duration) -> Duration {
        let since = match self.stood {
            Some((stood, since)) if stood == waiting_before => since,
            Some((stood, since)) => {
                let moves = u32::try_from((stood - waiting_before).max(1)).unwrap_or(u32::MAX);
                let each = (now - since) / moves;
                self.held_for = Some(self.held_for.map_or(each, |it| (it * 3 + each) / 4));
                now
            }
            None => now,
        };
        self.stood = Some((waiting_before, since));
        // A holder that outstays the usual time is asked after less and less often.
        let span = self.held_for.unwrap_or_default().max(now - since);
        let behind = u32::try_from(waiting_before.max(0)).unwrap_or(u32::MAX).saturating_add(1);
        let pause = (span / 8).clamp(PAUSE_MIN, PAUSE_MAX).saturating_mul(behind);
        self.last = pause.min(most).max(PAUSE_MIN);
        self.last
    }

    /// The pause decided on last.
    pub(crate) fn last(&self) -> Duration {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_next_in_line_looks_after_an_eighth_of_the_time_the_line_stood_still() {
        let mut pace = Pace::new();
        assert_eq!(pace.pause(at(0), 0, ms(10_000)), ms(1));
        assert_eq!(pace.pause(at(80), 0, ms(10_000)), ms(10));
        assert_eq!(pace.pause(at(1_000_000), 0, ms(10_000)), PAUSE_MAX);
        assert_eq!(pace.pause(at(1_000_000), 0, ms(100)), ms(100));
    }

    #[test]
    fn those_behind_pause_in_proportion_and_remember_how_long_others_held() {
        let mut pace = Pace::new();
        assert_eq!(pace.pause(at(0), 4, ms(10_000)), ms(5));
        assert_eq!(pace.pause(at(800), 3, ms(10_000)), ms(400));
        assert_eq!(pace.pause(at(801), 3, ms(10_000)), ms(400));
        assert_eq!(pace.pause(at(801), 3, ms(333)), ms(333), "never longer than allowed");
    }
}
