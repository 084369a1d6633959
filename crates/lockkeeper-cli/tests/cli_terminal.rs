//! On a terminal: whose keyboard it is, Ctrl-C, Ctrl-Z, and the question before a break.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Stdio;

use common::typist::Typist;
use common::{Store, Talking};

/// Tells whether the shell that runs it owns the terminal.
const MINE: &str =
    "read pid name state parent group session tty owner rest < /proc/self/stat; test $group = $owner";

#[test]
fn the_command_has_the_terminal_and_gives_it_back() {
    let store = Store::new();
    let command = format!("{MINE} && echo its-own; read line; echo got-$line");
    let script = format!("\"$LK\" run x -- sh -c '{command}'; {MINE} && echo back-again; exit 3");
    let mut typist = Typist::sit_down(&store, &script);
    typist.sees("its-own");
    typist.types("hello\n");
    typist.sees("got-hello");
    typist.sees("back-again");
    assert_eq!(typist.code(), Some(3));
}

#[test]
fn in_a_pipeline_the_command_gets_the_terminal_when_it_asks() {
    let store = Store::new();
    let command = format!("{MINE} || echo not-yet; read line; {MINE} && echo got-$line");
    let script = format!("\"$LK\" run x -- sh -c '{command}' | cat; {MINE} && echo back-again");
    let mut typist = Typist::sit_down(&store, &script);
    typist.sees("not-yet");
    typist.types("hello\n");
    typist.sees("got-hello");
    typist.sees("back-again");
    assert_eq!(typist.code(), Some(0));
}

#[test]
fn ctrl_c_is_for_the_command() {
    let store = Store::new();
    let command = "trap \"echo caught; exit 5\" INT; echo ready; while :; do sleep 0.05; done";
    let mut typist = Typist::sit_down(&store, &format!("\"$LK\" run x -- sh -c '{command}'"));
    typist.sees("ready");
    typist.types("\x03");
    typist.sees("caught");
    assert_eq!(typist.code(), Some(5));
}

#[test]
fn ctrl_z_stops_and_fg_goes_on() {
    let store = Store::new();
    let mut typist = Typist::sit_down(&store, "bash --norc --noprofile -i");
    typist.types("echo in''side\n");
    typist.sees("inside");
    typist.types("\"$LK\" run --ttl 60s x -- sh -c 'echo re''ady; read line; echo got-$line; exit 4'\n");
    typist.sees("ready");
    typist.types("\x1a");
    typist.sees("Stopped");
    typist.types("fg\n");
    typist.sees("fg");
    typist.sees("run --ttl");
    typist.types("hello\n");
    typist.sees("got-hello");
    typist.types("echo code-$?\n");
    typist.sees("code-4");
    typist.types("exit 0\n");
    assert_eq!(typist.code(), Some(0));
}

/// Begin names of locks in this shell, press TAB, and see which locks the lines show that came of it.
fn names_are_completed_by(shell: &str, package: &str) {
    let store = Store::new();
    let (held, _) = store.holding(&["orders/42", "--also", "shop:product:7"]);
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().unwrap().display().to_string();
    let home = store.folder.path().display();
    let shell =
        format!("command -v {package} || echo missing; PATH={bin}:$PATH HOME={home} TERM=xterm exec {shell}");
    let mut typist = Typist::sit_down(&store, &shell);
    let found = typist.until_line();
    assert_ne!(found, "missing", "install the package {package}");
    typist.types("echo in''side\n");
    typist.sees("inside");
    for (begun, name) in [("show ord", "orders/42"), ("show shop:pro", "shop:product:7")] {
        typist.types(&format!("lockkeeper {begun}\t\n"));
        typist.sees(&format!("name:       {name}"));
    }
    typist.types("exit 0\n");
    assert_eq!(typist.code(), Some(0));
    end(held);
}

#[test]
fn zsh_completes_names_of_locks() {
    let folder = tempfile::TempDir::new().unwrap();
    let settings = "autoload -U compinit; compinit -u -D; source <(lockkeeper completions zsh)\n";
    std::fs::write(folder.path().join(".zshrc"), settings).unwrap();
    names_are_completed_by(&format!("env ZDOTDIR={} zsh -d -i", folder.path().display()), "zsh");
}

