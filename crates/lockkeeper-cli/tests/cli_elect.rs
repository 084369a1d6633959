//! `elect` and `leader`: one command leads, everybody sees which, and after a loss it stands again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Stdio;

use common::{Store, Talking, code, failed, text, until};
use rustix::process::Signal;
use serde_json::Value;

/// A command that leads until its input is closed, once it has told its term.
fn candidate(store: &Store, args: &[&str]) -> Talking {
    let args = ["elect"].iter().chain(args).chain(&["--", "sh", "-c", "echo $LOCKKEEPER_FENCE; exec cat"]);
    Talking::start(store.lockkeeper(args).stdin(Stdio::piped()))
}

/// What `leader --json` says.
fn leader(store: &Store, name: &str) -> (i32, Value) {
    let output = store.output(["leader", "--json", name]);
    (code(&output), serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn one_leads_and_the_next_follows_when_it_ends() {
    let store = Store::new();
    let vacant = failed_softly(&store);
    assert!(vacant.contains("nobody leads `index`"), "{vacant}");
    assert_eq!(leader(&store, "index"), (75, serde_json::json!({ "name": "index", "leader": null })));

    let first = candidate(&store, &["--value", "10.0.0.7:80", "index"]);
    let term = first.fence();
    let (code_of_leader, seen) = leader(&store, "index");
    assert_eq!((code_of_leader, seen["leader"]["value"].as_str()), (0, Some("10.0.0.7:80")));
    assert_eq!(seen["leader"]["term"].as_str(), Some(term.to_string().as_str()));
    assert_eq!(seen["leader"]["pid"].as_u64(), Some(u64::from(first.child.id())));
    let words = text(&store.output(["leader", "index"]).stdout);
    assert!(
        words.contains("value:   10.0.0.7:80\n") && words.contains(&format!("term:    {term}\n")),
        "{words}"
    );

    // The lock of that name tells the value, too, and one that is no role tells none.
    let shown = |args: &[&str]| text(&store.output(args).stdout);
    assert!(shown(&["show", "index"]).contains("leads with: 10.0.0.7:80\n"), "{}", shown(&["show", "index"]));
    let json: Value = serde_json::from_str(&shown(&["show", "--json", "index"])).unwrap();
    assert_eq!(json["leader"], serde_json::json!({ "value": "10.0.0.7:80", "term": term.to_string() }));
    let plain = Talking::start(
        store
            .lockkeeper(["run", "plain", "--", "sh", "-c", "echo $LOCKKEEPER_FENCE; exec cat"])
            .stdin(Stdio::piped()),
    );
    plain.fence();
    let json: Value = serde_json::from_str(&shown(&["ls", "--json", "--leaders"])).unwrap();
    let of_all: Vec<_> =
        json["locks"].as_array().unwrap().iter().map(|it| it["leader"]["value"].as_str()).collect();
    assert_eq!(of_all, [Some("10.0.0.7:80"), None]);
    assert!(shown(&["ls", "--leaders"]).ends_with("index leads with: 10.0.0.7:80\n"));
    assert!(!shown(&["ls"]).contains("leads with"));
    assert_eq!(code(&store.output(["ls", "--leaders", "--watch"])), 64);
    plain.let_go();

    let second = candidate(&store, &["--value", "10.0.0.8:80", "index"]);
    store.await_waiters("index", 1);
    first.let_go();
    assert!(term < second.fence());
    assert_eq!(leader(&store, "index").1["leader"]["value"], "10.0.0.8:80");
    second.let_go();
    assert_eq!(leader(&store, "index").0, 75);
    store.expect_empty();
}

/// What `leader` says while nobody leads.
fn failed_softly(store: &Store) -> String {
    let output = store.output(["leader", "index"]);
    assert_eq!((code(&output), text(&output.stdout)), (75, String::new()));
    text(&output.stderr)
}

#[test]
fn the_code_of_the_command_is_the_code_of_elect() {
    let store = Store::new();
    assert_eq!(code(&store.output(["elect", "index", "--", "sh", "-c", "exit 7"])), 7);
    assert_eq!(code(&store.output(["elect", "index", "--", "/no/such/command"])), 127);
    store.expect_empty();
}

#[test]
fn a_lead_that_is_taken_stops_the_command_and_stands_again() {
    let store = Store::new();
    let first = candidate(&store, &["--ttl", "1s", "index"]);
    let term = first.fence();
    assert_eq!(code(&store.output(["break", "--yes", "index"])), 0);
    let again = first.fence();
    assert!(term < again, "a new term");
    first.send(Signal::TERM);
    let (ended, said) = first.finish();
    assert_eq!(ended, 143);
    assert!(said.contains("the lead of `index` was lost") && said.contains("standing again"), "{said}");
    store.expect_empty();
}

#[test]
fn whoever_was_told_to_end_does_not_stand_again() {
    let store = Store::new();
    let deaf = "trap 'echo heard' TERM; echo $LOCKKEEPER_FENCE; while :; do sleep 0.02; done";
    let first =
        Talking::start(&mut store.lockkeeper(["elect", "--ttl", "2s", "index", "--", "sh", "-c", deaf]));
    first.fence();
    first.send(Signal::TERM);
    first.expect("heard");
    assert_eq!(code(&store.output(["break", "--yes", "index"])), 0);
    while first.line().is_some_and(|it| it == "heard") {}
    let (ended, said) = first.finish();
    assert_eq!(ended, 143);
    assert!(said.contains("was lost") && !said.contains("standing again"), "{said}");
    store.expect_empty();
}

#[test]
fn a_signal_ends_the_wait() {
    let store = Store::new();
    let first = candidate(&store, &["index"]);
    first.fence();
    let second = candidate(&store, &["index"]);
    store.await_waiters("index", 1);
    second.send(Signal::TERM);
    assert_eq!(second.finish().0, 143);
    store.await_waiters("index", 0);
    first.let_go();
}

#[test]
fn a_leader_that_dies_is_seen_to_be_gone() {
    let store = Store::new();
    let first = candidate(&store, &["--ttl", "1s", "--value", "a", "index"]);
    first.fence();
    first.send(Signal::KILL);
    assert_eq!(first.finish().0, -9);
    until("the lead is vacant", || leader(&store, "index").0 == 75);
    let second = candidate(&store, &["--value", "b", "index"]);
    second.fence();
    assert_eq!(leader(&store, "index").1["leader"]["value"], "b");
    second.let_go();
}

#[test]
fn a_watcher_sees_every_change() {
    let store = Store::new();
    let words = Talking::start(&mut store.lockkeeper(["leader", "--watch", "index"]));
    let json = Talking::start(&mut store.lockkeeper(["leader", "--watch", "--json", "index"]));
    let next = || serde_json::from_str::<Value>(&json.line().unwrap()).unwrap();
    words.expect("vacant");
    assert_eq!(next()["leader"], Value::Null);
    for value in ["a", "b\u{1b}[2J"] {
        let leads = candidate(&store, &["--value", value, "index"]);
        let term = leads.fence();
        let line = words.line().unwrap();
        assert!(line.contains(&format!("  term {term}  for ")) && !line.contains('\u{1b}'), "{line}");
        assert_eq!(next()["leader"]["value"], value);
        leads.let_go();
        words.expect("vacant");
        assert_eq!(next()["leader"], Value::Null);
    }
    for mut it in [words, json] {
        it.child.kill().unwrap();
        it.finish();
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let store = Store::new();
    let long = "x".repeat(1025);
    for (args, says) in [
        (&["elect", "--value", &long, "index", "--", "true"][..], "at most 1024"),
        (&["elect", "", "--", "true"], "the lock name is empty"),
        (&["elect", "index"], "CMD"),
        (&["leader", ""], "the lock name is empty"),
    ] {
        let error = failed(&store.output(args), 64);
        assert!(error.contains(says), "{args:?}: {error}");
    }
    store.expect_empty();
}
