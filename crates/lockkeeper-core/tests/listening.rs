//! A holder hears from the store without asking: that its lock is gone, and that somebody outside waits. Renewals are too
//! far away in these tests to be the reason.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::{Claim, Clock, Key, Locker, LostReason, Memory, Spawn, Task};
use tokio::sync::watch;

const HOUR: Duration = Duration::from_secs(3600);
const HANG: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_lock_that_is_broken_is_told_to_its_holder_at_once() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let guard = locker.lock("k").ttl(HOUR).await.unwrap();
    store.break_lock(&Key::new("k").unwrap()).await.unwrap();
    let reason = tokio::time::timeout(HANG, guard.lost()).await.unwrap();
    assert_eq!(reason, LostReason::Taken);
}

#[tokio::test]
async fn a_lock_that_is_broken_while_it_was_handed_on_is_told() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let first = locker.lock("k").ttl(HOUR).await.unwrap();
    let (next, ()) = tokio::join!(locker.lock("k").ttl(HOUR), async { first.release().await.unwrap() });
    let next = next.unwrap();
    store.break_lock(&Key::new("k").unwrap()).await.unwrap();
    assert_eq!(tokio::time::timeout(HANG, next.lost()).await.unwrap(), LostReason::Taken);
}

/// Nobody asks the store for an hour whether somebody waits; still the other process is served after a few hand-ons.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_serves_its_own_callers_hears_that_another_waits() {
    let store = Memory::default();
    let here = Locker::builder(store.clone()).hand_on_span_max(HOUR).hand_on_count_max(3).ttl(HOUR).build();
    let there = Locker::builder(store).ttl(HOUR).build();
    let first = here.lock("k").await.unwrap();
    let crowd: Vec<_> = (0..2)
        .map(|_| {
            let here = here.clone();
            tokio::spawn(async move {
                loop {
                    let guard = here.lock("k").await.unwrap();
                    Clock::boot().sleep(Duration::from_millis(1)).await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    Clock::boot().sleep(Duration::from_millis(50)).await;
    first.release().await.unwrap();
    let other = tokio::time::timeout(HANG, there.lock("k")).await.unwrap().unwrap();
    other.release().await.unwrap();
    for it in crowd {
        it.abort();
    }
}

/// A store whose holders always have something to hear.
#[derive(Clone, Debug, Default)]
struct Noisy {
    inner: Memory,
    renewals: Arc<AtomicU32>,
}

struct NoisyPlace(MemoryPlace, Arc<AtomicU32>);

impl Backend for Noisy {
    type Place = NoisyPlace;

    fn profile(&self) -> Profile {
        self.inner.profile().named("noisy")
    }

    fn enter(&self, claim: Claim) -> NoisyPlace {
        NoisyPlace(self.inner.enter(claim), self.renewals.clone())
    }
}

impl Place for NoisyPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.0.turn().await
    }

    async fn changed(&mut self) {}

    async fn renew(&mut self) -> Result<Renewal> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.renew().await
    }

    async fn leave(&mut self) -> Result<()> {
        self.0.leave().await
    }
}

#[tokio::test]
async fn signs_without_news_do_not_keep_the_store_busy() {
    let store = Noisy::default();
    let locker = Locker::new(store.clone());
    let guard = locker.lock("k").ttl(Duration::from_secs(20)).await.unwrap();
    tokio::time::timeout(HANG, async {
        while store.renewals.load(Ordering::Relaxed) < 3 {
            Clock::boot().sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    let clock = Clock::boot();
    let (before, since) = (store.renewals.load(Ordering::Relaxed), clock.now());
    Clock::boot().sleep(Duration::from_secs(2)).await;
    // The pauses double: 5 ms, 10 ms and so on, to a tenth of the ttl. However long this took, they were kept.
    let (more, took) = (store.renewals.load(Ordering::Relaxed) - before, clock.now() - since);
    let most = 9 + u32::try_from(took.as_secs()).unwrap();
    assert!(more <= most, "{more} renewals in {took:?}");
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

/// A store that sounds its alarm, and then does not know its holders any more.
#[derive(Clone, Debug)]
struct Alarmed {
    inner: Memory,
    alarm: Arc<watch::Sender<u64>>,
}

struct AlarmedPlace(MemoryPlace, Arc<watch::Sender<u64>>);

impl Backend for Alarmed {
    type Place = AlarmedPlace;

    fn profile(&self) -> Profile {
        let mut profile = self.inner.profile().named("alarmed");
        profile.notifies = false;
        profile
    }

    fn enter(&self, claim: Claim) -> AlarmedPlace {
        AlarmedPlace(self.inner.enter(claim), self.alarm.clone())
    }

    fn alarm(&self) -> Option<watch::Receiver<u64>> {
        Some(self.alarm.subscribe())
    }
}

impl Place for AlarmedPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.0.turn().await
    }

    async fn changed(&mut self) {
        std::future::pending::<()>().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        if *self.1.borrow() == 0 { self.0.renew().await } else { Ok(Renewal::Lost) }
    }

    async fn leave(&mut self) -> Result<()> {
        self.0.leave().await
    }
}

/// Background work that begins when it is let.
#[derive(Default)]
struct Later(Mutex<Vec<Task>>);

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

impl Spawn for Later {
    fn spawn(&self, task: Task) {
        self.0.lock().unwrap().push(task);
    }
}

#[tokio::test]
async fn an_alarm_that_sounds_before_the_rounds_begin_is_heard() {
    let store = Alarmed { inner: Memory::default(), alarm: Arc::new(watch::Sender::new(0)) };
    let later = Arc::new(Later::default());
    let locker = Locker::builder(store.clone()).ttl(HOUR).spawner(later.clone()).build();
    let guard = locker.lock("k").await.unwrap();
    store.alarm.send_modify(|it| *it += 1);
    let begun = std::mem::take(&mut *later.0.lock().unwrap());
    for it in begun {
        drop(tokio::spawn(it));
    }
    assert_eq!(tokio::time::timeout(HANG, guard.lost()).await.unwrap(), LostReason::Taken);
}
