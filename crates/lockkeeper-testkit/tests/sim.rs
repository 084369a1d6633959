//! The core under the simulation: seeds that must hold.

use lockkeeper_core::Memory;
use lockkeeper_testkit::sim::{Counts, Scenario};

/// How many seeds every run of the tests tries. More: `LOCKKEEPER_SIM_SEEDS=10000`.
const SEEDS: u64 = 300;

fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")),
    )
}

#[test]
fn no_seed_breaks_the_rules() {
    let seeds = match from_env("LOCKKEEPER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_env("LOCKKEEPER_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = Counts::default();
    for seed in seeds {
        match Scenario::drawn(seed).run(Memory::new, |it| it) {
            Ok(report) => {
                total.granted += report.counts.granted;
                total.handed_on += report.counts.handed_on;
                total.reentered += report.counts.reentered;
                total.lost += report.counts.lost;
                total.cancelled += report.counts.cancelled;
                total.refused += report.counts.refused;
                total.crashed += report.counts.crashed;
                total.paused += report.counts.paused;
            }
            Err(broken) => panic!("{broken}\n{:?}\n{:?}", Scenario::drawn(seed), broken.counts),
        }
    }
    println!("{total:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 17, 40] {
        let run = || Scenario::drawn(seed).run(Memory::new, |it| it);
        assert_eq!(run(), run(), "seed {seed}");
    }
}
