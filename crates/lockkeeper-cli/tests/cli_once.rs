//! `once` and `run --at-least`: a command runs once for each tick, and a short one keeps its lock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Stdio;

use common::{Store, Talking, code, failed, text};
use rustix::process::Signal;

/// Run `once … -- sh -c SCRIPT` to its end: exit code and output.
fn once(store: &Store, args: &[&str], script: &str) -> (i32, String) {
    let output = store.output(["once"].iter().chain(args).chain(&["--", "sh", "-c", script]));
    (code(&output), text(&output.stdout))
}

/// A job at work until its input is closed; it has told its fence.
fn at_work(store: &Store, args: &[&str]) -> Talking {
    let args = ["once"].iter().chain(args).chain(&["--", "sh", "-c", "echo $LOCKKEEPER_FENCE; exec cat"]);
    let job = Talking::start(store.lockkeeper(args).stdin(Stdio::piped()));
    assert!(0 < job.fence());
    job
}

#[test]
fn a_tick_is_run_once_by_many_that_start_together() {
    let store = Store::new();
    let many: Vec<_> = (0..8)
        .map(|_| {
            let args = ["once", "--wait", "2m", "nightly", "2026-11-15", "--", "echo", "ran"];
            Talking::start(&mut store.lockkeeper(args))
        })
        .collect();
    let ran = many.iter().filter(|it| it.line().is_some()).count();
    assert_eq!(ran, 1);
    for it in many {
        assert_eq!(it.finish(), (0, String::new()));
    }
    assert_eq!(once(&store, &["nightly", "2026-11-15"], "echo ran"), (0, String::new()), "it was done");
    assert_eq!(once(&store, &["nightly", "2026-11-16"], "echo ran"), (0, "ran\n".into()), "the next night");
    assert_eq!(once(&store, &["weekly", "2026-11-15"], "echo ran"), (0, "ran\n".into()), "another job");
    store.expect_empty();
}

#[test]
fn while_another_is_at_it_the_code_is_75_and_who_waits_finds_it_done() {
    let store = Store::new();
    let job = at_work(&store, &["nightly", "1"]);
    let error = failed(&store.output(["once", "nightly", "1", "--", "echo", "ran"]), 75);
    assert!(error.contains("the lock `nightly` was not obtained at once"), "{error}");
    assert_eq!(once(&store, &["nightly", "2"], "echo ran").0, 75, "ticks of one job do not overlap");
    let args = ["once", "--wait", "2m", "nightly", "1", "--", "echo", "ran"];
    let waiting = Talking::start(&mut store.lockkeeper(args));
    store.await_waiters("nightly", 1);
    job.let_go();
    assert_eq!((waiting.line(), waiting.finish().0), (None, 0), "it was done while it waited");
}

#[test]
fn a_command_that_fails_or_dies_leaves_the_tick_open() {
    let store = Store::new();
    assert_eq!(once(&store, &["nightly", "1"], "exit 3"), (3, String::new()));
    assert_eq!(once(&store, &["nightly", "1"], "kill -9 $$"), (137, String::new()));
    let job = at_work(&store, &["--ttl", "5s", "nightly", "1"]);
    job.send(Signal::KILL);
    assert_eq!(job.finish().0, -9);
    assert_eq!(once(&store, &["--wait", "2m", "nightly", "1"], "echo ran"), (0, "ran\n".into()));
    assert_eq!(once(&store, &["nightly", "1"], "echo ran"), (0, String::new()));
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_is_run() {
    let store = Store::new();
    for (args, says) in [
        (&["once", "nightly", "--", "echo", "ran"][..], "TICK"),
        (&["once", "nightly", "", "--", "echo", "ran"], "the tick is empty"),
        (&["once", "", "1", "--", "echo", "ran"], "the lock name is empty"),
        (&["once", "--remember", "0s", "nightly", "1", "--", "echo", "ran"], "greater than 0"),
        (&["run", "--at-least", "0s", "x", "--", "echo", "ran"], "greater than 0"),
        (&["run", "--at-least", "5s", "--shared", "x", "--", "echo", "ran"], "cannot be used with"),
        (
            &["run", "--at-least", "5s", "--max-hold", "1s", "x", "--", "echo", "ran"],
            "longer than `max_hold`",
        ),
    ] {
        let error = failed(&store.output(args), 64);
        assert!(error.contains(says), "{args:?}: {error}");
    }
    let memory = Store::at("memory:");
    assert_eq!(once(&memory, &["nightly", "1"], "echo ran").0, 0);
    store.expect_empty();
}

#[test]
fn a_lock_is_kept_at_least_so_long_also_when_the_process_has_ended() {
    let store = Store::new();
    let run = |args: &[&str]| store.code_of(args);
    assert_eq!(run(&["--at-least", "1h", "poll"]), 0);
    assert_eq!(run(&["--try", "poll"]), 75, "the hour is not over");
    assert_eq!(store.shown("poll")["holders"].as_array().unwrap().len(), 1);
    assert_eq!(code(&store.output(["break", "--yes", "poll"])), 0);
    assert_eq!(run(&["--at-least", "300ms", "--ttl", "1h", "poll"]), 0);
    assert_eq!(run(&["--wait", "2m", "poll"]), 0, "its time is over long before the ttl");
    store.expect_empty();
}
