//! A model of Redlock, checked in every order of events: what the second round and the restart guard are for.
//!
//! Three nodes, two or three clients, one lock. Calls reach nodes in any order, late, or never; the answer of a
//! node that gave the lock may be lost; a client may give up at any moment, and may notice what it knows
//! as late as it likes; what it sent before it gave up may still arrive. A node may restart and forget
//! everything. Clocks run at one rate, but node 0's is ahead by a tick.
//!
//! A call that waits in the network is not modelled as a letter: it is simply not yet made, or never. That is the
//! same set of orders with far fewer worlds.
//!
//! The model is the protocol of `place.rs` in `lockkeeper-redlock`, with a switch for each of its precautions. With all of them no
//! order of events gives two holders or a fence that does not grow. Without any one of them there is such
//! an order, and the checker must find it: otherwise it would prove nothing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::struct_excessive_bools,
    reason = "a model check that fails says where, and its precautions are switches"
)]

mod protocol;
mod world;

use protocol::{FENCES_GROW, ONE_HOLDER, Redlock, SOUND};
use stateright::{Checker, HasDiscoveries, Model};
use world::{BEGINNING, TTL};

/// Visit every world, and find nothing wrong with any.
fn holds(model: Redlock) {
    let checker = model.checker().spawn_bfs().join();
    println!("{} worlds: {model:?}", checker.unique_state_count());
    checker.assert_properties();
}

/// Find an order of events that breaks `property`. In what is printed clients and nodes change their numbers
/// from line to line: each world stands for all that differ in the numbers only.
fn breaks(model: Redlock, property: &'static str) {
    let wanted = HasDiscoveries::AllOf([property].into());
    let checker = model.checker().finish_when(wanted).spawn_bfs().join();
    let path = checker.assert_any_discovery(property);
    println!("{model:?} after {} worlds:", checker.unique_state_count());
    path.into_actions().iter().for_each(|it| println!("  {it:?}"));
}

#[test]
fn no_order_of_events_breaks_the_lock_when_a_node_forgets() {
    holds(Redlock { attempts: 1, ..SOUND });
}

#[test]
fn no_order_of_events_breaks_the_lock_when_clients_try_again() {
    holds(Redlock { attempts: 2, restarts: 0, losses: 0, strays: 1, end: BEGINNING + 1, ..SOUND });
}

#[test]
fn no_order_of_events_breaks_the_lock_of_three_clients() {
    holds(Redlock { clients: 3, attempts: 1, losses: 0, end: BEGINNING + 1, ..SOUND });
}

#[test]
fn no_order_of_events_breaks_the_lock_when_holders_renew_and_a_node_forgets() {
    holds(Redlock { attempts: 1, renewals: 1, ..SOUND });
}

#[test]
fn no_order_of_events_breaks_the_lock_when_nodes_forget_and_are_taken_back() {
    // With another restart, another retake and two ticks more it is four million worlds, and still none of them is wrong.
    holds(Redlock { attempts: 1, losses: 0, renewals: 2, retakes: 1, ..SOUND });
}

#[test]
fn no_order_of_events_breaks_the_lock_when_clocks_alone_number_what_is_taken_back() {
    let end = BEGINNING + TTL + 2;
    let model = Redlock { attempts: 1, losses: 0, renewals: 2, retakes: 1, end, ..SOUND };
    holds(Redlock { turn_outdoes: false, ..model });
}

#[test]
fn taking_back_nodes_that_may_not_vote_yet_is_no_cure_for_a_missing_guard() {
    breaks(Redlock { guard: 0, attempts: 1, losses: 0, renewals: 1, retakes: 1, ..SOUND }, ONE_HOLDER);
}

#[test]
fn no_order_of_events_breaks_the_lock_when_only_the_second_round_tells_of_counters() {
    holds(Redlock { attempts: 1, turn_outdoes: false, ..SOUND });
}

#[test]
fn no_order_of_events_breaks_the_lock_when_only_the_second_round_tells_of_counters_and_clients_try_again() {
    holds(Redlock { turn_outdoes: false, restarts: 0, losses: 0, end: BEGINNING + 1, ..SOUND });
}

#[test]
fn without_the_second_round_a_fence_goes_back() {
    breaks(Redlock { second_round: false, restarts: 0, losses: 0, ..SOUND }, FENCES_GROW);
}

#[test]
fn without_the_restart_guard_two_hold_the_lock() {
    breaks(Redlock { guard: 0, attempts: 1, losses: 0, ..SOUND }, ONE_HOLDER);
}

#[test]
fn with_a_guard_shorter_than_the_lease_two_hold_the_lock() {
    breaks(Redlock { guard: TTL - 1, attempts: 1, losses: 0, ..SOUND }, ONE_HOLDER);
}

#[test]
fn without_the_restart_guard_a_fence_goes_back() {
    breaks(Redlock { guard: 0, attempts: 1, losses: 0, ..SOUND }, FENCES_GROW);
}

#[test]
fn with_counters_that_a_restart_sets_back_a_fence_goes_back() {
    breaks(Redlock { clock_counters: false, attempts: 1, losses: 0, ..SOUND }, FENCES_GROW);
}

#[test]
fn with_one_id_for_all_attempts_two_hold_the_lock() {
    breaks(Redlock { fresh_ids: false, restarts: 0, losses: 0, end: BEGINNING, ..SOUND }, ONE_HOLDER);
}
