//! A leader that has gone is not written again by a sign of life that was under way.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Result as Answer};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::memos::{DynMemos, Memo, Memos, Swap};
use lockkeeper_core::{Claim, Clock, Key, Leadership, Locker, Memory, Spawn, Task};
use tokio::sync::{Notify, Semaphore};

const HANG: Duration = Duration::from_secs(60);

/// A store that holds up one write of a memo, or one removal, once it is told to.
#[derive(Clone, Debug)]
struct Slow {
    store: Memory,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct Gate {
    closed: AtomicBool,
    /// It is for a removal.
    removals: bool,
    /// A permit for the write that stands before the gate.
    stands: Semaphore,
    /// A permit lets it go on.
    open: Semaphore,
    /// How many still use the memos, and that it is another number.
    users: AtomicU32,
    fewer: Notify,
}

impl Backend for Slow {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        self.store.profile()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        self.store.enter(claim)
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        self.gate.users.fetch_add(1, Ordering::SeqCst);
        Some(Arc::new(SlowMemos(self.clone())))
    }
}

#[derive(Debug)]
struct SlowMemos(Slow);

impl Drop for SlowMemos {
    fn drop(&mut self) {
        self.0.gate.users.fetch_sub(1, Ordering::SeqCst);
        self.0.gate.fewer.notify_one();
    }
}

