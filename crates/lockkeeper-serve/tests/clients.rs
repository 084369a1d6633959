//! Real clients: the programs of docs/guides/serve.md hold a lock, let go of it, and are killed while they hold it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;

use common::{Server, TOKEN, on_a_socket, sqlite, until, within};
use lockkeeper::Meters;
use lockkeeper_core::Clock;
use lockkeeper_serve::Serve;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const GUIDE: &str = include_str!("../../../docs/guides/serve.md");

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

/// Whether a program is there; all but Go, which is large, are installed by `cargo xtask test`.
async fn is_there(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    let found = command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    found.is_ok_and(|it| it.success())
}

struct Client {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn start(server: &Server, command: &[&str]) -> Self {
        Client::start_at(&server.address(), command)
    }

    fn start_at(address: &str, command: &[&str]) -> Self {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .current_dir(folder())
            .env("LOCKKEEPER_ADDRESS", address)
            .env("LOCKKEEPER_TOKEN", TOKEN)
            .env("NO_PROXY", "*")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Client { child, lines }
    }

    /// The line that it prints when it holds the lock.
    async fn holds(&mut self) -> String {
        within("the client holds", self.lines.next_line()).await.unwrap().expect("it says that it holds")
    }

    /// Let it end in good order.
    async fn ends(mut self) {
        drop(self.child.stdin.take());
        let end = within("the client ends", self.child.wait()).await.unwrap();
        assert!(end.success(), "{end}");
    }

    /// Kill it, and all that it started.
    async fn dies(mut self) {
        let group = rustix::process::Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap();
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        within("the client is dead", self.child.wait()).await.unwrap();
    }
}

/// It holds and lets go; it holds and is killed. The ttl is longer than any test, so only the end of the connection can have
/// freed the lock.
async fn holds_and_lets_go(command: &[&str]) {
    let server = Server::with("memory:", |it| it.ttl(common::HANG * 10), Serve::allow_locks).await;
    let mut client = Client::start(&server, command);
    let said = client.holds().await;
    assert!(said.starts_with("held "), "{command:?}: {said}");
    assert_eq!(server.shown("orders%2F42").await["holders"].as_array().unwrap().len(), 1);
    client.ends().await;
    server.is_free("orders%2F42").await;
    if !command.contains(&"token.py") {
        let mut client = Client::start(&server, command);
        client.holds().await;
        client.dies().await;
        is_soon_free(&server, command).await;
    }
    server.ends().await;
}

/// Long before its ttl could have ended, as a hang guard sees to; how long it really took is told.
#[expect(clippy::print_stderr, reason = "a figure for whoever runs the test")]
async fn is_soon_free(server: &Server, command: &[&str]) {
    let (clock, dead) = (Clock::boot(), Clock::boot().now());
    server.is_free("orders%2F42").await;
    eprintln!("{command:?}: free {:?} after it was killed", clock.now() - dead);
}

/// Two clients on a socket: what they hold is free when they are killed.
#[tokio::test]
async fn by_socket_with_curl_and_python() {
    let (folder, url) = sqlite();
    let (server, path) = (Server::at(&url).await, folder.path().join("s"));
    let socket = on_a_socket(&url, &path).await;
    let curl = "exec curl -sS -N -f -X POST -H \"Authorization: Bearer $LOCKKEEPER_TOKEN\" \
        --unix-socket \"$LOCKKEEPER_ADDRESS\" http://localhost/v1/locks/orders%2F42";
    for command in [&["sh", "-c", curl][..], &["python3", "by_socket.py"]] {
        let mut client = Client::start_at(path.to_str().unwrap(), command);
        let said = client.holds().await;
        assert!(said.starts_with("held ") || said.contains("\"granted\""), "{command:?}: {said}");
        assert_eq!(server.shown("orders%2F42").await["holders"].as_array().unwrap().len(), 1);
        client.dies().await;
        is_soon_free(&server, command).await;
    }
    socket.abort();
    server.ends().await;
}

