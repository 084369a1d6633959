//! Several locks at once: all or none, in one order, lost together, given back together.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Profile, Renewal, Result as Answer, Turn};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::multi::KEYS_MAX;
use lockkeeper_core::{Claim, Error, Key, Locker, LostReason, Memory, Owner, Wish};
use tokio::sync::Barrier;

/// Far beyond what anything here needs: only a test that hangs meets it.
const HANG: Duration = Duration::from_secs(60);

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

#[tokio::test]
async fn all_are_held_and_all_are_given_back() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let held = here.lock_all(["c", "a", "b"]).await.unwrap();
    let names: Vec<&str> = held.keys().map(Key::as_str).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(held.is_valid() && held.check().is_ok() && !held.remaining().is_zero());
    for name in ["a", "b", "c"] {
        assert!(there.try_lock(name).await.unwrap().is_none(), "{name} is free");
        assert!(held.fence(name).is_some() && held.shared_fence(name).is_none());
    }
    assert!(held.fence("d").is_none());
    let lost = held.lost();
    held.release().await.unwrap();
    assert_eq!(lost.await, LostReason::Released);
    assert!(store.is_empty() && here.lines() == 0);
}

#[test]
fn it_works_without_a_runtime() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let held = locker.lock_all(["a", "b"]).blocking().unwrap();
    assert!(locker.lock_all(["b", "c"]).attempt().blocking().unwrap().is_none());
    held.release_blocking().unwrap();
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_try_takes_all_or_nothing() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let taken = there.lock("b").await.unwrap();
    assert!(here.lock_all(["a", "b", "c"]).attempt().await.unwrap().is_none());
    taken.release().await.unwrap();
    // What it had is given back in the background.
    for name in ["a", "c"] {
        there.lock(name).wait_at_most(HANG).await.unwrap().release().await.unwrap();
    }
    let held = here.lock_all(["a", "b", "c"]).attempt().await.unwrap().expect("all are free");
    drop(held);
    there.lock_all(["a", "b", "c"]).wait_at_most(HANG).await.unwrap().release().await.unwrap();
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_name_given_twice_is_taken_once_and_the_stronger_wish_counts() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let held = locker.lock_all([Wish::read("a"), Wish::lock("a"), Wish::read("a")]).await.unwrap();
    assert_eq!(held.keys().count(), 1);
    assert!(held.fence("a").is_some());
    assert!(locker.read("a").attempt().await.unwrap().is_none(), "somebody reads beside a lock");
    held.release().await.unwrap();

    let held = locker.lock_all([Wish::permits("a", 1, 5), Wish::permits("a", 3, 5)]).await.unwrap();
    assert!(locker.permits("a", 3, 5).attempt().await.unwrap().is_none());
    let two = locker.permits("a", 2, 5).attempt().await.unwrap();
    assert!(two.is_some() && held.shared_fence("a").is_some());
}

#[tokio::test]
async fn readers_share_what_writers_have_alone() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let wishes = |account: &str| [Wish::write(account), Wish::read("rates")];
    let one = here.lock_all(wishes("accounts/1")).await.unwrap();
    let two =
        there.lock_all(wishes("accounts/2")).attempt().await.unwrap().expect("they differ where they write");
    assert!(there.lock_all(wishes("accounts/1")).attempt().await.unwrap().is_none());
    assert!(there.try_lock("rates").await.unwrap().is_none());
    one.release().await.unwrap();
    two.release().await.unwrap();
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_nothing_is_taken() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let none: [&str; 0] = [];
    let bad: [(_, &str); 8] = [
        (locker.lock_all(none), "no lock was named"),
        (locker.lock_all(["a", ""]), "the lock name is empty"),
        (locker.lock_all((0..1_000_000).map(|it| it.to_string())), "more than 1000 locks"),
        (locker.lock_all([Wish::lock("a"), Wish::permits("b", 0, 5)]), "nothing to hold"),
        (locker.lock_all([Wish::lock("a"), Wish::permits("b", 6, 5)]), "can never be granted"),
        // Each could be had, but not both: told in the words of those who asked, before anything is asked for.
        (
            locker.lock_all([Wish::lock("0"), Wish::permits("a", 5, 10), Wish::permits("a", 1, 3)]),
            "for 5 of 10 and for 1 of 3",
        ),
        (
            locker.lock_all([Wish::permits("a", 1, 3), Wish::permits("a", 5, 10)]),
            "for 1 of 3 and for 5 of 10",
        ),
        (locker.lock_all(["a"]).ttl(Duration::ZERO), "a ttl of 0ns is not allowed"),
    ];
    for (request, text) in bad {
        let error = request.await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(text), "{error}");
        assert!(store.is_empty() && locker.lines() == 0);
    }
    let most = locker.lock_all((0..KEYS_MAX).map(|it| it.to_string())).await.unwrap();
    assert_eq!(most.keys().count(), KEYS_MAX);
}

#[tokio::test]
async fn one_wait_counts_for_all_and_leaves_nothing() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let taken = there.lock("b").await.unwrap();
    let waited = here.lock_all(["a", "b", "c"]).wait_at_most(Duration::from_millis(20)).await;
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    for name in ["a", "c"] {
        there.lock(name).wait_at_most(HANG).await.unwrap().release().await.unwrap();
    }
    taken.release().await.unwrap();
    here.shutdown(HANG).await.unwrap();
    assert!(store.is_empty());
}

