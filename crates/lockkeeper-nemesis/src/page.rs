//! The page of the book: `docs/torture.md`, written by the tool and never by hand.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use lockkeeper_torture::{Episode, Trouble, Verdict};

use crate::fault::Fault;
use crate::site::StoreName;

const HEADING: &str = "\n## ";
/// The section that another tool of this repository writes.
const MUTANTS: &str = "Mistakes that were planted";

/// Renew what the page says of the stores of these runs, and its introduction. What it says of others stays.
///
/// # Errors
/// If it cannot be read or written.
pub fn write(page: &Path, verdicts: &[Verdict]) -> Result<(), Trouble> {
    let old = if page.exists() { fs::read_to_string(page)? } else { String::new() };
    fs::write(page, renewed(&old, verdicts))?;
    Ok(())
}

fn renewed(old: &str, verdicts: &[Verdict]) -> String {
    let mut sections: BTreeMap<usize, String> = BTreeMap::new();
    for section in old.split(HEADING).skip(1) {
        let heading = section.lines().next().unwrap_or_default();
        if let Some(place) = place_of(heading) {
            sections.insert(place, section.trim_end().to_owned());
        }
    }
    for verdict in verdicts {
        if let Some(place) = place_of(&verdict.store) {
            sections.insert(place, section(verdict));
        }
    }
    let mut text = introduction();
    let _ = writeln!(text, "\n{}", total(&sections));
    for section in sections.values() {
        let _ = writeln!(text, "{HEADING}{section}");
    }
    text
}

/// Stores in their order, then the mutants.
fn place_of(heading: &str) -> Option<usize> {
    let stores = StoreName::ALL.iter().position(|it| it.name() == heading);
    stores.or((heading == MUTANTS).then_some(StoreName::ALL.len()))
}

/// The last lines of all sections in one.
fn total(sections: &BTreeMap<usize, String>) -> String {
    let lines: Vec<&str> =
        sections.values().filter_map(|it| it.lines().rfind(|it| it.starts_with("`torture: "))).collect();
    let sum = |figure: &str| -> u64 {
        let of = |line: &&str| {
            let value = line.trim_matches('`').split(' ').find_map(|it| it.strip_prefix(figure))?;
            value.parse::<u64>().ok()
        };
        lines.iter().filter_map(of).sum::<u64>()
    };
    let figures: Vec<String> = ["grants=", "G=", "E=", "F=", "orphans=", "late="]
        .iter()
        .map(|it| format!("{it}{}", sum(it)))
        .collect();
    format!("**In all**, over the {} sections below: `{}`.", lines.len(), figures.join(" "))
}

fn introduction() -> String {
    let mut text = "\
# Torture

Written by `cargo xtask torture --write`, never by hand. Three processes with eleven tasks each fight for mutexes, readers' and
writers' locks, permits, pairs of locks and a leader's role on real servers, while faults are struck that a seed chooses. Two of the three
keep locks [warm](guides/warm-locks.md) where the store can: each process has locks of its own, which the others visit now and then. All
processes share one clock. Each writes down what it believes as it happens; a witness that no fault touches keeps the numbers
that the locks protect. A store's section is renewed by its own run, so sections may come from different runs.

| figure | what it counts | promised |
|---|---|---|
| grants | guards that were given | |
| G | guards that were valid at once and do not fit together, and hand-ons by a loser: guards that a process made itself from a grant of the store, after the store had given somebody else the lock | 0, unless the cell says \u{201c}not promised\u{201d} |
| E | updates that were lost at a resource that checks no fence, half of them written without a second look at the guard | nothing: no lease can prevent it |
| F | updates that were lost at a resource that checks fences, what changed there between two looks of a reader, and fences that did not grow, but for hand-ons by a loser, which such a resource refuses | 0 everywhere |
| refused | stale reads and writes that fences kept out | |
| orphans | locks that were still held or waited for after everybody was gone | 0 |
| longest gap | the longest time in which nobody was given any lock, the fault included | |
| lag | how long after the next one had the lock a loser was told, worst case, processes that stood still left out; below zero: it knew before | |

After every fault all processes must be served again, in a round that began after it was healed. A request that waited in vain for a
minute is counted among those that waited longest, and breaks a promise where whoever asks first is served first. There, too, while nothing is broken, a process
that stands in the store's queue for a mutex may not be passed by another more than twice. A loser must be told of its
loss, ten seconds after the next had the lock at the latest, and a guard that was told must not be valid. Zero failures in n tries bound a rate by 3/n, with 95 % confidence: more
grants say more.

For comparison, what others published: Jepsen lost about 18 % of the updates that etcd 3.4.3's own lock guarded, with 2 s leases
and paused processes, and 56 % of the writes to Redis with Sentinel under a partition (2013). Neither is the same workload.

| fault | what happens |
|---|---|
"
    .to_owned();
    for fault in Fault::ALL {
        let _ = writeln!(text, "| {} | {} |", fault.name(), fault.words());
    }
    text += ELSEWHERE;
    text
}

