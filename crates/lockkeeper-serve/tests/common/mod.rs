//! A server in this process, and a client that speaks HTTP byte by byte, so that it can also misbehave.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::spi::DynInspect;
use lockkeeper::{LockerBuilder, Store};
use lockkeeper_core::Clock;
use lockkeeper_serve::{Limits, Listen, Serve};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Nothing in these tests takes nearly as long.
pub(crate) const HANG: Duration = Duration::from_secs(120);
pub(crate) const TOKEN: &str = "a-token-of-the-tests";

/// Wait for something, but not for ever.
pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    let clock = Clock::boot();
    let until = clock.now().after(HANG);
    clock.within(until, std::pin::pin!(work)).await.unwrap_or_else(|| panic!("waited in vain: {what}"))
}

/// Wait for something that can only be asked for.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    within(what, async {
        while !is_so().await {
            Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A server on a free port of this machine.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) inspect: Arc<dyn DynInspect>,
    end: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<lockkeeper_core::Result<()>>>,
}

impl Server {
    /// With locks allowed, on the store behind this URL.
    pub(crate) async fn at(url: &str) -> Self {
        Server::with(url, |it| it, Serve::allow_locks).await
    }

    pub(crate) async fn with(
        url: &str,
        locker: impl FnOnce(LockerBuilder) -> LockerBuilder,
        serve: impl FnOnce(Serve) -> Serve,
    ) -> Self {
        let store = lockkeeper::open(url).await.unwrap();
        let Store { locker: builder, inspect, .. } = store;
        let made = Serve::with(locker(builder.ttl(HANG)).build(), inspect.clone(), TOKEN).unwrap();
        // Clients of tests are often still there at the end. A test may have limits of its own.
        let made = made.limits(Limits::default().patience(Duration::from_secs(1)));
        Server::running(serve(made), inspect).await
    }

    /// One that is made, with what sees its store.
    pub(crate) async fn running(made: Serve, inspect: Arc<dyn DynInspect>) -> Self {
        let listener = Listen::parse("127.0.0.1:0").unwrap().bind().await.unwrap();
        let port = listener.shown().rsplit(':').next().unwrap().parse().unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let task = tokio::spawn(made.run(listener, async move {
            // Also when the test fails and drops it.
            let _ = ended.await;
        }));
        Server { port, inspect, end: Some(end), task: Some(task) }
    }

    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ask the server to end, and see it end.
    pub(crate) async fn ends(mut self) {
        self.tell_to_end();
        let task = self.task.take().unwrap();
        within("the server ends", task).await.unwrap().unwrap();
    }

    pub(crate) fn tell_to_end(&mut self) {
        drop(self.end.take());
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }

    /// The head of a request with the right host and token, without its last line.
    pub(crate) fn head(&self, method: &str, path: &str) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {TOKEN}\r\n",
            self.port
        )
    }

    /// Begin a request and read the head of its answer.
    pub(crate) async fn begin(&self, method: &str, path: &str) -> Streaming {
        self.begin_with(&format!("{}\r\n", self.head(method, path))).await
    }

    /// The same with every byte of the request.
    pub(crate) async fn begin_with(&self, request: &str) -> Streaming {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        Streaming::read(stream).await
    }

    /// A lock that is held.
    pub(crate) async fn lock(&self, path: &str) -> (Streaming, Value) {
        let mut stream = self.begin("POST", &format!("/v1/locks/{path}")).await;
        assert_eq!(stream.status, 200, "{path}");
        let granted = stream.event().await;
        assert_eq!(granted["event"], "granted", "{granted}");
        (stream, granted)
    }

    /// A whole request and its whole answer.
    pub(crate) async fn ask(&self, method: &str, path: &str) -> (u16, Value) {
        self.ask_with(method, path, "", "").await
    }

    pub(crate) async fn ask_with(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
        let length = body.len();
        let head = self.head(method, path);
        self.raw(&format!("{head}Connection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")).await
    }

    /// The answer to these bytes: a status and JSON, or nothing.
    pub(crate) async fn raw(&self, request: &str) -> (u16, Value) {
        let mut stream = self.begin_with(request).await;
        let mut body = Vec::new();
        within("the body of the answer", stream.reader.read_to_end(&mut body)).await.unwrap();
        (stream.status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Who holds and who waits.
    pub(crate) async fn shown(&self, path: &str) -> Value {
        let (status, shown) = self.ask("GET", &format!("/v1/locks/{path}")).await;
        assert_eq!(status, 200, "{shown}");
        shown
    }

    /// Wait until nobody holds a lock.
    pub(crate) async fn is_free(&self, path: &str) {
        until(&format!("{path} is free"), || async {
            self.shown(path).await["holders"].as_array().unwrap().is_empty()
        })
        .await;
    }
}

/// Another server for the locks of a store, on a socket. The ttl is longer than any test.
pub(crate) async fn on_a_socket(url: &str, path: &Path) -> JoinHandle<lockkeeper_core::Result<()>> {
    let Store { locker, inspect, .. } = lockkeeper::open(url).await.unwrap();
    let serve = Serve::with(locker.ttl(HANG * 10).build(), inspect, TOKEN).unwrap().allow_locks();
    let listener = Listen::parse(&format!("unix:{}", path.display())).unwrap().bind().await.unwrap();
    tokio::spawn(serve.run(listener, std::future::pending()))
}

/// An answer that goes on.
pub(crate) struct Streaming {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) reader: BufReader<TcpStream>,
}

impl Streaming {
    pub(crate) async fn read(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = within("the head of the answer", reader.read_line(&mut head)).await.unwrap();
            assert!(read > 0, "the connection was closed before the answer: {head:?}");
        }
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap();
        Streaming { status, head, reader }
    }

    /// The next line of JSON; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.line("{").await.map(|it| serde_json::from_str(&it).unwrap())
    }

    /// The next line that begins so, past the sizes of chunks.
    pub(crate) async fn line(&mut self, beginning: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            let read = within("a line of the stream", self.reader.read_line(&mut line)).await;
            // A connection that is reset has ended, too.
            if read.unwrap_or(0) == 0 || line == "0\r\n" {
                return None;
            }
            if line.starts_with(beginning) {
                return Some(line.trim_end().to_owned());
            }
        }
    }

    pub(crate) async fn event(&mut self) -> Value {
        self.next().await.expect("the stream goes on")
    }

    /// The first event of this kind.
    pub(crate) async fn event_of(&mut self, kind: &str) -> Value {
        loop {
            let event = self.event().await;
            if event["event"] == kind {
                return event;
            }
        }
    }
}

/// A store in a file of its own.
pub(crate) fn sqlite() -> (tempfile::TempDir, String) {
    let folder = tempfile::TempDir::new().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    (folder, url)
}

pub(crate) fn fence(event: &Value) -> u64 {
    event["fence"].as_str().unwrap().parse().unwrap()
}
