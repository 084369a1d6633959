//! How long a task holds what it was given, and rests before it asks again.
//!
//! Most rounds hold for as long as a look, a read and a write take, so that many guards come to be. Long holds come by the
//! clock and not by the round: otherwise a quick machine would stand still behind them, and a slow one would see few.

use std::time::Duration;

use lockkeeper::spi::Moment;

use crate::dice::Dice;

/// The mean time between two long holds of a task is half of this.
const LONG_EVERY: Duration = Duration::from_secs(60);
/// The same where few stand still behind it: so somebody is robbed of what he holds for long, if anybody is robbed.
const LONG_EVERY_ASIDE: Duration = Duration::from_secs(12);

/// Who else wants what a task holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crowd {
    /// Others stand in line: whoever holds hurries.
    Waits,
    /// Now and then somebody: it is held for a moment, so that who comes finds it held, and no line.
    Comes,
    /// They may have it, too: whoever holds stays a little longer, so that they meet.
    Shares,
}

pub(crate) struct Rhythm {
    ttl: Duration,
    /// No round without a pause: for stores that have other work, too.
    gentle: bool,
    long_at: Option<Moment>,
}

impl Rhythm {
    pub(crate) fn new(ttl: Duration, gentle: bool) -> Self {
        Rhythm { ttl, gentle, long_at: None }
    }

    /// How long to hold now. Long is longer than the lock lasts without a renewal, so that faults hit holders.
    pub(crate) fn hold(&mut self, now: Moment, crowd: Crowd, dice: &mut Dice) -> Duration {
        let every = if crowd == Crowd::Comes { LONG_EVERY_ASIDE } else { LONG_EVERY };
        let long_at = *self.long_at.get_or_insert_with(|| now.after(dice.span(every)));
        if long_at <= now {
            self.long_at = Some(now.after(dice.span(every)));
            return dice.span(self.ttl * 3 / 2);
        }
        if dice.below(200) == 0 {
            return dice.span(Duration::from_millis(50));
        }
        let (one_in, brief) = match crowd {
            Crowd::Waits => (16, 2),
            Crowd::Comes => (1, 2),
            Crowd::Shares => (4, 8),
        };
        if self.gentle || dice.below(one_in) == 0 {
            dice.span(Duration::from_millis(brief))
        } else {
            Duration::ZERO
        }
    }

    /// How long to leave one's own lock idle: mostly for a moment, now and then for longer than it may stay.
    pub(crate) fn rest(dice: &mut Dice, ttl: Duration) -> Duration {
        if dice.below(300) == 0 { dice.span(ttl * 3 / 2) } else { dice.span(Duration::from_millis(6)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_holds_are_brief_and_long_ones_come_by_the_clock() {
        let (ttl, mut dice) = (Duration::from_secs(2), Dice::seeded(1));
        let mut pace = Rhythm::new(ttl, false);
        let start = Moment::from_nanos(0).after(Duration::from_secs(1));
        let at_once: Vec<Duration> = (0..1000).map(|_| pace.hold(start, Crowd::Waits, &mut dice)).collect();
        assert!(900 < at_once.iter().filter(|it| it.is_zero()).count());
        assert!(at_once.iter().all(|it| *it < Duration::from_millis(50)), "no time has passed");
        let mut long = 0;
        for second in 0..600 {
            let held = pace.hold(start.after(Duration::from_secs(second)), Crowd::Waits, &mut dice);
            long += usize::from(Duration::from_millis(50) <= held);
        }
        assert!((10..40).contains(&long), "{long} in ten minutes, every half minute or so");
    }

    #[test]
    fn a_gentle_pace_has_a_pause_in_every_round() {
        let (mut pace, mut dice) = (Rhythm::new(Duration::from_secs(2), true), Dice::seeded(1));
        let start = Moment::from_nanos(0);
        let none = (0..1000).filter(|_| pace.hold(start, Crowd::Waits, &mut dice).is_zero()).count();
        assert!(none < 10, "{none}");
    }
}