/// What is on the list of things that happen and is struck elsewhere.
const ELSEWHERE: &str = "
Struck by tests of their own: tokens of etcd that expire (`lockkeeper-etcd: tests/real/rights.rs`), and suspend, which is client-stop by the boot clock that all go by
(`lockkeeper-testkit: tests/clock.rs`).
";

fn section(verdict: &Verdict) -> String {
    let mut text = format!("{}\n\nSeed {}, ", verdict.store, verdict.seed);
    let _ = write!(text, "{} grants: {}. Nobody waited longer than ", verdict.grants(), ways(verdict));
    let _ = write!(text, "{} for one.", seconds(verdict.findings.longest_wait));
    for remark in verdict.remarks() {
        let _ = write!(text, " {remark}");
    }
    text += "\n\n";
    text += "| fault | times | grants | G | E | F | refused | orphans | longest gap | lag |\n|---|---|---|---|---|---|---|---|---|---|\n";
    let mut reasons = Vec::new();
    let faults = Fault::ALL.iter().map(|it| it.name()).chain(["end"]);
    for fault in faults {
        let times: Vec<&Episode> = verdict.episodes.iter().filter(|it| it.fault == fault).collect();
        let Some(first) = times.first() else { continue };
        if let Some(reason) = first.unpromised {
            reasons.push(format!("{fault}: exclusion is not promised, {reason}."));
        }
        text += &row(verdict, fault, &times);
    }
    let store = StoreName::named(&verdict.store);
    for fault in Fault::ALL {
        let struck = verdict.episodes.iter().any(|it| it.fault == fault.name());
        if let Some(remark) = store.and_then(|it| fault.remark(it)).filter(|_| struck) {
            reasons.push(format!("{}: {remark}.", fault.name()));
        }
    }
    reasons.extend(store.map(left_out).unwrap_or_default());
    if !reasons.is_empty() {
        let _ = write!(text, "\n{}\n", reasons.join("\n\n"));
    }
    let _ = write!(text, "\n`{verdict}`");
    text
}

/// Which faults have no row, and why: those with the same reason together.
fn left_out(store: StoreName) -> Vec<String> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for fault in Fault::ALL {
        let Some(reason) = fault.left_out(store) else { continue };
        match all.iter_mut().find(|it| it.0 == reason) {
            Some((_, faults)) => faults.push(fault.name()),
            None => all.push((reason, vec![fault.name()])),
        }
    }
    all.iter().map(|it| format!("{}: not struck here, because {}.", it.1.join(", "), it.0)).collect()
}

/// How the guards came, in words.
fn ways(verdict: &Verdict) -> String {
    const WAYS: [(&str, &str); 4] = [
        ("store", "from the store"),
        ("hand-on", "handed on within a process"),
        ("joined", "to readers who joined others of their process"),
        ("warm", "taken again warm"),
    ];
    let of = |way: &str| verdict.findings.came.get(way).copied().unwrap_or(0);
    WAYS.map(|(way, words)| format!("{} {words}", of(way))).join(", ")
}

