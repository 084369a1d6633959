//! The checks: pure functions from what all believed to what was broken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use crate::history::{Belief, History};
use crate::keys;

/// What the checks found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Findings {
    /// Guards that were given, with the moment of each.
    pub grants: Vec<u64>,
    /// How many of them came in which way.
    pub came: BTreeMap<String, u64>,
    /// Moments at which guards were valid that do not fit together.
    pub overlaps: Vec<(u64, String)>,
    /// Grants whose fence is not larger than that of one before.
    pub disorder: Vec<(u64, String)>,
    /// The longest that anybody waited for a guard, in nanoseconds.
    pub longest_wait: u64,
    /// For each guard that was lost while its process ran: how long after the next one had the lock it was told, in
    /// nanoseconds and with its moment; below zero if it knew before.
    pub lags: Vec<(u64, i64)>,
}

/// Check what all believed. `paused` are the spans in which the process of a history stood still.
pub fn check(history: &History, paused: &[(String, Range<u64>)]) -> Findings {
    let mut found = Findings::default();
    for it in &history.beliefs {
        found.grants.push(it.from);
        *found.came.entry(it.how.clone()).or_default() += 1;
        found.longest_wait = found.longest_wait.max(it.from.saturating_sub(it.asked));
    }
    found.grants.sort_unstable();
    for (key, beliefs) in by_key(history) {
        overlaps(&key, &beliefs, &mut found.overlaps);
        if !key.ends_with(keys::PERMITS) {
            disorder(&key, &beliefs, &mut found.disorder, &mut found.overlaps);
        }
        lags(&beliefs, paused, &mut found.lags);
    }
    found.overlaps.sort();
    found.disorder.sort();
    found
}

impl Findings {
    /// How many guards were given in a span.
    pub fn grants_in(&self, span: &Range<u64>) -> u64 {
        let before = |at: u64| self.grants.partition_point(|it| *it < at);
        (before(span.end) - before(span.start)) as u64
    }

    /// The longest time in a span during which nobody was given a guard.
    pub fn gap_in(&self, span: &Range<u64>) -> u64 {
        let mut last = span.start;
        let mut longest = 0;
        for it in self.grants.iter().filter(|it| span.contains(it)) {
            longest = longest.max(it - last);
            last = *it;
        }
        longest.max(span.end.saturating_sub(last))
    }
}

/// A guard of one key.
type Of<'a> = (&'a Belief, u64);

fn by_key(history: &History) -> BTreeMap<String, Vec<Of<'_>>> {
    let mut all: BTreeMap<String, Vec<Of<'_>>> = BTreeMap::new();
    for belief in &history.beliefs {
        for (key, fence) in &belief.keys {
            all.entry(key.clone()).or_default().push((belief, *fence));
        }
    }
    for beliefs in all.values_mut() {
        beliefs.sort_by_key(|it| it.0.from);
    }
    all
}

fn is_alone(it: &Belief) -> bool {
    it.weight == it.capacity
}

fn fit(one: &Belief, two: &Belief) -> bool {
    u64::from(one.weight) + u64::from(two.weight) <= u64::from(one.capacity.min(two.capacity))
}

fn named(it: &Belief) -> String {
    format!("{}/{} ({} of {}, {:?})", it.who.0, it.who.1, it.weight, it.capacity, it.keys)
}

