//! How often to look at a line when nobody can call us: as often as the line is likely to move.
//!
//! The next in line looks after an eighth of the time since the line last moved, so that looking adds little
//! to however long the holders hold. Those behind look less often, in proportion to their number.

use std::time::Duration;

use lockkeeper_core::Moment;

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The same for those who are far from their turn: the longest, and so much more for each who waits before.
const FAR_MIN: Duration = Duration::from_millis(5);
const FAR_MAX: Duration = Duration::from_millis(100);
const FAR_STEP: Duration = Duration::from_millis(5);

/// No line moves faster.
const QUICKEST: Duration = Duration::from_millis(2);

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
        let span = self.observe(now, waiting_before);
        let behind = u32::try_from(waiting_before.max(0)).unwrap_or(u32::MAX).saturating_add(1);
        let pause = (span / 8).clamp(PAUSE_MIN, PAUSE_MAX).saturating_mul(behind);
        self.last = pause.min(most).max(PAUSE_MIN);
        self.last
    }

    /// The same for one that is far from its turn: when to look whether fewer than `near` wait before it.
    /// `held_for` is for how long the present holder has held, zero if it does not know yet that it does.
    ///
    /// A look too many costs little; one too late holds up the line, and if lateness were taken for the line's own
    /// pace, it would stay late. So the quicker of two measures counts: how fast the line moved since the last look,
    /// and how long the present holder has held.
    pub(crate) fn until_near(
        &mut self,
        now: Moment,
        waiting_before: i64,
        near: i64,
        held_for: Duration,
        most: Duration,
    ) -> Duration {
        let moved = self.stood.map(|(stood, since)| {
            let moves = u32::try_from((stood - waiting_before).max(1)).unwrap_or(u32::MAX);
            (now - since) / moves
        });
        self.observe(now, waiting_before);
        let each = (held_for * 2).max(QUICKEST).min(moved.unwrap_or(Duration::MAX));
        let before = u32::try_from(waiting_before.max(0)).unwrap_or(u32::MAX);
        let steps = u32::try_from((waiting_before - near + 1).max(1)).unwrap_or(u32::MAX);
        let pause = (each * 2 / 3).saturating_mul(steps);
        let longest = FAR_MAX.saturating_add(FAR_STEP.saturating_mul(before));
        self.last = pause.min(longest).min(most).max(FAR_MIN);
        self.last
    }

    /// How long one holder is likely to hold.
    fn observe(&mut self, now: Moment, waiting_before: i64) -> Duration {
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
        self.held_for.unwrap_or_default().max(now - since)
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
    fn whoever_is_far_looks_before_it_is_near_and_does_not_take_its_lateness_for_the_pace() {
        let (mut pace, most) = (Pace::new(), ms(10_000));
        assert_eq!(pace.until_near(at(0), 106, 6, ms(0), most), ms(2) * 2 / 3 * 101, "nothing is known yet");
        // Eighty moves in a hundred milliseconds.
        assert_eq!(pace.until_near(at(100), 26, 6, ms(60), most), ms(100) / 80 * 2 / 3 * 21);
        // The line stood still, and now it moves again: whoever holds has just been let in.
        assert_eq!(pace.until_near(at(5000), 25, 6, ms(0), most), ms(2) * 2 / 3 * 20);
        assert_eq!(pace.until_near(at(9000), 24, 6, ms(4000), most), FAR_MAX + FAR_STEP * 24);
        assert_eq!(pace.until_near(at(9900), 23, 6, ms(4900), ms(150)), ms(150), "never longer than allowed");
        assert_eq!(pace.last(), ms(150));
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
