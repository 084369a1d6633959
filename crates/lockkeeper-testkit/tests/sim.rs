//! The core under the simulation: seeds that must hold.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::observe::{CooledBy, Event, GrantedBy, Observer};
use lockkeeper_core::{Clock, Key, LockerBuilder, Memory, Moment};
use lockkeeper_testkit::chaos::Odds;
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
        ..
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
fn no_seed_breaks_the_rules_of_those_who_meet() {
    let (seeds, total) = (seeds(), run_all(seeds(), Scenario::drawn_with_meetings));
    println!("seeds {seeds:?}: {total:?}");
    let Counts { ran, opened, met, led, seen, cancelled, refused, crashed, .. } = total;
    let counts = [
        ("jobs that ran", ran),
        ("latches seen open", opened),
        ("rounds heard to open", met),
        ("roles won", led),
        ("leaders seen", seen),
        ("cancelled", cancelled),
        ("refused", refused),
        ("crashed", crashed),
    ];
    must_have_happened(&seeds, &counts);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for scenario in [
        Scenario::drawn(3),
        Scenario::drawn(17),
        Scenario::drawn_with_shares(40),
        Scenario::drawn_with_meetings(7),
    ] {
        let run = || scenario.run(Memory::new, |it| it);
        assert_eq!(run(), run(), "{scenario:?}");
    }
}

/// What was warm, over all processes of all seeds.
#[derive(Clone, Debug, Default)]
struct Warm {
    retaken: Arc<AtomicU64>,
    gone_by_time: Arc<AtomicU64>,
    too_late: Arc<AtomicU64>,
}

/// One process, which must have given back what is idle a third of its ttl after it spoke to the store last. That was a third of the
/// ttl after the answer before at the latest, so that two thirds are the bound for whoever hears answers only.
#[derive(Debug)]
struct Idle {
    of: Warm,
    clock: Clock,
    /// When the store last answered about each name.
    answered: Mutex<BTreeMap<Key, Moment>>,
    /// How long what is idle may stay after that.
    bound: Duration,
}

impl Observer for Idle {
    fn observe(&self, event: &Event<'_>) {
        let now = self.clock.now();
        match event {
            Event::Granted { by: GrantedBy::Warm, .. } => {
                self.of.retaken.fetch_add(1, Ordering::Relaxed);
            }
            Event::Granted { key, .. } | Event::Renewed { key, .. } => {
                locked(&self.answered).insert((*key).clone(), now);
            }
            Event::Cooled { key, by, .. } => {
                let by_time = u64::from(*by == CooledBy::Time);
                self.of.gone_by_time.fetch_add(by_time, Ordering::Relaxed);
                let answered = locked(&self.answered).get(*key).copied();
                if answered.is_none_or(|it| it.after(self.bound) < now) {
                    self.of.too_late.fetch_add(1, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }
}

/// The same with lockers that keep what is given back: whoever is idle hears that it must go, or goes by itself.
#[test]
fn no_seed_breaks_the_rules_of_warm_locks() {
    let (seeds, warm) = (seeds(), Warm::default());
    let mut total = Counts::default();
    for seed in seeds.clone() {
        for scenario in [Scenario::drawn(seed), Scenario::drawn_with_shares(!seed)] {
            let (of, time) = (warm.clone(), Arc::new(OnceLock::new()));
            // Whoever stands still gives nothing back, and a word that was lost is said again.
            let Odds { request_lost, reply_lost, never, slow, .. } = scenario.odds;
            let lost = request_lost + reply_lost + never + slow + scenario.slow_letters;
            let bound = if lost + u64::from(scenario.pauses) == 0 {
                scenario.ttl * 2 / 3
            } else {
                scenario.ttl * 1000
            };
            let clock = time.clone();
            let store = |it: Clock| Memory::new(clock.get_or_init(|| it).clone());
            let settings = move |it: LockerBuilder| {
                let clock = time.get().expect("the store was made first").clone();
                it.warm(true).observer(Idle { of: of.clone(), clock, answered: Mutex::default(), bound })
            };
            match scenario.run(store, settings) {
                Ok(report) => total += report.counts,
                Err(broken) => panic!("{broken}\n{scenario:?}\n{:?}", broken.counts),
            }
            let late = warm.too_late.load(Ordering::Relaxed);
            assert_eq!(late, 0, "seed {seed}: idle for longer than it may be\n{scenario:?}");
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
        ("taken again", warm.retaken.load(Ordering::Relaxed)),
        ("gone by time", warm.gone_by_time.load(Ordering::Relaxed)),
    ];
    must_have_happened(&seeds, &counts);
}
