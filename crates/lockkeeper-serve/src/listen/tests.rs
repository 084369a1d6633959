//! Tests of connections: their end gives back what was held or waited for, by itself and at once; how many there are and how long they are
//! silent; and a server's socket stays its own.
//!
//! The servers' clock stands still. So no line is written that could find out, and nothing runs out of time: only the end can have
//! been noticed. How long that takes is a figure, and stands in the benchmark `serve`.

use std::process::Stdio;

use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::{Guard, Key, Locker, Memory};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::*;

const TOKEN: &str = "a-token-of-the-tests";
/// Nothing here takes nearly as long.
const HANG: Duration = Duration::from_secs(60);

/// A server whose clock stands still, and its store.
struct Still {
    store: Memory,
    shown: String,
    task: JoinHandle<Result<()>>,
}

impl Drop for Still {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Still {
    async fn at(listen: &str) -> Self {
        Still::with(listen, |it| it).await
    }

    async fn with(listen: &str, change: impl FnOnce(Serve) -> Serve) -> Self {
        let store = Memory::default();
        let locker = Locker::builder(store.clone()).ttl(HANG * 10).build();
        let mut serve = Serve::new(locker, store.clone(), TOKEN).unwrap().allow_locks();
        serve.state.clock = Clock::virtual_from(Duration::from_secs(1));
        let listener = Listen::parse(listen).unwrap().bind().await.unwrap();
        let shown = listener.shown();
        let task = tokio::spawn(change(serve).run(listener, std::future::pending()));
        Still { store, shown, task }
    }

    /// A client that has sent this request, and more behind it than it was asked for.
    async fn says(&self, request: &str) -> Box<dyn Connected> {
        let host = self.shown.trim_start_matches("http://");
        let mut stream: Box<dyn Connected> = match self.shown.strip_prefix("unix:") {
            Some(path) => Box::new(UnixStream::connect(path).await.unwrap()),
            None => Box::new(TcpStream::connect(host).await.unwrap()),
        };
        let head = format!("{request} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n");
        let said = format!("{head}Content-Length: 0\r\n\r\n{}", "nonsense ".repeat(10_000));
        stream.write_all(said.as_bytes()).await.unwrap();
        stream
    }

