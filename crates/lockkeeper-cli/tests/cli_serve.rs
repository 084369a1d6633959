//! `lockkeeper serve` as a process: its token, its end, and what a killed one leaves behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use common::{HANG, Store, failed, finish, send, text, within};
use rustix::process::Signal;

struct Serving {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    address: String,
    token: String,
    /// What it has said so far.
    said: String,
}

impl Serving {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Serving { child, stderr, address: String::new(), token: String::new(), said: String::new() }
    }

    /// With the random token that it tells.
    fn with_its_token(command: &mut Command) -> Self {
        let mut it = Serving::start(command);
        it.address = it.told("listening on http://");
        it.token = it.told("the token is ");
        it
    }

    /// The rest of the line that has these words in it.
    fn told(&mut self, words: &str) -> String {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(self.stderr.read_line(&mut line).unwrap() > 0, "it ended without saying {words}");
            self.said.push_str(&line);
        }
        line.split_once(words).unwrap().1.trim().to_owned()
    }

    /// The first bytes of the answer, and the connection.
    fn ask(&self, method: &str, path: &str, enough: &'static str) -> (String, TcpStream) {
        self.ask_with(method, path, "Content-Length: 0\r\n\r\n", enough)
    }

    /// The same with the rest of the request: more headers, and a body.
    fn ask_with(&self, method: &str, path: &str, rest: &str, enough: &'static str) -> (String, TcpStream) {
        let (address, token) = (self.address.clone(), self.token.clone());
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n{rest}");
        within("the answer", move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            let mut bytes = [0; 4096];
            while !answer.contains(enough) {
                let read = stream.read(&mut bytes).unwrap();
                assert!(read > 0, "the answer ended: {answer}");
                answer.push_str(&text(&bytes[..read]));
            }
            (answer, stream)
        })
    }
}

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

/// What stands in the files of `deploy/` is understood by this command.
#[test]
fn the_files_that_deploy_it_use_options_that_are_there() {
    let help = text(&Store::new().output(["serve", "--help"]).stdout);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for (file, words) in [
        ("lockkeeper.service", "lockkeeper serve"),
        ("compose.yaml", "- serve"),
        ("kubernetes-leader.yaml", "[\"serve\""),
    ] {
        let page = std::fs::read_to_string(folder.join(file)).unwrap();
        let call = page.split_once(words).unwrap_or_else(|| panic!("{file} does not say {words}")).1;
        let call = call.split("\n    secrets").next().unwrap();
        let end = if file == "compose.yaml" { call } else { call.lines().next().unwrap() };
        let options =
            end.split(|it: char| !it.is_alphanumeric() && it != '-').filter(|it| it.starts_with("--"));
        let options: Vec<&str> = options.collect();
        assert!(options.contains(&"--allow"), "{file}: {options:?}");
        for option in options {
            assert!(
                help.contains(&format!("{option} ")) || help.contains(&format!("{option}\n")),
                "{file}: {option}"
            );
        }
    }
}

/// What systemd says of the unit; the command is where this test finds it.
#[test]
fn systemd_understands_the_unit() {
    let unit = include_str!("../../../deploy/lockkeeper.service");
    let (folder, ours) = (tempfile::TempDir::new().unwrap(), "/usr/local/bin/lockkeeper");
    assert!(unit.contains(ours));
    let verified = |unit: &str| {
        let path = folder.path().join("lockkeeper.service");
        std::fs::write(&path, unit.replace(ours, env!("CARGO_BIN_EXE_lockkeeper"))).unwrap();
        let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(path).output();
        verify.expect("systemd-analyze is here; if not: apt-get install systemd")
    };
    let verdict = verified(unit);
    assert_eq!((verdict.status.success(), text(&verdict.stderr).as_str()), (true, ""));
    let wrong = verified(&unit.replace("Restart=", "Restrat="));
    assert!(text(&wrong.stderr).contains("Restrat"), "a mistake is seen: {}", text(&wrong.stderr));
}

/// Every document of them, with what it is.
#[test]
fn the_files_that_deploy_it_are_yaml() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let script = "import sys, yaml\n\
        for name in sys.argv[1:]:\n    \
            for it in yaml.safe_load_all(open(name)):\n        \
                print(it.get('kind') or sorted(it['services']))\n";
    // The system's own, which has the package.
    let mut python = Command::new("/usr/bin/python3");
    let read =
        python.args(["-c", script, "compose.yaml", "kubernetes-leader.yaml"]).current_dir(folder).output();
    let read = read.unwrap();
    let hint = "if yaml is missing: apt-get install python3-yaml";
    assert!(read.status.success(), "{}{hint}", text(&read.stderr));
    assert_eq!(text(&read.stdout), "['lockkeeper', 'redis']\nSecret\nDeployment\n");
}
