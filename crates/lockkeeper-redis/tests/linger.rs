//! A lock that is given back later: those who wait keep their order meanwhile, and hear when its end comes sooner.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim_of, held, waits, within};
use lockkeeper_core::backend::{Backend, Place};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_redis::{Redis, RedisPlace};
use lockkeeper_servers::{self as servers, RedisOptions};

const MINUTE: Duration = Duration::from_secs(60);

async fn server() -> servers::Redis {
    servers::Redis::start(RedisOptions::default()).await.unwrap()
}

/// As another process: with connections of its own.
async fn place(server: &servers::Redis, ttl: Duration, weight: u32, capacity: u32) -> RedisPlace {
    Redis::connect(&server.url()).await.unwrap().enter(claim_of("k", ttl, weight, capacity))
}

/// How long the server keeps the key of this lock that ends so, in ms.
async fn lives(server: &servers::Redis, end: &str) -> u64 {
    let found = server.command(&["KEYS", "*:line"]).await.unwrap();
    let [line] = found.items() else { panic!("not one line: {found:?}") };
    let key = format!("{}{end}", line.text().trim_end_matches(":line"));
    let left = server.command(&["PTTL", &key]).await.unwrap().int();
    left.and_then(|it| it.try_into().ok()).unwrap()
}

#[tokio::test]
async fn a_line_lives_as_long_as_a_lock_that_lingers_longer_than_anybody_s_ttl() {
    for (weight, capacity) in [(2, 2), (1, 2)] {
        let server = server().await;
        let mut holders = vec![place(&server, MINUTE, weight, capacity).await];
        if weight == 1 {
            holders.push(place(&server, MINUTE, weight, capacity).await);
        }
        let (mut first, mut second) =
            (place(&server, MINUTE, 2, capacity).await, place(&server, MINUTE, 2, capacity).await);
        for holder in &mut holders {
            held(holder).await;
        }
        waits(&mut first).await;
        waits(&mut second).await;
        for holder in &mut holders {
            holder.linger(MINUTE * 60).await.unwrap();
        }
        // Asking again keeps the places, and must keep the line with them.
        waits(&mut second).await;
        waits(&mut first).await;
        for key in [":line", ":who"] {
            let lives = lives(&server, key).await;
            assert!(MINUTE.as_millis() * 30 < u128::from(lives), "{key} of {capacity} lives {lives} ms");
        }
        drop(server);
    }
}

#[tokio::test]
async fn a_line_lives_as_long_as_a_lock_that_is_renewed_by_those_with_a_longer_ttl() {
    for (weight, capacity) in [(2, 2), (1, 2)] {
        let server = server().await;
        let mut holders = vec![place(&server, MINUTE, weight, capacity).await];
        if weight == 1 {
            holders.push(place(&server, MINUTE, weight, capacity).await);
        }
        for holder in &mut holders {
            held(holder).await;
        }
        let mut waiter = place(&server, Duration::from_secs(10), 2, capacity).await;
        waits(&mut waiter).await;
        // The more time goes by, the further apart the ends of the keys are if one of them is forgotten.
        lockkeeper_core::Clock::boot().sleep(Duration::from_millis(1200)).await;
        for holder in &mut holders {
            holder.renew().await.unwrap();
        }
        waits(&mut waiter).await;
        let (line, main) = (lives(&server, ":line").await, lives(&server, "").await);
        assert!(main < line + 500, "the lock lives {main} ms, its line {line}");
    }
}

#[tokio::test]
async fn the_next_in_line_is_told_that_the_end_comes_sooner() {
    let server = server().await;
    let (mut holder, mut next) = (place(&server, MINUTE, 1, 1).await, place(&server, MINUTE, 1, 1).await);
    held(&mut holder).await;
    waits(&mut next).await;
    holder.linger(Duration::from_millis(1)).await.unwrap();
    // By the word of the server: the time after which it would ask by itself is far away.
    within("the word", next.changed()).await;
    let turn = common::until_held(&mut next).await;
    assert!(0 < turn.counter);
}

#[tokio::test]
async fn only_what_is_held_lingers() {
    let server = server().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let (mut holder, mut waiter, mut nobody) = (
        place(&server, MINUTE, 1, 1).await,
        place(&server, MINUTE, 1, 1).await,
        place(&server, MINUTE, 1, 1).await,
    );
    nobody.linger(MINUTE).await.unwrap();
    assert!(redis.list("").await.unwrap().is_empty());
    held(&mut holder).await;
    waits(&mut waiter).await;
    waiter.linger(MINUTE).await.unwrap();
    holder.leave().await.unwrap();
    // It had given up neither its place nor anything else.
    held(&mut waiter).await;
    waiter.leave().await.unwrap();
    waiter.linger(MINUTE).await.unwrap();
    assert!(redis.list("").await.unwrap().is_empty());
}
