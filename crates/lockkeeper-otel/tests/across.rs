//! A waiter's span links to a holder in another process: the holder's trace travels through a real store.
//!
//! The holder is a program of its own, which is this same test.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::observe::{Event, Observer};
use lockkeeper::spi::Clock;
use lockkeeper::{Locker, Store};
use lockkeeper_otel::ToOtel;
use lockkeeper_servers::{
    Etcd, EtcdOptions, MariaDb, MariaDbOptions, Mysql, MysqlOptions, Postgres, PostgresOptions, Redis,
    RedisOptions, ZooKeeper, ZooKeeperOptions,
};
use opentelemetry::Context;
use opentelemetry::global;
use opentelemetry::trace::{FutureExt as _, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SpanData};
use tokio::sync::Notify;

const URL: &str = "LOCKKEEPER_TEST_ACROSS_URL";
const SAMPLED: &str = "LOCKKEEPER_TEST_ACROSS_SAMPLED";
const HANG: Duration = Duration::from_secs(120);

/// Spans of one process.
struct Traced {
    provider: SdkTracerProvider,
    exported: InMemorySpanExporter,
}

impl Traced {
    fn new(sampled: bool) -> Self {
        let exported = InMemorySpanExporter::default();
        let sampler = if sampled { Sampler::AlwaysOn } else { Sampler::AlwaysOff };
        let provider =
            SdkTracerProvider::builder().with_simple_exporter(exported.clone()).with_sampler(sampler);
        Traced { provider: provider.build(), exported }
    }

    fn observer(&self) -> impl Observer {
        ToOtel::with(&global::meter("test"), self.provider.tracer("test"))
    }

    /// A context whose span is the caller's.
    fn caller(&self, name: &'static str) -> Context {
        Context::new().with_span(self.provider.tracer("test").start_with_context(name, &Context::new()))
    }

    fn acquired(&self) -> Vec<SpanData> {
        let all = self.exported.get_finished_spans().unwrap();
        all.into_iter().filter(|it| it.name == "acquire lock").collect()
    }
}

/// What the program does, if this is one: it holds, says from which span, and lets go when its input ends.
async fn played() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    let traced = Traced::new(std::env::var(SAMPLED).unwrap() == "true");
    let locker = lockkeeper::open(&url).await.unwrap().locker.observer(traced.observer()).build();
    let caller = traced.caller("holder");
    let guard = locker.lock("orders/42").note("nightly").with_context(caller.clone()).await.unwrap();
    let span = caller.span().span_context().clone();
    let mut told = std::io::stdout();
    writeln!(told, "\nheld {} {}", span.trace_id(), span.span_id()).unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    guard.release().await.unwrap();
    true
}

/// A holder in another process.
struct Holder {
    child: Child,
    input: Option<ChildStdin>,
    _output: BufReader<ChildStdout>,
    trace_id: String,
    span_id: String,
}

impl Holder {
    fn start(test: &str, url: &str, sampled: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(URL, url).env(SAMPLED, sampled.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("held ") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the holder ended before it held");
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let (trace_id, span_id) = (words[1].to_owned(), words[2].to_owned());
        Holder { input: child.stdin.take(), child, _output: output, trace_id, span_id }
    }

    fn let_go(&mut self) {
        self.input.take().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says when the waiter was told who is in its way, and when it waits.
#[derive(Clone, Debug, Default)]
struct Told {
    behind: Arc<Notify>,
    waits: Arc<Notify>,
}

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Behind { .. } => self.behind.notify_one(),
            Event::Asked { answer: lockkeeper::observe::Answer::Wait, .. } => self.waits.notify_one(),
            _ => {}
        }
    }
}

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    let clock = Clock::boot();
    let until = clock.now().after(HANG);
    clock.within(until, std::pin::pin!(work)).await.unwrap_or_else(|| panic!("waited in vain: {what}"))
}

async fn waiter(url: &str, traced: &Traced) -> (Store, Told, Locker) {
    let (store, told) = (lockkeeper::open(url).await.unwrap(), Told::default());
    let Store { locker: builder, .. } = lockkeeper::open(url).await.unwrap();
    let locker = builder.observer(traced.observer()).observer(told.clone()).build();
    (store, told, locker)
}

