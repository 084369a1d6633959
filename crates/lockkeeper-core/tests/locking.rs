//! Taking and giving back: tries, waits, timeouts, cancellation, blocking threads, bad input.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use lockkeeper_core::inspect::{Inspect as _, Occupant};
use lockkeeper_core::{
    Clock, Error, Fence, Guard, Key, LockRequest, Locker, LockerBuilder, Memory, MultiGuard, Owner,
    SharedGuard, Stage,
};

const MILLIS_20: Duration = Duration::from_millis(20);
/// Long enough that only a hang reaches it.
const HANG: Duration = Duration::from_secs(30);

/// Two lockers over one store: to the store they are two processes.
fn two_processes() -> (Locker, Locker) {
    let store = Memory::default();
    (Locker::new(store.clone()), Locker::new(store))
}

#[tokio::test]
async fn a_free_lock_is_had_and_given_back() {
    let (here, there) = two_processes();
    let guard = here.lock("k").await.unwrap();
    assert!(guard.is_valid());
    assert_eq!(guard.key().as_str(), "k");
    assert!(there.try_lock("k").await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(there.try_lock("k").await.unwrap().is_some());
}

#[tokio::test]
async fn a_try_answers_none_for_a_lock_taken_in_the_same_process() {
    let (here, _) = two_processes();
    let guard = here.lock("k").await.unwrap();
    assert!(here.try_lock("k").await.unwrap().is_none());
    drop(guard);
    assert!(here.try_lock("k").await.unwrap().is_some());
}

#[tokio::test]
async fn names_that_differ_never_share_a_lock() {
    let (here, _) = two_processes();
    let names = ["Order", "order", "a", "a ", "é", "e\u{301}", "a/b", "..", "{x}", "*", "\u{202e}", "🔒"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(here.try_lock(name).await.unwrap().unwrap_or_else(|| panic!("{name:?} is taken")));
    }
}

#[tokio::test]
async fn a_bounded_wait_ends_and_says_where() {
    let (here, there) = two_processes();
    let _guard = here.lock("k").await.unwrap();
    let local = here.lock("k").wait_at_most(MILLIS_20).await.unwrap_err();
    assert!(matches!(local, Error::TimedOut { stage: Stage::Local, ahead: Some(1), .. }), "{local}");
    let remote = there.lock("k").wait_at_most(MILLIS_20).await.unwrap_err();
    assert!(matches!(remote, Error::TimedOut { stage: Stage::Remote, ahead: Some(1), .. }), "{remote}");
}

#[tokio::test]
async fn a_wait_of_zero_and_of_for_ever_are_waits() {
    let (here, there) = two_processes();
    let guard = here.lock("k").wait_at_most(Duration::ZERO).await.unwrap();
    let waiting = tokio::spawn(there.lock("k").wait_at_most(Duration::MAX));
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().is_valid());
}

#[tokio::test]
async fn one_budget_covers_both_lines() {
    let clock = Clock::virtual_from(HANG);
    let store = Memory::new(clock.clone());
    let locker = || Locker::builder(store.clone()).clock(clock.clone()).build();
    let (here, there) = (locker(), locker());
    let waits_at_the_store = async |note: &str| {
        let noted = |it: &Occupant| it.label.note.as_deref() == Some(note);
        while !store
            .show(&Key::new("k").unwrap())
            .await
            .unwrap()
            .is_some_and(|it| it.waiters.iter().any(noted))
        {
            tokio::task::yield_now().await;
        }
    };
    // With a ttl of its own each needs a place of its own; else the second would go on with that of the first.
    let asked = |note: &str, millis| {
        let request = here.lock("k").note(note).ttl(HANG + Duration::from_secs(millis));
        tokio::spawn(request.wait_at_most(Duration::from_millis(millis)))
    };
    let outside = there.lock("k").await.unwrap();
    let first = asked("first", 60);
    waits_at_the_store("first").await;
    // The second stands in the local line until the first gives up, and then in the store's.
    let second = asked("second", 120);
    tokio::task::yield_now().await;
    clock.advance_by(Duration::from_millis(60));
    assert!(matches!(first.await.unwrap(), Err(Error::TimedOut { stage: Stage::Remote, .. })));
    waits_at_the_store("second").await;
    clock.advance_by(Duration::from_millis(59));
    tokio::task::yield_now().await;
    assert!(!second.is_finished());
    clock.advance_by(Duration::from_millis(1));
    let second = second.await.unwrap().unwrap_err();
    let Error::TimedOut { stage: Stage::Remote, waited, .. } = second else { panic!("{second}") };
    assert_eq!(waited, Duration::from_millis(120));
    drop(outside);
}

#[tokio::test]
async fn a_dropped_wait_leaves_nothing_behind() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let guard = here.lock("k").await.unwrap();
    for locker in [&here, &there] {
        let mut waiting = Box::pin(locker.lock("k"));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        drop(waiting);
    }
    guard.release().await.unwrap();
    there.shutdown(HANG).await.unwrap();
    assert!(store.is_empty() && here.lines() == 0 && there.lines() == 0);
}

#[tokio::test]
async fn the_place_of_a_caller_that_gives_up_goes_to_the_next() {
    let store = Memory::default();
    let lockers: Vec<_> = (0..3).map(|_| Locker::new(store.clone())).collect();
    let holder = lockers[0].lock("k").await.unwrap();
    let mut impatient = Box::pin(lockers[1].lock("k"));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(impatient.as_mut().poll(&mut cx).is_pending());
    let second = tokio::spawn(lockers[1].lock("k"));
    tokio::task::yield_now().await;
    let outsider = tokio::spawn(lockers[2].lock("k"));
    tokio::task::yield_now().await;
    drop(impatient);
    holder.release().await.unwrap();
    // The process kept its place before the outsider, although the caller that took it is gone.
    let second = second.await.unwrap().unwrap();
    assert!(!outsider.is_finished());
    drop(second);
    assert!(outsider.await.unwrap().unwrap().is_valid());
}

