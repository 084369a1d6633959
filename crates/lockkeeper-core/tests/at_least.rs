//! A lock that is given back early stays with the store until its time is over, and no longer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::{Claim, Clock, Error, Key, Locker, Memory};

const MINUTE: Duration = Duration::from_secs(60);
/// Far beyond what anything here needs: only a test that hangs meets it.
const HANG: Duration = Duration::from_secs(60);

fn two_processes() -> (Clock, Memory, Locker, Locker) {
    let clock = Clock::virtual_from(Duration::from_secs(100));
    let store = Memory::new(clock.clone());
    let locker = || Locker::builder(store.clone()).clock(clock.clone()).build();
    let (here, there) = (locker(), locker());
    (clock, store, here, there)
}

/// For how long the store keeps the lock without hearing from anybody.
async fn kept_for(store: &Memory) -> Duration {
    let info = store.show(&Key::new("nightly").unwrap()).await.unwrap();
    info.and_then(|it| it.holders.first().map(|it| it.valid_for)).unwrap_or_default()
}

#[tokio::test]
async fn a_release_before_the_time_keeps_the_lock_until_then() {
    let (clock, store, here, there) = two_processes();
    for drops in [false, true] {
        let guard = here.lock("nightly").hold_at_least(MINUTE).await.unwrap();
        clock.advance_by(Duration::from_secs(3));
        let lost = guard.lost();
        if drops {
            drop(guard);
            lost.await;
        } else {
            guard.release().await.unwrap();
        }
        // A drop tells the store in the background: time must not pass before it knows.
        while kept_for(&store).await < MINUTE / 2 {
            tokio::task::yield_now().await;
        }
        // Neither another process nor this one gets it, renewed or not.
        clock.advance_by(Duration::from_secs(56));
        assert!(there.try_lock("nightly").await.unwrap().is_none());
        assert!(here.try_lock("nightly").await.unwrap().is_none());
        clock.advance_by(Duration::from_secs(2));
        there.try_lock("nightly").await.unwrap().expect("its time is over").release().await.unwrap();
    }
}

#[tokio::test]
async fn a_release_after_the_time_gives_it_back_at_once() {
    let (clock, store, here, there) = two_processes();
    let guard = here.lock("nightly").ttl(MINUTE * 3).hold_at_least(MINUTE).await.unwrap();
    clock.advance_by(Duration::from_secs(61));
    guard.release().await.unwrap();
    assert!(there.try_lock("nightly").await.unwrap().is_some());
    drop(store);
}

#[tokio::test]
async fn whoever_waits_gets_it_when_its_time_is_over() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    for waits_first in [true, false] {
        let guard = here.lock("nightly").hold_at_least(Duration::from_millis(300)).await.unwrap();
        let until = Clock::boot().now().after(guard.timings().remote + Duration::from_millis(250));
        let waiting = tokio::spawn({
            let locker = if waits_first { there.clone() } else { here.clone() };
            async move { locker.lock("nightly").wait_at_most(HANG).await.unwrap() }
        });
        tokio::task::yield_now().await;
        guard.release().await.unwrap();
        let next = waiting.await.unwrap();
        assert!(until < Clock::boot().now(), "it was given away before its time");
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn also_where_the_line_is_the_whole_lock() {
    let locker = Locker::new(Memory::default());
    let guard = locker.lock("nightly").hold_at_least(Duration::from_millis(200)).await.unwrap();
    let until = Clock::boot().now().after(Duration::from_millis(150));
    guard.release().await.unwrap();
    assert!(locker.try_lock("nightly").await.unwrap().is_none());
    locker.lock("nightly").wait_at_most(HANG).await.unwrap().release().await.unwrap();
    assert!(until < Clock::boot().now(), "it was given away before its time");
    assert_eq!(locker.lines(), 0);
}

#[tokio::test]
async fn a_locker_that_is_shut_down_leaves_it_there() {
    let (clock, _store, here, there) = two_processes();
    let guard = here.lock("nightly").hold_at_least(MINUTE).await.unwrap();
    here.shutdown(HANG).await.unwrap();
    assert!(!guard.is_valid());
    clock.advance_by(Duration::from_secs(30));
    assert!(there.try_lock("nightly").await.unwrap().is_none());
    clock.advance_by(Duration::from_secs(31));
    assert!(there.try_lock("nightly").await.unwrap().is_some());
}

/// A store that cannot.
#[derive(Clone, Debug)]
struct Plain(Memory);

impl Backend for Plain {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        Profile::new("plain", Reach::Process).fifo()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        self.0.enter(claim)
    }
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_in_words_and_nothing_is_taken() {
    let store = Memory::default();
    let plain = Locker::new(Plain(store.clone()));
    let error = plain.lock("nightly").hold_at_least(MINUTE).await.unwrap_err();
    assert!(
        matches!(error, Error::Unsupported { .. }) && error.to_string().contains("hold_at_least"),
        "{error}"
    );
    let locker = Locker::new(store.clone());
    let error = locker.lock("nightly").max_hold(MINUTE).hold_at_least(MINUTE * 2).await.unwrap_err();
    assert!(error.to_string().contains("longer than `max_hold`"), "{error}");
    assert!(store.is_empty());
}
