//! What tests of others are given: scopes side by side, a lock that is lost now, time that stands still.

#![cfg(all(feature = "macros", feature = "test-util"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::{Debug, Display};
use std::future::{Future as _, poll_fn};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::spi::Fault;
use lockkeeper::{Error, Fence, FencedError, Key, LostReason, Owner, Stage, locked, test};

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
        reads_as_a_sentence(&error);
    }
    let (fence, seen) = (Fence::from_u64(7), Fence::from_u64(9));
    let resource = Key::new("orders/42").unwrap();
    reads_as_a_sentence(&FencedError::<std::io::Error>::Stale { resource, fence, seen });
    reads_as_a_sentence(&FencedError::<std::io::Error>::number_of(Fence::from_u64(u64::MAX)).unwrap_err());
    reads_as_a_sentence(&Fault::transient("redis", "taking the lock", "the connection broke"));
}

/// `Debug` is what a `main` that returns an error prints.
fn reads_as_a_sentence(error: &(impl Debug + Display)) {
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(error.to_string().contains(' '), "{error}");
}

#[tokio::test]
async fn an_error_of_a_downgrade_that_main_returns_reads_as_a_sentence() {
    let (locker, owner) = (lockkeeper::connect("memory:").await.unwrap(), Owner::new("import"));
    let outer = locker.write("k").owner(&owner).await.unwrap();
    let inner = locker.write("k").owner(&owner).await.unwrap();
    reads_as_a_sentence(&outer.downgrade().await.unwrap_err());
    drop(inner);
}

#[cfg(feature = "cache")]
#[test]
fn an_error_of_the_cache_that_main_returns_reads_as_a_sentence() {
    use lockkeeper::cache::{CacheError, RebuildError};

    reads_as_a_sentence(&RebuildError::<std::io::Error>::Lock(Error::Closed));
    reads_as_a_sentence(&RebuildError::<std::io::Error>::Cache(CacheError::from("it is full")));
    let loader = RebuildError::Loader(Error::Closed);
    reads_as_a_sentence(&loader);
    // Also of a loader whose error can only be debugged, as before.
    assert_eq!(format!("{:?}", RebuildError::Loader(())), "the entry could not be loaded: ()");
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
#[tokio::test]
async fn an_error_of_row_locks_that_main_returns_reads_as_a_sentence() {
    use lockkeeper::sql::rowlock::{Attempts, Column, Retry, RowError};

    reads_as_a_sentence(&Attempts::new(Retry::times(1)).lost().await.unwrap_err());
    reads_as_a_sentence(
        &Column::new::<std::io::Error>("stock; DROP TABLE stock", "id", "amount").unwrap_err(),
    );
    reads_as_a_sentence(&RowError::<std::io::Error>::timed_out(Duration::from_millis(1500)));
}

#[cfg(feature = "twophase")]
#[test]
fn an_error_of_a_transaction_that_main_returns_reads_as_a_sentence() {
    use lockkeeper::twophase::{Participant, WorkError};

    reads_as_a_sentence(&Participant::mysql("").unwrap_err());
    reads_as_a_sentence(&WorkError::new("sold out"));
    reads_as_a_sentence(&WorkError::from(Error::Closed));
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
async fn what_is_shared_is_lost_now_and_its_work_stops() {
    let locker = lockkeeper::connect("memory:").await.unwrap();
    let permit = locker.permits("mail", 2, 2).await.unwrap();
    let stopped = permit.run(async {
        test::lose(&permit);
        std::future::pending::<()>().await;
    });
    let stopped = stopped.await;
    assert!(matches!(stopped, Err(Error::Lost { reason: LostReason::Taken, .. })), "{stopped:?}");
    assert!(locker.permits("mail", 2, 2).attempt().await.unwrap().is_some(), "both are free");
    let reader = locker.read("prices").await.unwrap();
    test::lose(&reader);
    assert!(!reader.is_valid());
    assert_eq!(reader.lost().await, LostReason::Taken);
    assert!(locker.try_lock("prices").await.unwrap().is_some(), "who writes need not wait for it");
}

#[tokio::test]
async fn several_locks_are_lost_now_together() {
    let locker = lockkeeper::connect("memory:").await.unwrap();
    let both = locker.lock_all(["from", "to"]).await.unwrap();
    let stopped = both.run(async {
        test::lose(&both);
        std::future::pending::<()>().await;
    });
    let stopped = stopped.await;
    assert!(matches!(stopped, Err(Error::Lost { reason: LostReason::Taken, .. })), "{stopped:?}");
    assert!(locker.try_lock("from").await.unwrap().is_some());
    assert!(locker.try_lock("to").await.unwrap().is_some());
    assert!(matches!(both.release().await, Err(Error::Lost { .. })));
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
