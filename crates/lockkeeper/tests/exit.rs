//! A program that ends right after it dropped its guard leaves no lock behind; and it ends, also if the store is gone.
//!
//! Each case runs in a process of its own, which is this same test.

#![cfg(all(feature = "redis", feature = "sqlite"))]
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::process::Command;
use std::time::Duration;

use lockkeeper::Locker;
use lockkeeper_servers::{self as servers, Redis, RedisOptions};
use tokio::runtime::{Builder, Runtime};

/// Nothing expires while these tests run.
const TTL: Duration = Duration::from_secs(600);
/// The longest that a server of ZooKeeper gives. Where a program takes longer to end, its test says less, but nothing wrong.
const TTL_ON_ZOOKEEPER: Duration = Duration::from_secs(40);
/// No end takes nearly as long.
const HANG_SECONDS: &str = "120";
const URL: &str = "LOCKKEEPER_TEST_EXIT_URL";
const HOW: &str = "LOCKKEEPER_TEST_EXIT_HOW";
const SERVER: &str = "LOCKKEEPER_TEST_EXIT_SERVER";

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Where servers live that talk to us while they run.
fn stage() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// This same test as a program of its own that ends in this way.
fn command(test: &str, url: &str, how: &str) -> Command {
    let mut command = Command::new("timeout");
    command.arg(HANG_SECONDS).arg(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--test-threads=1"]).env(URL, url).env(HOW, how);
    command
}

/// Run it, and say whether it ended well.
fn program(test: &str, url: &str, how: &str) -> bool {
    command(test, url, how).output().unwrap().status.success()
}

/// What the program does, if this is one.
fn played() -> bool {
    let (Ok(url), Ok(how)) = (std::env::var(URL), std::env::var(HOW)) else { return false };
    let ttl = if url.starts_with("zookeeper") { TTL_ON_ZOOKEEPER } else { TTL };
    let lock = move |locker: &Locker| locker.lock("k").ttl(ttl);
    match how.as_str() {
        "returns" => runtime().block_on(async {
            let locker = lockkeeper::connect(&url).await.unwrap();
            drop(lock(&locker).await.unwrap());
        }),
        "the runtime drops it" => {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let (locker, (say, heard)) =
                (runtime.block_on(lockkeeper::connect(&url)).unwrap(), std::sync::mpsc::channel());
            runtime.spawn(async move {
                let guard = lock(&locker).await.unwrap();
                say.send(()).unwrap();
                guard.run(std::future::pending::<()>()).await
            });
            heard.recv().unwrap();
        }
        "exits" => {
            let locker = lockkeeper::connect_blocking(&url).unwrap();
            drop(lock(&locker).blocking().unwrap());
            std::process::exit(0);
        }
        "panics" => {
            let locker = lockkeeper::connect_blocking(&url).unwrap();
            let _guard = lock(&locker).blocking().unwrap();
            panic!("as it was told");
        }
        "the store stands still" => {
            let locker = lockkeeper::connect_blocking(&url).unwrap();
            let guard = lock(&locker).blocking().unwrap();
            let server = std::env::var(SERVER).unwrap();
            assert!(Command::new("kill").args(["-STOP", &server]).status().unwrap().success());
            drop(guard);
        }
        "does not wait" => {
            let locker = lockkeeper::open_blocking(&url).unwrap().locker.exit_wait(Duration::ZERO).build();
            std::mem::forget(lock(&locker).blocking().unwrap());
        }
        "keeps it warm" => runtime().block_on(async {
            let warm = lockkeeper::open(&url).await.unwrap().locker.warm(true).build();
            lockkeeper::set_default(warm, None).unwrap();
            let guard = lock(lockkeeper::default_locker().unwrap()).await.unwrap();
            guard.release().await.unwrap();
        }),
        "keeps it warm and exits" => {
            keep_warm(lockkeeper::open_blocking(&url).unwrap().locker.warm(true).build(), ttl, &url);
            std::process::exit(0);
        }
        "keeps it warm and does not wait" => {
            let warm = lockkeeper::open_blocking(&url).unwrap().locker.warm(true);
            keep_warm(warm.exit_wait(Duration::ZERO).build(), ttl, &url);
        }
        other => panic!("nobody knows how to do this: {other}"),
    }
    true
}

/// Take the lock, give it back to a locker that nobody drops, and let it be idle there.
fn keep_warm(locker: Locker, ttl: Duration, url: &str) {
    lockkeeper::set_default(locker, None).unwrap();
    let locker = lockkeeper::default_locker().unwrap();
    locker.lock("k").ttl(ttl).blocking().unwrap().release_blocking().unwrap();
    // Nodes of Redlock tell nobody, so nothing stays there.
    assert_eq!(locker.lines(), usize::from(!url.starts_with("redlock")), "it stays");
}

/// Whether the lock is free, without waiting for it; and then it is again.
fn is_free(url: &str) -> bool {
    let locker = lockkeeper::connect_blocking(url).unwrap();
    let Some(guard) = locker.try_lock("k").blocking().unwrap() else { return false };
    guard.release_blocking().unwrap();
    true
}

fn nothing_is_left(test: &str, url: &str) {
    let well = ["returns", "the runtime drops it", "exits", "keeps it warm", "keeps it warm and exits"];
    for (how, well) in well.into_iter().map(|it| (it, true)).chain([("panics", false)]) {
        assert_eq!(program(test, url, how), well, "{how}");
        assert!(is_free(url), "{how}: the lock was left behind");
    }
}

#[test]
fn a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_sqlite() {
    if played() {
        return;
    }
    let test = "a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_sqlite";
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    nothing_is_left(test, &url);
    assert!(program(test, &url, "does not wait"));
    assert!(!is_free(&url), "this test would see a lock that was left behind");
    let url = format!("sqlite:{}", folder.path().join("warm.db").display());
    assert!(program(test, &url, "keeps it warm and does not wait"));
    assert!(!is_free(&url), "this test would see what was left idle");
}

#[test]
fn a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_redis() {
    if played() {
        return;
    }
    let runtime = runtime();
    let server = runtime.block_on(Redis::start(RedisOptions::default())).unwrap();
    nothing_is_left("a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_redis", &server.url());
}

#[cfg(feature = "postgres")]
#[test]
fn a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_postgresql() {
    if played() {
        return;
    }
    let runtime = stage();
    let server = runtime.block_on(servers::Postgres::start(servers::PostgresOptions::default())).unwrap();
    nothing_is_left("a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_postgresql", &server.url());
}

#[cfg(feature = "mysql")]
#[test]
fn a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_mariadb() {
    if played() {
        return;
    }
    let runtime = stage();
    let server = runtime.block_on(servers::MariaDb::start(servers::MariaDbOptions::default())).unwrap();
    nothing_is_left("a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_mariadb", &server.url());
}

#[cfg(feature = "mysql")]
#[test]
fn a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_mysql() {
    if played() {
        return;
    }
    let runtime = stage();
    let server = runtime.block_on(servers::Mysql::start(servers::MysqlOptions::default())).unwrap();
    nothing_is_left("a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_mysql", &server.url());
}

#[cfg(feature = "etcd")]
#[test]
fn a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_etcd() {
    if played() {
        return;
    }
    let runtime = stage();
    let server = runtime.block_on(servers::Etcd::start(servers::EtcdOptions::default())).unwrap();
    let url = format!("etcd://{}", server.address());
    nothing_is_left("a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_etcd", &url);
}

#[cfg(feature = "zookeeper")]
#[test]
fn a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_zookeeper() {
    if played() {
        return;
    }
    let runtime = stage();
    let server = runtime.block_on(servers::ZooKeeper::start(servers::ZooKeeperOptions::default())).unwrap();
    let url = format!("zookeeper://{}", server.address());
    nothing_is_left("a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_zookeeper", &url);
}

#[cfg(feature = "redlock")]
#[test]
fn a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_a_majority_of_redis_servers() {
    if played() {
        return;
    }
    let runtime = stage();
    let start = || runtime.block_on(Redis::start(RedisOptions::default())).unwrap();
    let servers = [start(), start(), start()];
    let hosts = servers.each_ref().map(|it| it.url().replace("redis://", "")).join(",");
    nothing_is_left(
        "a_program_that_drops_its_guard_and_ends_leaves_no_lock_on_a_majority_of_redis_servers",
        &format!("redlock://{hosts}?restart_guard=off"),
    );
}

#[test]
fn a_program_whose_store_stands_still_ends_all_the_same() {
    if played() {
        return;
    }
    let runtime = runtime();
    let server = runtime.block_on(Redis::start(RedisOptions::default())).unwrap();
    let test = "a_program_whose_store_stands_still_ends_all_the_same";
    let mut program = command(test, &server.url(), "the store stands still");
    let end = program.env(SERVER, server.pid().unwrap().to_string()).output().unwrap();
    server.resume().unwrap();
    assert!(end.status.success(), "it waits for the store, at most `exit_wait`: {end:?}");
}

#[tokio::test]
async fn work_that_was_done_is_no_error_if_nobody_confirms_that_its_lock_was_given_back() {
    let server = Redis::start(RedisOptions::default()).await.unwrap();
    let locker = lockkeeper::connect(&server.url()).await.unwrap();
    let guard = locker.lock("k").ttl(TTL).await.unwrap();
    let done = guard.run_and_release(async {
        server.kill().unwrap();
        42
    });
    assert_eq!(done.await.unwrap(), 42);
}
