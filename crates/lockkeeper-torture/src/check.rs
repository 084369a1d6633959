//! The checks: pure functions from what all believed to what was broken.
//!
//! **A hand-on by a loser** is a guard that its process made itself (handed on, warm again, joined) from a grant that the store
//! gave that process, after the store had given somebody else the lock. It is a second holder: **G**. Whatever else has a fence
//! that is not larger than one before came from the store, or from nowhere, and is **F**.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use crate::history::{Belief, History};
use crate::keys;
use crate::order::{self, Passed};

/// What the checks found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Findings {
    /// Guards that were given, with the moment of each.
    pub grants: Vec<u64>,
    /// How many of them came in which way.
    pub came: BTreeMap<String, u64>,
    /// Moments at which guards were valid that do not fit together, and hand-ons by losers.
    pub overlaps: Vec<(u64, String)>,
    /// Grants whose fence is not larger than that of one before, but for hand-ons by losers.
    pub disorder: Vec<(u64, String)>,
    /// Processes that stood in a line and were passed too often.
    pub passed: Vec<Passed>,
    /// The longest that anybody waited for a guard, in nanoseconds, whether or not it was given one.
    pub longest_wait: u64,
    /// For each guard that was lost while its process ran: how long after the next one had the lock it was told, in
    /// nanoseconds and with its moment; below zero if it knew before.
    pub lags: Vec<(u64, i64)>,
}

