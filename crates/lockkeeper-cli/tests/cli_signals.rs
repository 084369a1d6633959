//! `run` and signals: what is passed on, and what dies with whom.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Stdio;

use common::{Store, Talking, is_dead, send, until};
use rustix::process::Signal;

#[test]
fn signals_are_passed_on_to_the_whole_group() {
    let store = Store::new();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        // Two processes, each with a trap of its own. A shell starts background jobs deaf to INT and QUIT, so
        // the first is in front and the second is its parent.
        let inner = format!("trap 'echo inner; exit 0' {name}; echo ready; while :; do sleep 0.05; done");
        let outer = format!("trap 'echo outer; exit 9' {name}; sh -c \"$0\"; while :; do sleep 0.05; done");
        let talking = Talking::start(&mut store.lockkeeper(["run", "x", "--", "sh", "-c", &outer, &inner]));
        talking.expect("ready");
        talking.send(signal);
        let mut said = [talking.line().unwrap(), talking.line().unwrap()];
        said.sort();
        assert_eq!(said, ["inner", "outer"], "{name}");
        assert_eq!(talking.finish().0, 9, "{name}");
    }
}

#[test]
fn a_signal_that_ends_the_command_becomes_our_code() {
    let store = Store::new();
    let talking =
        Talking::start(&mut store.lockkeeper(["run", "x", "--", "sh", "-c", "echo ready; exec sleep 1000"]));
    talking.expect("ready");
    talking.send(Signal::TERM);
    assert_eq!(talking.finish(), (143, String::new()));
    assert_eq!(store.shown("x")["holders"].as_array().unwrap().len(), 0, "the lock was given back");
}

#[test]
fn a_signal_that_our_caller_ignores_stays_ignored() {
    let store = Store::new();
    let mut command = common::unhardened("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_lockkeeper")]);
    command.args(["run", "x", "--", "sh", "-c", "echo ready; read line; echo survived"]);
    let mut talking = Talking::start(command.env("LOCKKEEPER_URL", store.url()).stdin(Stdio::piped()));
    talking.expect("ready");
    talking.send(Signal::HUP);
    drop(talking.child.stdin.take());
    talking.expect("survived");
    assert_eq!(talking.finish().0, 0);
}

/// A command with a grandchild, both deaf to TERM, each telling its process id.
const STUBBORN: &str =
    "trap '' TERM; sh -c 'echo $$; while :; do sleep 1000; done' & echo $$; while :; do sleep 1000; done";

/// A dying process closes its files shortly before the kernel calls it dead.
fn await_death(pids: &[String]) {
    until("they are dead", || pids.iter().all(|it| is_dead(it.parse().unwrap())));
}

#[test]
fn if_lockkeeper_is_killed_the_command_and_its_children_die() {
    let store = Store::new();
    let talking = Talking::start(&mut store.lockkeeper(["run", "x", "--", "sh", "-c", STUBBORN]));
    let pids = [talking.line().unwrap(), talking.line().unwrap()];
    talking.send(Signal::KILL);
    assert_eq!(talking.line(), None, "everybody who could write is dead");
    assert_eq!(talking.finish().0, -9);
    await_death(&pids);
}

/// The process ids of a process's children whose command line holds a word.
fn children(parent: u32, word: &str) -> Vec<u32> {
    let listed =
        std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let pids = listed.split_whitespace().map(|it| it.parse::<u32>().unwrap());
    let told = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains(word)
    };
    pids.filter(told).collect()
}

#[test]
fn a_warden_that_was_killed_is_replaced() {
    let store = Store::new();
    let talking =
        Talking::start(&mut store.lockkeeper(["run", "--ttl", "3s", "x", "--", "sh", "-c", STUBBORN]));
    let pids = [talking.line().unwrap(), talking.line().unwrap()];
    let lockkeeper = talking.child.id();
    let first = children(lockkeeper, "__warden");
    assert_eq!(first.len(), 1);
    send(first[0], Signal::KILL);
    until("another warden stands", || {
        let wardens = children(lockkeeper, "__warden");
        wardens.len() == 1 && wardens != first
    });
    talking.send(Signal::KILL);
    assert_eq!(talking.line(), None, "everybody who could write is dead");
    await_death(&pids);
    assert_eq!(talking.finish().0, -9);
}