/// The guide shows the programs that are tested here, to the letter.
#[test]
fn the_guide_shows_these_programs() {
    for name in ["lock.sh", "lock.py", "lock.mjs", "Lock.java", "lock.go", "token.py", "by_socket.py"] {
        let text = std::fs::read_to_string(folder().join(name)).unwrap();
        assert!(GUIDE.contains(text.trim_end()), "docs/guides/serve.md shows another {name}");
    }
}

#[tokio::test]
async fn a_shell_with_curl() {
    assert!(is_there("curl", &["--version"]).await, "curl is missing: apt-get install curl");
    holds_and_lets_go(&["sh", "lock.sh"]).await;
}

#[tokio::test]
async fn python_with_its_standard_library() {
    assert!(is_there("python3", &["--version"]).await, "python3 is missing: apt-get install python3");
    holds_and_lets_go(&["python3", "lock.py"]).await;
    holds_and_lets_go(&["python3", "token.py"]).await;
}

#[tokio::test]
async fn node_with_fetch() {
    let fetches = is_there("node", &["-e", "if (!globalThis.fetch) process.exit(1)"]).await;
    assert!(fetches, "there is no node with fetch: apt-get install nodejs");
    holds_and_lets_go(&["node", "lock.mjs"]).await;
}

#[tokio::test]
async fn java_with_its_own_client() {
    assert!(is_there("javac", &["--version"]).await, "there is no JDK: apt-get install default-jdk-headless");
    holds_and_lets_go(&["java", "Lock.java"]).await;
    // Left to itself it first asks for HTTP/2, which nobody here speaks.
    let text = std::fs::read_to_string(folder().join("Lock.java")).unwrap();
    let usual = text.replace(".version(HttpClient.Version.HTTP_1_1)", "");
    assert!(usual.len() < text.len());
    let other = tempfile::TempDir::new().unwrap();
    let program = other.path().join("Lock.java");
    std::fs::write(&program, usual).unwrap();
    holds_and_lets_go(&["java", program.to_str().unwrap()]).await;
}

#[tokio::test]
async fn go_with_its_standard_library() {
    if !is_there("go", &["version"]).await {
        // Its own way to the terminal: what a test that passes prints is not shown.
        let words =
            "NOT TESTED: the client in Go, for there is no Go here; apt-get install golang-go (250 MB)\n";
        std::io::stderr().write_all(words.as_bytes()).unwrap();
        return;
    }
    // The first build of a machine compiles Go's library, so it has no limit here.
    let folder = tempfile::TempDir::new().unwrap();
    let program = folder.path().join("lock").display().to_string();
    let built =
        Command::new("go").args(["build", "-o", &program, "lock.go"]).current_dir(self::folder()).status();
    assert!(built.await.unwrap().success());
    holds_and_lets_go(&[&program]).await;
}

/// All programs of a host stand in one local queue, so the store is asked for the first of them only.
#[tokio::test]
async fn a_lock_goes_from_one_language_to_the_next_without_a_trip() {
    let (folder, meters) = (tempfile::TempDir::new().unwrap(), Meters::new());
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let server = Server::with(&url, |it| it.observer(meters.clone()), Serve::allow_locks).await;
    let mut holder = Client::start(&server, &["python3", "lock.py"]);
    holder.holds().await;
    for next in [&["node", "lock.mjs"], &["sh", "lock.sh"]] {
        let mut waiter = Client::start(&server, next);
        until("the next one waits", async || meters.snapshot().sum("lockkeeper.waiting", &[]) == 1).await;
        holder.ends().await;
        waiter.holds().await;
        holder = waiter;
    }
    let now = meters.snapshot();
    let granted = |by| now.sum("lockkeeper.acquire.duration", &[("outcome", "granted"), ("by", by)]);
    assert_eq!(["store", "hand_on"].map(granted), [1, 2]);
    // It may look meanwhile whether another host waits, on nobody's way.
    let asked = |verb| now.sum("lockkeeper.store.duration", &[("verb", verb)]);
    assert_eq!(["turn", "leave"].map(asked), [1, 0], "it was taken from the store once and never given back");
    holder.ends().await;
    server.is_free("orders%2F42").await;
    server.ends().await;
}
