//! Readers, writers and permits on every store, by two lockers that know of each other only through the store.

#![cfg(all(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "zookeeper"
))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail loudly")]

use std::time::Duration;

use lockkeeper::Locker;
use lockkeeper_servers::{
    Etcd, EtcdOptions, MariaDb, MariaDbOptions, Mysql, MysqlOptions, Postgres, PostgresOptions, Redis,
    RedisOptions, ZooKeeper, ZooKeeperOptions,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Nothing in these tests takes nearly as long.
const HANG: Duration = Duration::from_secs(120);

async fn in_time<T>(task: JoinHandle<lockkeeper::Result<T>>) -> T {
    timeout(HANG, task).await.expect("it waits for ever").unwrap().unwrap()
}

/// What every store must keep.
async fn check(url: &str) {
    let (here, there) = (lockkeeper::connect(url).await.unwrap(), lockkeeper::connect(url).await.unwrap());
    beside_each_other(&here, &there).await;
    writers_alone(&here, &there).await;
    a_writer_among_its_own_readers(&here, &there).await;
    permits(&here, &there).await;
    for locker in [here, there] {
        locker.shutdown(HANG).await.unwrap();
    }
}

async fn beside_each_other(here: &Locker, there: &Locker) {
    let before = here.lock("k").await.unwrap();
    let written = before.fence();
    before.release().await.unwrap();
    let readers =
        (here.read("k").await.unwrap(), here.read("k").await.unwrap(), there.read("k").await.unwrap());
    assert!(readers.0.is_valid() && readers.1.is_valid() && readers.2.is_valid());
    assert_eq!(readers.0.fence(), readers.1.fence(), "one process has one place");
    assert!(written.get() < readers.0.fence().get() && written.get() < readers.2.fence().get());
    for locker in [here, there] {
        assert!(locker.try_lock("k").await.unwrap().is_none(), "a plain lock is a writer to readers");
    }
    readers.0.release().await.unwrap();
    readers.1.release().await.unwrap();
    readers.2.release().await.unwrap();
    let after = timeout(HANG, there.write("k")).await.expect("nobody reads any more").unwrap();
    assert!(written < after.fence());
    assert!(here.read("k").attempt().await.unwrap().is_none(), "somebody writes");
    after.release().await.unwrap();
}

async fn writers_alone(here: &Locker, there: &Locker) {
    let reader = here.read("k").await.unwrap();
    let read = reader.fence();
    let writer = tokio::spawn(there.write("k"));
    // It is in the line of the store as soon as nobody can overtake it there.
    while here.read("k").max_hold(HANG).attempt().await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    let late = tokio::spawn(here.read("k").max_hold(HANG));
    reader.release().await.unwrap();
    let writer = in_time(writer).await;
    assert!(read.get() < writer.fence().get() && !late.is_finished());
    let written = writer.fence();
    writer.release().await.unwrap();
    let late = in_time(late).await;
    assert!(written.get() < late.fence().get());
    late.release().await.unwrap();
}

/// It stands at the store while its own process reads, so it waits for one longest read and not for one after the other.
async fn a_writer_among_its_own_readers(here: &Locker, there: &Locker) {
    let (mine, theirs) = (here.read("k").await.unwrap(), there.read("k").await.unwrap());
    let writer = tokio::spawn(here.write("k"));
    let stands = async {
        // With an end of its own a reader does not join, but asks the store.
        while there.read("k").max_hold(HANG).attempt().await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    };
    timeout(HANG, stands).await.expect("those who come later read before the writer");
    let late = tokio::spawn(here.read("k"));
    mine.release().await.unwrap();
    assert!(here.read("k").attempt().await.unwrap().is_none(), "a writer waits");
    assert!(!writer.is_finished() && !late.is_finished(), "others read");
    theirs.release().await.unwrap();
    let writer = in_time(writer).await;
    assert!(!late.is_finished(), "it read beside a writer");
    let written = writer.fence();
    writer.release().await.unwrap();
    let late = in_time(late).await;
    assert!(written.get() < late.fence().get());
    late.release().await.unwrap();
}

async fn permits(here: &Locker, there: &Locker) {
    let one = here.permits("p", 2, 3).await.unwrap();
    assert!(there.permits("p", 2, 3).attempt().await.unwrap().is_none(), "one of three is left");
    let small = there.permits("p", 1, 3).await.unwrap();
    let big = tokio::spawn(there.permits("p", 2, 3));
    one.release().await.unwrap();
    let big = in_time(big).await;
    assert!(small.is_valid() && big.is_valid());
    assert!(here.permits("p", 1, 3).attempt().await.unwrap().is_none(), "three of three are out");
    small.release().await.unwrap();
    big.release().await.unwrap();
}

#[tokio::test]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    check(&format!("sqlite:{}", folder.path().join("locks.db").display())).await;
}

#[tokio::test]
async fn on_redis() {
    check(&Redis::start(RedisOptions::default()).await.unwrap().url()).await;
}

#[tokio::test]
async fn on_postgres() {
    check(&Postgres::start(PostgresOptions::default()).await.unwrap().url()).await;
}

#[tokio::test]
async fn on_mariadb() {
    check(&MariaDb::start(MariaDbOptions::default()).await.unwrap().url()).await;
}

#[tokio::test]
async fn on_mysql() {
    check(&Mysql::start(MysqlOptions::default()).await.unwrap().url()).await;
}

#[tokio::test]
async fn on_etcd() {
    let server = Etcd::start(EtcdOptions::default()).await.unwrap();
    check(&server.url().replace("http://", "etcd://")).await;
}

#[tokio::test]
async fn on_zookeeper() {
    check(&ZooKeeper::start(ZooKeeperOptions::default()).await.unwrap().url()).await;
}
