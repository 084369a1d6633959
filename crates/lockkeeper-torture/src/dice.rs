//! Seeded chance: the same seed draws the same plan.

use std::time::Duration;

/// A small generator of pseudo-random numbers. Not for secrets.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The dice that `seed` names.
    pub const fn seeded(seed: u64) -> Self {
        Dice(seed)
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

    /// The place of one of `count` things.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap_or(0)
    }

    /// A span below `end`, to the microsecond.
    pub fn span(&mut self, end: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(end.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Dice of its own for one of several parts that must not disturb each other.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Dice(self.draw())
    }

    /// All of these in an order that chance decides.
    pub fn shuffled<T>(&mut self, mut all: Vec<T>) -> Vec<T> {
        for last in (1..all.len()).rev() {
            let other = self.index(last + 1);
            all.swap(last, other);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_and_nothing_is_lost_by_shuffling() {
        let draw = |seed| Dice::seeded(seed).shuffled((0..50).collect::<Vec<u8>>());
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let mut all = draw(9);
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<u8>>());
        assert_eq!(Dice::seeded(1).below(0), 0);
    }
}
