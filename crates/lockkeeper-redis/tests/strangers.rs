//! A node that was wiped and made a cluster of its own, among those that the URL names: it is not used, and it is named.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim_of, held, until_held, waits, within};
use lockkeeper_core::Clock;
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_redis::{Redis, RedisPlace};
use lockkeeper_servers::{self as servers, RedisCluster};

const LONG: Duration = Duration::from_secs(60);

/// The three that are primaries at first.
fn url(servers: &RedisCluster) -> String {
    let hosts: Vec<_> = servers.nodes()[..3].iter().map(|it| it.address()).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

fn place(redis: &Redis, name: &str) -> RedisPlace {
    redis.enter(claim_of(name, LONG, 1, 1))
}

/// The key of a lock that this node keeps, if it keeps one.
async fn key_at(node: &servers::Redis) -> Option<String> {
    let pattern = format!("lk:{{??}}:{}", "?".repeat(40));
    node.command(&["KEYS", &pattern]).await.unwrap().items().first().map(servers::Value::text)
}

/// The name and the key of a lock that this node would keep. The lock is free.
async fn lock_of(redis: &Redis, node: &servers::Redis) -> (String, String) {
    for number in 0.. {
        let name = format!("there-{number}");
        let mut place = place(redis, &name);
        held(&mut place).await;
        let key = key_at(node).await;
        place.leave().await.unwrap();
        if let Some(key) = key {
            return (name, key);
        }
    }
    unreachable!("numbers do not end");
}

/// So many locks that this node does not keep.
async fn held_elsewhere(redis: &Redis, node: &servers::Redis, count: usize) -> Vec<(String, RedisPlace)> {
    let mut places = Vec::new();
    for number in 0.. {
        let name = format!("elsewhere-{number}");
        let mut place = place(redis, &name);
        held(&mut place).await;
        match key_at(node).await {
            Some(_) => place.leave().await.unwrap(),
            None => places.push((name, place)),
        }
        if places.len() == count {
            return places;
        }
    }
    unreachable!("numbers do not end");
}

/// Let it keep all slots, and wait until it serves them.
async fn keep_all(node: &servers::Redis) {
    node.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await.unwrap();
    within("a cluster of one", async {
        loop {
            let info = node.command(&["CLUSTER", "INFO"]).await.unwrap();
            if info.field("cluster_state").as_deref() == Some("ok") {
                return;
            }
            Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// The first node is wiped after its replica took over, and serves all slots as a cluster of its own. `key` is one of its.
async fn first_alone(servers: &RedisCluster, key: &str) {
    let first = &servers.nodes()[0];
    first.kill().unwrap();
    servers.wait_failover(key, first).await.unwrap();
    first.restart_wiped().await.unwrap();
    keep_all(first).await;
}

#[tokio::test]
async fn a_node_that_became_its_own_cluster_gives_no_lock() {
    let servers = servers::Redis::cluster().await.unwrap();
    let first = &servers.nodes()[0];
    let here = Redis::connect(&url(&servers)).await.unwrap();
    let (_, key) = lock_of(&here, first).await;
    let mut kept = held_elsewhere(&here, first, 4).await;
    first_alone(&servers, &key).await;
    for round in 0..8 {
        let there = Redis::connect(&url(&servers)).await.unwrap();
        for (name, _) in &kept {
            match there.enter(common::impatient(name)).turn().await.unwrap() {
                Turn::Held(grant) => panic!("round {round}: {name} is held, and given again as {grant:?}"),
                Turn::Wait { .. } => {}
            }
        }
        let findings = there.doctor().await.unwrap();
        let mut about = findings.iter().filter(|it| it.what.starts_with(&first.address()));
        assert!(
            about.any(|it| it.severity == Severity::Danger && it.what.contains("another cluster")),
            "{findings:?}"
        );
    }
    for (name, place) in &mut kept {
        assert!(matches!(place.renew().await.unwrap(), Renewal::Held { .. }), "{name}");
    }
}

#[tokio::test]
async fn a_stranger_alone_is_refused_by_name() {
    let servers = servers::Redis::cluster().await.unwrap();
    let first = &servers.nodes()[0];
    let here = Redis::connect(&url(&servers)).await.unwrap();
    let (_, key) = lock_of(&here, first).await;
    first_alone(&servers, &key).await;
    for node in &servers.nodes()[1..3] {
        node.pause().unwrap();
    }
    let error = Redis::connect(&format!("{}?timeout=500ms", url(&servers))).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{} is a cluster by itself", first.address())), "{error}");
    for node in &servers.nodes()[1..3] {
        node.resume().unwrap();
    }
    within("the others", async {
        while Redis::connect(&url(&servers)).await.is_err() {
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_process_that_knows_the_cluster_does_not_follow_a_node_that_left_it() {
    let servers = servers::Redis::cluster().await.unwrap();
    let first = &servers.nodes()[0];
    let old = Redis::connect(&url(&servers)).await.unwrap();
    let (name, key) = lock_of(&old, first).await;
    first_alone(&servers, &key).await;
    let others: Vec<_> = servers.nodes()[1..3].iter().map(|it| it.address()).collect();
    let new = Redis::connect(&format!("redis+cluster://{}", others.join(","))).await.unwrap();
    let mut holder = place(&new, &name);
    until_held(&mut holder).await;
    // It has not asked for anything since, and knows only where the lock was kept.
    let mut place = place(&old, &name);
    waits(&mut place).await;
    holder.leave().await.unwrap();
    until_held(&mut place).await;
}

/// Its connections stay open, so nothing breaks that would tell.
#[tokio::test]
async fn a_node_that_is_reset_under_its_connections_is_found_out() {
    let servers = servers::Redis::cluster().await.unwrap();
    let first = &servers.nodes()[0];
    let old = Redis::connect(&url(&servers)).await.unwrap();
    let (name, key) = lock_of(&old, first).await;
    for words in [&["FLUSHALL"][..], &["CLUSTER", "RESET", "HARD"]] {
        first.command(words).await.unwrap();
    }
    keep_all(first).await;
    // Its replica still follows it, and sees no reason to take over.
    servers.nodes()[3].command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await.unwrap();
    servers.wait_failover(&key, first).await.unwrap();
    let others: Vec<_> = servers.nodes()[1..3].iter().map(|it| it.address()).collect();
    let new = Redis::connect(&format!("redis+cluster://{}", others.join(","))).await.unwrap();
    let mut holder = place(&new, &name);
    until_held(&mut holder).await;
    within("finding out", async {
        loop {
            let mut place = old.enter(common::impatient(&name));
            match place.turn().await {
                Ok(Turn::Wait { .. }) => return,
                Ok(Turn::Held(_)) => place.leave().await.unwrap(),
                Err(fault) => assert!(fault.is_transient(), "{fault}"),
            }
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}