    /// Wait until so many hold, and so many wait.
    async fn until(&self, holders: usize, waiters: usize) {
        let (clock, key) = (Clock::boot(), Key::new("x").unwrap());
        let until = clock.now().after(HANG);
        loop {
            let seen = self.store.show(&key).await.unwrap();
            let seen = seen.map_or((0, 0), |it| (it.holders.len(), it.waiters.len()));
            if seen == (holders, waiters) {
                return;
            }
            assert!(
                clock.now() < until,
                "{}: {seen:?} hold and wait, not {:?}",
                self.shown,
                (holders, waiters)
            );
            clock.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Somebody else who holds the lock.
    async fn held_elsewhere(&self) -> Guard {
        Locker::builder(self.store.clone()).ttl(HANG * 10).build().lock("x").await.unwrap()
    }
}

trait Connected: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connected for T {}

/// One on TCP and one on a socket, in a folder that must live as long.
async fn both() -> (tempfile::TempDir, [Still; 2]) {
    let folder = tempfile::TempDir::new().unwrap();
    let socket = format!("unix:{}", folder.path().join("s").display());
    let all = [Still::at("127.0.0.1:0").await, Still::at(&socket).await];
    (folder, all)
}

#[tokio::test]
async fn whoever_holds_and_ends_is_noticed_by_that_alone() {
    let (_folder, all) = both().await;
    for server in &all {
        for request in
            ["POST /v1/locks/x", "POST /v1/locks/x%20?wait=1s&also=x", "POST /v1/leaders/x?value=v"]
        {
            let client = server.says(request).await;
            server.until(1, 0).await;
            drop(client);
            server.until(0, 0).await;
        }
    }
}

/// Nothing is written to whoever waits, so nothing else would ever tell.
#[tokio::test]
async fn whoever_waits_and_ends_leaves_the_line() {
    let (_folder, all) = both().await;
    for server in &all {
        let held = server.held_elsewhere().await;
        for request in ["POST /v1/locks/x", "POST /v1/leaders/x?value=v", "POST /v1/tokens?name=x"] {
            let client = server.says(request).await;
            server.until(1, 1).await;
            drop(client);
            server.until(1, 0).await;
        }
        held.release().await.unwrap();
    }
}

/// A real program that is killed and has no time for a word.
#[tokio::test]
async fn a_killed_program_is_noticed_by_the_end_of_its_connection() {
    let (_folder, all) = both().await;
    for server in &all {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-N", "-X", "POST", "-H", &format!("Authorization: Bearer {TOKEN}")]);
        match server.shown.strip_prefix("unix:") {
            Some(path) => curl.args(["--unix-socket", path, "http://localhost/v1/locks/x"]),
            None => curl.args(["--noproxy", "*", &format!("{}/v1/locks/x", server.shown)]),
        };
        let started = curl.stdout(Stdio::piped()).kill_on_drop(true).spawn();
        let mut child = started.expect("curl is missing: apt-get install curl");
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).await.unwrap();
        assert!(said.contains("\"granted\""), "{said}");
        server.until(1, 0).await;
        child.kill().await.unwrap();
        server.until(0, 0).await;
    }
}

/// It has no room for one more connection, as one that is stopped or very busy, and it lives.
#[tokio::test]
async fn a_socket_whose_server_does_not_answer_is_not_taken_over() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("s");
    let address = SocketAddrUnix::new(&path).unwrap();
    let socket = || {
        let flags = SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let server = socket();
    rustix::net::bind(&server, &address).unwrap();
    rustix::net::listen(&server, 0).unwrap();
    let mut clients = Vec::new();
    loop {
        let client = socket();
        if rustix::net::connect(&client, &address).is_err() {
            break;
        }
        clients.push(client);
    }
    let before = identity(&path);
    let listen = Listen::parse(&format!("unix:{}", path.display())).unwrap();
    let refused = listen.bind().await.map(|it| it.shown()).unwrap_err().to_string();
    assert!(refused.contains("another server may listen there"), "{refused}");
    assert_eq!(identity(&path), before, "its socket is still there");
    drop((server, clients));
    let listener = listen.bind().await.unwrap();
    assert_ne!(identity(&path), before, "a dead server's is replaced");
    drop(listener);
    assert_eq!(identity(&path), None);
}

#[tokio::test]
async fn a_server_that_ends_leaves_the_socket_of_the_next_one_alone() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("s");
    let listen = Listen::parse(&format!("unix:{}", path.display())).unwrap();
    let old = listen.bind().await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let _new = listen.bind().await.unwrap();
    drop(old);
    assert!(UnixStream::connect(&path).await.is_ok(), "the new server can be reached");
}

/// Also one that says nothing at all, and one that is silent between two requests.
#[tokio::test]
async fn whoever_does_not_end_its_head_is_sent_away() {
    let server = Still::with("127.0.0.1:0", |mut it| {
        it.state.limits.head = Duration::from_millis(100);
        it
    });
    let server = server.await;
    let host = server.shown.trim_start_matches("http://");
    let whole = format!("GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for (said, heard) in
        [("", false), ("GET /hea", false), (&whole[..whole.len() - 2], false), (&whole, true)]
    {
        let mut client = TcpStream::connect(host).await.unwrap();
        client.write_all(said.as_bytes()).await.unwrap();
        let (clock, mut answer) = (Clock::boot(), Vec::new());
        let until = clock.now().after(HANG);
        let read = clock.within(until, pin!(client.read_to_end(&mut answer))).await;
        assert!(read.is_some(), "the server has waited for the rest of {said:?}");
        assert_eq!(answer.starts_with(b"HTTP/1.1 200"), heard, "{said:?}");
    }
}

#[tokio::test]
async fn one_connection_more_than_may_be_waits_for_the_end_of_another() {
    let server = Still::with("127.0.0.1:0", |it| it.limits(crate::Limits::default().connections(2))).await;
    let first = server.says("POST /v1/locks/x").await;
    server.until(1, 0).await;
    let host = server.shown.trim_start_matches("http://");
    let mut second = BufReader::new(TcpStream::connect(host).await.unwrap());
    let asks =
        |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    second.write_all(asks("/health").as_bytes()).await.unwrap();
    second.read_line(&mut String::new()).await.unwrap();
    // There is no room for this one, so it does not wait for the lock, however often we look.
    let third = server.says("POST /v1/tokens?name=y").await;
    let y = Key::new("y").unwrap();
    for _ in 0..100 {
        second.write_all(asks("/v1/locks").as_bytes()).await.unwrap();
        while second.fill_buf().await.unwrap().is_empty() {}
        let read = second.buffer().len();
        second.consume(read);
        assert!(server.store.show(&y).await.unwrap().is_none(), "it was let in");
    }
    drop(first);
    let (clock, until) = (Clock::boot(), Clock::boot().now().after(HANG));
    while server.store.show(&y).await.unwrap().is_none() {
        assert!(clock.now() < until, "there was room, and it was not let in");
        clock.sleep(Duration::from_millis(5)).await;
    }
    drop((second, third));
}
