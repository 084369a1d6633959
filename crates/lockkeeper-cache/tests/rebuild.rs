//! One process: what is loaded, remembered, forgotten and served.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_cache::{Cache, CacheError, Found, MemoryCache, Rebuild, RebuildError};
use lockkeeper_core::{Clock, Error, Locker, Memory, Owner};
use tokio::sync::{Barrier, Notify};

const HANG: Duration = Duration::from_secs(60);
const MINUTE: Duration = Duration::from_secs(60);

type Loads = AtomicU32;

/// A loader that counts and answers with its count.
fn counting(loads: &Loads) -> Ready<Result<Option<u32>, Infallible>> {
    ready(Ok(Some(loads.fetch_add(1, Ordering::SeqCst) + 1)))
}

fn on(clock: &Clock) -> Rebuild<MemoryCache<u32>> {
    Rebuild::local(MemoryCache::with_clock(100, clock.clone())).jitter_percent(0)
}

#[tokio::test]
async fn a_thousand_callers_make_one_load_per_key() {
    let (rebuild, loads) = (Arc::new(Rebuild::local(MemoryCache::new(10))), Arc::new(Loads::new(0)));
    let start = Arc::new(Barrier::new(1000));
    let callers: Vec<_> = (0..1000)
        .map(|caller| {
            let (rebuild, loads, start) = (rebuild.clone(), loads.clone(), start.clone());
            tokio::spawn(async move {
                start.wait().await;
                let loader = || async {
                    tokio::task::yield_now().await;
                    counting(&loads).await
                };
                rebuild.get_or_load(if caller % 2 == 0 { "even" } else { "odd" }, loader).await.unwrap()
            })
        })
        .collect();
    for caller in callers {
        assert!(matches!(caller.await.unwrap(), Some(1 | 2)));
    }
    assert_eq!(loads.load(Ordering::SeqCst), 2);
}