/// The link of who waited to whoever held it elsewhere, and what operators see meanwhile.
async fn links(test: &str, url: &str) {
    let traced = Traced::new(true);
    let mut holder = Holder::start(test, url, true);
    let (store, told, locker) = waiter(url, &traced).await;
    let waits = tokio::spawn(locker.lock("orders/42").with_context(traced.caller("waiter")));
    within("the waiter is told who is in its way", told.behind.notified()).await;
    let key = lockkeeper::Key::new("orders/42").unwrap();
    let seen = store.inspect.show(&key).await.unwrap().unwrap();
    assert_eq!(
        seen.holders[0].label.note.as_deref(),
        Some("nightly"),
        "people see what was written, no more"
    );
    assert!(seen.holders[0].label.trace.is_some());
    holder.let_go();
    drop(within("the waiter gets it", waits).await.unwrap().unwrap());
    let acquired = traced.acquired();
    let links: Vec<_> = acquired[0].links.iter().map(|it| &it.span_context).collect();
    assert_eq!(links.len(), 1, "{acquired:?}");
    let (trace, span) = (links[0].trace_id().to_string(), links[0].span_id().to_string());
    assert_eq!((trace, span), (holder.trace_id.clone(), holder.span_id.clone()));
    assert!(links[0].is_remote() && links[0].is_sampled());
    // What was in the way is not in the way of the next.
    drop(locker.lock("orders/42").with_context(traced.caller("later")).await.unwrap());
    assert!(traced.acquired()[1].links.is_empty());
}

/// Not on session locks of MariaDB and MySQL: there a waiter is not told to wait, the server lets its question stand. Nor on
/// Redlock, which has no view that fits one look.
///
/// One test for each store: a server that lives as long as the test, and the URL of its store.
macro_rules! on {
    ($($test:ident: $server:ident = $start:expr => $url:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            if played().await {
                return;
            }
            let $server = $start;
            links(stringify!($test), &$url).await;
        }
    )*};
}

on! {
    a_waiter_links_to_a_holder_in_another_process_on_redis:
        redis = Redis::start(RedisOptions::default()).await.unwrap() => redis.url();
    a_waiter_links_to_a_holder_in_another_process_on_sqlite:
        folder = tempfile::tempdir().unwrap() => in_file(&folder);
    a_waiter_links_to_a_holder_in_another_process_on_postgres:
        postgres = Postgres::start(PostgresOptions::default()).await.unwrap() => postgres.url();
    a_waiter_links_to_a_holder_in_another_process_on_mariadb:
        mariadb = MariaDb::start(MariaDbOptions::default()).await.unwrap() => mariadb.url();
    a_waiter_links_to_a_holder_in_another_process_on_mysql:
        mysql = Mysql::start(MysqlOptions::default()).await.unwrap() => mysql.url();
    a_waiter_links_to_a_holder_in_another_process_on_etcd:
        etcd = Etcd::start(EtcdOptions::default()).await.unwrap() => etcd.url().replace("http://", "etcd://");
    a_waiter_links_to_a_holder_in_another_process_on_zookeeper:
        zookeeper = ZooKeeper::start(ZooKeeperOptions::default()).await.unwrap() => zookeeper.url();
    a_waiter_links_to_a_holder_in_another_process_on_session_locks_of_postgres:
        postgres = Postgres::start(PostgresOptions::default()).await.unwrap() => in_sessions(&postgres.url());
}

fn in_file(folder: &tempfile::TempDir) -> String {
    format!("sqlite:{}", folder.path().join("locks.db").display())
}

fn in_sessions(url: &str) -> String {
    format!("{url}?mode=session")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_recorded_does_not_travel() {
    if played().await {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let url = in_file(&folder);
    let traced = Traced::new(true);
    let mut holder = Holder::start("what_is_not_recorded_does_not_travel", &url, false);
    let (store, told, locker) = waiter(&url, &traced).await;
    let key = lockkeeper::Key::new("orders/42").unwrap();
    let seen = store.inspect.show(&key).await.unwrap().unwrap();
    let label = &seen.holders[0].label;
    assert_eq!((label.note.as_deref(), label.trace), (Some("nightly"), None));
    let waits = tokio::spawn(locker.lock("orders/42").with_context(traced.caller("waiter")));
    within("it waits", told.waits.notified()).await;
    holder.let_go();
    drop(within("the waiter gets it", waits).await.unwrap().unwrap());
    assert!(traced.acquired()[0].links.is_empty(), "nobody knows where the holder came from");
}
