//! The core under the simulation: seeds that must hold.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_core::Memory;
use lockkeeper_core::observe::{Event, GrantedBy, Observer};
use lockkeeper_testkit::sim::{Counts, Scenario};

/// How many seeds every run of the tests tries. More: `LOCKKEEPER_SIM_SEEDS=10000`.
const SEEDS: u64 = 300;

fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

fn run(scenario: &Scenario) -> Counts {
    match scenario.run(Memory::new, |it| it) {
        Ok(report) => report.counts,
        Err(broken) => panic!("{broken}\n{scenario:?}\n{:?}", broken.counts),
    }
}

/// The seed that the environment names, or many.
fn seeds() -> Range<u64> {
    match from_env("LOCKKEEPER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_env("LOCKKEEPER_SIM_SEEDS").unwrap_or(SEEDS),
    }
}

fn run_all(seeds: Range<u64>, drawn: fn(u64) -> Scenario) -> Counts {
    let mut total = Counts::default();
    for seed in seeds {
        total += run(&drawn(seed));
    }
    total
}

/// A simulation in which nothing happens proves nothing.
fn must_have_happened(seeds: &Range<u64>, counts: &[(&str, u64)]) {
    let seeds = seeds.end - seeds.start;
    for (what, count) in counts {
        assert!(seeds == 1 || seeds / 10 < *count, "only {count} were {what} in {seeds} seeds");
    }
}

#[test]
fn no_seed_breaks_the_rules() {
    let (seeds, total) = (seeds(), run_all(seeds(), Scenario::drawn));
    println!("seeds {seeds:?}: {total:?}");
    let Counts {
        granted,
        handed_on,
        reentered,
        shared,
        together,
        downgraded,
        lost,
        cancelled,
        refused,
        crashed,
        paused,
    } = total;
    assert_eq!((shared, together, downgraded), (0, 0, 0), "a lock was shared");
    let counts = [
        ("granted", granted / 10),
        ("handed on", handed_on),
        ("reentered", reentered),
        ("lost", lost),
        ("cancelled", cancelled),
        ("refused", refused),
        ("crashed", crashed),
        ("paused", paused),
    ];
    must_have_happened(&seeds, &counts);
}

#[test]
fn no_seed_breaks_the_rules_of_those_who_share() {
    let (seeds, total) = (seeds(), run_all(seeds(), Scenario::drawn_with_shares));
    println!("seeds {seeds:?}: {total:?}");
    let Counts { granted, handed_on, reentered, shared, downgraded, lost, cancelled, crashed, .. } = total;
    let counts = [
        ("granted", granted / 10),
        ("handed on", handed_on),
        ("reentered", reentered),
        ("shared", shared),
        ("downgraded", downgraded),
        ("lost", lost),
        ("cancelled", cancelled),
        ("crashed", crashed),
    ];
    must_have_happened(&seeds, &counts);
}

#[test]
fn no_seed_breaks_the_rules_of_those_who_want_several() {
    let (seeds, total) = (seeds(), run_all(seeds(), Scenario::drawn_with_several));
    println!("seeds {seeds:?}: {total:?}");
    let Counts { granted, shared, together, lost, cancelled, crashed, .. } = total;
    let counts = [
        ("granted", granted / 10),
        ("shared", shared),
        ("granted together", together),
        ("lost", lost),
        ("cancelled", cancelled),
        ("crashed", crashed),
    ];
    must_have_happened(&seeds, &counts);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for scenario in [Scenario::drawn(3), Scenario::drawn(17), Scenario::drawn_with_shares(40)] {
        let run = || scenario.run(Memory::new, |it| it);
        assert_eq!(run(), run(), "{scenario:?}");
    }
}

/// Counts locks that had stayed with their process.
#[derive(Clone, Debug, Default)]
struct Retakes(Arc<AtomicU64>);

impl Observer for Retakes {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Granted { by: GrantedBy::Warm, .. } = event {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The same with lockers that keep what is given back: whoever is idle hears that it must go, or goes by itself.
#[test]
fn no_seed_breaks_the_rules_of_warm_locks() {
    let (seeds, retakes) = (seeds(), Retakes::default());
    let mut total = Counts::default();
    for seed in seeds.clone() {
        for scenario in [Scenario::drawn(seed), Scenario::drawn_with_shares(!seed)] {
            let retakes = retakes.clone();
            match scenario.run(Memory::new, move |it| it.warm(true).observer(retakes.clone())) {
                Ok(report) => total += report.counts,
                Err(broken) => panic!("{broken}\n{scenario:?}\n{:?}", broken.counts),
            }
        }
    }
    println!("seeds {seeds:?}: {total:?}");
    let Counts { granted, handed_on, lost, cancelled, crashed, .. } = total;
    let counts = [
        ("granted", granted / 10),
        ("handed on", handed_on),
        ("lost", lost),
        ("cancelled", cancelled),
        ("crashed", crashed),
        ("taken again", retakes.0.load(Ordering::Relaxed)),
    ];
    must_have_happened(&seeds, &counts);
}
