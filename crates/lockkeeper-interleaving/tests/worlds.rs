//! Every world of the program holds in all orders of events that were tried.

use std::process::Command;

/// A failure prints the order that led to it, which the searcher can run again.
fn holds(world: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper-interleaving"));
    let out = command.arg(world).output().expect("the program is built with its tests");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
}

#[test]
fn two_that_take_and_give_back_by_the_short_way_never_hold_at_once() {
    holds("short-way");
}

#[test]
fn whoever_goes_away_takes_nobodys_turn_along() {
    holds("goes-away");
}

#[test]
fn whoever_listens_hears_that_the_lock_was_handed_on() {
    holds("listens");
}

/// The program says so if it is asked for what it has not, so that a renamed world is no silent success.
#[test]
#[should_panic(expected = "there is no world")]
fn a_world_that_is_not_there_is_told() {
    holds("nowhere");
}