impl Memos for SlowMemos {
    async fn read(&self, key: &Key) -> Answer<Option<Memo>> {
        Memos::read(&self.0.store, key).await
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Answer<Swap> {
        let gate = &self.0.gate;
        if value.is_empty() == gate.removals && gate.closed.swap(false, Ordering::SeqCst) {
            gate.stands.add_permits(1);
            gate.open.acquire().await.unwrap().forget();
        }
        Memos::swap(&self.0.store, key, seen, value, keep).await
    }

    async fn changed(&self, key: &Key, seen: Option<u64>) {
        Memos::changed(&self.0.store, key, seen).await;
    }
}

fn gate(removals: bool) -> (Memory, Arc<Gate>) {
    let (stands, open) = (Semaphore::new(0), Semaphore::new(0));
    let (closed, users, fewer) = (AtomicBool::new(false), AtomicU32::new(0), Notify::new());
    let gate = Arc::new(Gate { closed, removals, stands, open, users, fewer });
    (Memory::default(), gate)
}

/// A store with such a gate, and what leads there.
fn gated(removals: bool) -> (Memory, Arc<Gate>, Locker) {
    let (store, gate) = gate(removals);
    let slow = Slow { store: store.clone(), gate: gate.clone() };
    (store, gate, Locker::builder(slow).ttl(Duration::from_millis(300)).build())
}

/// Lead, go away while a sign of life is under way, and let it go on.
async fn goes_in_the_middle_of_a_beat(go: impl AsyncFnOnce(Leadership, &Memory) -> Option<Leadership>) {
    let (store, gate, here) = gated(false);
    let leads = here.campaign("role", "gone").win().await.unwrap();
    gate.closed.store(true, Ordering::SeqCst);
    gate.stands.acquire().await.unwrap().forget();
    let kept = go(leads, &store).await;
    gate.open.add_permits(1);
    // Whoever gave signs of life has ended.
    while u32::from(kept.is_some()) < gate.users.load(Ordering::SeqCst) {
        gate.fewer.notified().await;
    }
    let there = Locker::new(store);
    assert_eq!(there.leader("role").await.unwrap(), None, "a leader that has gone is seen again");
}

#[tokio::test]
async fn a_leader_that_resigned_is_not_written_again() {
    let story = goes_in_the_middle_of_a_beat(async |leads, _| {
        leads.resign().await.unwrap();
        None
    });
    tokio::time::timeout(HANG, story).await.unwrap();
}

#[tokio::test]
async fn a_leader_that_was_dropped_is_not_written_again() {
    let story = goes_in_the_middle_of_a_beat(async |leads, store| {
        drop(leads);
        // The next one leads, and resigns: then it is over for the one before.
        let next = Locker::new(store.clone()).campaign("role", "next").win().await.unwrap();
        next.resign().await.unwrap();
        None
    });
    tokio::time::timeout(HANG, story).await.unwrap();
}

#[tokio::test]
async fn a_leader_that_lost_its_role_is_not_written_again() {
    let story = goes_in_the_middle_of_a_beat(async |leads, store| {
        store.break_lock(&Key::new("role").unwrap()).await.unwrap();
        leads.lost().unwrap().await;
        let next = Locker::new(store.clone()).campaign("role", "next").win().await.unwrap();
        next.resign().await.unwrap();
        Some(leads)
    });
    tokio::time::timeout(HANG, story).await.unwrap();
}

/// What a leader said is removed beside its lock, not before it: the next one leads meanwhile, and what it says stays.
#[tokio::test]
async fn the_next_leads_while_what_the_one_before_said_is_being_removed() {
    let story = async {
        let (store, gate, here) = gated(true);
        let first = here.campaign("role", "first").win().await.unwrap();
        let term = first.term();
        gate.closed.store(true, Ordering::SeqCst);
        let resigns = tokio::spawn(first.resign());
        gate.stands.acquire().await.unwrap().forget();
        let there = Locker::new(store);
        let next = there.campaign("role", "next").win().await.unwrap();
        assert!(term < next.term());
        let seen = there.leader("role").await.unwrap().expect("the next leads");
        assert_eq!((seen.term, seen.value.as_str()), (next.term(), "next"));
        gate.open.add_permits(1);
        resigns.await.unwrap().unwrap();
        let seen = there.leader("role").await.unwrap().expect("it still leads");
        assert_eq!(seen.term, next.term(), "one that has gone removes what another says");
        next.resign().await.unwrap();
        assert_eq!(there.leader("role").await.unwrap(), None);
    };
    tokio::time::timeout(HANG, story).await.unwrap();
}

/// Whoever does not wait until it has resigned has resigned all the same.
#[tokio::test]
async fn a_resignation_that_is_dropped_half_way_is_finished() {
    let story = async {
        let (store, gate, here) = gated(true);
        let first = here.campaign("role", "first").win().await.unwrap();
        gate.closed.store(true, Ordering::SeqCst);
        let resigns = tokio::spawn(first.resign());
        gate.stands.acquire().await.unwrap().forget();
        resigns.abort();
        assert!(resigns.await.unwrap_err().is_cancelled());
        gate.open.add_permits(1);
        let there = Locker::new(store);
        while there.leader("role").await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
        there.campaign("role", "next").win().await.unwrap().resign().await.unwrap();
    };
    tokio::time::timeout(HANG, story).await.unwrap();
}

#[derive(Debug)]
struct Here(tokio::runtime::Handle);

impl Spawn for Here {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

/// A process stands still in the middle of a sign of life, until its time is over and its successor has gone, too. When it goes on, the store
/// answers before the rounds have told anybody of the loss.
#[tokio::test]
async fn a_leader_that_stood_still_past_its_ttl_is_not_written_again() {
    const TTL: Duration = Duration::from_secs(60);
    let story = async {
        let (_, gate) = gate(false);
        let clock = Clock::virtual_from(TTL);
        let store = Memory::new(clock.clone());
        let spawner = Arc::new(Here(tokio::runtime::Handle::current()));
        let here = Locker::builder(Mute(Slow { store: store.clone(), gate: gate.clone() }));
        let here = here.clock(clock.clone()).spawner(spawner).ttl(TTL).build();
        let leads = here.campaign("role", "gone").win().await.unwrap();
        tokio::task::yield_now().await;
        gate.closed.store(true, Ordering::SeqCst);
        clock.advance_by(TTL / 3);
        gate.stands.acquire().await.unwrap().forget();
        // Its time is over for the store.
        store.break_lock(&Key::new("role").unwrap()).await.unwrap();
        let there = Locker::builder(store).clock(clock.clone()).build();
        there.campaign("role", "next").win().await.unwrap().resign().await.unwrap();
        gate.open.add_permits(1);
        clock.advance_by(2 * TTL);
        assert!(!leads.is_valid(), "its clock says so, too");
        // It goes on before the rounds do, because it was let before their time came.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(there.leader("role").await.unwrap(), None, "a leader that has gone is seen again");
    };
    tokio::time::timeout(HANG, story).await.unwrap();
}

/// The same, and nobody is notified of anything.
#[derive(Clone, Debug)]
struct Mute(Slow);

impl Backend for Mute {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        let mut profile = self.0.profile();
        profile.notifies = false;
        profile
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        self.0.enter(claim)
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        self.0.memos()
    }
}
