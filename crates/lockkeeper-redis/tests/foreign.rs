//! Bytes of others where our locks are: what cannot be read is named, and a lock that is held is never shown as free.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use common::{claim, claim_of, held, waits};
use lockkeeper_core::Key;
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::{Inspect, LockInfo};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisOptions};

async fn server() -> (servers::Redis, Redis) {
    let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    (server, redis)
}

/// The key of the only lock.
async fn main_key(server: &servers::Redis) -> String {
    let keys = server.command(&["KEYS", "lk:{*"]).await.unwrap();
    keys.items().iter().map(servers::Value::text).min_by_key(String::len).unwrap()
}

async fn shown(redis: &Redis) -> LockInfo {
    redis.show(&Key::new("k").unwrap()).await.unwrap().expect("a lock that is not free is shown")
}

/// Those who hold, those in line, and what is foreign.
fn counted(info: &LockInfo) -> (usize, usize, usize) {
    (info.holders.len(), info.waiters.len(), info.foreign.len())
}

#[tokio::test]
async fn a_holder_that_cannot_be_read_is_named_and_the_lock_is_not_free() {
    let (server, redis) = server().await;
    let mut holder = redis.enter(claim("k"));
    held(&mut holder).await;
    let main = main_key(&server).await;
    server.command(&["SETRANGE", &main, "74", "zzzz"]).await.unwrap();
    waits(&mut redis.enter(claim("k").impatient())).await;
    let info = shown(&redis).await;
    assert_eq!(counted(&info), (0, 0, 1), "{info:?}");
    assert!(info.foreign[0].contains(&main), "{info:?}");
    let all = redis.list("").await.unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].key.as_str(), &all[0].foreign), (main.as_str(), &info.foreign), "{all:?}");
    let mut waiter = redis.enter(claim("k"));
    waits(&mut waiter).await;
    let info = shown(&redis).await;
    assert_eq!(counted(&info), (0, 1, 1), "whoever waits is not shown as the holder: {info:?}");
    let broken = redis.break_lock(&Key::new("k").unwrap()).await.unwrap();
    assert_eq!(broken.len(), 1, "somebody lost it, whoever that was: {broken:?}");
    assert!(matches!(waiter.turn().await.unwrap(), Turn::Held(_)));
}

#[tokio::test]
async fn one_of_several_holders_that_cannot_be_read_is_counted_apart() {
    for spoil in ["HSET", "HDEL"] {
        let (server, redis) = server().await;
        let shared = || claim_of("k", common::TTL, 1, 3);
        let (mut one, mut two) = (redis.enter(shared()), redis.enter(shared()));
        held(&mut one).await;
        held(&mut two).await;
        let mut writer = redis.enter(claim("k"));
        waits(&mut writer).await;
        let main = main_key(&server).await;
        let inside = server.command(&["EVAL", SPOIL, "1", &main, spoil]).await.unwrap();
        assert_eq!(inside.text(), "2");
        let info = shown(&redis).await;
        assert_eq!(counted(&info), (1, 1, 1), "{spoil}: {info:?}");
        // Whoever holds beside it can leave; the other's place ends with its time, or by hand.
        one.renew().await.unwrap();
        two.renew().await.unwrap();
        one.leave().await.unwrap();
        two.leave().await.unwrap();
        let info = shown(&redis).await;
        assert_eq!(counted(&info), (0, 1, 1), "{spoil}: {info:?}");
        let broken = redis.break_lock(&info.key).await.unwrap();
        assert_eq!(broken.len(), 1, "{broken:?}");
        assert!(matches!(writer.turn().await.unwrap(), Turn::Held(_)), "{spoil}");
    }
}

/// Spoil or remove the record of whoever is inside first, and tell how many are.
const SPOIL: &str = "local ids = redis.call('ZRANGE', KEYS[1] .. ':in', 0, -1) \
    if ARGV[1] == 'HDEL' then redis.call('HDEL', KEYS[1] .. ':who', ids[1]) \
    else redis.call('HSET', KEYS[1] .. ':who', ids[1], 'Hello') end return tostring(#ids)";

#[tokio::test]
async fn what_is_no_lock_is_named_whatever_it_begins_with() {
    let (server, redis) = server().await;
    let mut probe = redis.enter(claim("k"));
    held(&mut probe).await;
    held(&mut redis.enter(claim("other"))).await;
    let main = main_of(&server, &redis).await;
    let long = format!("H0{}", "\u{7f}".repeat(100));
    for foreign in ["Hello", "H1", "H1Hello, this is a value of another program", "R0", "F0", "W", "", &long]
    {
        server.command(&["SET", &main, foreign]).await.unwrap();
        let fault = redis.enter(claim("k")).turn().await.unwrap_err();
        assert!(!fault.is_transient() && fault.message.contains("prefix"), "{foreign:?}: {fault}");
        assert!(fault.message.contains("FOREIGN"), "{foreign:?}: {fault}");
        assert_eq!(probe.renew().await.unwrap(), Renewal::Lost, "{foreign:?}");
        let info = shown(&redis).await;
        assert_eq!(counted(&info), (0, 0, 1), "{foreign:?}: {info:?}");
        assert!(info.foreign[0].contains(&main), "{info:?}");
        let all = redis.list("").await.unwrap();
        assert_eq!(all.len(), 2, "the other lock is listed all the same: {all:?}");
        assert_eq!(redis.list("other").await.unwrap().len(), 1);
    }
}

/// The key of the lock `k`, which is free afterwards.
async fn main_of(server: &servers::Redis, redis: &Redis) -> String {
    let key = Key::new("k").unwrap();
    let before: Vec<String> = keys(server).await;
    redis.break_lock(&key).await.unwrap();
    let after = keys(server).await;
    before.into_iter().find(|it| !after.contains(it)).unwrap()
}

async fn keys(server: &servers::Redis) -> Vec<String> {
    server.command(&["KEYS", "lk:{*"]).await.unwrap().items().iter().map(servers::Value::text).collect()
}

#[tokio::test]
async fn a_key_of_another_kind_beside_a_lock_is_named() {
    for part in ["", ":who", ":in", ":line"] {
        let (server, redis) = server().await;
        let shared = || claim_of("k", common::TTL, 1, 2);
        held(&mut redis.enter(shared())).await;
        held(&mut redis.enter(shared())).await;
        waits(&mut redis.enter(claim("k"))).await;
        let key = main_key(&server).await + part;
        server.command(&["DEL", &key]).await.unwrap();
        let command = if part == ":line" { "SET" } else { "LPUSH" };
        server.command(&[command, &key, "x"]).await.unwrap();
        let info = shown(&redis).await;
        assert_eq!(counted(&info), (0, 0, 1), "{part}: {info:?}");
        assert!(info.foreign[0].contains(&key), "{info:?}");
    }
}

#[tokio::test]
async fn a_room_without_holders_is_not_free() {
    let (server, redis) = server().await;
    let shared = || claim_of("k", common::TTL, 1, 2);
    held(&mut redis.enter(shared())).await;
    held(&mut redis.enter(shared())).await;
    let main = main_key(&server).await;
    server.command(&["DEL", &format!("{main}:in")]).await.unwrap();
    waits(&mut redis.enter(shared().impatient())).await;
    assert_eq!(counted(&shown(&redis).await), (0, 0, 1));
}
