//! `ls`, `show`, `break` and `doctor`: what they tell, in words and in JSON, and what they do not let through.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use common::{Store, Talking, code, text};
use serde_json::Value;

/// A lock that is held until its command's input is closed.
fn holder(store: &Store, name: &str, note: &str) -> Talking {
    let args = ["run", "--note", note, name, "--", "sh", "-c", "echo $LOCKKEEPER_FENCE; exec cat"];
    Talking::start(store.lockkeeper(args).env("USER", "alice").stdin(Stdio::piped()))
}

fn end(mut holder: Talking) {
    drop(holder.child.stdin.take());
    assert_eq!(holder.finish(), (0, String::new()));
}

fn json(store: &Store, args: &[&str]) -> Value {
    let end = store.output(args);
    assert_eq!(code(&end), 0, "{end:?}");
    assert!(end.stderr.is_empty(), "{end:?}");
    serde_json::from_slice(&end.stdout).unwrap()
}

#[test]
fn who_holds_and_who_waits_is_told_in_order() {
    let store = Store::new();
    let holding = holder(&store, "orders/42", "the holder");
    let fence = holding.line().unwrap();
    let mut waiting = Vec::new();
    for at in 1..=3 {
        waiting.push(holder(&store, "orders/42", &format!("waiter {at}")));
        store.await_waiters("orders/42", at);
    }

    let shown = json(&store, &["show", "--json", "orders/42"]);
    assert_eq!(shown["name"], "orders/42");
    let held = &shown["holders"][0];
    assert_eq!((&held["note"], &held["owner"]), (&Value::from("the holder"), &Value::from("alice")));
    assert_eq!((&held["pid"], &held["weight"]), (&Value::from(holding.child.id()), &Value::from(1)));
    assert_eq!(held["fence"], Value::from(fence.clone()), "as the command saw it");
    assert!(held["valid_for_ms"].as_u64().unwrap() <= 10_000 && held["held_for_ms"].is_u64());
    let notes: Vec<_> = shown["waiters"].as_array().unwrap().iter().map(|it| it["note"].clone()).collect();
    assert_eq!(notes, ["waiter 1", "waiter 2", "waiter 3"]);
    assert_eq!(shown["waiters"][2]["position"], 3);
    assert!(shown["waiters"][2]["waited_for_ms"].is_u64());

    let words = text(&store.output(["show", "orders/42"]).stdout);
    for said in
        ["name:       orders/42", "state:      held", "alice", "the holder", &fence, "  3. ", "waiter 3"]
    {
        assert!(words.contains(said), "{said}: {words}");
    }
    end(holding);
    for waiter in waiting {
        waiter.line().unwrap();
        end(waiter);
    }
    assert_eq!(json(&store, &["show", "--json", "orders/42"])["holders"], Value::Array(Vec::new()));
    assert!(text(&store.output(["show", "orders/42"]).stdout).contains("state:      free"));
}

#[test]
fn the_list_holds_what_begins_with_the_prefix() {
    let store = Store::new();
    let empty = store.output(["ls"]);
    assert_eq!((code(&empty), text(&empty.stdout)), (0, String::new()));
    assert_eq!(json(&store, &["ls", "--json"])["locks"], Value::Array(Vec::new()));
    let held = ["orders/1", "orders/2", "Orders/3", "stock"].map(|name| {
        let holder = holder(&store, name, "-");
        holder.line().unwrap();
        holder
    });
    let listed = text(&store.output(["ls", "orders/"]).stdout);
    let mut lines = listed.lines();
    let heading: Vec<_> =
        lines.next().unwrap().split("  ").map(str::trim).filter(|it| !it.is_empty()).collect();
    assert_eq!(heading, ["NAME", "HOLDER", "KIND", "NOTE", "HELD FOR", "FENCE", "VALID FOR", "WAITERS"]);
    let names: Vec<_> = lines.map(|it| it.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["orders/1", "orders/2"]);
    assert_eq!(json(&store, &["ls", "--json"])["locks"].as_array().unwrap().len(), 4);
    held.into_iter().for_each(end);
}

#[test]
fn a_hostile_note_or_name_cannot_move_the_cursor() {
    let store = Store::new();
    let note = "\x1b[2J\x1b]0;owned\x07\r\nfake  line\u{9b}31m\u{202e}\u{200b}\u{85}\\";
    let name = "\u{202e}\u{2066}name\u{200b}";
    let holding = holder(&store, name, note);
    holding.line().unwrap();
    let waiting = holder(&store, name, note);
    store.await_waiters(name, 1);
    let busy = store.output(["run", "--try", name, "--", "true"]);
    assert_eq!(code(&busy), 75);
    for args in [&["ls"][..], &["show", name], &["ls", "--json"], &["show", "--json", name]] {
        let printed = text(&store.output(args).stdout);
        harmless(&printed);
        assert!(printed.contains("owned"), "{printed}");
    }
    harmless(&text(&busy.stderr));
    assert_eq!(text(&store.output(["ls"]).stdout).lines().count(), 2, "no line of its own for the fake");
    let shown = json(&store, &["show", "--json", name]);
    assert_eq!((&shown["holders"][0]["note"], &shown["name"]), (&Value::from(note), &Value::from(name)));

    let broken = store.output(["break", name]);
    harmless(&text(&broken.stdout));
    assert_eq!(holding.line(), None, "it was killed");
    assert_eq!(holding.finish().0, 76);
    waiting.line().unwrap();
    end(waiting);
}