/// Check what all believed. `paused` are the spans in which the process of a history stood still.
pub fn check(history: &History, paused: &[(String, Range<u64>)]) -> Findings {
    let mut found = Findings { passed: order::passed(history), ..Findings::default() };
    for it in &history.beliefs {
        found.grants.push(it.from);
        let how = it.how.first().map_or("joined", String::as_str);
        *found.came.entry(how.to_owned()).or_default() += 1;
        found.longest_wait = found.longest_wait.max(it.from.saturating_sub(it.asked));
    }
    for it in &history.starved {
        found.longest_wait = found.longest_wait.max(it.until.saturating_sub(it.asked));
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

/// A guard of one key: its fence there, and how it came.
type Of<'a> = (&'a Belief, u64, &'a str);

fn by_key(history: &History) -> BTreeMap<String, Vec<Of<'_>>> {
    let mut all: BTreeMap<String, Vec<Of<'_>>> = BTreeMap::new();
    for belief in &history.beliefs {
        for (index, (key, fence)) in belief.keys.iter().enumerate() {
            let how = belief.how.get(index).map_or("store", String::as_str);
            all.entry(key.clone()).or_default().push((belief, *fence, how));
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
    for (index, (it, ..)) in beliefs.iter().enumerate() {
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
/// How a guard came that no process made itself.
const STORE: &str = "store";

/// Whoever asked after another had been told has the larger fence; between those who share it says nothing.
fn disorder(
    key: &str,
    beliefs: &[Of<'_>],
    found: &mut Vec<(u64, String)>,
    overlaps: &mut Vec<(u64, String)>,
) {
    let begun = begun(beliefs);
    let mut given: HashMap<u64, &Belief> = HashMap::new();
    for (it, fence, _) in beliefs.iter().filter(|it| is_alone(it.0)) {
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
            if is_by_a_loser(it, before, &begun) {
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

/// A process and a grant that the store gave it.
type Tenure<'a> = (&'a str, u64);

/// When each process had the first guard of each grant that the store gave it.
fn begun<'a>(beliefs: &[Of<'a>]) -> HashMap<Tenure<'a>, u64> {
    let mut begun: HashMap<Tenure<'a>, u64> = HashMap::new();
    for (it, fence, how) in beliefs {
        if *how == STORE {
            let first = begun.entry((it.who.0.as_str(), fence >> HAND_ON_BITS)).or_insert(it.from);
            *first = it.from.min(*first);
        }
    }
    begun
}

/// Whether a guard with a fence that is too small is a hand-on by a loser: made by its own process, from a grant that the
/// process had before the store gave another one. A store that gives a counter again is never excused by it.
fn is_by_a_loser(it: &Of<'_>, before: &Of<'_>, begun: &HashMap<Tenure<'_>, u64>) -> bool {
    let (grant, other) = (it.1 >> HAND_ON_BITS, before.1 >> HAND_ON_BITS);
    let first = begun.get(&(it.0.who.0.as_str(), grant));
    it.2 != STORE && grant != other && first.is_some_and(|first| *first < before.0.from)
}

fn lags(beliefs: &[Of<'_>], paused: &[(String, Range<u64>)], found: &mut Vec<(u64, i64)>) {
    for (index, (it, ..)) in beliefs.iter().enumerate() {
        let Some(told) = it.told else { continue };
        let stood =
            |(who, span): &(String, Range<u64>)| *who == it.who.0 && span.start < told && it.from < span.end;
        if paused.iter().any(stood) {
            continue;
        }
        let next = beliefs[index + 1..].iter().find(|(other, ..)| !fit(it, other));
        if let Some((next, ..)) = next {
            found.push((told, told.cast_signed() - next.from.cast_signed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Starved;

    fn belief(key: &str, fence: u64, load: (u32, u32), [asked, from, sure]: [u64; 3]) -> Belief {
        Belief {
            who: ("w".to_owned(), fence),
            how: vec![STORE.to_owned()],
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
        let third = |fence, how: &str, who: &str| {
            let mut all = vec![
                belief("k", old, (1, 1), [0, 10, 15]),
                belief("k", new, (1, 1), [5, 20, 25]),
                belief("k", fence, (1, 1), [21, 30, 40]),
            ];
            all[1].who.0 = "other".to_owned();
            (all[2].how, all[2].who.0) = (vec![how.to_owned()], who.to_owned());
            let found = findings(all);
            (found.overlaps.len(), found.disorder.len())
        };
        for how in ["hand-on", "warm", "joined"] {
            assert_eq!(third(old + 1, how, "w"), (1, 0), "{how}");
            // Nobody can hand on what another process was given, or what nobody was given.
            assert_eq!(third(old + 1, how, "stranger"), (0, 1), "{how}");
            assert_eq!(third(6 << HAND_ON_BITS, how, "w"), (0, 1), "{how}");
        }
        // A store that gives a counter again, or a smaller one, gives it to anybody.
        for (fence, who) in [(old + 1, "w"), (old, "stranger"), (6 << HAND_ON_BITS, "w")] {
            let (overlaps, disorder) = third(fence, STORE, who);
            assert!(overlaps == 0 && disorder > 0, "{fence} to {who}");
        }
    }

    #[test]
    fn a_store_that_gives_a_share_an_old_counter_is_not_excused() {
        let (old, new) = (7 << HAND_ON_BITS, 8 << HAND_ON_BITS);
        let mut all = vec![
            belief("k", old, (1, 9), [0, 10, 15]),
            belief("k", new, (9, 9), [5, 20, 25]),
            belief("k", old, (1, 9), [21, 30, 40]),
        ];
        let found = findings(all.clone());
        assert_eq!((found.overlaps.len(), found.disorder.len()), (0, 1));
        all[2].how = vec!["joined".to_owned()];
        let found = findings(all);
        assert_eq!(
            (found.overlaps.len(), found.disorder.len()),
            (1, 0),
            "a reader who joined a share that is lost"
        );
    }

    #[test]
    fn each_lock_of_several_came_in_its_own_way() {
        let (old, new) = (7 << HAND_ON_BITS, 8 << HAND_ON_BITS);
        let mut all = vec![belief("k", old, (1, 1), [0, 10, 15]), belief("k", new, (1, 1), [5, 20, 25])];
        let mut both = belief("j", 1, (1, 1), [21, 30, 40]);
        both.keys.push(("k".to_owned(), old + 1));
        both.how = vec!["hand-on".to_owned(), STORE.to_owned()];
        all.push(both);
        let found = findings(all);
        assert_eq!((found.overlaps.len(), found.disorder.len()), (0, 1));
    }

    #[test]
    fn whoever_waited_in_vain_waited_longest() {
        let starved = Starved { who: "w".to_owned(), key: "k".to_owned(), asked: 5, until: 65 };
        let beliefs = vec![belief("k", 1, (1, 1), [0, 10, 20])];
        let found = check(&History { beliefs, starved: vec![starved], ..History::default() }, &[]);
        assert_eq!(found.longest_wait, 60);
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
