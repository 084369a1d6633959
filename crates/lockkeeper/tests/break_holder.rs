//! Breaking the holder that was shown, and nobody who came after it, on every store that can compare.

#![cfg(all(
    feature = "sqlite",
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use lockkeeper::spi::Broken;
use lockkeeper::{Fence, Key, Store};

const TTL: Duration = Duration::from_secs(30);

/// The fence by which the store knows the one holder.
async fn shown(store: &Store, key: &Key) -> Fence {
    let info = store.inspect.show(key).await.unwrap().expect("it is held");
    info.holders[0].fence.expect("a holder has a fence")
}

async fn only_the_holder_that_was_shown_is_broken(url: &str) {
    let (one, other) = (lockkeeper::open(url).await.unwrap(), lockkeeper::open(url).await.unwrap());
    let mut view = lockkeeper::open(url).await.unwrap();
    // Both views of `memory:` must be of one store.
    let other = if url == "memory:" { None } else { Some(other.locker.build()) };
    let inspect = one.inspect.clone();
    let one = one.locker.build();
    let other = other.unwrap_or_else(|| one.clone());
    if url == "memory:" {
        view.inspect = inspect;
    }
    let key = Key::new("orders/42").unwrap();
    let first = one.lock(&key).ttl(TTL).await.unwrap();
    let seen = shown(&view, &key).await;
    first.release().await.unwrap();
    let second = other.lock(&key).ttl(TTL).await.unwrap();
    // The operator still looks at the first.
    assert_eq!(view.inspect.break_holder(&key, seen).await.unwrap(), Broken::Changed, "{url}");
    assert!(second.is_valid());
    let now = shown(&view, &key).await;
    assert!(seen < now, "{url}");
    match view.inspect.break_holder(&key, now).await.unwrap() {
        Broken::Lost(it) => assert_eq!(it.fence, Some(now), "{url}"),
        told => panic!("{url}: {told:?}"),
    }
    assert_eq!(view.inspect.break_holder(&key, now).await.unwrap(), Broken::Changed, "{url}");
    let third = one.lock(&key).ttl(TTL).await.unwrap();
    assert!(second.fence() < third.fence(), "{url}");
    third.release().await.unwrap();
    // Its process has not heard of the break yet, and would keep its own readers waiting until it has.
    drop(second);
    let readers = [one.read(&key).ttl(TTL).await.unwrap(), other.read(&key).ttl(TTL).await.unwrap()];
    let info = view.inspect.show(&key).await.unwrap().unwrap();
    if info.holders.len() == 2 {
        let (gone, stays) = (info.holders[0].fence.unwrap(), info.holders[1].fence.unwrap());
        if gone != stays {
            assert!(matches!(view.inspect.break_holder(&key, gone).await.unwrap(), Broken::Lost(_)), "{url}");
            let left = view.inspect.show(&key).await.unwrap().unwrap();
            assert_eq!(left.holders.iter().map(|it| it.fence).collect::<Vec<_>>(), [Some(stays)], "{url}");
        }
    }
    drop(readers);
}

/// The ttl is longer than any test: only the break can have let the next one in.
async fn whoever_waits_behind_the_broken_is_let_in(url: &str) {
    const LONG: Duration = Duration::from_secs(600);
    let (one, other) = (lockkeeper::connect(url).await.unwrap(), lockkeeper::connect(url).await.unwrap());
    let view = lockkeeper::open(url).await.unwrap();
    let key = Key::new("in line").unwrap();
    let held = one.lock(&key).ttl(LONG).await.unwrap();
    let waiting = tokio::spawn({
        let key = key.clone();
        async move { other.lock(&key).ttl(LONG).await }
    });
    let seen = shown(&view, &key).await;
    loop {
        let info = view.inspect.show(&key).await.unwrap().unwrap();
        if info.waiters.len() == 1 {
            break;
        }
        tokio::task::yield_now().await;
    }
    // The line that has formed does not make the holder another one.
    assert!(matches!(view.inspect.break_holder(&key, seen).await.unwrap(), Broken::Lost(_)), "{url}");
    let next = waiting.await.unwrap().unwrap();
    assert!(held.fence() < next.fence(), "{url}");
    let now = shown(&view, &key).await;
    assert_eq!(view.inspect.break_holder(&key, seen).await.unwrap(), Broken::Changed, "{url}");
    assert_eq!(shown(&view, &key).await, now, "{url}");
}

#[tokio::test]
async fn in_memory_and_in_a_file() {
    only_the_holder_that_was_shown_is_broken("memory:").await;
    let folder = tempfile::TempDir::new().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    only_the_holder_that_was_shown_is_broken(&url).await;
}

#[tokio::test]
async fn on_redis() {
    let redis = lockkeeper_servers::Redis::start(lockkeeper_servers::RedisOptions::default()).await.unwrap();
    only_the_holder_that_was_shown_is_broken(&redis.url()).await;
    whoever_waits_behind_the_broken_is_let_in(&redis.url()).await;
}

#[tokio::test]
async fn on_etcd() {
    let etcd = lockkeeper_servers::Etcd::start(lockkeeper_servers::EtcdOptions::default()).await.unwrap();
    only_the_holder_that_was_shown_is_broken(&etcd.url().replace("http://", "etcd://")).await;
}

#[tokio::test]
async fn on_zookeeper() {
    let server =
        lockkeeper_servers::ZooKeeper::start(lockkeeper_servers::ZooKeeperOptions::default()).await.unwrap();
    only_the_holder_that_was_shown_is_broken(&server.url()).await;
}

#[tokio::test]
async fn on_postgres() {
    let server =
        lockkeeper_servers::Postgres::start(lockkeeper_servers::PostgresOptions::default()).await.unwrap();
    only_the_holder_that_was_shown_is_broken(&server.url()).await;
    whoever_waits_behind_the_broken_is_let_in(&server.url()).await;
}

#[tokio::test]
async fn on_mariadb() {
    let server =
        lockkeeper_servers::MariaDb::start(lockkeeper_servers::MariaDbOptions::default()).await.unwrap();
    only_the_holder_that_was_shown_is_broken(&server.url()).await;
    whoever_waits_behind_the_broken_is_let_in(&server.url()).await;
}

#[tokio::test]
async fn on_mysql() {
    let server = lockkeeper_servers::Mysql::start(lockkeeper_servers::MysqlOptions::default()).await.unwrap();
    only_the_holder_that_was_shown_is_broken(&server.url()).await;
    whoever_waits_behind_the_broken_is_let_in(&server.url()).await;
}
