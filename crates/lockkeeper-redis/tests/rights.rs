//! A right that is missing, wherever it is met, is told as such and for good.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::claim_of;
use lockkeeper_core::backend::{Backend, Fault, Place, Turn};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::{Error, Locker};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisOptions};

/// The documented line, as words.
fn rights() -> Vec<String> {
    let docs = include_str!("../../../docs/backends/redis.md");
    let line = docs.lines().find(|it| it.starts_with("user locks ")).unwrap();
    line.split(' ').skip(2).map(str::to_owned).collect()
}

/// A server with a user of these rights.
struct Guarded(servers::Redis);

impl Guarded {
    async fn start() -> Self {
        let server =
            servers::Redis::start(RedisOptions::default().acl("user default on nopass ~* &* +@all")).await;
        Guarded(server.unwrap())
    }

    /// All documented rights but this one.
    async fn without(&self, right: &str) -> Redis {
        let rights = rights();
        let mut words = vec!["ACL", "SETUSER", "locks", "reset"];
        words.extend(rights.iter().map(String::as_str).filter(|it| *it != right));
        self.0.command(&["FLUSHALL"]).await.unwrap();
        self.0.command(&words).await.unwrap();
        Redis::connect(&format!("redis://locks:secret@{}", self.0.address())).await.unwrap()
    }
}

/// Everything that the scripts can do.
async fn use_locks(redis: &Redis) -> Result<(), Fault> {
    let long = Duration::from_secs(60);
    let enter = |capacity| redis.enter(claim_of("k", long, 1, capacity));
    let (mut one, mut two, mut three) = (enter(1), enter(1), enter(1));
    one.turn().await?;
    one.renew().await?;
    two.turn().await?;
    one.renew().await?;
    three.turn().await?;
    one.leave().await?;
    while !matches!(two.turn().await?, Turn::Held(_)) {}
    redis.break_lock(&claim_of("k", long, 1, 1).key).await?;
    three.leave().await?;
    two.leave().await?;
    let mut readers = [enter(2), enter(2), enter(2)];
    for reader in &mut readers {
        reader.turn().await?;
        reader.renew().await?;
    }
    redis.list("").await?;
    for reader in &mut readers {
        reader.leave().await?;
    }
    Ok(())
}

#[tokio::test]
async fn each_right_that_is_missing_is_a_fault_that_stays_and_names_the_remedy() {
    let server = Guarded::start().await;
    let mut met = 0;
    // Without these nobody connects, or nothing is sent that needs them here.
    let needed_to_connect = ["+hello", "+subscribe", "+evalsha"];
    for right in rights().iter().filter(|it| it.starts_with('+') && !needed_to_connect.contains(&it.as_str()))
    {
        let redis = server.without(right).await;
        let Err(fault) = use_locks(&redis).await else { continue };
        assert!(!fault.is_transient(), "without {right}: {fault}");
        assert!(fault.message.contains("least rights"), "without {right}: {fault}");
        met += 1;
    }
    assert!(20 <= met, "only {met} rights were met");
    use_locks(&server.without("").await).await.unwrap();
}

#[tokio::test]
async fn a_locker_without_rights_says_so_at_once_and_sends_nothing_afterwards() {
    let server = Guarded::start().await;
    let locker = Locker::new(server.without("+time").await);
    for _ in 0..20 {
        let error = locker.lock("k").await.unwrap_err();
        assert!(matches!(&error, Error::Unavailable { transient: false, .. }), "{error:?}");
    }
    locker.shutdown(Duration::from_secs(10)).await.unwrap();
    let calls = async || {
        let stats = server.0.command(&["INFO", "commandstats"]).await.unwrap();
        [stats.field("cmdstat_evalsha"), stats.field("cmdstat_eval")].map(Option::unwrap_or_default)
    };
    let before = calls().await;
    lockkeeper_core::Clock::boot().sleep(Duration::from_millis(500)).await;
    assert_eq!(before, calls().await, "somebody still asks");
}
