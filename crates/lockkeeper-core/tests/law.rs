//! The laws of events, under random workloads: whoever arrives leaves in one way, and what begins to be held ends once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::observe::{Event, Observer};
use lockkeeper_core::{Claim, Clock, Locker, LockerBuilder, Memory, Owner, Wish};

/// How often each was heard.
#[derive(Debug, Default)]
struct Counts {
    arrived: AtomicU64,
    granted: AtomicU64,
    busy: AtomicU64,
    timed_out: AtomicU64,
    refused: AtomicU64,
    withdrawn: AtomicU64,
    failed: AtomicU64,
    begun: AtomicU64,
    released: AtomicU64,
    lost: AtomicU64,
}

#[derive(Clone, Debug, Default)]
struct Book(Arc<Counts>);

impl Observer for Book {
    fn observe(&self, event: &Event<'_>) {
        let it = &self.0;
        let counter = match event {
            Event::Arrived { .. } => &it.arrived,
            Event::Granted { begins, .. } => {
                it.begun.fetch_add(u64::from(*begins), Ordering::SeqCst);
                &it.granted
            }
            Event::Busy { .. } => &it.busy,
            Event::TimedOut { .. } => &it.timed_out,
            Event::Refused { .. } => &it.refused,
            Event::Withdrawn { .. } => &it.withdrawn,
            Event::Failed { .. } => &it.failed,
            Event::Released { .. } => &it.released,
            Event::Lost { held: Some(_), .. } => &it.lost,
            _ => return,
        };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

impl Counts {
    fn of(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::SeqCst)
    }

    /// Arrivals, and all ways out.
    fn arrivals(&self) -> (u64, u64) {
        let ways_out =
            [&self.granted, &self.busy, &self.timed_out, &self.refused, &self.withdrawn, &self.failed];
        (Self::of(&self.arrived), ways_out.into_iter().map(Self::of).sum())
    }

    /// Holds that began, and those that ended.
    fn holds(&self) -> (u64, u64) {
        (Self::of(&self.begun), Self::of(&self.released) + Self::of(&self.lost))
    }
}

/// The same numbers for the same seed, apart from what threads do to them.
#[derive(Clone)]
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn key(&mut self) -> String {
        format!("k{}", self.below(3))
    }
}

/// A store that takes its time, so that callers go away in the middle of a verb, and sometimes gives no answer.
#[derive(Clone, Debug, Default)]
struct Slow(Memory, Arc<AtomicU64>);

struct SlowPlace(MemoryPlace, Arc<AtomicU64>);

impl Backend for Slow {
    type Place = SlowPlace;

    fn profile(&self) -> Profile {
        self.0.profile().named("slow")
    }

    fn enter(&self, claim: Claim) -> SlowPlace {
        SlowPlace(self.0.enter(claim), self.1.clone())
    }
}

impl SlowPlace {
    async fn answer(&self) -> Result<()> {
        let turn = self.1.fetch_add(1, Ordering::Relaxed);
        yields(turn % 5).await;
        match turn % 13 {
            0 => Err(Fault::transient("slow", "asking", "planted")),
            7 => Err(Fault::permanent("slow", "asking", "planted")),
            _ => Ok(()),
        }
    }
}

impl Place for SlowPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.answer().await?;
        self.0.turn().await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }

    async fn leave(&mut self) -> Result<()> {
        self.0.leave().await
    }
}

