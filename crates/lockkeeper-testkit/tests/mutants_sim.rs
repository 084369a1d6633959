//! The simulation itself under test: it passes sound code and catches every planted mistake.

use lockkeeper_testkit::sim::{Broken, Scenario};

#[expect(dead_code, reason = "most flaws are for the conformance suite")]
mod toy;

use toy::{Flaw, Toy};

/// Within how many seeds a mistake must be caught.
const SEEDS: u64 = 200;

/// Run seeds until one breaks in the way that `sign` tells.
fn caught(sign: &str, run: impl Fn(Scenario) -> Result<(), Broken>) -> Option<Broken> {
    let mut broken = (0..SEEDS).filter_map(|seed| run(Scenario::drawn(seed)).err());
    broken.find(|it| it.what.contains(sign))
}

fn store_must_be_caught(flaw: Flaw, sign: &str) {
    let broken = caught(sign, |scenario| scenario.run(|clock| Toy::new(clock, flaw), |it| it).map(drop));
    assert!(broken.is_some(), "{flaw:?} survived {SEEDS} seeds");
}

#[test]
fn sound_code_over_a_sound_store_is_not_accused() {
    let broken = caught("", |scenario| scenario.run(|clock| Toy::new(clock, Flaw::None), |it| it).map(drop));
    assert_eq!(broken, None);
}

#[test]
fn a_release_without_comparing_is_caught() {
    store_must_be_caught(Flaw::ReleasesWithoutComparing, "both valid");
}

#[test]
fn a_renewal_that_recreates_is_caught() {
    store_must_be_caught(Flaw::RenewalRecreates, "both valid");
}

#[test]
fn a_grant_that_promises_too_much_is_caught() {
    store_must_be_caught(Flaw::GrantTooOptimistic, "both valid");
}

#[test]
fn a_counter_that_repeats_is_caught() {
    store_must_be_caught(Flaw::CounterRepeats, "was given fence");
}
