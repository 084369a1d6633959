//! How many callers of one process are at the store at once: for permits as many as fit, otherwise one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::future::{Future, IntoFuture as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Grant, Place, Profile, Reach, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Locker};
use tokio::sync::Semaphore;

const HANG: Duration = Duration::from_secs(30);

/// Grants everything, but answers only when it is let.
#[derive(Clone, Debug)]
struct Slow {
    /// Who has asked and is not answered yet.
    asked: Arc<AtomicUsize>,
    turns: Arc<AtomicU64>,
    answers: Arc<Semaphore>,
    places: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct SlowPlace {
    of: Slow,
    claim: Claim,
}

impl Slow {
    fn new() -> Self {
        Slow {
            asked: Arc::default(),
            turns: Arc::default(),
            answers: Arc::new(Semaphore::new(0)),
            places: Arc::default(),
        }
    }

    fn under_way(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Backend for Slow {
    type Place = SlowPlace;

    fn profile(&self) -> Profile {
        Profile::new("slow", Reach::Network).fifo().weighted()
    }

    fn enter(&self, claim: Claim) -> SlowPlace {
        SlowPlace { of: self.clone(), claim }
    }
}

impl Place for SlowPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.of.asked.fetch_add(1, Ordering::Relaxed);
        self.of.answers.acquire().await.unwrap().forget();
        self.of.asked.fetch_sub(1, Ordering::Relaxed);
        self.of.places.fetch_add(1, Ordering::Relaxed);
        Ok(Turn::Held(Grant::new(self.of.turns.fetch_add(1, Ordering::Relaxed) + 1, self.claim.ttl)))
    }

    async fn changed(&mut self) {
        std::future::pending::<()>().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Ok(Renewal::held(self.claim.ttl, false))
    }

    async fn leave(&mut self) -> Result<()> {
        self.of.places.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

type Asked<T> = Pin<Box<dyn Future<Output = lockkeeper_core::Result<T>>>>;

fn poll<T>(asked: &mut Asked<T>) -> Poll<lockkeeper_core::Result<T>> {
    asked.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// So many ask; nobody is answered yet.
fn ask<T: 'static>(count: usize, mut one: impl FnMut() -> Asked<T>) -> Vec<Asked<T>> {
    let mut all: Vec<_> = (0..count).map(|_| one()).collect();
    assert!(all.iter_mut().all(|it| poll(it).is_pending()), "the store has not answered");
    all
}

/// Everybody who has the lock now.
fn served<T>(asked: &mut Vec<Asked<T>>) -> Vec<T> {
    let mut served = Vec::new();
    // Whoever is called goes to the store when it is polled.
    for mut it in std::mem::take(asked) {
        match poll(&mut it) {
            Poll::Ready(guard) => served.push(guard.unwrap()),
            Poll::Pending => asked.push(it),
        }
    }
    served
}

#[tokio::test]
async fn permits_of_one_name_are_asked_for_together_as_many_as_fit() {
    let store = Slow::new();
    let locker = Locker::new(store.clone());
    let mut asked = ask(9, || Box::pin(locker.permits("mail", 1, 5).into_future()));
    assert_eq!(store.under_way(), 5, "five fit, and none of them waits for another's answer");
    store.answers.add_permits(5);
    let mut guards = served(&mut asked);
    assert_eq!((guards.len(), store.under_way()), (5, 0), "all five by one trip");
    let mut fences: Vec<u64> = guards.iter().map(|it| it.fence().get()).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 5, "each has its own");
    // What is given back is handed on: no trip.
    drop(guards.pop());
    guards.extend(served(&mut asked));
    assert_eq!((guards.len(), asked.len(), store.under_way()), (5, 3, 0));
    drop((guards, asked));
    locker.shutdown(HANG).await.unwrap();
    assert_eq!(store.places.load(Ordering::Relaxed), 0, "nothing is left");
}

#[tokio::test]
async fn a_big_request_is_not_passed_and_one_that_goes_away_makes_room() {
    let store = Slow::new();
    let locker = Locker::new(store.clone());
    let mut two = ask(2, || Box::pin(locker.permits("mail", 2, 5).into_future()));
    let mut big = ask(1, || Box::pin(locker.permits("mail", 4, 5).into_future()));
    let mut small = ask(1, || Box::pin(locker.permits("mail", 1, 5).into_future()));
    assert_eq!(store.under_way(), 2, "the big one waits for both, and the small one for the big one");
    let first = two.remove(0);
    // Dropped in the middle of its verb: it is finished behind it, and what it got goes to nobody.
    drop(first);
    store.answers.add_permits(2);
    let guards = served(&mut two);
    assert_eq!(guards.len(), 1);
    drop(guards);
    let hang = tokio::time::timeout(HANG, async {
        while store.under_way() == 0 {
            let none = served(&mut big).len() + served(&mut small).len();
            assert_eq!(none, 0, "the store was not asked");
            tokio::task::yield_now().await;
        }
    });
    hang.await.expect("the big one goes to the store when the others have come back");
    assert_eq!(store.under_way(), 1);
    store.answers.add_permits(1);
    let big = tokio::time::timeout(HANG, big.remove(0)).await.unwrap().unwrap();
    assert!(served(&mut small).is_empty(), "it fits beside four of five, and asks now");
    assert_eq!(store.under_way(), 1);
    store.answers.add_permits(1);
    let small = tokio::time::timeout(HANG, small.remove(0)).await.unwrap().unwrap();
    drop((big, small));
    locker.shutdown(HANG).await.unwrap();
    assert_eq!(store.places.load(Ordering::Relaxed), 0, "nothing is left");
}

#[tokio::test]
async fn readers_share_one_place_and_locks_are_asked_for_by_one() {
    let store = Slow::new();
    let locker = Locker::new(store.clone());
    let mut readers = ask(5, || Box::pin(locker.read("prices").into_future()));
    assert_eq!(store.under_way(), 1);
    store.answers.add_permits(1);
    let mut reading = served(&mut readers);
    reading.extend(served(&mut readers));
    assert_eq!((reading.len(), store.turns.load(Ordering::Relaxed)), (5, 1), "one trip for all");
    let locks = ask(5, || Box::pin(locker.lock("orders").into_future()));
    assert_eq!(store.under_way(), 1);
    let writers = ask(5, || Box::pin(locker.write("stock").into_future()));
    assert_eq!(store.under_way(), 2, "of another name");
    store.answers.add_permits(100);
    drop((reading, locks, writers));
    locker.shutdown(HANG).await.unwrap();
    assert_eq!(store.places.load(Ordering::Relaxed), 0, "nothing is left");
}
