//! The rule of admission where a store only keeps a line and everybody reckons for himself.
//!
//! The head of a line enters when it fits, and nobody overtakes the head. Those inside are therefore
//! always the front of the line, and a claim is inside exactly when everything up to and including it fits:
//! the sum of the weights is at most the smallest of the capacities. Claims only ever leave from before
//! another, never come before it; so whoever is inside stays inside.
//!
//! ```
//! use lockkeeper_core::Load;
//! use lockkeeper_core::admission::{blockers, inside};
//!
//! let (reader, writer) = (Load::new(1, u32::MAX), Load::new(u32::MAX, u32::MAX));
//! let line = [reader, reader, writer, reader];
//! assert_eq!(inside(&line), 2); // both readers before the writer
//! assert_eq!(blockers(&line[..3], reader), [2]); // the last one watches the writer
//! ```

use crate::spi::claim::Load;

/// The load of several claims together.
#[derive(Clone, Copy)]
struct Total {
    weight: u64,
    capacity: u64,
}

impl Total {
    const NOTHING: Total = Total { weight: 0, capacity: u64::MAX };

    fn and(self, load: Load) -> Self {
        let weight = self.weight.saturating_add(u64::from(load.weight));
        Total { weight, capacity: self.capacity.min(u64::from(load.capacity)) }
    }

    fn fits(self) -> bool {
        self.weight <= self.capacity
    }
}

/// How many of a line, counted from its front, are inside.
pub fn inside(line: &[Load]) -> usize {
    inside_of(line.iter().copied())
}

/// The same for a line that is nowhere in one piece.
pub(crate) fn inside_of(line: impl IntoIterator<Item = Load>) -> usize {
    let mut total = Total::NOTHING;
    line.into_iter()
        .take_while(|it| {
            total = total.and(*it);
            total.fits()
        })
        .count()
}

/// Whom to watch: as long as all of these are there, `own` cannot enter. Indices into `ahead`, which is
/// everybody before us, first come first. Empty if `own` is inside.
///
/// One is enough where one alone keeps us out, and then it is the nearest such: a mutex watches its direct
/// predecessor, a reader the last writer before it.
pub fn blockers(ahead: &[Load], own: Load) -> Vec<usize> {
    let mine = Total::NOTHING.and(own);
    if ahead.iter().fold(mine, |total, it| total.and(*it)).fits() {
        return Vec::new();
    }
    if let Some(one) = ahead.iter().rposition(|it| !mine.and(*it).fits()) {
        return vec![one];
    }
    let mut total = mine;
    let mut found = Vec::new();
    for (at, load) in ahead.iter().enumerate().rev() {
        found.push(at);
        total = total.and(*load);
        if !total.fits() {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = u32::MAX;

    fn line(loads: &[(u32, u32)]) -> Vec<Load> {
        loads.iter().map(|&(weight, capacity)| Load::new(weight, capacity)).collect()
    }

    fn watched(ahead: &[(u32, u32)], (weight, capacity): (u32, u32)) -> Vec<usize> {
        blockers(&line(ahead), Load::new(weight, capacity))
    }

    #[test]
    fn the_front_that_fits_is_inside() {
        assert_eq!(inside(&line(&[])), 0);
        assert_eq!(inside(&line(&[(1, 1), (1, 1)])), 1);
        assert_eq!(inside(&line(&[(1, 3), (2, 3), (1, 3)])), 2);
        assert_eq!(inside(&line(&[(1, MAX), (1, MAX), (MAX, MAX), (1, MAX)])), 2);
        assert_eq!(inside(&line(&[(1, 8), (1, 1)])), 1, "the newcomer's smaller capacity counts");
        assert_eq!(inside(&line(&[(1, 1), (1, 8)])), 1, "the holder's smaller capacity counts");
        assert_eq!(inside(&line(&[(2, 4), (4, 4), (1, 4)])), 1, "nobody overtakes the head");
    }

    #[test]
    fn a_mutex_watches_its_direct_predecessor() {
        assert_eq!(watched(&[(1, 1), (1, 1), (1, 1)], (1, 1)), [2]);
        assert_eq!(watched(&[], (1, 1)), [0; 0]);
    }

    #[test]
    fn a_reader_watches_the_last_writer_and_a_writer_its_predecessor() {
        assert_eq!(watched(&[(MAX, MAX), (1, MAX), (MAX, MAX), (1, MAX)], (1, MAX)), [2]);
        assert_eq!(watched(&[(1, MAX), (1, MAX)], (MAX, MAX)), [1]);
    }

    #[test]
    fn a_semaphore_watches_just_enough_to_be_kept_out() {
        assert_eq!(watched(&[(1, 2), (1, 2), (1, 2)], (1, 2)), [2, 1]);
        assert_eq!(watched(&[(1, 2)], (1, 2)), [0; 0]);
    }

    #[test]
    fn whoever_is_watched_keeps_us_out_alone() {
        // Every line of up to five claims in rooms of one to three: nobody inside watches, everybody
        // outside does, and those watched are by themselves enough to keep it out.
        let kinds: Vec<Load> = (1..=3)
            .flat_map(|capacity| (1..=capacity).map(move |weight| Load::new(weight, capacity)))
            .collect();
        for code in 0..kinds.len().pow(5) {
            let all: Vec<Load> = (0..5).map(|at| kinds[code / kinds.len().pow(at) % kinds.len()]).collect();
            let (ahead, own) = (&all[..4], all[4]);
            let found = blockers(ahead, own);
            assert_eq!(found.is_empty(), inside(&all) == 5, "{all:?}");
            let alone = found.iter().fold(Total::NOTHING.and(own), |total, &at| total.and(ahead[at]));
            assert!(found.is_empty() || !alone.fits(), "{all:?} watches {found:?}");
        }
    }
}
