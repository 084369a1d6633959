//! Redlock under the simulation: processes with a bad network to every node, paused and killed, by seeds.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a test may speak and fail loudly")]

use std::time::Duration;

use lockkeeper_core::backend::Backend;
use lockkeeper_core::{Locker, LockerBuilder, Memory};
use lockkeeper_redlock::{Redlock, RedlockOptions};
use lockkeeper_testkit::sim::{Counts, Report, Scenario, Way};

/// How many seeds every run of the tests tries. More: `LOCKKEEPER_SIM_SEEDS=10000`.
const SEEDS: u64 = 60;

fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

fn run(seed: u64, nodes: usize) -> Result<Report, String> {
    let stores = move |clock: lockkeeper_core::Clock| {
        let stores = (0..nodes).map(|_| Memory::new(clock.clone())).collect();
        Redlock::lazy(RedlockOptions::new(stores).clock(clock)).unwrap()
    };
    let connect = move |stores: &Redlock<Memory>, way: &Way| -> LockerBuilder {
        let nodes = stores.nodes().map(|it| way.to(it.clone())).collect();
        let mut options = RedlockOptions::new(nodes).clock(way.clock()).spawner(way.spawner()).seed(seed);
        // The default is short for such a network, which is a good test; patience gives more grants.
        if seed.is_multiple_of(2) {
            options = options.node_timeout(Duration::from_millis(80));
        }
        let redlock = Redlock::lazy(options).unwrap();
        assert_eq!(redlock.profile().name, "redlock");
        Locker::builder(redlock)
    };
    let scenario = Scenario::drawn(seed);
    let broken = |it| format!("{it}\nover {nodes} nodes\n{scenario:?}");
    scenario.run_over(stores, connect).map_err(broken)
}

fn no_seed_breaks_the_rules_over(nodes: usize) {
    let seeds = match from_env("LOCKKEEPER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_env("LOCKKEEPER_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = Counts::default();
    for seed in seeds {
        let counts = run(seed, nodes).unwrap_or_else(|it| panic!("{it}")).counts;
        total.granted += counts.granted;
        total.lost += counts.lost;
        total.refused += counts.refused;
        total.crashed += counts.crashed;
        total.paused += counts.paused;
    }
    println!("{nodes} nodes: {total:?}");
    assert!(0 < total.granted, "nobody was ever granted anything");
}

#[test]
fn no_seed_breaks_the_rules_over_three_nodes() {
    no_seed_breaks_the_rules_over(3);
}

#[test]
fn no_seed_breaks_the_rules_over_five_nodes() {
    no_seed_breaks_the_rules_over(5);
}
