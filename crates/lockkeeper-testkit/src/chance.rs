//! Seeded chance: the same seed gives the same run, on every machine and in every version.

use std::time::Duration;

/// A small generator of pseudo-random numbers. Not for secrets.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The generator that `seed` names.
    pub const fn seeded(seed: u64) -> Self {
        Chance(seed)
    }

    /// The next number. Every step mixes a counter, so that no seed is a bad one.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw().checked_rem(end).unwrap_or(0)
    }

    /// `true` in `count` of a thousand draws.
    pub fn per_mille(&mut self, count: u64) -> bool {
        self.below(1000) < count
    }

    /// A span below `end`, to the microsecond.
    pub fn span(&mut self, end: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(end.as_micros()).unwrap_or(u64::MAX)))
    }

    /// A generator of its own for one of several parts that must not disturb each other.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Chance(self.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_numbers_and_another_seed_others() {
        let draw = |seed| {
            let mut chance = Chance::seeded(seed);
            (0..100).map(|_| chance.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn draws_stay_below_their_end_and_an_empty_range_is_harmless() {
        let mut chance = Chance::seeded(1);
        assert!((0..1000).all(|_| chance.below(10) < 10));
        assert_eq!(chance.below(0), 0);
        assert_eq!(chance.span(Duration::ZERO), Duration::ZERO);
        let hits = (0..10_000).filter(|_| chance.per_mille(100)).count();
        assert!((500..1500).contains(&hits), "{hits} of 10000 at 100 per mille");
    }
}
