//! The simulation itself under test: it passes sound code and catches every planted mistake.

use lockkeeper_testkit::sim::{Broken, Scenario};

#[expect(dead_code, reason = "most flaws are for the conformance suite")]
mod toy;

use toy::{Flaw, Toy};

/// Within how many seeds a mistake must be caught.
const SEEDS: u64 = 200;

/// Run seeds until one breaks in the way that `sign` tells.
fn caught(drawn: fn(u64) -> Scenario, flaw: Flaw, sign: &str) -> Option<Broken> {
    let run = |seed| drawn(seed).run(|clock| Toy::new(clock, flaw), |it| it);
    let mut broken = (0..SEEDS).filter_map(|seed| run(seed).err());
    broken.find(|it| it.what.contains(sign))
}

fn store_must_be_caught(flaw: Flaw, sign: &str) {
    assert!(caught(Scenario::drawn, flaw, sign).is_some(), "{flaw:?} survived {SEEDS} seeds");
}

fn sharing_must_be_caught(flaw: Flaw, sign: &str) {
    assert!(caught(Scenario::drawn_with_shares, flaw, sign).is_some(), "{flaw:?} survived {SEEDS} seeds");
}

#[test]
fn sound_code_over_a_sound_store_is_not_accused() {
    assert_eq!(caught(Scenario::drawn, Flaw::None, ""), None);
    assert_eq!(caught(Scenario::drawn_with_shares, Flaw::None, ""), None);
    assert_eq!(caught(Scenario::drawn_with_meetings, Flaw::None, ""), None);
}

fn meeting_must_be_caught(flaw: Flaw, sign: &str) {
    assert!(caught(Scenario::drawn_with_meetings, flaw, sign).is_some(), "{flaw:?} survived {SEEDS} seeds");
}

#[test]
fn memos_that_are_written_over_whatever_is_there_are_caught_at_a_latch_and_at_a_barrier() {
    meeting_must_be_caught(Flaw::MemoWrittenBlindly, "of the latch");
    meeting_must_be_caught(Flaw::MemoWrittenBlindly, "of round");
}

#[test]
fn memos_that_are_not_kept_are_caught_by_a_job() {
    meeting_must_be_caught(Flaw::MemoNotKept, "is done, and begun again");
}

#[test]
fn a_counter_that_repeats_is_caught_by_a_term() {
    meeting_must_be_caught(Flaw::CounterRepeats, "leads in term");
}

#[test]
fn a_store_that_counts_heads_instead_of_weights_is_caught() {
    sharing_must_be_caught(Flaw::WeightIgnored, "both valid");
}

#[test]
fn a_store_that_ignores_the_smaller_capacity_is_caught() {
    sharing_must_be_caught(Flaw::NewcomersCapacityIgnored, "both valid");
    sharing_must_be_caught(Flaw::HoldersCapacityIgnored, "both valid");
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