#[tokio::test]
async fn a_full_line_refuses_at_once() {
    let locker = Locker::builder(Memory::default()).waiters_max(2).build();
    let _guard = locker.lock("k").await.unwrap();
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(locker.lock("k"))).collect();
    tokio::task::yield_now().await;
    let refused = locker.lock("k").await.unwrap_err();
    assert!(matches!(refused, Error::Full { waiters: 2, .. }), "{refused}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    for it in waiting {
        assert!(it.await.unwrap_err().is_cancelled());
    }
    assert!(locker.lock("k").wait_at_most(MILLIS_20).await.is_err(), "aborted callers left the line");
}

#[tokio::test]
async fn a_guard_moves_between_tasks_and_threads() {
    let (here, there) = two_processes();
    let guard = here.lock("k").await.unwrap();
    let guard = tokio::spawn(async move { guard }).await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    assert!(there.lock("k").await.unwrap().is_valid());
}

#[test]
fn threads_without_a_runtime_lock_too() {
    let store = Memory::default();
    let sum = Arc::new(AtomicUsize::new(0));
    let work = |locker: Locker, sum: Arc<AtomicUsize>| {
        for _ in 0..100 {
            let guard = locker.lock("sum").blocking().unwrap();
            let seen = sum.load(Ordering::Relaxed);
            std::thread::yield_now();
            sum.store(seen + 1, Ordering::Relaxed);
            guard.release_blocking().unwrap();
        }
    };
    let threads: Vec<_> = (0..2)
        .flat_map(|_| {
            let locker = Locker::new(store.clone());
            (0..4).map(move |_| locker.clone())
        })
        .map(|locker| {
            let sum = sum.clone();
            std::thread::spawn(move || work(locker, sum))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(sum.load(Ordering::Relaxed), 800);
}

#[test]
fn a_guard_can_be_dropped_where_no_runtime_is() {
    let (here, there) = two_processes();
    let guard = here.lock("k").blocking().unwrap();
    drop(guard);
    assert!(there.lock("k").wait_at_most(HANG).blocking().unwrap().is_valid());
    assert!(there.try_lock("k").blocking().unwrap().is_some());
}

#[test]
fn a_guard_outlives_the_runtime_that_took_it() {
    let (here, there) = two_processes();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard: Guard = runtime.block_on(here.lock("k")).unwrap();
    drop(runtime);
    assert!(guard.is_valid());
    drop(guard);
    assert!(there.lock("k").wait_at_most(HANG).blocking().unwrap().is_valid());
}

#[tokio::test]
async fn bad_requests_are_refused_and_change_nothing() {
    let (here, _) = two_processes();
    let ttls = [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(u64::MAX), Duration::MAX];
    for ttl in ttls {
        let error = here.lock("k").ttl(ttl).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{ttl:?}: {error}");
    }
    for name in ["", "a\nb", "a\0", &"x".repeat(513)] {
        assert!(matches!(here.try_lock(name).await, Err(Error::Invalid { .. })), "{name:?}");
    }
    assert!(matches!(here.lock("k").max_hold(Duration::ZERO).await, Err(Error::Invalid { .. })));
    assert_eq!(here.lines(), 0);
}

#[tokio::test]
async fn the_guard_tells_how_long_each_line_took() {
    let (here, there) = two_processes();
    let outside = there.lock("k").await.unwrap();
    let first = tokio::spawn(here.lock("k"));
    tokio::task::yield_now().await;
    let second = tokio::spawn(here.lock("k"));
    tokio::time::timeout(MILLIS_20, std::future::pending::<()>()).await.unwrap_err();
    outside.release().await.unwrap();
    let first = first.await.unwrap().unwrap();
    assert!(MILLIS_20 <= first.timings().remote && first.timings().local < first.timings().remote);
    drop(first);
    let second = second.await.unwrap().unwrap();
    assert!(MILLIS_20 <= second.timings().local && second.timings().remote.is_zero());
}

#[tokio::test]
async fn idle_keys_leave_the_map() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    for n in 0..10_000 {
        locker.lock(format!("name {n}")).await.unwrap().release().await.unwrap();
    }
    assert_eq!((locker.lines(), store.len()), (0, 0));
}

#[tokio::test]
async fn a_bounded_wait_on_a_blocked_worker_ends_too() {
    let (here, there) = two_processes();
    let _guard = here.lock("k").await.unwrap();
    // The only worker of this test's runtime is blocked, so its timers stand still.
    let local = here.lock("k").wait_at_most(MILLIS_20).blocking().unwrap_err();
    assert!(matches!(local, Error::TimedOut { stage: Stage::Local, .. }), "{local}");
    let remote = there.lock("k").wait_at_most(MILLIS_20).blocking().unwrap_err();
    assert!(matches!(remote, Error::TimedOut { stage: Stage::Remote, .. }), "{remote}");
}

/// What users keep in the state of a service, or hold across an `await` of a spawned task.
#[test]
fn what_users_hold_goes_between_threads() {
    fn goes_between<T: Send + Sync + 'static>() {}
    fn is_sent<T: Send>(_: &T) {}
    goes_between::<(Locker, LockerBuilder, Guard, SharedGuard, MultiGuard)>();
    goes_between::<(Error, Fence, Key, Owner)>();
    let locker = Locker::new(Memory::default());
    let request: LockRequest = locker.lock("x");
    is_sent(&request);
    let whole = async move {
        let guard = request.await?;
        guard.run(std::future::ready(())).await?;
        guard.release().await
    };
    is_sent(&whole);
}
