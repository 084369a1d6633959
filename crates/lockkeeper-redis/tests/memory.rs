//! What stays in the server's memory, and what happens when there is none left.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim_of, held, until_held, waits};
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisOptions};

const LONG: Duration = Duration::from_secs(60);

async fn server() -> (servers::Redis, Redis) {
    let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    (server, redis)
}

async fn keys(server: &servers::Redis) -> Vec<String> {
    let mut keys: Vec<_> =
        server.command(&["KEYS", "*"]).await.unwrap().items().iter().map(servers::Value::text).collect();
    keys.sort_unstable();
    keys
}

async fn lives(server: &servers::Redis, key: &str) -> Duration {
    let left = server.command(&["PTTL", key]).await.unwrap().int().unwrap();
    Duration::from_millis(u64::try_from(left).unwrap())
}

#[tokio::test]
async fn a_full_server_keeps_what_is_held_and_hands_it_on_but_takes_nothing_new() {
    let (server, redis) = server().await;
    let enter = |name: &str, capacity| redis.enter(claim_of(name, LONG, 1, capacity));
    let (mut one, mut two, mut three) = (enter("k", 1), enter("k", 1), enter("k", 1));
    let mut alone = enter("alone", 1);
    let mut readers = [enter("room", 2), enter("room", 2)];
    held(&mut one).await;
    held(&mut alone).await;
    waits(&mut two).await;
    waits(&mut three).await;
    for reader in &mut readers {
        held(reader).await;
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();

    for place in [&mut one, &mut alone].into_iter().chain(&mut readers) {
        assert!(matches!(place.renew().await.unwrap(), Renewal::Held { .. }));
    }
    // Those who wait may ask again, and keep their places.
    waits(&mut three).await;
    let fault = enter("new", 1).turn().await.unwrap_err();
    assert!(fault.is_transient() && fault.message.contains("out of memory"), "{fault}");
    let fault = enter("k", 1).turn().await.unwrap_err();
    assert!(fault.message.contains("out of memory"), "{fault}");
    one.leave().await.unwrap();
    until_held(&mut two).await;
    assert!(matches!(two.renew().await.unwrap(), Renewal::Held { .. }));
    two.leave().await.unwrap();
    until_held(&mut three).await;
    three.leave().await.unwrap();
    alone.leave().await.unwrap();
    for reader in &mut readers {
        reader.leave().await.unwrap();
    }
    assert_eq!(keys(&server).await, ["lk:mark"]);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    held(&mut enter("new", 1)).await;
}

#[tokio::test]
async fn only_the_mark_stays_however_a_lock_was_used() {
    let (server, redis) = server().await;
    let enter = |capacity| redis.enter(claim_of("k", LONG, 1, capacity));
    let (mut one, mut two, mut three) = (enter(1), enter(1), enter(1));
    held(&mut one).await;
    waits(&mut two).await;
    waits(&mut three).await;
    three.leave().await.unwrap();
    one.leave().await.unwrap();
    until_held(&mut two).await;
    two.leave().await.unwrap();
    assert_eq!(keys(&server).await, ["lk:mark"]);
    let mut readers = [enter(3), enter(3), enter(3)];
    for reader in &mut readers {
        held(reader).await;
    }
    for reader in &mut readers {
        reader.leave().await.unwrap();
    }
    assert_eq!(keys(&server).await, ["lk:mark"]);
}

#[tokio::test]
async fn a_try_that_fails_lengthens_nobodys_life() {
    let (server, redis) = server().await;
    let day = Duration::from_secs(86400);
    for capacity in [1, 2] {
        let name = format!("k-{capacity}");
        let enter = |ttl| redis.enter(claim_of(&name, ttl, 1, capacity));
        let mut places: Vec<_> = (0..capacity).map(|_| enter(LONG)).collect();
        for place in &mut places {
            held(place).await;
        }
        waits(&mut redis.enter(claim_of(&name, day, 1, capacity).impatient())).await;
        for key in keys(&server).await.into_iter().filter(|it| it != "lk:mark") {
            let left = lives(&server, &key).await;
            assert!(left <= LONG * 2 + Duration::from_millis(20), "{key} lives for {left:?}");
        }
        for place in &mut places {
            place.leave().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_weight_above_the_capacity_is_refused() {
    let (server, redis) = server().await;
    let fault = redis.enter(claim_of("k", LONG, 3, 2)).turn().await.unwrap_err();
    assert!(!fault.is_transient() && fault.message.contains("weight"), "{fault}");
    assert!(keys(&server).await.is_empty());
    held(&mut redis.enter(claim_of("k", LONG, 2, 2))).await;
}
