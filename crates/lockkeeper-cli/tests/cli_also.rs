//! `run NAME --also NAME`: all locks or none, in one order, and what the command is told about them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Store, Talking, code, failed, text};
use rustix::process::Signal;

fn pids(store: &Store, name: &str) -> Vec<u64> {
    let shown = store.shown(name);
    shown["holders"].as_array().unwrap().iter().map(|it| it["pid"].as_u64().unwrap()).collect()
}

#[test]
fn all_are_held_while_the_command_runs_and_none_after() {
    let store = Store::new();
    let (holder, fence) = store.holding(&["b", "--also", "a", "--also", "c", "--note", "three"]);
    for name in ["a", "b", "c"] {
        assert_eq!(pids(&store, name), [u64::from(holder.child.id())]);
        let error = failed(&store.output(["run", "--try", name, "--", "true"]), 75);
        assert!(error.contains("three"), "{error}");
    }
    assert_eq!(store.shown("b")["holders"][0]["fence"], fence.to_string(), "the fence of the first name");
    holder.let_go();
    store.expect_empty();
}

#[test]
fn if_one_is_taken_none_is_held() {
    let store = Store::new();
    let (holder, _) = store.holding(&["b"]);
    for wait in [&["--try"][..], &["--wait", "50ms"]] {
        let args =
            ["run"].iter().chain(wait).chain(&["a", "--also", "b", "--also", "c", "--", "echo", "ran"]);
        let error = failed(&store.output(args), 75);
        assert!(error.contains("the locks `a`, `b`, `c` were not obtained"), "{error}");
        assert!(error.contains("hint: `b`: held by "), "{error}");
        assert_eq!((store.code_of(&["--try", "a"]), store.code_of(&["--try", "c"])), (0, 0));
    }
    let waiter = store.holder(&["a", "--also", "b"]);
    store.await_waiters("b", 1);
    waiter.send(Signal::TERM);
    assert_eq!((waiter.line(), waiter.finish().0), (None, 143));
    assert_eq!(store.code_of(&["--try", "a"]), 0, "what it held so far is given back");
    let waiter = store.holder(&["a", "--also", "b"]);
    store.await_waiters("b", 1);
    holder.let_go();
    waiter.fence();
    waiter.let_go();
    store.expect_empty();
}

#[test]
fn opposite_orders_do_not_wait_for_each_other() {
    let store = Store::new();
    let sum = store.path("sum");
    std::fs::write(&sum, "0\n").unwrap();
    let script = "read n < $0; echo $((n + 1)) > $0";
    let round = |names: [&str; 3]| {
        for _ in 0..8 {
            let [first, second, third] = names;
            let args = ["run", first, "--also", second, "--also", third, "--", "sh", "-c", script];
            assert_eq!(code(&common::output(store.lockkeeper(args).arg(&sum))), 0);
        }
    };
    std::thread::scope(|scope| {
        for names in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "d"], ["d", "b", "a"]] {
            scope.spawn(move || round(names));
        }
    });
    assert_eq!(std::fs::read_to_string(&sum).unwrap().trim(), "32");
    store.expect_empty();
}

#[test]
fn the_same_name_twice_is_once_and_the_stronger_wish_counts() {
    let store = Store::new();
    for args in [
        &["x", "--also", "x"][..],
        &["--shared", "x", "--also", "x"],
        &["--permits", "1/5", "x", "--also", "x"],
    ] {
        let (holder, _) = store.holding(args);
        let shown = store.shown("x");
        assert_eq!(shown["holders"].as_array().unwrap().len(), 1);
        assert_eq!(shown["holders"][0]["kind"], "lock");
        holder.let_go();
    }
    store.expect_empty();
}

#[test]
fn what_is_shared_is_the_first_name_alone() {
    let store = Store::new();
    let (holder, _) = store.holding(&["--shared", "rates", "--also", "accounts/3"]);
    assert_eq!(store.code_of(&["--shared", "--try", "rates"]), 0);
    assert_eq!(store.code_of(&["--try", "rates"]), 75);
    assert_eq!(store.code_of(&["--shared", "--try", "accounts/3"]), 75);
    holder.let_go();
}

#[test]
fn the_command_is_told_the_fence_of_each() {
    let store = Store::new();
    // A command that is `lockkeeper` again must not take what it was told for settings.
    let script = "printf %s \"$LOCKKEEPER_FENCES\"; \"$0\" show --json 'a b'; \"$0\" show --json c";
    let mut command = store.lockkeeper(["run", "c", "--also", "a b", "--", "sh", "-c", script]);
    let end = common::output(command.arg(env!("CARGO_BIN_EXE_lockkeeper")));
    assert_eq!((code(&end), text(&end.stderr)), (0, String::new()));
    let out = text(&end.stdout);
    let lines: Vec<_> = out.lines().take(2).map(|it| it.split_once(' ').unwrap()).collect();
    assert_eq!((lines[0].1, lines[1].1), ("c", "a b"));
    for (fence, name) in lines {
        assert!(out.contains(&format!("\"fence\": \"{fence}\"")), "{name}: {out}");
    }
    let end = store.output(["run", "c", "--", "sh", "-c", "echo ${LOCKKEEPER_FENCES-none}"]);
    assert_eq!(text(&end.stdout), "none\n");
}

#[test]
fn the_loss_of_one_is_the_loss_of_all() {
    let store = Store::new();
    let script = "echo ready; exec sleep 1000";
    let args = ["run", "--ttl", "6s", "a", "--also", "b", "--", "sh", "-c", script];
    let talking = Talking::start(&mut store.lockkeeper(args));
    talking.expect("ready");
    assert_eq!(code(&store.output(["break", "b"])), 0);
    assert_eq!(talking.line(), None, "it was killed");
    let (code, said) = talking.finish();
    assert!(code == 76 && said.contains("one of the locks `a`, `b` was lost"), "{code}: {said}");
    store.expect_empty();
}

#[test]
fn names_that_are_none_and_too_many_are_refused() {
    let store = Store::new();
    for also in ["", "a\nb", &"x".repeat(513)] {
        failed(&store.output(["run", "x", "--also", also, "--", "true"]), 64);
    }
    let many: Vec<String> = (0..1000).map(|it| format!("--also=name-{it}")).collect();
    let args = ["run", "x"].into_iter().chain(many.iter().map(String::as_str)).chain(["--", "true"]);
    let error = failed(&store.output(args), 64);
    assert!(error.contains("more than 1000 locks"), "{error}");
    store.expect_empty();
}
