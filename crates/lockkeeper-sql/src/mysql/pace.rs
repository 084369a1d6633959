//! How often to look at a line: as often as it may move, and the less the more stand before us.
//!
//! The next in line looks after an eighth of the time since the line last moved, so that looking adds little to
//! however long the holders hold. Whoever is behind comes back in the time in which it may become the next one, or in
//! half of it when it is near; so it looks a few times on its way through the line, however long that is.
//!
//! Whoever sleeps through its turn holds up all others. So nobody takes one long halt for the line's pace: they would
//! sleep longer, hold up others, and teach them to sleep longer still, until all of them are slow.

use std::time::Duration;

use lockkeeper_core::Moment;

pub(super) const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// A line that moves may do so once in this time, however slow it was until now.
const QUICK: Duration = Duration::from_millis(4);

/// So many before us are near: the pace of few is less certain than that of many.
const NEAR: u32 = 16;

/// The pace of one who waits.
#[derive(Debug)]
pub(super) struct Pace {
    /// How many waited before us when we last looked, and when that was first seen.
    stood: Option<(i64, Moment)>,
    /// How long it takes the line to move by one; `None` until it was seen to move.
    each: Option<Duration>,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Pace { stood: None, each: None }
    }

    /// We saw at `now` that `before` wait between us and the lock.
    pub(super) fn saw(&mut self, now: Moment, before: i64) {
        let Some((stood, since)) = self.stood else {
            self.stood = Some((before, now));
            return;
        };
        let Ok(moves @ 1..) = u32::try_from(stood - before) else { return };
        let each = (now - since) / moves;
        self.each = Some(match self.each {
            // One halt counts for little, many moves for much.
            Some(known) => {
                let share = moves.min(8);
                (known * (8 - share) + each.min(known.saturating_mul(4)) * share) / 8
            }
            None => each,
        });
        self.stood = Some((before, now));
    }

    /// How long to pause if the line has stood `still` for so long; `most` at most.
    pub(super) fn pause(&self, still: Duration, most: Duration) -> Duration {
        let before = self.stood.map_or(0, |it| u32::try_from(it.0.max(0)).unwrap_or(u32::MAX));
        let pause = if before == 0 {
            (still / 8).min(PAUSE_MAX)
        } else {
            let each = self.each.unwrap_or_default();
            let share = if before < NEAR { 2 } else { 1 };
            let shortest = PAUSE_MIN.saturating_mul(before);
            // Only while nothing moves is it safe to stay away for longer.
            let quick = QUICK.max(still / 256).saturating_mul(before);
            let longest = quick.min(PAUSE_MAX + PAUSE_MAX.saturating_mul(before) / 8);
            let likely = (each.saturating_mul(before) / share).min(longest);
            likely.max((still / 8).min(PAUSE_MAX)).max(shortest)
        };
        pause.min(most).max(PAUSE_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUCH: Duration = Duration::from_secs(10);

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_next_in_line_looks_after_an_eighth_of_the_time_the_line_stood_still() {
        let mut pace = Pace::new();
        pace.saw(at(0), 0);
        assert_eq!(pace.pause(ms(0), MUCH), PAUSE_MIN);
        assert_eq!(pace.pause(ms(80), MUCH), ms(10));
        assert_eq!(pace.pause(MUCH, MUCH), PAUSE_MAX);
        assert_eq!(pace.pause(MUCH, ms(100)), ms(100), "never longer than allowed");
    }

    #[test]
    fn those_behind_come_back_in_a_part_of_the_time_until_they_are_next() {
        let mut pace = Pace::new();
        pace.saw(at(0), 100);
        assert_eq!(pace.pause(ms(0), MUCH), ms(100), "nobody knows how fast the line moves");
        pace.saw(at(100), 80);
        assert_eq!(pace.pause(ms(0), MUCH), QUICK * 80, "twenty in a hundred milliseconds");
        pace.saw(at(300), 8);
        let near = pace.pause(ms(0), MUCH);
        assert!(ms(8) <= near && near < ms(12), "near, and faster than it was: {near:?}");
        assert_eq!(pace.pause(MUCH, MUCH), PAUSE_MAX, "longer if the line stands still, but not for long");
    }

    #[test]
    fn one_halt_is_not_taken_for_the_pace_of_the_line() {
        let mut pace = Pace::new();
        pace.saw(at(0), 40);
        pace.saw(at(40), 30);
        pace.saw(at(1040), 29);
        assert!(pace.pause(ms(0), MUCH) < ms(200), "{pace:?}");
        let mut slow = Pace::new();
        slow.saw(at(0), 200);
        slow.saw(at(10_000), 190);
        assert_eq!(slow.pause(ms(10), MUCH), QUICK * 190, "slow until now, and quick from now on perhaps");
        assert!(ms(5000) < slow.pause(MUCH, MUCH), "but not while nothing moves");
    }
}
