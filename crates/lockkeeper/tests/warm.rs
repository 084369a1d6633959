//! Holders that listen, and warm locks, on the real stores that notify holders. Renewals are further away than these tests
//! wait, so they cannot be what told.

#![cfg(all(
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "zookeeper"
))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail loudly")]

use std::time::Duration;

use lockkeeper::{Fence, Key, Locker, LostReason};
use lockkeeper_core::Clock;
use lockkeeper_servers::{
    Etcd, EtcdOptions, Postgres, PostgresOptions, Redis, RedisOptions, ZooKeeper, ZooKeeperOptions,
};
use tokio::time::timeout;

/// As long as ZooKeeper gives; a third of it is well beyond the patience of these tests.
const TTL: Duration = Duration::from_secs(39);
const PATIENCE: Duration = Duration::from_secs(10);

async fn cycle(locker: &Locker) -> Fence {
    let guard = locker.lock("k").await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    fence
}

/// Until nothing stays any more.
async fn gone(locker: &Locker, what: &str) {
    let gone = async {
        while locker.lines() != 0 {
            Clock::boot().sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("{what} stays"));
}

async fn check(url: &str) {
    let here = lockkeeper::open(url).await.unwrap().locker.ttl(TTL).warm(true).build();
    let other = lockkeeper::open(url).await.unwrap();
    let (there, inspect) = (other.locker.ttl(TTL).build(), other.inspect);
    let key = Key::new("k").unwrap();

    // A lock that is broken is told to its holder.
    let guard = here.lock("k").await.unwrap();
    // It listens a moment after the grant; sooner, what happened before is told then.
    inspect.break_lock(&key).await.unwrap();
    assert_eq!(timeout(PATIENCE, guard.lost()).await.expect("nobody told it"), LostReason::Taken);
    drop(guard);

    // What is idle is taken again with growing fences, and goes when somebody else wants it.
    let mut last = cycle(&here).await;
    for _ in 0..100 {
        let next = cycle(&here).await;
        assert!(last < next);
        last = next;
    }
    assert_eq!(here.lines(), 1, "it stays");
    let guard = timeout(PATIENCE, there.lock("k")).await.expect("it was not recalled").unwrap();
    assert!(last < guard.fence());
    guard.release().await.unwrap();

    // What is broken while it is idle is forgotten, quietly.
    cycle(&here).await;
    inspect.break_lock(&key).await.unwrap();
    gone(&here, "what was broken").await;

    // Whoever tries it has it, too, if its locker is warm: a moment is waited for.
    let tries = lockkeeper::open(url).await.unwrap().locker.ttl(TTL).warm(true).build();
    here.lock("tried").await.unwrap().release().await.unwrap();
    let tried = async {
        loop {
            if let Some(guard) = tries.try_lock("tried").await.unwrap() {
                return guard;
            }
        }
    };
    timeout(PATIENCE, tried).await.expect("a try did not get it").release_fully().await.unwrap();
    gone(&here, "what was tried").await;

    // Idle readers are in no reader's way, and go for a writer.
    for locker in [&here, &tries] {
        locker.read("shared").await.unwrap().release().await.unwrap();
    }
    timeout(PATIENCE, there.read("shared")).await.expect("a reader waits").unwrap().release().await.unwrap();
    assert_eq!((here.lines(), tries.lines()), (1, 1), "they are in nobody's way");
    timeout(PATIENCE, there.write("shared")).await.expect("a writer waits").unwrap().release().await.unwrap();
    assert_eq!((here.lines(), tries.lines()), (0, 0), "each of them was asked to go");

    // So does it when nobody wants it and its locker is gone.
    cycle(&here).await;
    drop(here);
    let free = async {
        while there.try_lock("k").await.unwrap().is_none() {
            Clock::boot().sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, free).await.expect("it was left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_broken_is_told_at_once_and_what_is_idle_goes_at_once() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    check(&redis.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_on_etcd() {
    let etcd = Etcd::start(EtcdOptions::default()).await.unwrap();
    check(&format!("etcd://{}", etcd.address())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_on_zookeeper() {
    let zookeeper = ZooKeeper::start(ZooKeeperOptions::default()).await.unwrap();
    check(&format!("zookeeper://{}", zookeeper.address())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_on_postgres() {
    let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
    check(&postgres.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    check(&format!("sqlite:{}", folder.path().join("locks.db").display())).await;
}
