//! A job runs once for each tick, over all instances, and again if it did not end well.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::memos::Memos as _;
use lockkeeper_core::{Clock, Error, Key, Locker, Memory, Once};

const HANG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn many_instances_run_a_tick_once() {
    let store = Memory::default();
    let runs = Arc::new(AtomicU32::new(0));
    let mut instances = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (locker, runs) = (Locker::new(store.clone()), runs.clone());
        instances.spawn(async move {
            let job = async |_: &_| {
                tokio::task::yield_now().await;
                runs.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Error>(())
            };
            locker.once("nightly", "2026-11-15").run(job).await.unwrap()
        });
    }
    let outcomes = instances.join_all().await;
    assert_eq!(outcomes.iter().filter(|it| **it == Once::Ran(())).count(), 1);
    assert_eq!(outcomes.iter().filter(|it| **it == Once::Done).count(), 19);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert!(store.is_empty(), "no lock is left");
    // The next night is another tick; a late instance of the last one finds it done.
    let locker = Locker::new(store.clone());
    let run =
        async |tick: &str| locker.once("nightly", tick).run(async |_| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(run("2026-11-16").await, Once::Ran(()));
    assert_eq!(run("2026-11-15").await, Once::Done);
}

#[tokio::test]
async fn names_and_ticks_are_not_mixed_up() {
    let locker = Locker::new(Memory::default());
    for (name, tick) in [("a", "bc"), ("ab", "c"), ("a:b", "c"), ("a", ":bc"), ("a", "b"), ("once:1:a", "b")]
    {
        let ran = locker.once(name, tick).run(async |_| Ok::<_, Error>(())).await.unwrap();
        assert_eq!(ran, Once::Ran(()), "{name} {tick}");
    }
}

#[tokio::test]
async fn a_job_that_fails_leaves_its_tick_open() {
    let locker = Locker::new(Memory::default());
    let failed: Result<Once<()>, Error> =
        locker.once("nightly", "1").run(async |_| Err(Error::invalid("no paper"))).await;
    assert_eq!(failed.unwrap_err().to_string(), "no paper");
    assert_eq!(locker.once("nightly", "1").run(async |_| Ok::<_, Error>(7)).await.unwrap(), Once::Ran(7));
}

#[tokio::test]
async fn while_another_is_at_it_a_try_is_told_so_and_a_wait_finds_it_done() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let (begun, go_on) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let running = tokio::spawn({
        let (here, begun, go_on) = (here.clone(), begun.clone(), go_on.clone());
        async move {
            let job = async |_: &_| {
                begun.notify_one();
                go_on.notified().await;
                Ok::<_, Error>(())
            };
            here.once("nightly", "1").run(job).await.unwrap()
        }
    });
    begun.notified().await;
    let never = async |_: &_| -> Result<(), Error> { panic!("it ran twice") };
    assert_eq!(there.once("nightly", "1").attempt().run(never).await.unwrap(), Once::Busy);
    let waiting = tokio::spawn({
        let there = there.clone();
        async move { there.once("nightly", "1").wait_at_most(HANG).run(never).await.unwrap() }
    });
    while store.show(&Key::new("nightly").unwrap()).await.unwrap().is_none_or(|it| it.waiters.is_empty()) {
        tokio::task::yield_now().await;
    }
    go_on.notify_one();
    assert_eq!(running.await.unwrap(), Once::Ran(()));
    assert_eq!(waiting.await.unwrap(), Once::Done);
}

#[tokio::test]
async fn whoever_is_dropped_half_way_leaves_its_tick_open() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let begun = Arc::new(tokio::sync::Notify::new());
    let running = tokio::spawn({
        let (locker, begun) = (locker.clone(), begun.clone());
        async move {
            let job = async |_: &_| {
                begun.notify_one();
                std::future::pending::<Result<(), Error>>().await
            };
            locker.once("nightly", "1").run(job).await
        }
    });
    begun.notified().await;
    running.abort();
    let _ = running.await;
    let ran = locker.once("nightly", "1").wait_at_most(HANG).run(async |_| Ok::<_, Error>(())).await;
    assert_eq!(ran.unwrap(), Once::Ran(()));
}

#[tokio::test]
async fn a_job_whose_lock_is_lost_is_stopped_and_not_done() {
    let store = Memory::default();
    let locker = Locker::builder(store.clone()).ttl(Duration::from_millis(200)).build();
    let stopped = locker
        .once("nightly", "1")
        .run(async |guard| {
            store.break_lock(guard.key()).await.unwrap();
            std::future::pending::<Result<(), Error>>().await
        })
        .await;
    assert!(matches!(stopped, Err(Error::Lost { .. })), "{stopped:?}");
    assert_eq!(locker.once("nightly", "1").run(async |_| Ok::<_, Error>(())).await.unwrap(), Once::Ran(()));
}

#[tokio::test]
async fn a_tick_is_remembered_as_long_as_was_said() {
    let clock = Clock::virtual_from(Duration::from_secs(100));
    let store = Memory::new(clock.clone());
    let locker = Locker::builder(store.clone()).clock(clock.clone()).build();
    let run = async || {
        let once = locker.once("nightly", "1").remember(Duration::from_secs(60));
        once.run(async |_| Ok::<_, Error>(())).await.unwrap()
    };
    assert_eq!(run().await, Once::Ran(()));
    clock.advance_by(Duration::from_secs(59));
    assert_eq!(run().await, Once::Done);
    clock.advance_by(Duration::from_secs(2));
    assert_eq!(run().await, Once::Ran(()));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_anything_runs() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let never = async |_: &_| -> Result<(), Error> { panic!("it ran") };
    for (once, text) in [
        (locker.once("nightly", ""), "the tick is empty"),
        (locker.once("", "1"), "the lock name is empty"),
        (locker.once("nightly", "x".repeat(497)), "has 504 bytes; at most 503"),
        (locker.once("nightly", "1").remember(Duration::ZERO), "for no time"),
        (locker.once("nightly", "1").ttl(Duration::ZERO), "a ttl of 0ns"),
    ] {
        let error = once.run(never).await.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(store.is_empty());
    }
    let left = store.read(&Key::new("once:7:nightly1").unwrap()).await.unwrap();
    assert_eq!(left, None);
}