fn row(verdict: &Verdict, fault: &str, times: &[&Episode]) -> String {
    let found = &verdict.findings;
    let within = |at: u64| times.iter().any(|it| it.span.contains(&at));
    let overlaps = found.overlaps.iter().filter(|it| within(it.0)).count();
    let disorder = found.disorder.iter().filter(|it| within(it.0)).count() as u64;
    let sum = |of: fn(&Episode) -> u64| times.iter().map(|it| of(it)).sum::<u64>();
    let grants: u64 = times.iter().map(|it| found.grants_in(&it.span)).sum();
    let gap = times.iter().map(|it| found.gap_in(&it.span)).max().unwrap_or(0);
    let lag = found.lags.iter().filter(|it| within(it.0)).map(|it| it.1).max();
    let lag = lag.map_or_else(|| "\u{2013}".to_owned(), |it| format!("{} ms", it / 1_000_000));
    let unpromised = if times[0].unpromised.is_some() { " (not promised)" } else { "" };
    format!(
        "| {fault} | {} | {grants} | {overlaps}{unpromised} | {} | {} | {} | {} | {} | {lag} |\n",
        times.len(),
        sum(|it| it.lost),
        sum(|it| it.fenced_lost) + disorder,
        sum(|it| it.refused),
        sum(|it| it.orphans.len() as u64),
        seconds(gap),
    )
}

fn seconds(nanos: u64) -> String {
    format!("{:.2} s", Duration::from_nanos(nanos).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use lockkeeper_torture::{Counts, Findings, History};

    use super::*;

    fn verdict(store: &str) -> Verdict {
        let mut one = Episode::begin("failover", Some("copies come later"), 0);
        one.end(3_000_000_000, Counts::default(), Counts::default());
        Verdict::new(store, 9, History::default(), Findings::default(), vec![one])
    }

    #[test]
    fn a_stores_section_is_renewed_and_the_others_stay_in_their_order() {
        let page = renewed("", &[verdict("zookeeper"), verdict("redis")]);
        assert!(page.find("## redis").unwrap() < page.find("## zookeeper").unwrap());
        assert!(page.contains("| failover | 1 | 0 | 0 (not promised) | 0 | 0 | 0 | 0 | 3.00 s | \u{2013} |"));
        assert!(page.contains("failover: exclusion is not promised, copies come later."));
        let older = format!("{}\n## {MUTANTS}\n\nkept\n", page.replace("Seed 9", "Seed 8"));
        let newer = renewed(&older, &[verdict("redis")]);
        assert_eq!((newer.matches("Seed 8").count(), newer.matches("Seed 9").count()), (1, 1));
        assert!(newer.ends_with("kept\n"));
        assert_eq!(renewed(&newer, &[]), newer, "nothing grows");
    }

    #[test]
    fn the_page_says_how_many_grants_there_were_in_all_and_how_they_came() {
        let with = |store: &str, store_gave: usize, warm: u64| {
            let mut it = verdict(store);
            it.findings.grants = vec![1; store_gave + usize::try_from(warm).unwrap_or(0)];
            it.findings.came = [("store".to_owned(), store_gave as u64), ("warm".to_owned(), warm)].into();
            it
        };
        let page = renewed("", &[with("redis", 30, 12), with("sqlite", 5, 0)]);
        assert!(
            page.contains("over the 2 sections below: `grants=47 G=0 E=0 F=0 orphans=0 late=0`"),
            "{page}"
        );
        assert!(page.contains("42 grants: 30 from the store, 0 handed on within a process"), "{page}");
        assert!(page.contains("12 taken again warm. Nobody"), "{page}");
        // Also if only one of them was run again.
        let page = renewed(&page, &[with("redis", 100, 0)]);
        assert!(page.contains("grants=105 G=0"), "{page}");
    }
}
