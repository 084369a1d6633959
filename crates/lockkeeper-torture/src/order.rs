//! The order of service, where a store promises one: while a process stands in the store's line for a lock, no other process is
//! given that lock by the store again and again.
//!
//! Nothing of this depends on how quick a machine is: see [`PASSES_MAX`]. Readers and permits are left out, because those who fit
//! are let in together.

use std::collections::{BTreeMap, HashMap};

use crate::history::History;

/// How a guard came that no process made itself.
const STORE: &str = "store";
/// So often another process may be given a lock while one stands in its line. It follows from the promises, whatever the machine:
///
/// - **Once, because it hears late.** A process has one grant of a lock at a time, and gives it back after its guard was noted. So of
///   all that it was given before we stood in the line only the last can be noted after.
/// - **Once, because it came before.** A process has one place in a line at a time: one caller represents all of it. So one place of
///   its may be older than ours. The next is younger, and the line is first come, first served.
///
/// What is taken for standing there is surely standing there, see `how.rs`: a try has no place, and a place is promised for a ttl
/// since it was asked for last. Whoever cannot be called any more may lose its turn on Redis; that takes a fault, and is not judged.
const PASSES_MAX: usize = 2;

/// A process was passed by another more often than any line allows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed {
    /// Since when it stood in the line.
    pub from: u64,
    /// When it was passed once too often.
    pub at: u64,
    /// In words.
    pub what: String,
}

/// Everybody who was passed too often.
pub(crate) fn passed(history: &History) -> Vec<Passed> {
    let mut given: HashMap<&str, Vec<(u64, &str)>> = HashMap::new();
    for it in history.beliefs.iter().filter(|it| (it.weight, it.capacity) == (1, 1)) {
        for ((key, _), how) in it.keys.iter().zip(&it.how) {
            if how == STORE {
                given.entry(key).or_default().push((it.from, &it.who.0));
            }
        }
    }
    for all in given.values_mut() {
        all.sort_unstable();
    }
    let mut found = Vec::new();
    for stood in &history.stood {
        let Some(all) = given.get(stood.key.as_str()) else { continue };
        let first = all.partition_point(|it| it.0 < stood.from);
        let mut times: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (at, who) in all[first..].iter().take_while(|it| it.0 < stood.until) {
            times.entry(who).or_default().push(*at);
        }
        for (who, times) in times.into_iter().filter(|it| it.0 != stood.who) {
            let Some(at) = times.get(PASSES_MAX).copied() else { continue };
            let what = format!(
                "{}: {who} was given it {} times by the store while {} stood in the line",
                stood.key,
                times.len(),
                stood.who
            );
            found.push(Passed { from: stood.from, at, what });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Belief, Stood};

    fn given(who: &str, how: &str, from: u64, capacity: u32) -> Belief {
        Belief {
            who: (who.to_owned(), from),
            how: vec![how.to_owned()],
            keys: vec![("k".to_owned(), from)],
            weight: 1,
            capacity,
            asked: from - 1,
            from,
            sure: None,
            told: None,
            ended: true,
        }
    }

    fn found(beliefs: Vec<Belief>) -> usize {
        let stood = Stood { who: "w0".to_owned(), key: "k".to_owned(), from: 10, until: 50 };
        passed(&History { beliefs, stood: vec![stood], ..History::default() }).len()
    }

    #[test]
    fn whoever_is_served_a_third_time_before_one_who_stands_in_line_is_found() {
        let often = |times: u64, who: &str, how: &str, capacity| {
            (0..times).map(|it| given(who, how, 11 + it, capacity)).collect()
        };
        assert_eq!(found(often(2, "w1", STORE, 1)), 0, "one is heard of late, one came before");
        assert_eq!(found(often(3, "w1", STORE, 1)), 1);
        // Within a process, or those who may share, or oneself: that is another promise.
        for (who, how, capacity) in
            [("w1", "hand-on", 1), ("w1", "warm", 1), ("w1", STORE, 9), ("w0", STORE, 1)]
        {
            assert_eq!(found(often(9, who, how, capacity)), 0, "{who} {how} {capacity}");
        }
    }

    #[test]
    fn each_other_process_may_come_before_and_nobody_counts_who_came_earlier_or_later() {
        let mut all: Vec<Belief> = ["w1", "w2", "w3"].iter().map(|it| given(it, STORE, 20, 1)).collect();
        all.extend((0..9).flat_map(|it| [given("w1", STORE, 1 + it, 1), given("w1", STORE, 60 + it, 1)]));
        assert_eq!(found(all), 0);
    }
}
