//! `run`: the command's code and surroundings, exclusion, waiting.

mod common;

use std::process::Stdio;

use common::{Store, Talking, code, failed, finish, text};
use rustix::process::Signal;

#[test]
fn the_commands_code_is_ours() {
    let store = Store::new();
    for expected in [0, 1, 42, 255] {
        let end = store.output(["run", "x", "--", "sh", "-c", &format!("exit {expected}")]);
        assert_eq!((code(&end), text(&end.stderr)), (expected, String::new()));
    }
    for (signal, expected) in [("TERM", 143), ("KILL", 137), ("SEGV", 139), ("PIPE", 141)] {
        let end = store.output(["run", "x", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(code(&end), expected, "{signal}");
    }
}

#[test]
fn a_command_that_is_not_there_is_told_as_a_shell_does() {
    let store = Store::new();
    let error = failed(&store.output(["run", "x", "--", "no-such-command-here"]), 127);
    assert!(error.contains("`no-such-command-here`"), "{error}");
    failed(&store.output(["run", "x", "--", ""]), 127);
    failed(&store.output(["run", "x", "--", "/etc/passwd"]), 126);
    failed(&store.output(["run", "x", "--", "/"]), 126);
    assert_eq!(code(&store.output(["run", "--try", "x", "--", "true"])), 0, "the lock is free again");
}

#[test]
fn the_command_sees_name_fence_and_its_own_input_and_arguments() {
    let store = Store::new();
    let script = "echo \"$LOCKKEEPER_NAME\"; echo \"$LOCKKEEPER_FENCE\"; echo \"$1,$2\"; cat";
    let mut command = store.lockkeeper(["run", "a b", "--", "sh", "-c", script, "sh", "--try", "*"]);
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut writer, b"input\n").unwrap();
    drop(writer);
    let child = command.stdin(reader).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = text(&finish(child).stdout);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!([lines[0], lines[2], lines[3]], ["a b", "--try,*", "input"]);
    assert!(lines[1].parse::<u64>().unwrap() > 0);
}

#[test]
fn the_command_leads_a_process_group_of_its_own_and_inherits_no_stray_file() {
    let store = Store::new();
    let script = "read pid _ _ _ group _ < /proc/self/stat; test $$ = $group && echo leads; ls /proc/$$/fd";
    let end = store.output(["run", "x", "--", "sh", "-c", script]);
    let out = text(&end.stdout);
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some("leads"));
    let ours = text(&common::output(std::process::Command::new("sh").args(["-c", "ls /proc/$$/fd"])).stdout);
    assert_eq!(lines.collect::<Vec<_>>(), ours.lines().collect::<Vec<_>>());
}

