//! `run` when the lock cannot be kept: the whole group is gone before somebody else gets the lock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Store, Talking, code, text};
use rustix::process::Signal;

/// A command with a grandchild, both deaf to TERM, each telling its process id.
const STUBBORN: &str =
    "trap '' TERM; sh -c 'echo $$; while :; do sleep 1000; done' & echo $$; while :; do sleep 1000; done";

/// Run by the next holder: tells which of the processes still live, as the kernel sees them at that moment.
const WHO_LIVES: &str = "for p in \"$@\"; do s=X; read _ _ s _ 2>/dev/null < /proc/$p/stat; case $s in X|Z) ;; *) echo $p lives;; esac; done; echo looked";

/// Start a stubborn command under `x`, and stand in line behind it with a look at who lives.
fn stubborn_and_next(store: &Store, options: &[&str]) -> (Talking, Talking) {
    let args = ["run"].iter().chain(options).chain(&["x", "--", "sh", "-c", STUBBORN]);
    let stubborn = Talking::start(&mut store.lockkeeper(args));
    let pids = [stubborn.line().unwrap(), stubborn.line().unwrap()];
    let mut next = store.lockkeeper(["run", "x", "--", "sh", "-c", WHO_LIVES, "sh"]);
    let next = Talking::start(next.args(&pids));
    store.await_waiters("x", 1);
    (stubborn, next)
}

#[test]
fn when_max_hold_ends_a_group_deaf_to_term_is_dead_before_the_next_holder_starts() {
    let store = Store::new();
    let (stubborn, next) = stubborn_and_next(&store, &["--max-hold", "3s"]);
    next.expect("looked");
    assert_eq!(next.finish(), (0, String::new()));
    assert_eq!(stubborn.line(), None);
    let (code, said) = stubborn.finish();
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("max_hold") && said.contains("hint: ") && said.contains("--max-hold"), "{said}");
}

#[test]
fn when_lockkeeper_stands_still_the_warden_kills_the_group_before_the_lock_expires() {
    let store = Store::new();
    let (stubborn, next) = stubborn_and_next(&store, &["--ttl", "6s"]);
    stubborn.send(Signal::STOP);
    next.expect("looked");
    assert_eq!(next.finish(), (0, String::new()));
    stubborn.send(Signal::CONT);
    assert_eq!(stubborn.line(), None);
    let (code, said) = stubborn.finish();
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("no renewal was confirmed in time"), "{said}");
}

#[test]
fn when_the_lock_is_broken_a_group_deaf_to_term_dies_and_the_next_in_line_has_it() {
    let store = Store::new();
    let args = ["run", "--ttl", "3s", "--note", "mine", "x", "--", "sh", "-c", STUBBORN];
    let stubborn = Talking::start(&mut store.lockkeeper(args));
    let _pids = [stubborn.line().unwrap(), stubborn.line().unwrap()];
    let next = Talking::start(&mut store.lockkeeper(["run", "x", "--", "echo", "mine now"]));
    store.await_waiters("x", 1);
    let broken = store.output(["break", "x"]);
    assert_eq!(code(&broken), 0);
    assert!(text(&broken.stdout).starts_with("broke `x`, held by "));
    next.expect("mine now");
    assert_eq!(next.finish().0, 0);
    assert_eq!(stubborn.line(), None, "everybody who could write is dead");
    let (code, said) = stubborn.finish();
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("no longer knows it as ours"), "{said}");
}

#[test]
fn a_command_that_heeds_term_may_end_in_order_and_the_code_is_76_all_the_same() {
    let store = Store::new();
    let script = "trap 'echo tidied up; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let args = ["run", "--max-hold", "3s", "x", "--", "sh", "-c", script];
    let talking = Talking::start(&mut store.lockkeeper(args));
    talking.expect("ready");
    talking.expect("tidied up");
    let (code, said) = talking.finish();
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("the command is asked to stop"), "{said}");
    assert_eq!(store.shown("x")["holders"].as_array().unwrap().len(), 0);
}

#[test]
fn a_store_that_no_longer_answers_stops_the_command_in_time() {
    let store = Store::new();
    let script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let args = ["run", "--ttl", "3s", "x", "--", "sh", "-c", script];
    let talking = Talking::start(&mut store.lockkeeper(args));
    talking.expect("ready");
    // Whoever writes to the file has to wait now, also for renewals.
    let greedy = rusqlite::Connection::open(store.path("locks.db")).unwrap();
    greedy.busy_timeout(common::HANG).unwrap();
    greedy.execute_batch("BEGIN IMMEDIATE").unwrap();
    talking.expect("asked");
    let (code, said) = talking.finish();
    drop(greedy);
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("no renewal was confirmed in time"), "{said}");
    assert!(said.contains("doctor"), "{said}");
}

#[test]
fn a_short_ttl_is_renewed_for_as_long_as_the_command_runs() {
    let store = Store::new();
    let args = ["run", "--ttl", "1s", "x", "--", "sh", "-c", "sleep 4; echo done"];
    let talking = Talking::start(&mut store.lockkeeper(args));
    talking.expect("done");
    assert_eq!(talking.finish(), (0, String::new()));
}
