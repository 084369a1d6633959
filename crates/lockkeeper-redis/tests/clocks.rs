//! The server's wall clock is set back and forth: fences grow all the same, for whoever asks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim_of, held, until_held, waits};
use futures_util::future::join_all;
use lockkeeper_core::backend::{Backend, Place};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::{FencedError, Key, Locker};
use lockkeeper_redis::{Redis, RedisFences};
use lockkeeper_servers::{self as servers, RedisOptions, RedisSentinel};

/// Longer than any step of a clock here, so that no lease ends by one.
const LONG: Duration = Duration::from_secs(86400);

/// Back by so many milliseconds, one after the other, and forth again.
const STEPS: [i64; 6] = [-50, -1_050, -3_601_050, -500, -3_600_000, 0];

async fn server() -> servers::Redis {
    servers::Redis::start(RedisOptions::default().own_clock()).await.unwrap()
}

/// A process of its own, as far as the store can tell.
async fn process(server: &servers::Redis) -> Redis {
    Redis::connect(&server.url()).await.unwrap()
}

/// Take a free lock and give it back.
async fn fence(redis: &Redis, name: &str) -> u64 {
    let mut place = redis.enter(claim_of(name, LONG, 1, 1));
    let grant = until_held(&mut place).await;
    place.leave().await.unwrap();
    grant.counter
}

fn grew(fences: &[u64], when: &str) {
    assert!(fences.is_sorted_by(|one, next| one < next), "{when}: {fences:?}");
}

#[tokio::test]
async fn a_free_lock_has_growing_fences_for_a_process_that_saw_all_some_or_none() {
    let server = server().await;
    let (all, some) = (process(&server).await, process(&server).await);
    let mut seen = vec![fence(&all, "k").await, fence(&some, "k").await];
    for step in STEPS {
        server.set_clock(step).unwrap();
        seen.push(fence(&all, "k").await);
        seen.push(fence(&process(&server).await, "k").await);
        seen.push(fence(&all, "k").await);
    }
    seen.push(fence(&some, "k").await);
    grew(&seen, "the clock was set");
}

#[tokio::test]
async fn what_is_handed_on_and_what_is_shared_grows_too() {
    let server = server().await;
    let redis = process(&server).await;
    let enter = |capacity| redis.enter(claim_of("k", LONG, 1, capacity));
    let mut seen = Vec::new();
    for step in STEPS {
        server.set_clock(step).unwrap();
        let (mut one, mut two) = (enter(1), enter(1));
        seen.push(held(&mut one).await.counter);
        waits(&mut two).await;
        server.set_clock(step - 700).unwrap();
        one.leave().await.unwrap();
        seen.push(until_held(&mut two).await.counter);
        two.leave().await.unwrap();
        let mut readers = [enter(2), enter(2)];
        for reader in &mut readers {
            seen.push(held(reader).await.counter);
        }
        for reader in &mut readers {
            reader.leave().await.unwrap();
        }
        // An operator breaks it: the next is given a larger one than the one who lost it had.
        let (mut one, mut two) = (enter(1), enter(1));
        seen.push(held(&mut one).await.counter);
        waits(&mut two).await;
        redis.break_lock(&Key::new("k").unwrap()).await.unwrap();
        seen.push(until_held(&mut two).await.counter);
        two.leave().await.unwrap();
    }
    grew(&seen, "the clock was set");
}

#[tokio::test]
async fn a_crowd_that_shares_scripts_has_growing_fences() {
    let server = server().await;
    let names: Vec<_> = (0..200).map(|it| format!("crowd-{it}")).collect();
    let mut last = vec![0; names.len()];
    for step in STEPS {
        server.set_clock(step).unwrap();
        let redis = process(&server).await;
        let now = join_all(names.iter().map(|it| fence(&redis, it))).await;
        for (at, (before, now)) in last.iter().zip(&now).enumerate() {
            assert!(before < now, "lock {at} at {step} ms: {before} and then {now}");
        }
        last = now;
    }
}

#[tokio::test]
async fn a_strobing_clock_gives_no_fence_twice() {
    let server = server().await;
    let (one, two) = (process(&server).await, process(&server).await);
    let mut seen = Vec::new();
    for round in 0..100 {
        server.set_clock(if round % 2 == 0 { 500 } else { -500 }).unwrap();
        seen.push(fence(&one, "k").await);
        seen.push(fence(&two, "k").await);
    }
    grew(&seen, "the clock strobes");
}

#[tokio::test]
async fn a_replica_with_a_slower_clock_goes_on_with_larger_fences() {
    let servers = RedisSentinel::start(RedisOptions::default().own_clock()).await.unwrap();
    let hosts: Vec<_> = servers.sentinels().iter().map(|it| it.address()).collect();
    let url = format!("redis+sentinel://{}/{}", hosts.join(","), servers.name());
    let old = servers.primary().await.unwrap();
    for node in servers.nodes().iter().filter(|it| it.port() != old.port()) {
        node.set_clock(-20_000).unwrap();
    }
    let redis = Redis::connect(&url).await.unwrap();
    let before = fence(&redis, "k").await;
    let mut client = old.client().await.unwrap();
    client.command(&["SET", "marker", "1"]).await.unwrap();
    client.command(&["WAIT", "2", "10000"]).await.unwrap();
    old.kill().unwrap();
    servers.wait_failover(old).await.unwrap();
    let newcomer = Redis::connect(&url).await.unwrap();
    grew(&[before, fence(&newcomer, "k").await, fence(&redis, "k").await], "the replica took over");
}

/// Nothing was copied, so nothing is known; but a process that lives remembers what it has seen.
#[tokio::test]
async fn a_living_process_accepts_no_smaller_fence_after_the_store_forgot() {
    let server = server().await;
    let redis = process(&server).await;
    let before = fence(&redis, "k").await;
    server.set_clock(-3_600_000).unwrap();
    server.command(&["FLUSHALL"]).await.unwrap();
    let after = fence(&redis, "k").await;
    // By now the store has learnt of it, and tells everybody.
    grew(&[before, after, fence(&process(&server).await, "k").await], "the store forgot");
}

#[tokio::test]
async fn a_stale_holders_write_is_refused_after_the_clock_was_set_back() {
    let server = server().await;
    let (stale, fresh) = (process(&server).await, process(&server).await);
    let mut shop =
        redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let (fences, stock) = (RedisFences::default(), Key::new("stock").unwrap());
    let (one, two) = (Locker::new(stale), Locker::new(fresh));
    let guard = one.lock("k").await.unwrap();
    let stale = guard.fence();
    // It gave the lock back, but a write of its is still on the way.
    guard.release().await.unwrap();
    server.set_clock(-3_600_000).unwrap();
    let guard = two.lock("k").await.unwrap();
    fences.set(&mut shop, &stock, 2, guard.fence()).await.unwrap();
    let refused = fences.set(&mut shop, &stock, 3, stale).await;
    assert!(matches!(refused, Err(FencedError::Stale { .. })), "{refused:?}");
    assert_eq!(fences.get::<u64>(&mut shop, &stock, guard.fence()).await.unwrap(), 2);
}
