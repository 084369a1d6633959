//! Holding: reentrancy, renewal, the cap on holds, loss and its news, shutdown.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::{Future, pending};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Error, Key, Locker, Lost, LostReason, Memory, Owner};

/// Short for a person, long for a scheduler: a busy machine must not lose a renewal in it.
const SHORT: Duration = Duration::from_millis(1500);
const HANG: Duration = Duration::from_secs(30);

async fn pause(span: Duration) {
    tokio::time::timeout(span, pending::<()>()).await.unwrap_err();
}

#[tokio::test]
async fn the_same_owner_enters_again_and_must_leave_as_often() {
    let locker = Locker::new(Memory::default());
    let owner = Owner::new("import");
    let outer = locker.lock("k").owner(&owner).await.unwrap();
    let inner = locker.lock("k").owner(&owner).await.unwrap();
    assert_eq!(outer.fence(), inner.fence());
    assert!(locker.try_lock("k").await.unwrap().is_none(), "no owner is not that owner");
    assert!(locker.try_lock("k").owner(&Owner::new("import")).await.unwrap().is_none());
    drop(outer);
    assert!(inner.is_valid());
    assert!(locker.try_lock("k").await.unwrap().is_none(), "one level is still held");
    inner.release().await.unwrap();
    assert!(locker.try_lock("k").await.unwrap().is_some());
}

#[tokio::test]
async fn a_task_local_owner_enters_again_by_itself() {
    let locker = Locker::new(Memory::default());
    Owner::new("task")
        .scope(async {
            let outer = locker.lock("k").await.unwrap();
            let inner = locker.try_lock("k").await.unwrap().unwrap();
            assert_eq!(outer.fence(), inner.fence());
            let other = locker.clone();
            let spawned = tokio::spawn(async move { other.try_lock("k").await });
            assert!(spawned.await.unwrap().unwrap().is_none(), "a spawned task is somebody else");
        })
        .await;
    assert_eq!(locker.lines(), 0);
}

#[tokio::test]
async fn reentry_has_a_limit_with_a_clear_error() {
    let locker = Locker::builder(Memory::default()).depth_max(3).build();
    let owner = Owner::new("deep");
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(locker.lock("k").owner(&owner).await.unwrap());
    }
    let error = locker.lock("k").owner(&owner).await.unwrap_err();
    assert!(error.to_string().contains("3 times") && matches!(error, Error::Invalid { .. }), "{error}");
    guards.pop();
    assert!(locker.lock("k").owner(&owner).await.is_ok());
}

#[tokio::test]
async fn a_held_lock_is_renewed_for_as_long_as_the_guard_lives() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store));
    let guard = here.lock("k").ttl(SHORT).await.unwrap();
    pause(SHORT * 2).await;
    assert!(guard.is_valid());
    assert!(there.try_lock("k").await.unwrap().is_none());
}

#[test]
fn a_runtime_blocked_for_two_ttls_keeps_its_lock() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let guard = runtime.block_on(async { here.lock("k").ttl(SHORT).await }).unwrap();
    let blocked: Vec<_> = (0..2).map(|_| runtime.spawn(async { std::thread::sleep(SHORT * 2) })).collect();
    std::thread::sleep(SHORT * 2);
    assert!(there.try_lock("k").blocking().unwrap().is_none());
    assert!(guard.is_valid());
    for task in blocked {
        runtime.block_on(task).unwrap();
    }
}

#[tokio::test]
async fn max_hold_ends_the_guard_although_renewals_succeed() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store));
    let guard = here.lock("k").max_hold(SHORT).await.unwrap();
    assert!(guard.remaining() <= SHORT);
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert!(there.lock("k").wait_at_most(HANG).await.is_ok());
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::MaxHold, .. }), "{error}");
}

#[tokio::test]
async fn a_lock_broken_by_an_operator_is_told_to_its_holder_and_stays_lost() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let guard = locker.lock("k").ttl(SHORT).await.unwrap();
    let broken = store.break_lock(&Key::new("k").unwrap()).await.unwrap();
    assert_eq!(broken.len(), 1);
    assert_eq!(guard.lost().await, LostReason::Taken);
    assert!(!guard.is_valid());
    // The process can take the lock again while the old guard still lives, and the old one stays lost.
    let again = locker.lock("k").wait_at_most(HANG).await.unwrap();
    assert!(guard.fence() < again.fence());
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(again.is_valid(), "releasing a lost guard does not release its successor");
}

#[tokio::test]
async fn run_stops_the_future_when_the_lock_is_lost() {
    let locker = Locker::new(Memory::default());
    let guard = locker.lock("k").max_hold(SHORT).await.unwrap();
    assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
    let stopped = guard.run(pending::<()>()).await.unwrap_err();
    assert!(matches!(stopped, Error::Lost { reason: LostReason::MaxHold, .. }), "{stopped}");
    assert!(guard.check().is_err());
}

#[tokio::test]
async fn shutdown_gives_everything_back_and_refuses_the_rest() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let held = here.lock("held").await.unwrap();
    let outside = there.lock("outside").await.unwrap();
    let local = tokio::spawn(here.lock("held"));
    let remote = tokio::spawn(here.lock("outside"));
    tokio::task::yield_now().await;
    here.shutdown(HANG).await.unwrap();
    assert!(matches!(local.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(remote.await.unwrap(), Err(Error::Closed)));
    assert_eq!(held.lost().await, LostReason::Closed);
    assert!(matches!(here.try_lock("new").await, Err(Error::Closed)));
    drop(outside);
    here.shutdown(HANG).await.unwrap();
    assert!(store.is_empty());
}

