//! `top` and `ls --watch` where there is no terminal: for pipes, scripts and tickets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Stdio;

use common::{Store, Talking, code, text};
use serde_json::Value;

fn end(mut holder: Talking) {
    drop(holder.child.stdin.take());
    assert_eq!(holder.finish().0, 0);
}

/// The names, in the order in which they are listed.
fn names(listed: &str) -> Vec<&str> {
    let rows = listed.lines().skip_while(|it| !it.starts_with("NAME ")).skip(1);
    rows.filter_map(|it| it.split_whitespace().next()).collect()
}

#[test]
fn top_once_tells_the_store_the_sums_and_the_most_wanted_first() {
    let store = Store::new();
    let (first, _) = store.holding(&["a"]);
    let (second, _) = store.holding(&["b"]);
    let waiter = store.holder(&["b"]);
    store.await_waiters("b", 1);
    let seen = store.output(["top", "--once"]);
    assert_eq!(code(&seen), 0, "{seen:?}");
    let seen = text(&seen.stdout);
    assert!(seen.starts_with("lockkeeper top  sqlite:"), "{seen}");
    assert!(seen.contains("\n2 locks, 2 holders, 1 waiting"), "{seen}");
    assert!(!seen.contains('\x1b'), "no terminal, no colours: {seen:?}");
    assert_eq!(names(&seen), ["b", "a"]);
    assert_eq!(names(&text(&store.output(["top", "--once", "--sort", "name"]).stdout)), ["a", "b"]);
    assert_eq!(names(&text(&store.output(["top", "--once", "a"]).stdout)), ["a"]);
    assert_eq!(names(&text(&store.output(["ls", "--sort", "waiters"]).stdout)), ["b", "a"]);
    assert_eq!(names(&text(&store.output(["ls"]).stdout)), ["a", "b"]);
    end(first);
    end(second);
    end(waiter);
}

#[test]
fn a_list_is_sorted_as_asked() {
    let store = Store::new();
    let (first, _) = store.holding(&["--ttl", "60s", "b"]);
    let (second, _) = store.holding(&["--ttl", "600s", "c"]);
    let (third, _) = store.holding(&["--ttl", "300s", "a"]);
    let by = |sort: &str| {
        let listed = text(&store.output(["ls", "--sort", sort]).stdout);
        names(&listed).join(" ")
    };
    assert_eq!((by("name"), by("held"), by("valid")), ("a b c".into(), "b c a".into(), "b a c".into()));
    end(first);
    end(second);
    end(third);
}

#[test]
fn bad_uses_are_refused() {
    let store = Store::new();
    for args in [
        &["top", "--sort", "colour"][..],
        &["top", "--every", "0s"],
        &["ls", "--every", "-1s"],
        &["ls", "--sort"],
        &["doctor", "--loud"],
    ] {
        assert_eq!(code(&store.output(args)), 64, "{args:?}");
    }
}

#[test]
fn a_store_that_cannot_be_used_is_told_with_its_code() {
    let store = Store::at("redis://u:hunter2@127.0.0.1:1/?timeout=200ms");
    let seen = store.output(["top", "--once"]);
    assert_eq!(code(&seen), 69, "{seen:?}");
    assert!(!text(&seen.stderr).contains("hunter2"), "{seen:?}");
}

#[test]
fn a_watched_list_follows_and_ends_with_its_reader() {
    let store = Store::new();
    let (holder, fence) = store.holding(&["orders/42"]);
    let watch = store
        .lockkeeper(["ls", "--watch", "--every", "20ms", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut watch = Watch::new(watch);
    watch.until(|it| it["locks"][0]["holders"][0]["fence"] == fence.to_string().as_str());
    end(holder);
    watch.until(|it| it["locks"].as_array().unwrap().is_empty());
    assert_eq!(watch.hang_up(), Some(0), "nobody reads any more");
}

/// A list that goes on and on.
struct Watch {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Watch {
    fn new(mut child: std::process::Child) -> Self {
        use std::io::BufRead as _;
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        Watch { child, lines }
    }

    /// Read on until a line says so. The runner of the tests ends what hangs.
    fn until(&mut self, is_it: impl Fn(&Value) -> bool) {
        for line in &mut self.lines {
            if is_it(&serde_json::from_str(&line.unwrap()).unwrap()) {
                return;
            }
        }
        panic!("it ended before");
    }

    fn hang_up(self) -> Option<i32> {
        let Watch { mut child, lines } = self;
        drop(lines);
        common::within("the watch ends", move || child.wait().unwrap().code())
    }
}
