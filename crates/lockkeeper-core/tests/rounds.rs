//! How often a store hears of what is held: where a session keeps all, by one sign of life for all; elsewhere spread over the time.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Grant, Place, Profile, Reach, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Clock, Guard, Locker, Moment, Spawn, Task};
use tokio::runtime::Handle;

const TTL: Duration = Duration::from_secs(10);
const LOCKS: u64 = 10_000;

/// Grants everything, and remembers when how many were renewed. What is renewed at one moment is one sign of life.
#[derive(Clone, Debug)]
struct Counting {
    by_session: bool,
    clock: Clock,
    grants: Arc<AtomicU64>,
    renewed: Arc<Mutex<BTreeMap<Moment, u64>>>,
}

struct CountingPlace(Counting, Claim);

impl Backend for Counting {
    type Place = CountingPlace;

    fn profile(&self) -> Profile {
        let profile = Profile::new("counting", Reach::Network).fifo();
        if self.by_session { profile.by_session() } else { profile }
    }

    fn enter(&self, claim: Claim) -> CountingPlace {
        CountingPlace(self.clone(), claim)
    }
}

impl Place for CountingPlace {
    async fn turn(&mut self) -> Result<Turn> {
        Ok(Turn::Held(Grant::new(self.0.grants.fetch_add(1, Ordering::Relaxed) + 1, self.1.ttl)))
    }

    async fn changed(&mut self) {
        std::future::pending::<()>().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        *self.0.renewed.lock().unwrap().entry(self.0.clock.now()).or_default() += 1;
        Ok(Renewal::held(self.1.ttl, false))
    }

    async fn leave(&mut self) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Here(Handle);

impl Spawn for Here {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

/// A process that holds many locks, on a clock that stands still unless it is told to go.
struct Process {
    store: Counting,
    locker: Locker,
    held: Vec<Guard>,
}

impl Process {
    fn new(by_session: bool) -> Self {
        let clock = Clock::virtual_from(TTL);
        let store =
            Counting { by_session, clock: clock.clone(), grants: Arc::default(), renewed: Arc::default() };
        let spawner = Arc::new(Here(Handle::current()));
        let locker = Locker::builder(store.clone()).ttl(TTL).clock(clock).spawner(spawner).build();
        Process { store, locker, held: Vec::new() }
    }

    async fn take(&mut self) {
        self.held.push(self.locker.lock(format!("k/{}", self.held.len())).await.unwrap());
    }

    /// Time passes, and everybody does what is due.
    async fn pass(&self, span: Duration) {
        self.store.clock.advance_by(span);
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }

    /// Take so many in the course of that time.
    async fn take_over(&mut self, span: Duration) {
        for nth in 0..LOCKS {
            self.take().await;
            if nth % 10 == 9 {
                self.pass(span / u32::try_from(LOCKS / 10).unwrap()).await;
            }
        }
    }

    fn forget(&self) {
        self.store.renewed.lock().unwrap().clear();
    }

    fn renewed(&self) -> Vec<u64> {
        self.store.renewed.lock().unwrap().values().copied().collect()
    }
}

#[tokio::test]
async fn what_a_session_keeps_is_renewed_in_three_signs_of_life_for_each_ttl_however_many_and_whenever_they_came()
 {
    const STEPS: u32 = 100;
    const TTLS: u32 = 5;
    let mut process = Process::new(true);
    process.take_over(TTL / 4).await;
    process.forget();
    for _ in 0..STEPS * TTLS {
        // Others come, and some of them go again.
        process.take().await;
        process.locker.lock("short").await.unwrap().release().await.unwrap();
        process.pass(TTL / STEPS).await;
    }
    assert!(process.held.iter().all(Guard::is_valid), "each is renewed in time");
    let renewed = process.renewed();
    let (signs, locks) = (renewed.len(), renewed.iter().sum::<u64>());
    assert!(signs <= 3 * TTLS as usize, "{signs} signs of life in {TTLS} ttls: {renewed:?}");
    assert!(u64::from(2 * TTLS) * LOCKS < locks, "{locks} renewals");
}

#[tokio::test]
async fn what_keeps_itself_is_renewed_in_parts_as_it_came() {
    let mut process = Process::new(false);
    process.take_over(TTL / 4).await;
    process.forget();
    for _ in 0..100 {
        process.pass(TTL / 100).await;
    }
    assert!(process.held.iter().all(Guard::is_valid), "each is renewed in time");
    let renewed = process.renewed();
    assert!(renewed.iter().all(|it| *it < LOCKS), "all at once: {renewed:?}");
}