#[tokio::test]
async fn whoever_walks_away_gives_back_what_it_had() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let taken = there.lock("b").await.unwrap();
    let waiting = tokio::spawn(here.lock_all(["a", "b"]).into_future());
    // It holds `a` and waits for `b`.
    while store.show(&key("b")).await.unwrap().is_none_or(|it| it.waiters.is_empty()) {
        tokio::task::yield_now().await;
    }
    assert!(there.try_lock("a").await.unwrap().is_none());
    waiting.abort();
    let _ = waiting.await;
    there.lock("a").wait_at_most(HANG).await.unwrap().release().await.unwrap();
    taken.release().await.unwrap();
}

#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all() {
    let store = Memory::default();
    let locker = Locker::builder(store.clone()).ttl(Duration::from_millis(200)).build();
    let held = locker.lock_all(["a", "b"]).await.unwrap();
    let (lost, work) = (held.lost(), held.run(std::future::pending::<()>()));
    store.break_lock(&key("b")).await.unwrap();
    assert!(matches!(work.await, Err(Error::Lost { .. })));
    assert_ne!(lost.await, LostReason::Released);
    assert!(!held.is_valid() && held.check().is_err() && held.remaining().is_zero());
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    assert!(store.is_empty(), "the other was given back, too");
}

#[tokio::test]
async fn one_that_is_lost_while_others_are_waited_for_ends_the_wait() {
    let store = Memory::default();
    let here = Locker::builder(store.clone()).ttl(Duration::from_millis(200)).build();
    let there = Locker::new(store.clone());
    let taken = there.lock("b").await.unwrap();
    let waiting = tokio::spawn(here.lock_all(["a", "b"]).into_future());
    while store.show(&key("b")).await.unwrap().is_none_or(|it| it.waiters.is_empty()) {
        tokio::task::yield_now().await;
    }
    store.break_lock(&key("a")).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(Error::Lost { .. })));
    taken.release().await.unwrap();
}

#[tokio::test]
async fn an_owner_enters_again_what_it_holds() {
    let locker = Locker::new(Memory::default());
    let owner = Owner::new("import");
    let outer = locker.lock("b").owner(&owner).await.unwrap();
    let held = locker.lock_all(["a", "b"]).owner(&owner).await.unwrap();
    assert_eq!(held.fence("b"), Some(outer.fence()));
    held.release().await.unwrap();
    assert!(outer.is_valid());
    let reads = locker.read("c").owner(&owner).await.unwrap();
    let error = locker.lock_all(["a", "c"]).owner(&owner).await.unwrap_err();
    assert!(error.to_string().contains("would wait for itself"), "{error}");
    drop(reads);
}

/// A store that answers nobody before so many have asked.
#[derive(Clone, Debug)]
struct Together(Memory, Arc<Barrier>, Arc<AtomicUsize>);

struct TogetherPlace(MemoryPlace, Arc<Barrier>, Arc<AtomicUsize>);

impl Backend for Together {
    type Place = TogetherPlace;

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn enter(&self, claim: Claim) -> TogetherPlace {
        TogetherPlace(self.0.enter(claim), self.1.clone(), self.2.clone())
    }
}

impl Place for TogetherPlace {
    async fn turn(&mut self) -> Answer<Turn> {
        self.2.fetch_add(1, Ordering::Relaxed);
        self.1.wait().await;
        self.0.turn().await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
    }

    async fn renew(&mut self) -> Answer<Renewal> {
        self.0.renew().await
    }

    async fn leave(&mut self) -> Answer<()> {
        self.1.wait().await;
        self.0.leave().await
    }
}

#[tokio::test]
async fn free_locks_are_asked_for_at_the_same_time() {
    let store = Together(Memory::default(), Arc::new(Barrier::new(3)), Arc::default());
    let asked = store.2.clone();
    let locker = Locker::new(store);
    let held = tokio::time::timeout(HANG, locker.lock_all(["a", "b", "c"]).into_future()).await;
    let held = held.expect("each is asked for when the one before it is held").unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    let given_back = tokio::time::timeout(HANG, held.release()).await;
    given_back.expect("each is given back when the one before it was").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_in_a_circle_and_every_sum_is_exact() {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 400;
    const NAMES: u64 = 6;
    let store = Memory::default();
    let cells: Arc<Vec<AtomicU64>> = Arc::new((0..NAMES).map(|_| AtomicU64::new(0)).collect());
    let lockers = [Locker::new(store.clone()), Locker::new(store.clone())];
    let tasks = (0..TASKS).map(|task| {
        let (locker, cells) = (lockers[usize::try_from(task % 2).unwrap()].clone(), cells.clone());
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                // Three names in an order of their own, as nobody should who locks one by one.
                let first = (task * 7 + round * 5) % NAMES;
                let picked: Vec<u64> = [0, 5, 3].iter().map(|it| (first + it) % NAMES).collect();
                let held = locker.lock_all(picked.iter().map(u64::to_string)).await.unwrap();
                for at in &picked {
                    let cell = &cells[usize::try_from(*at).unwrap()];
                    // Not one addition: whoever is not alone here loses some.
                    let seen = cell.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    cell.store(seen + 1, Ordering::Relaxed);
                }
                drop(held);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        tokio::time::timeout(HANG * 2, task).await.expect("somebody waits in a circle").unwrap();
    }
    let sum: u64 = cells.iter().map(|it| it.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, TASKS * ROUNDS * 3);
}
