//! Warm locks on a cluster and behind sentinels: recalled, and never idle where nobody can be called.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::within;
use lockkeeper_core::kit::locked;
use lockkeeper_core::observe::{CooledBy, Event, Observer};
use lockkeeper_core::{Clock, Locker};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisCluster};
use lockkeeper_testkit::warm;

/// So long that nothing is due within a test: what a holder hears, it was told.
const TTL: Duration = Duration::from_secs(3600);

/// Two processes on a cluster.
async fn on_a_cluster() -> (RedisCluster, Redis, Redis) {
    let servers = servers::Redis::cluster().await.unwrap();
    let (here, there) = (connect(&servers, "").await, connect(&servers, "").await);
    (servers, here, there)
}

async fn connect(servers: &RedisCluster, login: &str) -> Redis {
    let hosts: Vec<_> = servers.nodes().iter().map(|it| it.address()).collect();
    Redis::connect(&format!("redis+cluster://{login}{}", hosts.join(","))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_idle_in_one_process_is_had_by_another_on_a_cluster() {
    let (_servers, here, there) = on_a_cluster().await;
    warm::recalled(&here, &there, TTL).await;
    warm::tried(&here, &there, TTL).await;
    warm::a_break_is_told(&here, &there, TTL).await;
    warm::idle_readers_go_for_a_writer(&here, &there, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_idle_in_one_process_is_had_by_another_behind_sentinels() {
    let servers = servers::Redis::sentinel().await.unwrap();
    let hosts: Vec<_> = servers.sentinels().iter().map(|it| it.address()).collect();
    let url = format!("redis+sentinel://{}/{}", hosts.join(","), servers.name());
    let (here, there) = (Redis::connect(&url).await.unwrap(), Redis::connect(&url).await.unwrap());
    warm::recalled(&here, &there, TTL).await;
    warm::tried(&here, &there, TTL).await;
    warm::a_break_is_told(&here, &there, TTL).await;
}

/// Renewals, and how often something idle went by itself.
#[derive(Clone, Debug, Default)]
struct Tally(Arc<Mutex<(usize, usize)>>);

impl Observer for Tally {
    fn observe(&self, event: &Event<'_>) {
        let mut tally = locked(&self.0);
        match event {
            Event::Renewed { .. } => tally.0 += 1,
            Event::Cooled { by: CooledBy::Time, .. } => tally.1 += 1,
            _ => {}
        }
    }
}

/// Until this holds.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    within(what, async {
        while !holds().await {
            Clock::boot().sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// How many shard channels are subscribed to at the primaries.
async fn channels(servers: &RedisCluster) -> usize {
    let mut count = 0;
    for node in &servers.nodes()[..3] {
        count += node.command(&["PUBSUB", "SHARDCHANNELS"]).await.unwrap().items().len();
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_idle_on_a_cluster_while_its_channel_cannot_be_heard() {
    let (servers, here, _) = on_a_cluster().await;
    for node in servers.nodes() {
        node.command(&["ACL", "SETUSER", "other", "on", ">other", "~*", "&*", "+@all"]).await.unwrap();
    }
    let there = connect(&servers, "other:other@").await;
    let (tally, ttl) = (Tally::default(), Duration::from_secs(12));
    let here = Locker::builder(here).ttl(ttl).warm(true).observer(tally.clone()).build();
    let guard = here.lock("k").await.unwrap();
    until("listening", async || channels(&servers).await == 1).await;
    for node in servers.nodes() {
        node.command(&["ACL", "SETUSER", "default", "-ssubscribe"]).await.unwrap();
    }
    let before = locked(&tally.0).0;
    for node in servers.nodes() {
        node.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    }
    assert_eq!(channels(&servers).await, 0);
    // One because the connection broke. Whoever listens in vain learns so at once; the others come when they are due.
    until("renewals", async || before + 3 <= locked(&tally.0).0).await;
    guard.release().await.unwrap();
    let there = Locker::builder(there).ttl(ttl).build();
    within("the lock", async { there.lock("k").await.unwrap() }).await.release().await.unwrap();
    assert_eq!(locked(&tally.0).1, 0, "it was idle in a process that nobody could call");
}
