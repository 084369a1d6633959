//! How often to look at a line that calls nobody: as often as it may move, and the less the more stand before us.
//!
//! The next in line looks after an eighth of the time since the line last moved, so that looking adds little to
//! however long the holders hold. Whoever is behind comes back in the time in which it may become the next one, or in
//! half of it when it is near; so it looks a few times on its way through the line, however long that is.
//!
//! Whoever sleeps through its turn holds up all others. So nobody takes one long halt for the line's pace: they would
//! sleep longer, hold up others, and teach them to sleep longer still, until all of them are slow.

use std::time::Duration;

use crate::clock::Moment;

/// A line that moves may do so once in this time, however slow it was until now.
const QUICK: Duration = Duration::from_millis(4);

/// So many before us are near: the pace of few is less certain than that of many.
const NEAR: u32 = 16;

/// The pace of a line, as one who waits in it sees it.
///
/// ```
/// use std::time::Duration;
///
/// use lockkeeper_core::Clock;
/// use lockkeeper_core::kit::Pace;
///
/// let clock = Clock::boot();
/// let mut pace = Pace::new();
/// pace.saw(clock.now(), 3); // three wait before us
/// let pause = pace.pause(pace.still(clock.now()), Duration::from_secs(1));
/// assert!(Pace::SHORTEST <= pause && pause <= Duration::from_secs(1));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// How many waited before us when we last looked, and when that was first seen.
    stood: Option<(u64, Moment)>,
    /// How long it takes the line to move by one, smoothed; `None` until it was seen to move.
    each: Option<Duration>,
}

impl Pace {
    /// No pause is shorter.
    pub const SHORTEST: Duration = Duration::from_millis(1);
    /// No pause of the next in line is longer.
    pub const LONGEST: Duration = Duration::from_millis(250);

    /// Nothing was seen yet.
    pub const fn new() -> Self {
        Pace { stood: None, each: None }
    }

    /// We saw at `now` that `before` wait between us and the lock. If that are fewer than before: how long each who
    /// left has taken.
    pub fn saw(&mut self, now: Moment, before: u64) -> Option<Duration> {
        let Some((stood, since)) = self.stood else {
            self.stood = Some((before, now));
            return None;
        };
        let moves = stood.checked_sub(before).filter(|it| *it != 0)?;
        let moves = u32::try_from(moves).unwrap_or(u32::MAX);
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
        Some(each)
    }

    /// How long the line takes to move by one, if it was seen to move.
    pub const fn each(&self) -> Option<Duration> {
        self.each
    }

    /// For how long the line has not moved, as far as we saw.
    pub fn still(&self, now: Moment) -> Duration {
        self.stood.map_or(Duration::ZERO, |it| now - it.1)
    }

    /// Whether we have looked at all.
    pub const fn is_known(&self) -> bool {
        self.stood.is_some()
    }

    /// How many waited before us when we last looked; 0 if we did not.
    pub fn before(&self) -> u64 {
        self.stood.map_or(0, |it| it.0)
    }

    /// The pause of the next in line, if the line moves in about `span`. Bounds depend on what a look costs; ours are
    /// [`SHORTEST`](Self::SHORTEST) and [`LONGEST`](Self::LONGEST).
    pub fn of_next(span: Duration) -> Duration {
        span / 8
    }

    /// How long to pause if the line has stood `still` for so long; `most` at most.
    pub fn pause(&self, still: Duration, most: Duration) -> Duration {
        let before = self.stood.map_or(0, |it| u32::try_from(it.0).unwrap_or(u32::MAX));
        let pause = if before == 0 {
            Self::of_next(still).min(Self::LONGEST)
        } else {
            let each = self.each.unwrap_or_default();
            let share = if before < NEAR { 2 } else { 1 };
            let shortest = Self::SHORTEST.saturating_mul(before);
            // Only while nothing moves is it safe to stay away for longer.
            let quick = QUICK.max(still / 256).saturating_mul(before);
            let longest = quick.min(Self::LONGEST + Self::LONGEST.saturating_mul(before) / 8);
            let likely = (each.saturating_mul(before) / share).min(longest);
            likely.max(Self::of_next(still).min(Self::LONGEST)).max(shortest)
        };
        pause.min(most).max(Self::SHORTEST)
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
        assert_eq!(pace.pause(ms(0), MUCH), Pace::SHORTEST);
        assert_eq!(pace.pause(ms(80), MUCH), ms(10));
        assert_eq!(pace.pause(MUCH, MUCH), Pace::LONGEST);
        assert_eq!(pace.pause(MUCH, ms(100)), ms(100), "never longer than allowed");
    }

    #[test]
    fn what_left_is_told_and_whoever_comes_before_us_is_no_move() {
        let mut pace = Pace::new();
        assert_eq!((pace.saw(at(0), 9), pace.still(at(4))), (None, ms(4)));
        assert_eq!(pace.saw(at(10), 10), None);
        assert_eq!((pace.saw(at(30), 6), pace.each()), (Some(ms(10)), Some(ms(10))));
        assert_eq!(pace.still(at(31)), ms(1));
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
        assert_eq!(
            pace.pause(MUCH, MUCH),
            Pace::LONGEST,
            "longer if the line stands still, but not for long"
        );
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
