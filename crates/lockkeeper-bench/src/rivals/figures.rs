//! What those who fought reached, reckoned from their rounds.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::measure::{jain, median, per, quantile, rate};

/// One guard, in nanoseconds of the clock that all processes share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Process and task.
    pub(super) who: (usize, u64),
    pub(super) asked: u64,
    pub(super) had: u64,
    /// Right before it was given back.
    pub(super) gave: u64,
}

/// What counts about one fight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Guards per second.
    pub(super) rate: f64,
    /// From one request to the next of the same task, in microseconds.
    pub(super) cycle: f64,
    /// How often per second the next guard was another task's.
    pub(super) hand_offs: f64,
    /// From the release to the grant of another who waited already, in microseconds: median and 99th percentile.
    pub(super) hand_off: (f64, f64),
    /// How evenly the tasks were served.
    pub(super) jain: f64,
    /// The longest that a task was without the lock although it asked, in milliseconds.
    pub(super) longest: f64,
    /// Requests to the server per guard.
    pub(super) requests: f64,
    /// Guards that began before the last one had ended.
    pub(super) overlaps: u64,
    /// Updates that somebody overwrote.
    pub(super) lost: u64,
    /// Tasks that gave up.
    pub(super) refused: u64,
}

impl Figures {
    pub(super) fn of(
        mut rounds: Vec<Round>,
        window: Range<u64>,
        sum: u64,
        requests: u64,
        refused: u64,
    ) -> Self {
        rounds.sort_unstable_by_key(|it| it.had);
        let counted: Vec<Round> = rounds.iter().copied().filter(|it| window.contains(&it.had)).collect();
        let changes: Vec<&[Round]> = counted.windows(2).filter(|it| it[0].who != it[1].who).collect();
        let waited = changes.iter().filter(|it| it[1].asked < it[0].gave);
        let mut spans: Vec<f64> = waited.map(|it| per(it[1].had.saturating_sub(it[0].gave), 1000)).collect();
        let mut shares: BTreeMap<(usize, u64), u64> = rounds.iter().map(|it| (it.who, 0)).collect();
        for it in &counted {
            *shares.entry(it.who).or_default() += 1;
        }
        let span = Duration::from_nanos(window.end - window.start);
        Figures {
            rate: rate(counted.len() as u64, span),
            cycle: cycle(&counted),
            hand_offs: rate(changes.len() as u64, span),
            hand_off: (median(&mut spans), quantile(&mut spans, 99)),
            jain: jain(&shares.into_values().collect::<Vec<_>>()),
            longest: longest(&rounds, &window),
            requests: per(requests, rounds.len() as u64),
            overlaps: rounds.windows(2).filter(|it| it[1].had < it[0].gave).count() as u64,
            lost: (rounds.len() as u64).saturating_sub(sum),
            refused,
        }
    }

    /// Whether the lock was no lock.
    pub(super) fn is_unsafe(&self) -> bool {
        0 < self.overlaps + self.lost
    }

    /// What several turns of the same come to: medians, the longest of all, everything that went wrong.
    pub(super) fn together(all: &[Figures]) -> Self {
        let middle = |of: fn(&Figures) -> f64| median(&mut all.iter().map(of).collect::<Vec<f64>>());
        let most = |of: fn(&Figures) -> u64| all.iter().map(of).sum();
        Figures {
            rate: middle(|it| it.rate),
            cycle: middle(|it| it.cycle),
            hand_offs: middle(|it| it.hand_offs),
            hand_off: (middle(|it| it.hand_off.0), middle(|it| it.hand_off.1)),
            jain: middle(|it| it.jain),
            longest: all.iter().map(|it| it.longest).fold(0.0, f64::max),
            requests: middle(|it| it.requests),
            overlaps: most(|it| it.overlaps),
            lost: most(|it| it.lost),
            refused: most(|it| it.refused),
        }
    }
}

/// The median from one request to the next of a task.
fn cycle(rounds: &[Round]) -> f64 {
    let mut last: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    let mut spans = Vec::new();
    for it in rounds {
        if let Some(before) = last.insert(it.who, it.asked) {
            spans.push(per(it.asked - before, 1000));
        }
    }
    median(&mut spans)
}

/// Somebody who is never served within the window waits for all of it.
fn longest(rounds: &[Round], window: &Range<u64>) -> f64 {
    let mut last: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    let mut longest = 0;
    for it in rounds {
        let since = it.asked.max(window.start).min(window.end);
        longest = longest.max(it.had.min(window.end).saturating_sub(since));
        last.insert(it.who, it.gave);
    }
    let left = last.values().map(|gave| window.end.saturating_sub((*gave).max(window.start)));
    per(longest.max(left.max().unwrap_or(0)), 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(task: u64, asked: u64, had: u64, gave: u64) -> Round {
        Round { who: (0, task), asked: asked * 1000, had: had * 1000, gave: gave * 1000 }
    }

    #[test]
    fn hand_offs_are_to_others_and_their_latency_is_of_those_who_waited() {
        let rounds = vec![
            round(0, 0, 1, 2),
            round(0, 2, 3, 4),
            round(1, 0, 6, 7),
            round(0, 8, 9, 10),
            round(1, 7, 14, 15),
        ];
        let it = Figures::of(rounds, 0..20_000, 5, 10, 0);
        // Two of three changes: the third asked only after the lock was free.
        assert_eq!(format!("{:?} {:?}", it.hand_off, it.requests), "(4.0, 4.0) 2.0");
        assert_eq!((it.overlaps, it.lost, it.is_unsafe()), (0, 0, false));
        assert!((it.hand_offs - 3.0 / 20e-6).abs() < 1.0 && (it.rate - 5.0 / 20e-6).abs() < 1.0);
    }

    #[test]
    fn two_holders_at_once_and_overwritten_updates_are_seen() {
        let rounds = vec![round(0, 0, 1, 5), round(1, 0, 4, 9)];
        let it = Figures::of(rounds, 0..20_000, 1, 0, 0);
        assert_eq!((it.overlaps, it.lost, it.is_unsafe()), (1, 1, true));
        assert_eq!(Figures::together(&[it, it]).lost, 2);
    }

    #[test]
    fn whoever_is_not_served_to_the_end_starves_for_that_long() {
        let rounds = vec![round(1, 0, 1, 2), round(0, 0, 3, 4), round(0, 4, 8, 9)];
        // Task 1 has nothing from 2 µs to 20 µs.
        assert!((Figures::of(rounds, 0..20_000, 3, 0, 0).longest - 0.018).abs() < 1e-9);
    }
}
