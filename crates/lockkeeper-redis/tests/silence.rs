//! Flows that end without a word, behind a firewall that forgets idle ones: a fresh connection is tried in time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::within;
use lockkeeper_core::{Clock, Locker, Moment};
use lockkeeper_redis::Redis;
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{self as servers, RedisOptions};

/// The firewall forgets what is idle for so long.
const IDLE_MAX: Duration = Duration::from_millis(400);

/// What a caller bears at most, by default.
const OUTAGE_MAX: Duration = Duration::from_secs(5);

async fn behind_firewall(ttl: Duration) -> (servers::Redis, Proxy, Locker) {
    let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let redis = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let locker = Locker::builder(redis).ttl(ttl).build();
    locker.lock("warm-up").await.unwrap().release().await.unwrap();
    proxy.forget_idle(Some(IDLE_MAX));
    (server, proxy, locker)
}

/// Until the firewall has forgotten so many flows since `before`.
async fn forgotten(proxy: &Proxy, before: usize, flows: usize) {
    proxy.wait_for(|it| before + flows <= it.forgotten).await.unwrap();
}

#[tokio::test]
async fn a_lock_that_is_held_outlives_a_flow_that_was_forgotten() {
    let (_server, proxy, locker) = behind_firewall(Duration::from_secs(6)).await;
    let (clock, guard) = (Clock::boot(), locker.lock("k").await.unwrap());
    // Every renewal comes two seconds after the one before, and finds its flow forgotten.
    let began = clock.now();
    while clock.now() - began < Duration::from_secs(14) {
        tokio::select! {
            reason = guard.lost() => panic!("lost after {:?}: {reason:?}", clock.now() - began),
            () = clock.sleep(Duration::from_millis(500)) => assert!(guard.is_valid()),
        }
    }
    assert!(2 <= proxy.counters().forgotten);
    let began = clock.now();
    guard.release().await.unwrap();
    quick(began, "a release");
}

#[tokio::test]
async fn locks_are_taken_and_given_back_soon_though_every_flow_was_forgotten() {
    let (server, proxy, locker) = behind_firewall(Duration::from_secs(30)).await;
    let clock = Clock::boot();
    for round in 0..2 {
        forgotten(&proxy, 0, 2 * (round + 1)).await;
        let began = clock.now();
        let guard = within("a lock", locker.lock("k")).await.unwrap();
        quick(began, "a lock");
        let before = proxy.counters().forgotten;
        forgotten(&proxy, before, 1).await;
        let began = clock.now();
        within("a release", guard.release()).await.unwrap();
        quick(began, "a release");
        // And it is free for others, for certain.
        let other = Locker::new(Redis::connect(&server.url()).await.unwrap());
        other.try_lock("k").await.unwrap().expect("it was given back").release().await.unwrap();
    }
}

fn quick(began: Moment, what: &str) {
    let took = Clock::boot().now() - began;
    assert!(took < OUTAGE_MAX * 3 / 4, "{what} took {took:?}");
}
