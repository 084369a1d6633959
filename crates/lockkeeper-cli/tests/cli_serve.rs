//! `lockkeeper serve` as a process: its token, its end, and what a killed one leaves behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use common::serving::Serving;
use common::{HANG, Store, failed, finish, send, within};
use rustix::process::Signal;

#[test]
fn it_tells_its_token_once_and_ends_in_good_order() {
    let store = Store::new();
    let mut serving = Serving::with_its_token(&mut store.lockkeeper([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--allow",
        "locks",
    ]));
    let token = serving.token.clone();
    assert_eq!(token.len(), 32, "{token}");
    let (answer, stream) = serving.ask("POST", "/v1/locks/x?ttl=60s", "granted");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(store.shown("x")["holders"].as_array().unwrap().len(), 1);
    let (metrics, _) = serving.ask("GET", "/metrics", "# EOF");
    assert!(metrics.contains("lockkeeper_held{store=\"sqlite\"} 1\n"), "{metrics}");
    drop(stream);
    send(serving.child.id(), Signal::TERM);
    let (end, said) = within("it ends", move || {
        let mut rest = String::new();
        serving.stderr.read_to_string(&mut rest).unwrap();
        (serving.child.wait().unwrap(), serving.said + &rest)
    });
    assert_eq!(end.code(), Some(0));
    assert_eq!(said.matches(&token).count(), 1, "{said}");
    store.expect_empty();
}

#[test]
fn it_reads_its_token_from_a_file_and_only_reads_unless_allowed() {
    let store = Store::new();
    let (file, socket) = (store.path("token"), store.path("s"));
    // Short, and taken all the same.
    std::fs::write(&file, "a-token\n").unwrap();
    let listen = format!("unix:{}", socket.display());
    let mut serving =
        Serving::start(store.lockkeeper(["serve", "--listen", &listen, "--token-file"]).arg(&file));
    assert_eq!(serving.told("listening on "), listen);
    assert!(serving.told("the token has 7 bytes").contains("can be guessed"));
    let ask = |method: &str, path: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let words = "Host: x\r\nConnection: close\r\nAuthorization: Bearer a-token\r\nContent-Length: 0";
        stream.write_all(format!("{method} {path} HTTP/1.1\r\n{words}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("GET", "/v1/locks").starts_with("HTTP/1.1 200"));
    assert!(ask("POST", "/v1/locks/x").starts_with("HTTP/1.1 404"));
    send(serving.child.id(), Signal::INT);
    within("it ends", move || serving.child.wait().unwrap());
    assert!(!socket.exists());
}

#[test]
fn a_break_is_there_if_it_is_allowed_and_is_told_on_standard_error() {
    let store = Store::new();
    let listen = ["serve", "--listen", "127.0.0.1:0", "--allow", "locks"];
    let mut serving =
        Serving::with_its_token(&mut store.lockkeeper(listen.iter().chain(&["--allow", "break"])));
    let (granted, holder) = serving.ask("POST", "/v1/locks/x?ttl=60s", "granted");
    let fence = granted.split_once("\"fence\":\"").unwrap().1.split('"').next().unwrap().to_owned();
    let body = format!("{{\"name\":\"x\",\"fence\":\"{fence}\"}}");
    let rest = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let (answer, _) = serving.ask_with("POST", "/v1/break/x", &rest, "broken");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let told = serving.told(&format!("broke `x`, fence {fence}, held by "));
    assert!(told.contains(", asked for by 127.0.0.1:"), "{told}");
    store.expect_empty();
    drop(holder);
    send(serving.child.id(), Signal::TERM);
    within("it ends", move || serving.child.wait().unwrap());
    let mut reading = Serving::with_its_token(&mut store.lockkeeper(listen));
    assert!(reading.ask_with("POST", "/v1/break/x", &rest, "}").0.starts_with("HTTP/1.1 404"));
    send(reading.child.id(), Signal::TERM);
    within("it ends", move || reading.child.wait().unwrap());
}

/// Nobody is left to give the lock back; the store does it when the ttl is over.
#[test]
fn what_a_killed_server_held_is_free_after_the_ttl() {
    let store = Store::new();
    let mut serving = Serving::with_its_token(&mut store.lockkeeper([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--allow",
        "locks",
    ]));
    let (_, stream) = serving.ask("POST", "/v1/locks/x?ttl=6s", "granted");
    serving.child.kill().unwrap();
    serving.child.wait().unwrap();
    assert_eq!(store.shown("x")["holders"].as_array().unwrap().len(), 1, "nobody gave it back");
    assert_eq!(store.code_of(&["--wait", "100s", "x"]), 0);
    drop(stream);
}

/// Also what is held by token: a dead server renews nothing.
#[test]
fn what_a_killed_server_held_by_token_is_free_after_the_ttl() {
    let store = Store::new();
    let mut serving = Serving::with_its_token(&mut store.lockkeeper([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--allow",
        "locks",
    ]));
    let (_, stream) = serving.ask("POST", "/v1/tokens?name=x&ttl=2s", "\"token\"");
    assert_eq!(store.shown("x")["holders"].as_array().unwrap().len(), 1);
    serving.child.kill().unwrap();
    serving.child.wait().unwrap();
    assert_eq!(store.code_of(&["--wait", "100s", "x"]), 0);
    drop(stream);
}

#[test]
fn an_address_that_others_reach_and_a_bad_token_are_refused() {
    let store = Store::new();
    let run = |args: &[&str]| {
        let args = ["serve"].iter().chain(args);
        finish(store.lockkeeper(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    assert!(failed(&run(&["--listen", "0.0.0.0:0"]), 64).contains("--behind-proxy"));
    assert!(failed(&run(&["--listen", "0.0.0.0:0", "--behind-proxy"]), 64).contains("--token-file"));
    assert!(failed(&run(&["--listen", "nowhere"]), 64).contains("127.0.0.1:7765"));
    assert!(failed(&run(&["--token-file", "/proc/nowhere"]), 64).contains("cannot be read"));
    for (name, token) in [("empty", " \n"), ("words", "several words")] {
        std::fs::write(store.path(name), token).unwrap();
        let file = store.path(name).display().to_string();
        assert!(failed(&run(&["--listen", "127.0.0.1:0", "--token-file", &file]), 64).contains("token"));
    }
}