#[tokio::test]
async fn awaiting_the_loss_ends_with_the_guard() {
    // The second shares its store, so that its locks go the whole way.
    let store = Memory::default();
    for locker in [Locker::new(Memory::default()), Locker::new(store.clone())] {
        let guard = locker.lock("k").await.unwrap();
        let (by_release, by_drop) = (tokio::spawn(guard.lost()), guard.lost());
        guard.release().await.unwrap();
        assert_eq!(by_release.await.unwrap(), LostReason::Released);
        assert_eq!(by_drop.await, LostReason::Released, "also when asked afterwards");
    }
}

#[tokio::test]
async fn whoever_awaits_the_loss_hears_of_a_plain_drop_and_not_of_the_next_guard() {
    let look = |it: &mut Lost| Pin::new(it).poll(&mut Context::from_waker(Waker::noop()));
    let locker = Locker::new(Memory::default());
    // The first lock starts the background; those after it go the short way.
    let mut before = locker.lock("k").await.unwrap().fence();
    let mut awaited = Vec::new();
    for _ in 0..3 {
        let guard = locker.lock("k").await.unwrap();
        assert!(before < guard.fence(), "each guard has a fence of its own");
        before = guard.fence();
        let mut lost = guard.lost();
        assert_eq!(look(&mut lost), Poll::Pending);
        drop(guard);
        assert_eq!(look(&mut lost), Poll::Ready(LostReason::Released));
        awaited.push(lost);
        drop(locker.lock("k").await.unwrap());
    }
    let last = locker.lock("k").await.unwrap();
    assert!(awaited.iter_mut().all(|it| look(it) == Poll::Ready(LostReason::Released)));
    assert_eq!(look(&mut last.lost()), Poll::Pending);
}

#[tokio::test]
async fn the_loss_of_the_next_guard_is_not_told_to_the_one_before() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let first = locker.lock("k").await.unwrap();
    let (told, asked_later) = (tokio::spawn(first.lost()), first.lost());
    let next = locker.lock("k");
    let next = tokio::spawn(next);
    tokio::task::yield_now().await;
    drop(first);
    let second = next.await.unwrap().unwrap();
    assert_eq!(told.await.unwrap(), LostReason::Released);
    let of_second = second.lost();
    locker.shutdown(HANG).await.unwrap();
    assert_eq!(of_second.await, LostReason::Closed);
    assert_eq!(asked_later.await, LostReason::Released);
}

#[tokio::test]
async fn what_is_done_with_a_lock_may_be_a_task_of_its_own_and_the_lock_is_given_back_after_it() {
    let (locker, wait) = (Locker::new(Memory::default()), Duration::from_secs(60));
    let name = "k".to_owned();
    let task = tokio::spawn({
        let locker = locker.clone();
        async move {
            let words = String::from("borrowed by the work");
            let fence = locker.with(&name, async |guard| {
                tokio::task::yield_now().await;
                assert!(guard.is_valid() && !words.is_empty());
                guard.fence()
            });
            let first = fence.await?;
            let second = locker.lock(&name).wait_at_most(wait).with(async move |guard| guard.fence()).await?;
            Ok::<_, Error>(first < second)
        }
    });
    assert!(task.await.unwrap().unwrap());
    assert!(locker.try_lock("k").await.unwrap().is_some(), "given back");
    let lost = locker
        .lock("k")
        .max_hold(Duration::from_millis(5))
        .with(async |_| std::future::pending::<()>().await)
        .await;
    assert!(matches!(lost, Err(Error::Lost { reason: LostReason::MaxHold, .. })), "{lost:?}");
    assert!(locker.try_lock("k").await.unwrap().is_some(), "given back, though lost");
}

#[test]
fn a_thread_without_a_runtime_works_under_a_lock_and_gives_it_back() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store));
    let fences = [(); 2].map(|()| {
        here.with_blocking("k", |guard| {
            assert!(there.try_lock("k").blocking().unwrap().is_none(), "it is held meanwhile");
            guard.fence()
        })
    });
    let [one, other] = fences.map(Result::unwrap);
    assert!(one < other);
    assert!(there.try_lock("k").blocking().unwrap().is_some(), "it was given back");
    // What comes after a loss is no result, and the next is not kept waiting.
    let lost = here.lock("k").max_hold(Duration::from_millis(1)).with_blocking(|guard| {
        while guard.is_valid() {
            std::thread::yield_now();
        }
        42
    });
    assert!(matches!(lost, Err(Error::Lost { reason: LostReason::MaxHold, .. })), "{lost:?}");
    let panics = || here.with_blocking("k", |guard| assert!(!guard.is_valid(), "as it was told"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    there.lock("k").wait_at_most(HANG).blocking().unwrap().release_blocking().unwrap();
}

#[test]
fn a_thread_without_a_runtime_shuts_down() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store));
    let guard = here.lock("k").blocking().unwrap();
    here.shutdown_blocking(HANG).unwrap();
    assert!(!guard.is_valid(), "what is held is taken back");
    assert!(matches!(here.lock("k").blocking(), Err(Error::Closed)));
    assert!(there.try_lock("k").blocking().unwrap().is_some(), "and the store has it when this returns");
    here.shutdown_blocking(Duration::ZERO).unwrap();
    // One that nobody has used has no thread of its own yet.
    Locker::new(Memory::default()).shutdown_blocking(HANG).unwrap();
}
