//! Programs without async: every store is opened and used from plain threads, and with executors that are not tokio.

#![cfg(all(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redlock",
    feature = "sqlite",
    feature = "zookeeper"
))]
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lockkeeper::{Error, Locker};
use lockkeeper_servers::{
    self as servers, EtcdOptions, MariaDb, MariaDbOptions, PostgresOptions, RedisOptions, ZooKeeperOptions,
};
use tokio::runtime::{Builder, Handle, Runtime};

const THREADS: u32 = 4;
const ROUNDS: u32 = 5;
/// A bound of a wait that is never reached, so that a lost wake-up is an error and no hang.
const WAIT: Duration = Duration::from_secs(120);

/// Where servers live; nothing of ours does.
fn stage() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// An executor of eight lines, as several crates have one.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(std::thread::current()))));
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park();
    }
}

/// Threads take turns; each sees that it is alone.
fn take_turns(locker: &Locker) {
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let guard = locker.lock("turns").wait_at_most(WAIT).blocking().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    guard.release_blocking().unwrap();
                }
            });
        }
    });
}

fn a_plain_program(url: &str) {
    assert!(Handle::try_current().is_err(), "no runtime here");
    let locker = lockkeeper::connect_blocking(url).unwrap();
    take_turns(&locker);
    let held = locker.lock("k").blocking().unwrap();
    // Another locker of the same program: it finds it taken at the store, waits there, and is called.
    let other = lockkeeper::open_blocking(url).unwrap().locker.ttl(Duration::from_secs(60)).build();
    assert!(other.try_lock("k").blocking().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| other.lock("k").wait_at_most(WAIT).blocking().unwrap().release_blocking());
        held.release_blocking().unwrap();
        waiting.join().unwrap().unwrap();
    });
    // An executor that is not tokio.
    let locker = block_on(lockkeeper::connect(url)).unwrap();
    let guard = block_on(async { locker.lock("k").wait_at_most(WAIT).await }).unwrap();
    block_on(guard.release()).unwrap();
    take_turns(&locker);
    // A runtime that was used to connect, and then stands still.
    let still = Builder::new_current_thread().enable_all().build().unwrap();
    let locker = still.block_on(lockkeeper::connect(url)).unwrap();
    take_turns(&locker);
    // A worker of a runtime, which it blocks.
    still.block_on(async { take_turns(&lockkeeper::connect_blocking(url).unwrap()) });
}

#[test]
fn a_plain_program_on_memory_and_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    a_plain_program(&format!("sqlite:{}", folder.path().join("locks.db").display()));
    take_turns(&lockkeeper::connect_blocking("memory:").unwrap());
}

#[test]
fn a_plain_program_on_redis() {
    let stage = stage();
    let server = stage.block_on(servers::Redis::start(RedisOptions::default())).unwrap();
    a_plain_program(&server.url());
}

#[test]
fn a_plain_program_on_postgresql() {
    let stage = stage();
    let server = stage.block_on(servers::Postgres::start(PostgresOptions::default())).unwrap();
    a_plain_program(&server.url());
}

#[test]
fn a_plain_program_on_mariadb() {
    let stage = stage();
    let server = stage.block_on(MariaDb::start(MariaDbOptions::default())).unwrap();
    a_plain_program(&server.url());
}

#[test]
fn a_plain_program_on_etcd() {
    let stage = stage();
    let server = stage.block_on(servers::Etcd::start(EtcdOptions::default())).unwrap();
    a_plain_program(&format!("etcd://{}", server.address()));
}

#[test]
fn a_plain_program_on_zookeeper() {
    let stage = stage();
    let server = stage.block_on(servers::ZooKeeper::start(ZooKeeperOptions::default())).unwrap();
    a_plain_program(&format!("zookeeper://{}", server.address()));
}

#[test]
fn a_plain_program_on_a_majority_of_redis_servers() {
    let stage = stage();
    let start = || stage.block_on(servers::Redis::start(RedisOptions::default())).unwrap();
    let servers = [start(), start(), start()];
    let hosts = servers.each_ref().map(|it| it.url().replace("redis://", "")).join(",");
    a_plain_program(&format!("redlock://{hosts}?restart_guard=off"));
}

#[test]
fn what_cannot_be_opened_is_an_error_and_no_panic() {
    for url in ["redis://127.0.0.1:1", "postgres://127.0.0.1:1/locks", "mysql://127.0.0.1:1/locks"] {
        let error = lockkeeper::connect_blocking(url).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{url}: {error}");
        let error = block_on(lockkeeper::connect(url)).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{url}: {error}");
    }
    for url in ["", "ftp://example.org", "redis://127.0.0.1/?timout=3s"] {
        let error = lockkeeper::connect_blocking(url).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{url}: {error}");
    }
}

/// Runtimes that were built without `enable_all`, and what each lacks.
fn crippled() -> [(&'static str, Runtime); 3] {
    let builder = Builder::new_current_thread;
    [
        ("timers", builder().build().unwrap()),
        ("timers", builder().enable_io().build().unwrap()),
        ("input and output", builder().enable_time().build().unwrap()),
    ]
}

/// In the words of the error, and not in a panic or in what looks like the end of a runtime.
fn is_told_what_its_runtime_lacks(url: &str) {
    for (lacks, runtime) in crippled() {
        let error = runtime.block_on(lockkeeper::connect(url)).unwrap_err();
        let told = format!("this tokio runtime was built without {lacks}; build it with `enable_all()`");
        assert!(
            matches!(error, Error::Invalid { .. }) && error.to_string().contains(&told),
            "{url}: {error}"
        );
        // As the error says.
        take_turns(&lockkeeper::connect_blocking(url).unwrap());
    }
}

#[test]
fn a_runtime_without_timers_or_connections_is_told_to_whoever_opens_a_store() {
    let stage = stage();
    let server = stage.block_on(servers::Redis::start(RedisOptions::default())).unwrap();
    is_told_what_its_runtime_lacks(&server.url());
    let server = stage.block_on(servers::Postgres::start(PostgresOptions::default())).unwrap();
    is_told_what_its_runtime_lacks(&server.url());
    let server = stage.block_on(servers::Etcd::start(EtcdOptions::default())).unwrap();
    is_told_what_its_runtime_lacks(&format!("etcd://{}", server.address()));
    // Whether anybody answers is not asked.
    for url in
        ["mysql://127.0.0.1:1/locks", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?restart_guard=off"]
    {
        let error = crippled()[0].1.block_on(lockkeeper::connect(url)).unwrap_err();
        assert!(error.to_string().contains("built without timers"), "{url}: {error}");
    }
}

#[test]
fn stores_with_a_thread_of_their_own_work_in_a_runtime_without_timers_or_connections() {
    let (stage, folder) = (stage(), tempfile::tempdir().unwrap());
    let server = stage.block_on(servers::ZooKeeper::start(ZooKeeperOptions::default())).unwrap();
    let file = format!("sqlite:{}", folder.path().join("locks.db").display());
    for url in ["memory:", &file, &format!("zookeeper://{}", server.address())] {
        for (_, runtime) in crippled() {
            runtime.block_on(async {
                let locker = lockkeeper::connect(url).await.unwrap();
                let guard = locker.lock("k").wait_at_most(WAIT).await.unwrap();
                assert!(locker.try_lock("k").await.unwrap().is_none());
                guard.release().await.unwrap();
            });
        }
    }
}
