//! What tests of others are given: scopes side by side, a lock that is lost now, time that stands still.

#![cfg(all(feature = "macros", feature = "test-util"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::{Future as _, poll_fn};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::{Error, LostReason, Stage, locked, test};

#[locked("product:{id}", guard = lock)]
async fn id_of(id: u64) -> Result<String, Error> {
    tokio::task::yield_now().await;
    Ok(lock.key().to_string())
}

#[locked("nightly", guard = lock)]
fn plain() -> Result<String, Error> {
    Ok(lock.key().to_string())
}

#[tokio::test]
async fn each_test_has_a_locker_of_its_own_and_the_process_has_none() {
    let memory = || async { lockkeeper::connect("memory:").await.unwrap() };
    let (first, second) = (memory().await, memory().await);
    // Held in the one, it is free in the other.
    let held = first.lock("shop:product:7").await.unwrap();
    let busy = test::scope(first.clone(), Some("shop"), async {
        lockkeeper::default_locker().unwrap().try_lock("shop:product:7").await.unwrap().is_none()
    });
    assert!(busy.await.unwrap());
    let (one, other) = tokio::join!(
        test::scope(second.clone(), Some("shop"), id_of(7)),
        test::scope(memory().await, None, id_of(7)),
    );
    assert_eq!(one.unwrap().unwrap(), "shop:product:7");
    assert_eq!(other.unwrap().unwrap(), "product:7");
    assert_eq!(test::scope_blocking(second, Some("bank"), plain).unwrap().unwrap(), "bank:nightly");
    assert!(lockkeeper::default_locker().is_err());
    assert!(id_of(7).await.is_err(), "outside of a scope nothing has changed");
    assert!(test::scope(first, Some("a:b"), async {}).await.is_err(), "a system name has no colon");
    drop(held);
}

#[tokio::test]
async fn work_whose_lock_is_lost_is_stopped_told_so_and_the_lock_goes_to_the_next() {
    let locker = lockkeeper::connect("memory:").await.unwrap();
    let guard = locker.lock("k").max_hold(Duration::from_millis(5)).await.unwrap();
    let stopped = guard.run_and_release(std::future::pending::<()>()).await;
    assert!(matches!(stopped, Err(Error::Lost { reason: LostReason::MaxHold, .. })), "{stopped:?}");
    let next = locker.try_lock("k").await.unwrap().expect("given back, though lost");
    assert_eq!(next.run_and_release(async { 42 }).await.unwrap(), 42);
    assert!(locker.try_lock("k").await.unwrap().is_some(), "given back");
}

#[test]
fn an_error_that_main_returns_reads_as_a_sentence() {
    let silent = std::io::Error::other("nobody answers");
    for error in [
        Error::invalid("the name is empty"),
        Error::unsupported("redlock", "it has one holder at a time"),
        Error::timed_out(Stage::Local, Duration::from_millis(1500), Some(2)),
        Error::unavailable("the store", silent),
        Error::Closed,
        lockkeeper::connect_blocking("teapot://h").unwrap_err(),
    ] {
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(error.to_string().contains(' '), "{error}");
    }
}

#[tokio::test]
async fn a_lock_that_is_lost_now_stops_its_work_and_goes_to_the_next() {
    let locker = lockkeeper::connect("memory:").await.unwrap();
    let guard = locker.lock("k").await.unwrap();
    let next = tokio::spawn({
        let locker = locker.clone();
        async move { locker.lock("k").await.unwrap().fence() }
    });
    let stopped = guard.run(async {
        test::lose(&guard);
        test::lose(&guard); // twice is once
        std::future::pending::<()>().await;
    });
    let stopped = stopped.await;
    assert!(matches!(stopped, Err(Error::Lost { reason: LostReason::Taken, .. })), "{stopped:?}");
    assert!(guard.fence() < next.await.unwrap());
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn waits_and_holds_end_when_the_test_says_so() {
    let (locker, clock) = test::paused();
    let day = Duration::from_secs(24 * 3600);
    let held = locker.lock("k").max_hold(2 * day).await.unwrap();
    let mut waiting = Box::pin(locker.lock("k").wait_at_most(day));
    let waits = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
    assert!(waits);
    clock.advance_by(day);
    let ended = waiting.await;
    assert!(matches!(ended, Err(Error::TimedOut { .. })), "{ended:?}");
    assert!(held.is_valid());
    clock.advance_by(day);
    assert!(!held.is_valid());
    assert_eq!(held.lost().await, LostReason::MaxHold);
}
