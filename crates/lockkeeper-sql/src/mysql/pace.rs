//! How often to look at a line: as often as it is likely to move, and the less the more stand before us.
//!
//! The next in line looks after an eighth of the time since the line last moved, so that looking adds little to
//! however long the holders hold. Whoever is behind comes back after half of the time in which it may become the next
//! one; so it looks a few times on its way through the line, however long that is.

use std::time::Duration;

use lockkeeper_core::Moment;

pub(super) const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The pace of one who waits.
#[derive(Debug)]
pub(super) struct Pace {
    /// How many waited before us when we last looked, and since when that many.
    stood: Option<(i64, Moment)>,
    /// How long the last holders held, smoothed; `None` until one was seen to go.
    held_for: Option<Duration>,
    last: Duration,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Pace { stood: None, held_for: None, last: PAUSE_MIN }
    }

    /// We looked at `now` and `before` wait between us and the lock. How long to pause, at most `most`.
    pub(super) fn pause(&mut self, now: Moment, before: i64, most: Duration) -> Duration {
        let since = match self.stood {
            Some((stood, since)) if stood == before => since,
            Some((stood, since)) => {
                let moves = u32::try_from((stood - before).max(1)).unwrap_or(u32::MAX);
                let each = (now - since) / moves;
                self.held_for = Some(self.held_for.map_or(each, |it| (it * 3 + each) / 4));
                now
            }
            None => now,
        };
        self.stood = Some((before, since));
        // A holder that outstays the usual time is asked after less and less often.
        let hold = self.held_for.unwrap_or_default().max(now - since);
        let before = u32::try_from(before.max(0)).unwrap_or(u32::MAX);
        let pause = if before == 0 {
            (hold / 8).clamp(PAUSE_MIN, PAUSE_MAX)
        } else {
            // However fast the line moves all of a sudden, nobody sleeps through its turn for long.
            let (shortest, longest) =
                (PAUSE_MIN.saturating_mul(before), PAUSE_MAX + PAUSE_MAX.saturating_mul(before) / 8);
            (hold.saturating_mul(before) / 2).clamp(shortest, longest)
        };
        self.last = pause.min(most).max(PAUSE_MIN);
        self.last
    }

    /// The pause decided on last.
    pub(super) fn last(&self) -> Duration {
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
    fn those_behind_come_back_after_half_of_the_time_until_they_are_next() {
        let mut pace = Pace::new();
        assert_eq!(pace.pause(at(0), 8, ms(10_000)), ms(8));
        // Four went in forty milliseconds: four more need as long.
        assert_eq!(pace.pause(at(40), 4, ms(10_000)), ms(20));
        assert_eq!(pace.pause(at(41), 4, ms(10)), ms(10), "never longer than allowed");
        let mut slow = Pace::new();
        slow.pause(at(0), 200, ms(100_000));
        assert_eq!(slow.pause(at(900_000), 200, ms(100_000)), ms(6500), "never through its turn for long");
    }

    #[test]
    fn a_long_line_costs_few_looks() {
        // Two hundred wait, the line moves once in five milliseconds, and each looks at its own pace.
        let mut looks = 0;
        let (mut pace, mut now) = (Pace::new(), 0);
        while now < 1000 {
            let before = 200 - i64::try_from(now / 5).unwrap();
            let pause = pace.pause(at(now), before, ms(10_000));
            now += u64::try_from(pause.as_millis()).unwrap();
            looks += 1;
        }
        assert!(looks < 20, "{looks}");
    }
}