fn harmless(printed: &str) {
    let hostile = |it: &char| (it.is_control() && *it != '\n') || "\u{202e}\u{2066}\u{200b}".contains(*it);
    assert_eq!(printed.chars().find(hostile), None, "{printed:?}");
}

#[test]
fn breaking_tells_who_lost_it_and_nothing_if_nobody_held_it() {
    let store = Store::new();
    assert_eq!(json(&store, &["break", "--json", "x"]), serde_json::json!({ "name": "x", "broken": [] }));
    let nobody = store.output(["break", "x"]);
    assert_eq!((code(&nobody), nobody.stdout.len()), (0, 0));

    let holding = holder(&store, "x", "mine");
    let fence = holding.line().unwrap();
    let broken = json(&store, &["break", "--json", "x"]);
    assert_eq!(broken["broken"][0]["note"], "mine");
    assert_eq!(broken["broken"][0]["fence"], Value::from(fence));
    assert_eq!(code(&store.output(["run", "--try", "x", "--", "true"])), 0, "it is free");
    assert_eq!(holding.line(), None, "it was killed");
    let (code, said) = holding.finish();
    assert_eq!(code, 76, "{said}");
}

#[test]
fn a_break_by_fence_spares_whoever_came_after() {
    let store = Store::new();
    let nobody = store.output(["break", "--fence", "1", "x"]);
    assert_eq!((code(&nobody), nobody.stdout.len()), (1, 0));
    let holding = holder(&store, "x", "mine");
    let fence: u64 = holding.line().unwrap().parse().unwrap();
    let other = (fence - 1).to_string();
    let spared = json_and_code(&store, &["break", "--json", "--fence", &other, "x"]);
    assert_eq!(spared, (serde_json::json!({ "name": "x", "broken": [] }), 1));
    assert_eq!(store.shown("x")["holders"].as_array().unwrap().len(), 1, "it is still held");
    let (broken, code) = json_and_code(&store, &["break", "--json", "--fence", &fence.to_string(), "x"]);
    assert_eq!((&broken["broken"][0]["note"], code), (&Value::from("mine"), 0));
    assert_eq!(holding.line(), None, "it was killed");
    assert_eq!(holding.finish().0, 76);
}

fn json_and_code(store: &Store, args: &[&str]) -> (Value, i32) {
    let output = store.output(args);
    (serde_json::from_slice(&output.stdout).unwrap(), code(&output))
}

#[test]
fn the_doctor_tells_what_it_found() {
    let store = Store::new();
    let report = json(&store, &["doctor", "--json"]);
    assert_eq!(report["store"], Value::from(store.url()));
    for finding in report["findings"].as_array().unwrap() {
        assert!(["fine", "warning", "danger"].contains(&finding["severity"].as_str().unwrap()));
        assert!(
            finding["what"].is_string()
                && finding["consequence"].is_string()
                && finding["remedy"].is_string()
        );
    }
    let words = text(&store.output(["doctor"]).stdout);
    assert!(words.starts_with("store: sqlite:"), "{words}");
}

/// The sample of the guide that begins like this.
fn sample(start: &str) -> Value {
    let guide = include_str!("../../../docs/guides/command-line.md");
    let mut samples = guide.split("```json\n").skip(1).filter_map(|it| it.split("```").next());
    serde_json::from_str(samples.find(|it| it.starts_with(start)).unwrap()).unwrap()
}

#[test]
fn the_guide_shows_findings_and_locks_as_they_are_printed() {
    let store = Store::new();
    let findings = json(&store, &["doctor", "--json"])["findings"].clone();
    let shown = sample("{ \"severity\"");
    assert!(findings.as_array().unwrap().contains(&shown), "{shown} is none of {findings}");

    let holding = holder(&store, "nightly-report", "the holder");
    holding.line().unwrap();
    let waiting = holder(&store, "nightly-report", "release 1.4");
    store.await_waiters("nightly-report", 1);
    let (real, shown) = (json(&store, &["show", "--json", "nightly-report"]), sample("{\n  \"name\""));
    let fields = |it: &Value| it.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&real), fields(&shown));
    for part in ["holders", "waiters"] {
        assert_eq!(fields(&real[part][0]), fields(&shown[part][0]), "{part}");
    }
    end(holding);
    waiting.line().unwrap();
    end(waiting);
}

#[test]
fn the_doctor_tells_what_is_wrong_and_all_only_if_asked() {
    let store = Store::new();
    let all = text(&store.output(["doctor", "--all"]).stdout);
    let fine = all.lines().filter(|it| it.starts_with("fine ")).count();
    assert!(fine > 0, "{all}");
    let wrong = text(&store.output(["doctor"]).stdout);
    assert!(!wrong.lines().any(|it| it.starts_with("fine ")), "{wrong}");
    assert!(wrong.contains(&format!("{fine} fine; see them with --all\n")), "{wrong}");
}

#[test]
fn a_strict_doctor_fails_for_a_warning() {
    // A file that everybody may write is warned of.
    let risky = Store::new();
    assert_eq!(code(&risky.output(["run", "k", "--", "true"])), 0);
    std::fs::set_permissions(risky.path("locks.db"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let report = json(&risky, &["doctor", "--json"]);
    let severities: Vec<_> =
        report["findings"].as_array().unwrap().iter().map(|it| it["severity"].as_str().unwrap()).collect();
    assert_eq!(severities[0], "warning", "the worst first: {severities:?}");
    assert_eq!((code(&risky.output(["doctor"])), code(&risky.output(["doctor", "--strict"]))), (0, 1));
    assert_eq!(code(&Store::at("memory:").output(["doctor", "--strict"])), 0, "nothing is wrong there");
}
