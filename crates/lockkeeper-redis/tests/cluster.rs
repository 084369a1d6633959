//! A cluster: locks and wake-ups on the right shard, through failover and resharding.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim, claim_of, held, until_held, waits, within};
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Key};
use lockkeeper_redis::Redis;
use lockkeeper_testkit::servers::{self, RedisCluster};

async fn deployment() -> (RedisCluster, Redis) {
    let servers = servers::Redis::cluster().await.unwrap();
    let redis = Redis::connect(&url(&servers)).await.unwrap();
    (servers, redis)
}

fn url(servers: &RedisCluster) -> String {
    let hosts: Vec<_> = servers.nodes().iter().map(|it| it.address()).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

/// The key under which the only lock of this cluster is kept.
async fn only_key(servers: &RedisCluster) -> String {
    for node in &servers.nodes()[..3] {
        let keys = node.command(&["KEYS", "lk:{??}:*"]).await.unwrap();
        let mut keys = keys.items().iter().map(servers::Value::text);
        let main = keys.find(|it| it.matches(':').count() == 2);
        if let Some(key) = main {
            return key;
        }
    }
    panic!("no lock is kept anywhere");
}

#[tokio::test]
async fn locks_on_every_shard_are_taken_handed_on_listed_and_renewed_in_batches() {
    let (_servers, redis) = deployment().await;
    let names: Vec<_> = (0..40).map(|it| format!("lock-{it}")).collect();
    let mut places = Vec::new();
    for name in &names {
        let (mut one, mut two) = (redis.enter(claim(name)), redis.enter(claim(name)));
        held(&mut one).await;
        waits(&mut two).await;
        places.push((one, two));
    }
    assert_eq!(redis.list("lock-").await.unwrap().len(), names.len());
    let info = redis.show(&Key::new("lock-7").unwrap()).await.unwrap().unwrap();
    assert_eq!((info.holders.len(), info.waiters.len()), (1, 1));
    let renewed = futures_util::future::join_all(places.iter_mut().map(|it| it.0.renew())).await;
    for renewal in renewed {
        assert!(matches!(renewal.unwrap(), Renewal::Held { wanted: true, .. }));
    }
    for (mut one, mut two) in places {
        one.leave().await.unwrap();
        within("the sharded message", two.changed()).await;
        held(&mut two).await;
        two.leave().await.unwrap();
    }
}

#[tokio::test]
async fn the_death_of_a_shards_primary_is_survived() {
    let (servers, redis) = deployment().await;
    let long = Duration::from_mins(1);
    let (mut one, mut two) = (redis.enter(claim_of("k", long, 1, 1)), redis.enter(claim_of("k", long, 1, 1)));
    let first = held(&mut one).await;
    waits(&mut two).await;
    let key = only_key(&servers).await;
    let old = servers.primary_of(&key).await.unwrap();
    let mut client = old.client().await.unwrap();
    let tag = &key[..=key.find('}').unwrap()];
    client.command(&["SET", tag, "1", "PX", "1"]).await.unwrap();
    client.command(&["WAIT", "1", "10000"]).await.unwrap();
    old.kill().unwrap();
    servers.wait_failover(&key, old).await.unwrap();
    within("renewing at the new primary", async {
        loop {
            match one.renew().await {
                Ok(renewal) => {
                    assert!(matches!(renewal, Renewal::Held { .. }), "{renewal:?}");
                    return;
                }
                Err(fault) => assert!(fault.is_transient(), "{fault}"),
            }
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    within("leaving", async {
        while one.leave().await.is_err() {
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let second = until_held(&mut two).await;
    assert!(first.counter < second.counter);
}

#[tokio::test]
async fn a_stopped_primary_of_a_shard_is_replaced_and_not_waited_for() {
    let (servers, redis) = deployment().await;
    let long = Duration::from_mins(1);
    let mut one = redis.enter(claim_of("k", long, 1, 1));
    let first = held(&mut one).await;
    let key = only_key(&servers).await;
    let old = servers.primary_of(&key).await.unwrap();
    let mut client = old.client().await.unwrap();
    client.command(&["SET", &key[..=key.find('}').unwrap()], "1", "PX", "1"]).await.unwrap();
    client.command(&["WAIT", "1", "10000"]).await.unwrap();
    old.pause().unwrap();
    servers.wait_failover(&key, old).await.unwrap();
    let renewal = within("renewing at the new primary", async {
        loop {
            match one.renew().await {
                Ok(renewal) => return renewal,
                Err(fault) => assert!(fault.is_transient(), "{fault}"),
            }
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(matches!(renewal.await, Renewal::Held { .. }), "what was copied is still held");
    // The old primary wakes up with its memory of the lock, and is not believed.
    old.resume().unwrap();
    within("leaving", async {
        while one.leave().await.is_err() {
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let mut two = redis.enter(claim_of("k", long, 1, 1));
    assert!(first.counter < until_held(&mut two).await.counter);
}

#[tokio::test]
async fn a_slot_that_moves_to_another_shard_takes_its_line_along() {
    let (servers, redis) = deployment().await;
    let long = Duration::from_mins(1);
    let (mut one, mut two) = (redis.enter(claim_of("k", long, 1, 1)), redis.enter(claim_of("k", long, 1, 1)));
    held(&mut one).await;
    waits(&mut two).await;
    let key = only_key(&servers).await;
    move_slot(&servers, &key).await;
    let renewed = one.renew().await.unwrap();
    assert!(matches!(renewed, Renewal::Held { wanted: true, .. }), "{renewed:?}");
    one.leave().await.unwrap();
    until_held(&mut two).await;
    // And the channel has moved, too: the next hand-over needs no recheck.
    let mut three = redis.enter(claim_of("k", long, 1, 1));
    waits(&mut three).await;
    two.leave().await.unwrap();
    within("the sharded message", three.changed()).await;
    held(&mut three).await;
}

/// Move the slot of `key` to another primary, as an operator's resharding does.
async fn move_slot(servers: &RedisCluster, key: &str) {
    let from = servers.primary_of(key).await.unwrap();
    let to = servers.nodes()[..3].iter().find(|it| it.port() != from.port()).unwrap();
    let slot = from.command(&["CLUSTER", "KEYSLOT", key]).await.unwrap();
    let slot = slot.int().unwrap().to_string();
    let (from_id, to_id) = (
        from.command(&["CLUSTER", "MYID"]).await.unwrap().text(),
        to.command(&["CLUSTER", "MYID"]).await.unwrap().text(),
    );
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await.unwrap();
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await.unwrap();
    let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await.unwrap();
    for key in keys.items() {
        let port = to.port().to_string();
        from.command(&["MIGRATE", "127.0.0.1", &port, &key.text(), "0", "5000"]).await.unwrap();
    }
    for node in [to, from] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await.unwrap();
    }
}