#[test]
fn fish_completes_names_of_locks() {
    names_are_completed_by("fish --no-config -i -C 'lockkeeper completions fish | source'", "fish");
}

#[test]
fn a_break_is_asked_for_first() {
    let store = Store::new();
    let args = ["run", "--ttl", "3s", "x", "--", "sh", "-c", "echo held; exec cat"];
    let holder = Talking::start(store.lockkeeper(args).stdin(Stdio::piped()));
    holder.expect("held");
    for (answer, code) in [("n\n", 1), ("\n", 1), ("yes\n", 0)] {
        assert_eq!(store.shown("x")["holders"].as_array().unwrap().len(), 1, "it is still held");
        let mut typist = Typist::sit_down(&store, "\"$LK\" break x");
        typist.sees("Break it? [y/N] ");
        typist.types(answer);
        assert_eq!(typist.code(), Some(code), "{answer:?}");
    }
    assert_eq!(store.shown("x")["holders"].as_array().unwrap().len(), 0);
    assert_eq!(holder.line(), None, "it was killed");
    assert_eq!(holder.finish().0, 76);
    let typist = Typist::sit_down(&store, "\"$LK\" break --yes x");
    assert_eq!(typist.code(), Some(0));
}

#[test]
fn top_shows_the_store_and_its_locks_until_q_and_gives_the_terminal_back() {
    let store = Store::new();
    let (holder, _) = store.holding(&["orders/42"]);
    let script = "stty cols 100 rows 20; TERM=xterm \"$LK\" top --every 50ms; echo code-$?; stty -a | grep -o ' icanon'";
    let mut typist = Typist::sit_down(&store, script);
    typist.sees("\x1b[?1049h");
    typist.sees("lockkeeper top  sqlite:");
    typist.sees("1 locks, 1 holders, 0 waiting");
    typist.sees("orders/42");
    typist.sees("q quit");
    typist.types("n");
    typist.sees("by name");
    end(holder);
    typist.sees("0 locks, 0 holders, 0 waiting"); // it follows
    typist.types("q");
    typist.sees("\x1b[?1049l");
    typist.sees("code-0");
    typist.sees(" icanon"); // keys are read as before
    assert_eq!(typist.code(), Some(0));
}

#[test]
fn ctrl_c_ends_top_and_gives_the_terminal_back() {
    let store = Store::new();
    // Ctrl-C is for the whole foreground: this shell must survive it to tell what became of its command.
    let script = "trap : INT; \"$LK\" top; echo code-$?; stty -a | grep -o ' icanon'";
    let mut typist = Typist::sit_down(&store, script);
    typist.sees("q quit");
    typist.types("\x03");
    typist.sees("\x1b[?1049l");
    typist.sees("code-130");
    typist.sees(" icanon");
    assert_eq!(typist.code(), Some(0));
}

#[test]
fn a_list_on_a_terminal_is_as_wide_as_it_and_has_colours() {
    let store = Store::new();
    let long = format!("orders/{}", "x".repeat(200));
    let (holder, _) = store.holding(&["--note", &"n".repeat(100), &long]);
    let script =
        "stty cols 90; TERM=xterm NO_COLOR= \"$LK\" ls; echo --; TERM=xterm NO_COLOR=1 \"$LK\" ls; echo done";
    let mut typist = Typist::sit_down(&store, script);
    typist.sees("\x1b[1mNAME\x1b[0m");
    typist.sees("--\r\nNAME");
    typist.sees("\r\n");
    typist.sees("orders/xxxx");
    let row = typist.until("\r\n");
    assert!(row.contains('…') && row.chars().count() <= 90 - "orders/xxxx".len(), "{row:?}");
    typist.sees("done");
    end(holder);
    typist.code();
}

fn end(mut holder: Talking) {
    drop(holder.child.stdin.take());
    assert_eq!(holder.finish().0, 0);
}
