//! The core under the simulation: seeds that must hold.

use lockkeeper_core::Memory;
use lockkeeper_testkit::sim::{Counts, Scenario};

/// How many seeds every run of the tests tries. More: `LOCKKEEPER_SIM_SEEDS=10000`.
const SEEDS: u64 = 300;

fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

fn run(seed: u64) -> Counts {
    let scenario = Scenario::drawn(seed);
    match scenario.run(Memory::new, |it| it) {
        Ok(report) => report.counts,
        Err(broken) => panic!("{broken}\n{scenario:?}\n{:?}", broken.counts),
    }
}

#[test]
fn no_seed_breaks_the_rules() {
    if let Some(seed) = from_env("LOCKKEEPER_SIM_SEED") {
        println!("seed {seed}: {:?}", run(seed));
        return;
    }
    let seeds = from_env("LOCKKEEPER_SIM_SEEDS").unwrap_or(SEEDS);
    let mut total = Counts::default();
    for counts in (0..seeds).map(run) {
        total += counts;
    }
    println!("{seeds} seeds: {total:?}");
    // A simulation in which nothing happens proves nothing.
    let Counts { granted, handed_on, reentered, lost, cancelled, refused, crashed, paused } = total;
    for (what, count) in [
        ("granted", granted / 10),
        ("handed on", handed_on),
        ("reentered", reentered),
        ("lost", lost),
        ("cancelled", cancelled),
        ("refused", refused),
        ("crashed", crashed),
        ("paused", paused),
    ] {
        assert!(seeds / 10 < count, "only {count} were {what} in {seeds} seeds");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 17, 40] {
        let run = || Scenario::drawn(seed).run(Memory::new, |it| it);
        assert_eq!(run(), run(), "seed {seed}");
    }
}