#[test]
fn every_name_is_a_lock_of_its_own() {
    let store = Store::new();
    let names = [
        "a",
        "a ",
        " a",
        "A",
        "a/b",
        "..",
        "{x}",
        "*",
        "'; DROP TABLE locks;--",
        "\"q\"",
        "é",
        "e\u{301}",
        "🔒",
        "\u{202e}rtl",
        "%s",
        "$(id)",
        "--",
        "-x",
        "--name",
    ];
    let longest = "é".repeat(256);
    let mut held = Vec::new();
    for name in names.into_iter().chain([longest.as_str()]) {
        let option = format!("--name={name}");
        let args = ["run", "--try", &option, "--", "sh", "-c", "echo \"$LOCKKEEPER_NAME\"; exec cat"];
        let mut command = store.lockkeeper(args);
        let talking = Talking::start(command.stdin(Stdio::piped()));
        talking.expect(name);
        assert_eq!(store.shown(name)["name"], name);
        held.push(talking);
    }
    let listed = store.output(["ls", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["locks"].as_array().unwrap().len(), held.len());
    for mut talking in held {
        drop(talking.child.stdin.take());
        assert_eq!(talking.finish().0, 0);
    }
}

#[test]
fn one_at_a_time_and_the_fence_grows() {
    let store = Store::new();
    let (sum, fences) = (store.path("sum"), store.path("fences"));
    std::fs::write(&sum, "0\n").unwrap();
    let script = "read n < $0; echo $LOCKKEEPER_FENCE >> $1; echo $((n + 1)) > $0";
    let round = || {
        for _ in 0..10 {
            let mut command = store.lockkeeper(["run", "sum", "--", "sh", "-c", script]);
            assert_eq!(code(&common::output(command.arg(&sum).arg(&fences))), 0);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(round);
        }
    });
    assert_eq!(std::fs::read_to_string(&sum).unwrap().trim(), "40");
    let fences = std::fs::read_to_string(&fences).unwrap();
    let fences: Vec<u64> = fences.lines().map(|it| it.parse().unwrap()).collect();
    assert_eq!(fences.len(), 40);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

/// A lock that is held until its command's input is closed.
fn holder(store: &Store, name: &str) -> Talking {
    let mut command =
        store.lockkeeper(["run", "--note", "holds", name, "--", "sh", "-c", "echo held; exec cat"]);
    let holder = Talking::start(command.stdin(Stdio::piped()));
    holder.expect("held");
    holder
}

#[test]
fn a_taken_lock_is_not_waited_for_by_try_nor_longer_than_wait_says() {
    let store = Store::new();
    let holder = holder(&store, "x");
    for wait in [&["--try"][..], &["--wait", "0s"], &["--wait", "50ms"]] {
        let args = ["run"].iter().chain(wait).chain(&["x", "--", "echo", "ran"]);
        let error = failed(&store.output(args), 75);
        assert!(error.contains("the lock `x` was not obtained"), "{error}");
        assert!(error.contains("hint: held by ") && error.contains("holds"), "{error}");
    }
    assert_eq!(store.shown("x")["waiters"].as_array().unwrap().len(), 0, "nobody is left in line");
    assert_eq!(store.shown("x")["holders"][0]["pid"], holder.child.id());
    let Talking { child, .. } = holder;
    assert_eq!(code(&finish(child)), 0, "the holder was not disturbed");
}

#[test]
fn a_free_lock_is_had_without_any_wait() {
    let store = Store::new();
    for wait in [&["--try"][..], &["--wait", "0s"]] {
        let args = ["run"].iter().chain(wait).chain(&["x", "--", "echo", "ran"]);
        assert_eq!(text(&store.output(args).stdout), "ran\n");
    }
}

#[test]
fn a_wait_without_end_ends_when_the_lock_is_free() {
    let store = Store::new();
    for wait in [&[][..], &["--wait", "18446744073709551615s"], &["--wait", "99999999999999999999y"]] {
        let mut holder = holder(&store, "x");
        let args = ["run"].iter().chain(wait).chain(&["x", "--", "echo", "mine"]);
        let waiter = Talking::start(&mut store.lockkeeper(args));
        store.await_waiters("x", 1);
        drop(holder.child.stdin.take());
        waiter.expect("mine");
        assert_eq!(waiter.finish(), (0, String::new()));
        assert_eq!(holder.finish().0, 0);
    }
}

#[test]
fn a_waiter_that_is_told_to_end_leaves_the_line() {
    let store = Store::new();
    let holder = holder(&store, "x");
    for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let waiter = Talking::start(&mut store.lockkeeper(["run", "x", "--", "echo", "ran"]));
        store.await_waiters("x", 1);
        waiter.send(signal);
        assert_eq!(waiter.line(), None);
        assert_eq!(waiter.finish().0, expected);
        assert_eq!(store.shown("x")["waiters"].as_array().unwrap().len(), 0);
    }
    assert_eq!(code(&finish(holder.child)), 0);
}

#[test]
fn what_the_command_leaves_in_the_background_is_left_alone() {
    let store = Store::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "(echo still here; read line; echo \"$line\") <&3 & exit 5";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "exec 3<&0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_lockkeeper")]);
    command.args(["run", "x", "--", "sh", "-c", script]).env("LOCKKEEPER_URL", store.url()).stdin(reader);
    let mut talking = Talking::start(&mut command);
    talking.expect("still here");
    assert_eq!(common::within("it ends", move || (talking.child.wait().unwrap().code(), talking)).0, Some(5));
    assert_eq!(store.shown("x")["holders"].as_array().unwrap().len(), 0, "the lock is free");
    drop(writer);
}
