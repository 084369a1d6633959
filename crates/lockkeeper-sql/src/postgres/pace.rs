//! How often one who waits looks at its line: the next one as every store's, those who are far when they should be near.

use std::time::Duration;

use lockkeeper_core::{Moment, kit};

/// For those who are far from their turn: the shortest and longest pause, and so much more for each who waits before.
const FAR_MIN: Duration = Duration::from_millis(5);
const FAR_MAX: Duration = Duration::from_millis(100);
const FAR_STEP: Duration = Duration::from_millis(5);

/// No line moves faster.
const QUICKEST: Duration = Duration::from_millis(2);

/// The pace of one who waits.
#[derive(Debug)]
pub(crate) struct Approach {
    line: kit::Pace,
    last: Duration,
}

impl Approach {
    pub(crate) const fn new() -> Self {
        Approach { line: kit::Pace::new(), last: kit::Pace::SHORTEST }
    }

    /// We looked at `now` and are the next. How long to pause, at most `most`.
    pub(crate) fn next(&mut self, now: Moment, most: Duration) -> Duration {
        self.line.saw(now, 0);
        // A holder that outstays the usual time is asked after less and less often.
        let span = self.line.each().unwrap_or_default().max(self.line.still(now));
        let pause = kit::Pace::of_next(span).min(kit::Pace::LONGEST);
        self.last = pause.min(most).max(kit::Pace::SHORTEST);
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
        let before = u64::try_from(waiting_before).unwrap_or(0);
        let stood = self.line.still(now);
        let moved = self.line.saw(now, before).unwrap_or(if stood.is_zero() { Duration::MAX } else { stood });
        let each = (held_for * 2).max(QUICKEST).min(moved);
        let steps = u32::try_from((waiting_before - near + 1).max(1)).unwrap_or(u32::MAX);
        let pause = (each * 2 / 3).saturating_mul(steps);
        let before = u32::try_from(before).unwrap_or(u32::MAX);
        let longest = FAR_MAX.saturating_add(FAR_STEP.saturating_mul(before));
        self.last = pause.min(longest).min(most).max(FAR_MIN);
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
        let mut pace = Approach::new();
        assert_eq!(pace.next(at(0), ms(10_000)), ms(1));
        assert_eq!(pace.next(at(80), ms(10_000)), ms(10));
        assert_eq!(pace.next(at(1_000_000), ms(10_000)), kit::Pace::LONGEST);
        assert_eq!(pace.next(at(1_000_000), ms(100)), ms(100));
    }

    #[test]
    fn whoever_is_far_looks_before_it_is_near_and_does_not_take_its_lateness_for_the_pace() {
        let (mut pace, most) = (Approach::new(), ms(10_000));
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
    fn whoever_becomes_the_next_remembers_how_long_others_held() {
        let mut pace = Approach::new();
        pace.until_near(at(0), 1, 1, ms(0), ms(10_000));
        assert_eq!(pace.next(at(800), ms(10_000)), ms(100));
    }
}
