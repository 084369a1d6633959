//! Five stages of a lock on Redis, each driven into its hole; ours goes through the same and stays whole.
//!
//! Told in `docs/guides/redis-five-stages.md`. Every test plays one scenario twice: on the lock of that stage,
//! where it must break, and on ours, where it must not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim_of, held, impatient, until_held, waits, within};
use lockkeeper_core::Clock;
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_redis::Redis;
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{self as servers, RedisOptions, RespClient};

const TTL: Duration = Duration::from_millis(300);
const NEVER_EXPIRES: i64 = -1;

struct Stage {
    server: servers::Redis,
    redis: Redis,
}

impl Stage {
    async fn set() -> Stage {
        let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
        let redis = Redis::connect(&server.url()).await.unwrap();
        Stage { server, redis }
    }

    async fn client(&self) -> RespClient {
        self.server.client().await.unwrap()
    }

    async fn until_gone(&self, key: &str) {
        within("the expiry", async {
            while self.server.command(&["EXISTS", key]).await.unwrap().int() != Some(0) {
                Clock::boot().sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

/// The stages' own way to take a lock that expires by itself, and whether it was free.
async fn set_nx_px(client: &mut RespClient, value: &str) -> bool {
    let ttl = TTL.as_millis().to_string();
    let answer = client.command(&["SET", "naive", value, "NX", "PX", &ttl]).await;
    answer.unwrap().text() == "OK"
}

#[tokio::test]
async fn stage_1_bare_setnx_is_locked_for_ever_when_its_holder_dies() {
    let stage = Stage::set().await;
    let mut holder = stage.client().await;
    assert_eq!(holder.command(&["SETNX", "naive", "1"]).await.unwrap().int(), Some(1));
    drop(holder);
    let mut other = stage.client().await;
    assert_eq!(other.command(&["SETNX", "naive", "1"]).await.unwrap().int(), Some(0));
    let left = other.command(&["PTTL", "naive"]).await.unwrap().int();
    assert_eq!(left, Some(NEVER_EXPIRES), "nobody will ever get it");

    let mut ours = stage.redis.enter(claim_of("ours", TTL, 1, 1));
    held(&mut ours).await;
    std::mem::forget(ours);
    let mut next = stage.redis.enter(claim_of("ours", TTL, 1, 1));
    waits(&mut next).await;
    until_held(&mut next).await;
}

#[tokio::test]
async fn stage_2_an_expiry_set_by_a_second_command_is_not_set_when_the_holder_dies_between() {
    let stage = Stage::set().await;
    let mut holder = stage.client().await;
    assert_eq!(holder.command(&["SETNX", "naive", "1"]).await.unwrap().int(), Some(1));
    // Here `PEXPIRE naive 300` would have followed.
    drop(holder);
    let left = stage.server.command(&["PTTL", "naive"]).await.unwrap().int();
    assert_eq!(left, Some(NEVER_EXPIRES), "nobody will ever get it");

    // Ours dies at the same point: the take was served, its answer was not heard, nothing follows.
    let proxy = Proxy::start(stage.server.port()).await.unwrap();
    let doomed = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    held(&mut doomed.enter(claim_of("warm-up", TTL, 1, 1))).await;
    proxy.lose_reply(b"EVALSHA");
    proxy.refuse().await.unwrap();
    let fault = doomed.enter(claim_of("ours", TTL, 1, 1)).turn().await.unwrap_err();
    assert!(fault.is_transient(), "{fault}");
    let mut next = stage.redis.enter(claim_of("ours", TTL, 1, 1));
    until_held(&mut next).await;
}

#[tokio::test]
async fn stage_3_an_atomic_expiry_alone_lets_a_late_holder_delete_anothers_lock() {
    let stage = Stage::set().await;
    let (mut a, mut b, mut c) = (stage.client().await, stage.client().await, stage.client().await);
    assert!(set_nx_px(&mut a, "1").await);
    stage.until_gone("naive").await;
    assert!(set_nx_px(&mut b, "1").await);
    a.command(&["DEL", "naive"]).await.unwrap();
    assert!(set_nx_px(&mut c, "1").await, "two at once: B and C");

    let (mut a, mut b) = (
        stage.redis.enter(claim_of("ours", TTL, 1, 1)),
        stage.redis.enter(claim_of("ours", Duration::from_secs(30), 1, 1)),
    );
    held(&mut a).await;
    until_held(&mut b).await;
    a.leave().await.unwrap();
    waits(&mut stage.redis.enter(impatient("ours"))).await;
    assert!(matches!(b.renew().await.unwrap(), Renewal::Held { .. }));
}

#[tokio::test]
async fn stage_4_a_unique_value_that_is_read_and_then_deleted_can_change_between() {
    let stage = Stage::set().await;
    let (mut a, mut b, mut c) = (stage.client().await, stage.client().await, stage.client().await);
    assert!(set_nx_px(&mut a, "a").await);
    assert_eq!(a.command(&["GET", "naive"]).await.unwrap().text(), "a", "it is mine, so I may delete it");
    stage.until_gone("naive").await;
    assert!(set_nx_px(&mut b, "b").await);
    a.command(&["DEL", "naive"]).await.unwrap();
    assert!(set_nx_px(&mut c, "c").await, "two at once: B and C");

    let (mut a, mut b) = (
        stage.redis.enter(claim_of("ours", TTL, 1, 1)),
        stage.redis.enter(claim_of("ours", Duration::from_secs(30), 1, 1)),
    );
    held(&mut a).await;
    assert!(matches!(a.renew().await.unwrap(), Renewal::Held { .. }), "it is mine");
    until_held(&mut b).await;
    // Looking and deleting are one script, which looks again.
    a.leave().await.unwrap();
    waits(&mut stage.redis.enter(impatient("ours"))).await;
    assert!(matches!(b.renew().await.unwrap(), Renewal::Held { .. }));
}

#[tokio::test]
async fn stage_5_an_atomic_release_does_not_help_whoever_works_longer_than_the_expiry() {
    let stage = Stage::set().await;
    let (mut a, mut b) = (stage.client().await, stage.client().await);
    assert!(set_nx_px(&mut a, "a").await);
    stage.until_gone("naive").await;
    assert!(set_nx_px(&mut b, "b").await);
    // A is still at work and does not know. Both write; the later write of A wins.
    b.command(&["SET", "stock", "from B"]).await.unwrap();
    a.command(&["SET", "stock", "from A, too late"]).await.unwrap();
    let stock = b.command(&["GET", "stock"]).await.unwrap().text();
    assert_eq!(stock, "from A, too late", "an update is lost");

    // Ours is renewed while it is used, for many ttls.
    let mut a = stage.redis.enter(claim_of("ours", TTL, 1, 1));
    let first = held(&mut a).await;
    for _ in 0..10 {
        Clock::boot().sleep(TTL / 3).await;
        assert!(matches!(a.renew().await.unwrap(), Renewal::Held { .. }));
        waits(&mut stage.redis.enter(impatient("ours"))).await;
    }
    // And if it is lost all the same, its fence is smaller than that of the next holder: the resource that
    // compares them refuses it.
    let mut b = stage.redis.enter(claim_of("ours", Duration::from_secs(30), 1, 1));
    let second = until_held(&mut b).await;
    assert!(fenced_write(&stage, second.counter, "from B").await);
    assert!(!fenced_write(&stage, first.counter, "from A, too late").await);
    assert_eq!(a.renew().await.unwrap(), Renewal::Lost);
    assert!(matches!(b.turn().await.unwrap(), Turn::Held(_)));
    let stock = stage.server.command(&["HGET", "fenced", "value"]).await.unwrap();
    assert_eq!(stock.text(), "from B");
}

/// A resource that refuses fences smaller than the largest it has seen.
async fn fenced_write(stage: &Stage, fence: u64, value: &str) -> bool {
    let script = "local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
        if tonumber(ARGV[1]) < seen then return 0 end
        redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2]) return 1";
    let words = ["EVAL", script, "1", "fenced", &fence.to_string(), value];
    stage.server.command(&words).await.unwrap().int() == Some(1)
}