/// Two futures of one task, in the scope of one owner, as in the body of a locked function.
#[tokio::test]
async fn two_callers_of_one_owner_make_one_load() {
    let (rebuild, loads) = (Rebuild::local(MemoryCache::new(10)), Loads::new(0));
    let get = || {
        rebuild.get_or_load("k", || async {
            tokio::task::yield_now().await;
            counting(&loads).await
        })
    };
    let owner = Owner::new("x");
    let both = owner.scope(async { tokio::join!(get(), get()) });
    let (one, other) = tokio::time::timeout(HANG, both).await.expect("they wait for each other");
    assert_eq!((one.unwrap(), other.unwrap()), (Some(1), Some(1)));
    assert_eq!(loads.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_entry_lives_as_long_as_told_and_then_is_loaded_again() {
    let (clock, loads) = (Clock::virtual_from(MINUTE), Loads::new(0));
    let rebuild = on(&clock).ttl(MINUTE);
    for expected in [1, 1] {
        assert_eq!(rebuild.get_or_load("k", || counting(&loads)).await.unwrap(), Some(expected));
    }
    clock.advance_by(MINUTE);
    assert_eq!(rebuild.get_or_load("k", || counting(&loads)).await.unwrap(), Some(2));
    rebuild.remove("k").await.unwrap();
    assert_eq!(rebuild.get_or_load("k", || counting(&loads)).await.unwrap(), Some(3));
}

#[tokio::test]
async fn what_does_not_exist_is_remembered_for_a_shorter_time() {
    let (clock, loads) = (Clock::virtual_from(MINUTE), Loads::new(0));
    let rebuild = on(&clock).ttl(MINUTE).absent_ttl(Duration::from_secs(1));
    let absent = || async {
        loads.fetch_add(1, Ordering::SeqCst);
        Ok::<Option<u32>, Infallible>(None)
    };
    for _ in 0..3 {
        assert_eq!(rebuild.get_or_load("k", absent).await.unwrap(), None);
    }
    assert_eq!(loads.load(Ordering::SeqCst), 1);
    clock.advance_by(Duration::from_secs(1));
    assert_eq!(rebuild.get_or_load("k", absent).await.unwrap(), None);
    assert_eq!(loads.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_error_or_a_panic_is_not_remembered_and_frees_the_lock() {
    let (rebuild, loads) = (Arc::new(Rebuild::local(MemoryCache::new(10))), Loads::new(0));
    let failed = rebuild.get_or_load("k", || async { Err::<Option<u32>, _>("no") }).await;
    assert!(matches!(failed, Err(RebuildError::Loader("no"))), "{failed:?}");
    let panicking = tokio::spawn({
        let rebuild = rebuild.clone();
        async move {
            let loader = || async { panic!("on purpose") };
            rebuild.get_or_load::<u32, Infallible, _>("k", loader).await
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    let loaded = tokio::time::timeout(HANG, rebuild.get_or_load("k", || counting(&loads))).await.unwrap();
    assert_eq!(loaded.unwrap(), Some(1));
}

#[tokio::test]
async fn while_one_loads_the_others_are_served_stale() {
    let (clock, loads) = (Clock::virtual_from(MINUTE), Loads::new(0));
    let rebuild = Arc::new(on(&clock).ttl(MINUTE).serve_stale(MINUTE));
    assert_eq!(rebuild.get_or_load("k", || counting(&loads)).await.unwrap(), Some(1));
    clock.advance_by(MINUTE);
    let (loading, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let loader = tokio::spawn({
        let (rebuild, loading, go_on) = (rebuild.clone(), loading.clone(), go_on.clone());
        async move {
            let load = || async {
                loading.notify_one();
                go_on.notified().await;
                Ok::<_, Infallible>(Some(2))
            };
            rebuild.get_or_load("k", load).await.unwrap()
        }
    });
    loading.notified().await;
    assert_eq!(rebuild.get_or_load("k", || counting(&loads)).await.unwrap(), Some(1), "the old value");
    go_on.notify_one();
    assert_eq!(loader.await.unwrap(), Some(2));
    assert_eq!(rebuild.get_or_load("k", || counting(&loads)).await.unwrap(), Some(2));
    clock.advance_by(MINUTE);
    let failing = rebuild.get_or_load("k", || async { Err::<Option<u32>, _>("no") }).await;
    assert_eq!(failing.unwrap(), Some(2), "an old value is better than none");
    clock.advance_by(MINUTE);
    let failing = rebuild.get_or_load("k", || async { Err::<Option<u32>, _>("no") }).await;
    assert!(failing.is_err(), "too old");
}

#[tokio::test]
async fn entries_made_together_do_not_expire_together() {
    let clock = Clock::virtual_from(MINUTE);
    let rebuild = on(&clock).ttl(MINUTE).jitter_percent(50);
    let mut ends = Vec::new();
    for key in 0..32 {
        let key = key.to_string();
        rebuild.get_or_load(&key, || async { Ok::<_, Infallible>(Some(1)) }).await.unwrap();
        ends.push(rebuild.cache().get(&key).await.unwrap().unwrap().expires_in);
    }
    assert!(ends.iter().all(|it| (MINUTE / 2..=MINUTE).contains(it)), "{ends:?}");
    ends.sort();
    ends.dedup();
    assert!(ends.len() > 16, "{ends:?}");
}

#[tokio::test]
async fn a_lock_that_is_not_had_in_time_is_an_error_and_nothing_is_loaded() {
    let (locker, loads) = (Locker::new(Memory::default()), Loads::new(0));
    let rebuild = Rebuild::new(MemoryCache::new(1), locker.clone()).wait_at_most(Duration::from_millis(5));
    let _taken = locker.lock("cache:k").await.unwrap();
    let error = rebuild.get_or_load("k", || counting(&loads)).await.unwrap_err();
    assert!(matches!(error, RebuildError::Lock(Error::TimedOut { .. })), "{error}");
    assert_eq!(loads.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_loader_whose_lock_is_lost_is_stopped_and_stores_nothing() {
    let locker = Locker::builder(Memory::default()).max_hold(Duration::from_millis(20)).build();
    let rebuild = Rebuild::new(MemoryCache::<u32>::new(1), locker);
    let endless = || std::future::pending::<Result<Option<u32>, Infallible>>();
    let lost = tokio::time::timeout(HANG, rebuild.get_or_load("k", endless)).await.unwrap();
    assert!(matches!(lost, Err(RebuildError::Lock(Error::Lost { .. }))), "{lost:?}");
    assert!(rebuild.cache().is_empty());
}

/// A cache that is down.
struct Down;

impl Cache<u32> for Down {
    async fn get(&self, _: &str) -> Result<Option<Found<u32>>, CacheError> {
        Err("down".into())
    }

    async fn put(&self, _: &str, _: Option<&u32>, _: Duration) -> Result<(), CacheError> {
        Err("down".into())
    }

    async fn remove(&self, _: &str) -> Result<(), CacheError> {
        Err("down".into())
    }
}

#[tokio::test]
async fn a_cache_that_is_down_is_said() {
    let loads = Loads::new(0);
    let error = Rebuild::local(Down).get_or_load("k", || counting(&loads)).await.unwrap_err();
    assert!(matches!(&error, RebuildError::Cache(it) if it.to_string() == "down"), "{error}");
}

#[tokio::test]
async fn a_full_cache_makes_room_by_what_expires_first() {
    let clock = Clock::virtual_from(MINUTE);
    let cache = MemoryCache::with_clock(2, clock.clone());
    for (key, seconds) in [("a", 10), ("b", 5), ("c", 20)] {
        cache.put(key, Some(&1), Duration::from_secs(seconds)).await.unwrap();
    }
    assert_eq!(cache.len(), 2);
    assert!(cache.get("b").await.unwrap().is_none() && cache.get("a").await.unwrap().is_some());
    clock.advance_by(Duration::from_secs(10));
    assert!(cache.get("a").await.unwrap().is_none(), "expired");
    cache.put("d", None, MINUTE).await.unwrap();
    assert_eq!((cache.len(), cache.get("d").await.unwrap().unwrap().value), (2, None));
}
