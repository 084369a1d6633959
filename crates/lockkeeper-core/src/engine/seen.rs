//! What this process was granted lately: a store whose counter goes back is found out before anybody is given its grant.
//!
//! A store promises that counters grow (line 8 of the contract). One that was restored from a copy, or that two servers believe
//! they are, may break that, and a fence that fell is worse than no lock. What is known here is bounded: so many names, and of
//! two that share a slot the later one.

use std::sync::Mutex;

use crate::clock::Moment;
use crate::key::Key;
use crate::kit::locked;
use crate::spi::claim::Load;

/// How many names are known at most, in so many shards: every grant comes by here.
const SLOTS: usize = 1024;
const SHARDS: usize = 16;

/// The largest counters of each name that were granted to this process. A shard is empty until its first is.
#[derive(Debug, Default)]
pub(crate) struct Seen([Mutex<Vec<Slot>>; SHARDS]);

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    key: u64,
    any: Option<Told>,
    /// Of those who had the lock for themselves.
    alone: Option<Told>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    counter: u64,
    at: Moment,
}

impl Seen {
    /// The store was asked at `asked_at` and gave this counter. The larger one that it had given by then, if there is one;
    /// between those who share a lock counters say nothing.
    pub(crate) fn larger(
        &self,
        key: &Key,
        load: Load,
        counter: u64,
        (asked_at, now): (Moment, Moment),
    ) -> Option<u64> {
        let (hash, is_alone) = (key.hash64(), load.weight == load.capacity);
        let at = usize::try_from(hash >> 32).unwrap_or(0) % SLOTS;
        let mut slots = locked(&self.0[at % SHARDS]);
        if slots.is_empty() {
            slots.resize(SLOTS / SHARDS, Slot::default());
        }
        let slot = &mut slots[at / SHARDS];
        if slot.key != hash {
            *slot = Slot { key: hash, ..Slot::default() };
        }
        let before = if is_alone { slot.any } else { slot.alone };
        // Of two that were asked for at the same time either may have come first.
        if let Some(before) = before.filter(|it| counter <= it.counter && it.at < asked_at) {
            return Some(before.counter);
        }
        let raise = |known: &mut Option<Told>| {
            if known.is_none_or(|it| it.counter < counter) {
                *known = Some(Told { counter, at: now });
            }
        };
        raise(&mut slot.any);
        if is_alone {
            raise(&mut slot.alone);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(seen: &Seen, key: &str, load: Load, counter: u64, asked_at: u64) -> Option<u64> {
        let at = |it| Moment::from_nanos(it);
        seen.larger(&Key::new(key).unwrap(), load, counter, (at(asked_at), at(asked_at + 1)))
    }

    #[test]
    fn a_counter_that_does_not_grow_is_found_out_and_nobody_is_confused_by_those_who_share() {
        let (seen, alone, shares) = (Seen::default(), Load::new(1, 1), Load::new(1, 9));
        assert_eq!(ask(&seen, "k", alone, 10, 0), None);
        assert_eq!(ask(&seen, "other", alone, 3, 10), None);
        for counter in [3, 10] {
            assert_eq!(ask(&seen, "k", alone, counter, 20), Some(10));
            assert_eq!(ask(&seen, "k", shares, counter, 20), Some(10));
        }
        assert_eq!(ask(&seen, "k", alone, 3, 0), None, "asked at the same time");
        // Those who share enter together, in any order; whoever is alone comes after all of them.
        for counter in [14, 12, 13] {
            assert_eq!(ask(&seen, "k", shares, counter, 30), None);
        }
        assert_eq!(ask(&seen, "k", alone, 13, 40), Some(14));
        assert_eq!(ask(&seen, "k", alone, 15, 40), None);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let (seen, alone) = (Seen::default(), Load::new(1, 1));
        for number in 0..5000 {
            assert_eq!(ask(&seen, &format!("k{number}"), alone, 7, 0), None);
        }
        assert_eq!(seen.0.iter().map(|it| locked(it).len()).sum::<usize>(), SLOTS);
    }
}
