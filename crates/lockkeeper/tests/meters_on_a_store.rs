//! Meters on a real store: every meter is told there, and `Meters` and the table say the same of it.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod by_table;

use std::collections::BTreeSet;
use std::time::Duration;

use by_table::ByTable;
use lockkeeper::meters::METERS;
use lockkeeper::spi::Clock;
use lockkeeper::{Fence, FencedError, Key, Locker, LostReason, Meters};
use lockkeeper_servers::{Redis, RedisOptions};

/// Wait until it is so.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        Clock::boot().sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came: {what}");
}

struct Scene {
    redis: Redis,
    meters: Meters,
    by_table: ByTable,
}

impl Scene {
    async fn new() -> Self {
        let redis = Redis::start(RedisOptions::default()).await.unwrap();
        Scene { redis, meters: Meters::new(), by_table: ByTable::default() }
    }

    async fn locker(&self, name: &str, ttl: Duration, warm: bool) -> Locker {
        let url = format!("{}?timeout=300ms", self.redis.url());
        let builder = lockkeeper::open(&url).await.unwrap().locker.name(name).ttl(ttl).warm(warm);
        let builder = builder.outage_max(Duration::from_millis(300));
        builder.observer(self.meters.clone()).observer(self.by_table.clone()).build()
    }

    /// How often the table said so.
    fn told(&self, meter: &str, labels: &[&str]) -> i64 {
        let all = self.by_table.totals();
        let is = |of: &BTreeSet<String>| labels.iter().all(|it| of.contains(*it));
        all.iter().filter(|it| it.0.0 == meter && is(&it.0.1)).map(|it| it.1).sum()
    }

    async fn hears(&self, meter: &str, labels: &[&str]) {
        eventually(&format!("{meter} {labels:?}"), || self.told(meter, labels) > 0).await;
    }
}

/// Waits in this process's line and in the store's, readers, trips of all kinds.
async fn lines_and_trips(scene: &Scene) {
    let ttl = Duration::from_secs(60);
    let (here, there) = (scene.locker("here", ttl, false).await, scene.locker("there", ttl, false).await);
    for waiting_at in [&here, &there] {
        let (asked, held) = (waiting_at.clone(), here.lock("line").await.unwrap());
        let waits = tokio::spawn(async move { drop(asked.lock("line").await.unwrap()) });
        eventually("somebody waits", || scene.meters.snapshot().sum("lockkeeper.waiting", &[]) == 1).await;
        held.release().await.unwrap();
        waits.await.unwrap();
    }
    let writer = here.write("prices").await.unwrap();
    drop(writer.downgrade().await.unwrap());
    scene.hears("lockkeeper.store.duration", &["verb=lower"]).await;
    let (resource, fence, seen) = (Key::new("a").unwrap(), Fence::from_u64(1), Fence::from_u64(2));
    let stale: Result<(), FencedError<()>> = Err(FencedError::Stale { resource, fence, seen });
    assert!(here.observe_fenced("books", stale).is_err());
    for it in [here, there] {
        it.shutdown(ttl).await.unwrap();
    }
}

/// A lock that stays with its process is taken again without a trip.
async fn warm(scene: &Scene) {
    let locker = scene.locker("warm", Duration::from_secs(60), true).await;
    for _ in 0..3 {
        locker.lock("idle").await.unwrap().release().await.unwrap();
    }
    locker.shutdown(Duration::from_secs(60)).await.unwrap();
    let by = |by| scene.told("lockkeeper.acquire.duration", &["outcome=granted", by]);
    assert_eq!(by("by=warm"), 2, "{:?}", scene.by_table.totals());
}

/// Locks that are lost in every way, and a store that dies with one that is held and one that is given back.
async fn losses_and_an_outage(scene: &Scene) {
    let locker = scene.locker("lost", Duration::from_secs(2), false).await;
    let kept = locker.lock("kept").await.unwrap();
    scene.hears("lockkeeper.renewal.margin", &[]).await;
    let broken = locker.lock("broken").await.unwrap();
    let inspect = lockkeeper::open(&scene.redis.url()).await.unwrap().inspect;
    inspect.break_lock(&Key::new("broken").unwrap()).await.unwrap();
    assert_eq!(broken.lost().await, LostReason::Taken);
    let short = locker.lock("short").max_hold(Duration::from_millis(1)).await.unwrap();
    assert_eq!(short.lost().await, LostReason::MaxHold);
    let given_back = locker.lock("given back").ttl(Duration::from_secs(60)).await.unwrap();
    scene.redis.kill().unwrap();
    drop(given_back);
    assert_eq!(kept.lost().await, LostReason::Expired);
    assert!(locker.lock("another").await.is_err());
    scene.hears("lockkeeper.abandoned", &[]).await;
    drop((kept, broken, short));
    let _ = locker.shutdown(Duration::from_millis(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_meter_is_told_on_a_real_store_and_agrees_with_the_table() {
    let scene = Scene::new().await;
    lines_and_trips(&scene).await;
    warm(&scene).await;
    losses_and_an_outage(&scene).await;
    for (meter, labels) in [
        ("lockkeeper.acquire.duration", &["outcome=failed"][..]),
        ("lockkeeper.wait.duration", &["tier=local"]),
        ("lockkeeper.wait.duration", &["tier=remote"]),
        ("lockkeeper.store.duration", &["verb=turn"]),
        ("lockkeeper.store.duration", &["verb=renew"]),
        ("lockkeeper.store.duration", &["verb=leave"]),
        ("lockkeeper.renewals", &["outcome=ok"]),
        ("lockkeeper.renewals", &["outcome=fault"]),
        ("lockkeeper.faults", &["verb=turn", "kind=transient"]),
        ("lockkeeper.faults", &["verb=renew", "kind=transient"]),
        ("lockkeeper.lost", &["reason=expired"]),
        ("lockkeeper.lost", &["reason=taken"]),
        ("lockkeeper.lost", &["reason=max_hold"]),
    ] {
        scene.hears(meter, labels).await;
    }
    let told: BTreeSet<_> = scene.by_table.totals().into_keys().map(|it| it.0).collect();
    assert_eq!(told, METERS.iter().map(|it| it.name).collect(), "every meter is told");
    // The store is asked in the background until it has forgotten the last of us.
    eventually("meters and the table agree", || {
        let (told, counted) = scene.by_table.beside(&scene.meters);
        told == counted
    })
    .await;
}