/// From when it had the guard until it was last sure of it: what lies outside is doubtful, and not counted.
fn overlaps(key: &str, beliefs: &[Of<'_>], found: &mut Vec<(u64, String)>) {
    // At one moment, ends come before beginnings.
    let mut edges: Vec<(u64, bool, usize)> = Vec::new();
    for (index, (it, _)) in beliefs.iter().enumerate() {
        if let Some(sure) = it.sure.filter(|sure| it.from < *sure) {
            edges.extend([(it.from, true, index), (sure, false, index)]);
        }
    }
    edges.sort_unstable();
    let mut inside: BTreeSet<usize> = BTreeSet::new();
    for (at, begins, index) in edges {
        if !begins {
            inside.remove(&index);
            continue;
        }
        inside.insert(index);
        let weight: u64 = inside.iter().map(|it| u64::from(beliefs[*it].0.weight)).sum();
        let capacity = inside.iter().map(|it| u64::from(beliefs[*it].0.capacity)).min().unwrap_or(0);
        if capacity < weight {
            let who: Vec<String> = inside.iter().map(|it| named(beliefs[*it].0)).collect();
            found.push((at, format!("{key}: {weight} of {capacity} valid at {at}: {}", who.join(" and "))));
        }
    }
}

/// Guards that were handed on since the same grant of the store have fences that differ in these bits only.
const HAND_ON_BITS: u32 = 16;

/// Whoever asked after another had been told has the larger fence; between those who share it says nothing.
///
/// A holder that lost its lock and does not know it hands it on within its process, with its own smaller fences. That is a
/// second holder, and counted as one: where one is promised it is wrong, and what checks fences refuses it everywhere.
fn disorder(
    key: &str,
    beliefs: &[Of<'_>],
    found: &mut Vec<(u64, String)>,
    overlaps: &mut Vec<(u64, String)>,
) {
    let mut begun: HashMap<u64, u64> = HashMap::new();
    for (it, fence) in beliefs {
        let first = begun.entry(fence >> HAND_ON_BITS).or_insert(it.from);
        *first = it.from.min(*first);
    }
    let mut given: HashMap<u64, &Belief> = HashMap::new();
    for (it, fence) in beliefs.iter().filter(|it| is_alone(it.0)) {
        if let Some(other) = given.insert(*fence, it) {
            found.push((
                it.from,
                format!("{key}: {} and {} were both given {fence}", named(other), named(it)),
            ));
        }
    }
    let mut by_ask: Vec<&Of<'_>> = beliefs.iter().collect();
    by_ask.sort_by_key(|it| it.0.asked);
    let mut told = beliefs.iter().peekable();
    let (mut largest, mut largest_alone): (Option<&Of<'_>>, Option<&Of<'_>>) = (None, None);
    for it in by_ask {
        while let Some(earlier) = told.next_if(|other| other.0.from < it.0.asked) {
            largest = largest.filter(|it| earlier.1 < it.1).or(Some(earlier));
            if is_alone(earlier.0) {
                largest_alone = largest_alone.filter(|it| earlier.1 < it.1).or(Some(earlier));
            }
        }
        let before = if is_alone(it.0) { largest } else { largest_alone };
        if let Some(before) = before.filter(|before| it.1 <= before.1) {
            let (one, two) = (named(before.0), named(it.0));
            let (grant, other) = (it.1 >> HAND_ON_BITS, before.1 >> HAND_ON_BITS);
            if grant != other && begun.get(&grant).is_some_and(|first| *first < before.0.from) {
                let what =
                    format!("{key}: {two} was handed on although {one} was given by the store meanwhile");
                overlaps.push((it.0.from, what));
                continue;
            }
            found.push((
                it.0.from,
                format!("{key}: {two} asked after {one} was told, and has no larger fence"),
            ));
        }
    }
}

fn lags(beliefs: &[Of<'_>], paused: &[(String, Range<u64>)], found: &mut Vec<(u64, i64)>) {
    for (index, (it, _)) in beliefs.iter().enumerate() {
        let Some(told) = it.told else { continue };
        let stood =
            |(who, span): &(String, Range<u64>)| *who == it.who.0 && span.start < told && it.from < span.end;
        if paused.iter().any(stood) {
            continue;
        }
        let next = beliefs[index + 1..].iter().find(|(other, _)| !fit(it, other));
        if let Some((next, _)) = next {
            found.push((told, told.cast_signed() - next.from.cast_signed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(key: &str, fence: u64, load: (u32, u32), [asked, from, sure]: [u64; 3]) -> Belief {
        Belief {
            who: ("w".to_owned(), fence),
            how: "store".to_owned(),
            keys: vec![(key.to_owned(), fence)],
            weight: load.0,
            capacity: load.1,
            asked,
            from,
            sure: Some(sure),
            told: None,
            ended: true,
        }
    }

    fn findings(beliefs: Vec<Belief>) -> Findings {
        check(&History { beliefs, ..History::default() }, &[])
    }

    #[test]
    fn guards_that_follow_each_other_are_fine() {
        let found = findings(vec![
            belief("k", 1, (1, 1), [0, 10, 20]),
            belief("k", 2, (1, 1), [5, 20, 30]),
            belief("other", 1, (1, 1), [0, 15, 25]),
        ]);
        assert_eq!((found.overlaps.len(), found.disorder.len()), (0, 0));
        assert_eq!((found.grants_in(&(0..16)), found.gap_in(&(0..40)), found.longest_wait), (2, 20, 15));
    }

    #[test]
    fn two_valid_guards_at_once_are_found_and_so_is_too_much_weight() {
        let two = vec![belief("k", 1, (1, 1), [0, 10, 20]), belief("k", 2, (1, 1), [5, 19, 30])];
        assert_eq!(findings(two).overlaps.len(), 1);
        let room = |weight| {
            vec![belief("permits", 1, (2, 3), [0, 10, 20]), belief("permits", 2, (weight, 3), [5, 15, 30])]
        };
        assert_eq!(findings(room(1)).overlaps.len(), 0);
        assert_eq!(findings(room(2)).overlaps.len(), 1);
        // Nothing is said of a guard after its holder was last sure.
        let mut silent = vec![belief("k", 1, (1, 1), [0, 10, 20]), belief("k", 2, (1, 1), [5, 19, 30])];
        silent[0].sure = None;
        assert_eq!(findings(silent).overlaps.len(), 0);
    }

    #[test]
    fn fences_that_repeat_or_go_back_are_found_but_not_among_those_who_share() {
        let twice = vec![belief("k", 4, (1, 1), [0, 10, 20]), belief("k", 4, (1, 1), [1, 30, 40])];
        assert_eq!(findings(twice).disorder.len(), 1);
        let back = vec![belief("k", 4, (1, 1), [0, 10, 20]), belief("k", 3, (1, 1), [11, 30, 40])];
        assert_eq!(findings(back).disorder.len(), 1);
        let shares = vec![belief("k", 4, (1, 9), [0, 10, 20]), belief("k", 3, (1, 9), [11, 15, 40])];
        assert_eq!(findings(shares).disorder.len(), 0);
        let after = vec![belief("k", 4, (1, 9), [0, 10, 20]), belief("k", 3, (9, 9), [21, 30, 40])];
        assert_eq!(findings(after).disorder.len(), 1);
    }

    #[test]
    fn what_is_handed_on_by_who_lost_it_is_a_second_holder_and_not_a_fence_that_went_back() {
        let (old, new) = (7 << HAND_ON_BITS, 8 << HAND_ON_BITS);
        // Nobody was sure of two at once: the second holder shows by its hand-on alone.
        let handed_on = |fence| {
            vec![
                belief("k", old, (1, 1), [0, 10, 15]),
                belief("k", new, (1, 1), [5, 20, 25]),
                belief("k", fence, (1, 1), [21, 30, 40]),
            ]
        };
        let found = findings(handed_on(old + 1));
        assert_eq!((found.overlaps.len(), found.disorder.len()), (1, 0));
        // A grant of its own that is smaller is what no store may give.
        let found = findings(handed_on(6 << HAND_ON_BITS));
        assert_eq!((found.overlaps.len(), found.disorder.len()), (0, 1));
    }

    #[test]
    fn a_loss_is_measured_against_the_next_holder_unless_its_process_stood_still() {
        let mut all = vec![belief("k", 1, (1, 1), [0, 10, 20]), belief("k", 2, (1, 1), [5, 50, 60])];
        all[0].told = Some(45);
        assert_eq!(findings(all.clone()).lags, [(45, -5)]);
        let history = History { beliefs: all, ..History::default() };
        assert_eq!(check(&history, &[("w".to_owned(), 30..44)]).lags, []);
    }
}