async fn yields(count: u64) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Await it, but drop it after a few polls.
async fn for_a_while<F: Future>(polls: u64, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(out) => Poll::Ready(Some(out)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// One random use of locks. Whatever it answers is right here: only the events are looked at.
async fn use_once(locker: &Locker, chance: &mut Chance) {
    let (key, pause) = (chance.key(), chance.below(4));
    let short = Duration::from_micros(chance.below(3) * 300);
    match chance.below(12) {
        0 | 1 => {
            if let Ok(guard) = locker.lock(&key).wait_at_most(Duration::from_millis(20)).await {
                yields(pause).await;
                let _ = guard.release().await;
            }
        }
        2 => drop(locker.lock(&key).wait_at_most(short).await),
        3 => drop(locker.try_lock(&key).await),
        4 => drop(for_a_while(pause, locker.lock(&key)).await),
        5 => drop(for_a_while(pause, std::future::IntoFuture::into_future(locker.try_lock(&key))).await),
        6 => {
            let owner = Owner::new("o");
            if let Ok(outer) = locker.lock(&key).owner(&owner).wait_at_most(short).await {
                let inner = locker.lock(&key).owner(&owner).wait_at_most(short).await;
                yields(pause).await;
                drop(if pause % 2 == 0 { (Some(outer), inner.ok()) } else { (inner.ok(), Some(outer)) });
            }
        }
        7 => {
            if let Ok(share) = locker.read(&key).wait_at_most(Duration::from_millis(20)).await {
                yields(pause).await;
                drop(share);
            }
        }
        8 => {
            let count = if chance.below(2) == 0 { 1 } else { 2 };
            drop(for_a_while(pause, locker.permits(&key, count, 3)).await);
        }
        9 => {
            let wishes = [Wish::lock(chance.key()), Wish::read(chance.key()), Wish::lock(key)];
            let all = std::future::IntoFuture::into_future(locker.lock_all(wishes));
            drop(for_a_while(pause * 4, all).await);
        }
        10 => {
            if let Ok(guard) = locker.lock(&key).max_hold(short.max(Duration::from_micros(1))).await {
                guard.lost().await;
            }
        }
        _ => {
            assert!(locker.lock(&key).ttl(Duration::ZERO).await.is_err(), "it makes no sense");
            assert!(locker.lock("").await.is_err(), "it has no name");
        }
    }
}

async fn workload(seed: u64, builder: LockerBuilder) {
    let book = Book::default();
    let locker = builder.waiters_max(3).wait_at_most(Duration::from_secs(30)).observer(book.clone()).build();
    let tasks: Vec<_> = (1..=8)
        .map(|task| {
            let (locker, mut chance) = (locker.clone(), Chance(seed * 1_000_003 + task));
            tokio::spawn(async move {
                for _ in 0..60 {
                    use_once(&locker, &mut chance).await;
                }
            })
        })
        .collect();
    // In every other run the end comes while all are at it.
    if seed.is_multiple_of(2) {
        yields(200).await;
        let _ = locker.shutdown(Duration::from_secs(60)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let _ = locker.shutdown(Duration::from_secs(60)).await;
    drop(locker);
    let it = &book.0;
    let (arrived, left) = it.arrivals();
    assert!(0 < arrived, "nothing happened");
    assert_eq!(arrived, left, "seed {seed}: who arrives leaves in one way: {it:?}");
    // The locker's own thread may still be about to tell a loss.
    for _ in 0..6_000 {
        if it.holds().0 == it.holds().1 {
            break;
        }
        Clock::boot().sleep(Duration::from_millis(10)).await;
    }
    let (begun, ended) = it.holds();
    assert_eq!(begun, ended, "seed {seed}: what begins to be held ends once: {it:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn arrivals_are_grants_and_all_other_exits_where_the_line_is_the_whole_lock() {
    for seed in 1..=20 {
        workload(seed, Locker::builder(Memory::default())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn arrivals_are_grants_and_all_other_exits_at_a_store_in_this_process() {
    for seed in 21..=40 {
        let store = Memory::default();
        workload(seed, Locker::builder(store.clone())).await;
        drop(store);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn arrivals_are_grants_and_all_other_exits_at_a_slow_and_faulty_store() {
    for seed in 41..=60 {
        workload(seed, Locker::builder(Slow::default()).ttl(Duration::from_secs(10))).await;
    }
}
