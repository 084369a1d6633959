//! The local queue hands a tenure on: order, fences, and the bounds that keep other processes served.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::observe::{Event, GrantedBy, Observer};
use lockkeeper_core::{Fence, Locker, Memory};

#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<(Fence, GrantedBy)>>>);

impl Observer for Log {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Granted { fence, by, .. } = event {
            self.0.lock().unwrap().push((*fence, *by));
        }
    }
}

/// `callers` tasks of this process wait for `k` in a known order; each tells its number when served.
async fn stand_in_line(locker: &Locker, callers: usize) -> Arc<Mutex<Vec<usize>>> {
    let served = Arc::new(Mutex::new(Vec::new()));
    for n in 0..callers {
        let (locker, served) = (locker.clone(), served.clone());
        tokio::spawn(async move {
            let guard = locker.lock("k").await.unwrap();
            served.lock().unwrap().push(n);
            tokio::task::yield_now().await;
            drop(guard);
        });
        tokio::task::yield_now().await;
    }
    served
}

#[tokio::test]
async fn callers_are_served_in_order_and_each_has_a_larger_fence() {
    let log = Log::default();
    let locker = Locker::builder(Memory::default()).observer(log.clone()).build();
    let guard = locker.lock("k").await.unwrap();
    let served = stand_in_line(&locker, 100).await;
    drop(guard);
    drop(locker.lock("k").await.unwrap());
    assert_eq!(*served.lock().unwrap(), (0..100).collect::<Vec<_>>());
    let grants = log.0.lock().unwrap().clone();
    assert!(grants.windows(2).all(|it| it[0].0 < it[1].0), "{grants:?}");
    // Nobody outside waits, so one grant of the store serves everybody.
    let by_store = grants.iter().filter(|it| it.1 == GrantedBy::Store).count();
    assert_eq!((by_store, grants.len()), (1, 102));
}

#[tokio::test]
async fn an_outsider_that_comes_in_the_middle_of_a_tenure_is_noticed_and_served() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store));
    let never_idle: Vec<_> = (0..8)
        .map(|_| {
            let here = here.clone();
            tokio::spawn(async move {
                loop {
                    let guard = here.lock("k").await.unwrap();
                    tokio::task::yield_now().await;
                    drop(guard);
                }
            })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    // Callers of this process would keep the lock for ever if nobody asked who waits outside.
    let outsider = there.lock("k").wait_at_most(Duration::from_secs(60)).await.unwrap();
    assert!(outsider.is_valid());
    never_idle.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn with_two_busy_processes_both_are_served_in_turn() {
    let store = Memory::default();
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    let start = Locker::new(store.clone()).lock("k").await.unwrap();
    for process in 0..2 {
        let locker = Locker::builder(store.clone()).hand_on_count_max(4).build();
        for _ in 0..40 {
            let (locker, log) = (locker.clone(), log.clone());
            tasks.push(tokio::spawn(async move {
                let guard = locker.lock("k").await.unwrap();
                log.lock().unwrap().push((process, guard.fence()));
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }));
        }
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(start);
    for task in tasks {
        task.await.unwrap();
    }
    let log = log.lock().unwrap();
    assert!(log.windows(2).all(|it| it[0].1 < it[1].1), "fences grow across processes");
    // While both wait, no process serves more than 1 + 4 of its callers in a row.
    let contended = &log[..log.iter().rposition(|it| it.0 != log[79].0).unwrap()];
    let mut longest = 0;
    let mut row = 0;
    for pair in contended.windows(2) {
        row = if pair[0].0 == pair[1].0 { row + 1 } else { 0 };
        longest = longest.max(row + 1);
    }
    assert!(longest <= 5, "{longest} in a row: {log:?}");
}

/// A store that only its locker can reach, and one that others can.
fn private_and_shared() -> [(Memory, Option<Memory>); 2] {
    let shared = Memory::default();
    [(Memory::default(), None), (shared.clone(), Some(shared))]
}

#[tokio::test]
async fn a_request_with_another_ttl_gets_a_grant_of_its_own_and_a_larger_fence() {
    for (store, _others) in private_and_shared() {
        let log = Log::default();
        let locker = Locker::builder(store).observer(log.clone()).build();
        let guard = locker.lock("k").await.unwrap();
        let other = tokio::spawn(locker.lock("k").ttl(Duration::from_secs(60)));
        tokio::task::yield_now().await;
        let third = tokio::spawn(locker.lock("k"));
        tokio::task::yield_now().await;
        drop(guard);
        let other = other.await.unwrap().unwrap();
        assert!(Duration::from_secs(50) < other.remaining());
        drop(other);
        drop(third.await.unwrap().unwrap());
        let grants = log.0.lock().unwrap().clone();
        assert!(grants.iter().all(|it| it.1 == GrantedBy::Store), "{grants:?}");
        assert!(grants.windows(2).all(|it| it[0].0 < it[1].0), "{grants:?}");
    }
}

#[tokio::test]
async fn fences_grow_past_the_hand_ons_that_one_grant_can_number() {
    for (store, _others) in private_and_shared() {
        let locker = Locker::new(store);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (locker, seen) = (locker.clone(), seen.clone());
                tokio::spawn(async move {
                    for _ in 0..20_000 {
                        let guard = locker.lock("k").await.unwrap();
                        seen.lock().unwrap().push(guard.fence());
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 80_000);
        assert!(seen.windows(2).all(|it| it[0] < it[1]));
        assert!(
            seen.first().unwrap().counter() < seen.last().unwrap().counter(),
            "one grant cannot number them all"
        );
    }
}

#[tokio::test]
async fn a_caller_that_vanishes_at_the_moment_of_its_turn_is_passed_over() {
    let locker = Locker::new(Memory::default());
    for _ in 0..50 {
        let guard = locker.lock("k").await.unwrap();
        let vanishing = tokio::spawn(locker.lock("k"));
        tokio::task::yield_now().await;
        let staying = tokio::spawn(locker.lock("k"));
        tokio::task::yield_now().await;
        drop(guard);
        vanishing.abort();
        assert!(staying.await.unwrap().unwrap().is_valid());
    }
}
