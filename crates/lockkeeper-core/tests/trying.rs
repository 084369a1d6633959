//! A try on what is idle elsewhere, where the store does not help much.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::{Claim, Locker, LockerBuilder, Memory};

const HOUR: Duration = Duration::from_secs(3600);

/// A shared store that calls holders, and tells no other.
#[derive(Clone, Debug, Default)]
struct Taciturn {
    inner: Memory,
    /// How often it was asked for a turn.
    turns: Arc<AtomicU32>,
    /// Whether it can be asked who holds.
    shows: bool,
}

struct TaciturnPlace {
    inner: MemoryPlace,
    turns: Arc<AtomicU32>,
    holds: bool,
}

impl Backend for Taciturn {
    type Place = TaciturnPlace;

    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn enter(&self, claim: Claim) -> TaciturnPlace {
        TaciturnPlace { inner: self.inner.enter(claim), turns: self.turns.clone(), holds: false }
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        self.shows.then(|| -> Arc<dyn DynInspect> { Arc::new(self.inner.clone()) })
    }
}

impl Place for TaciturnPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.turns.fetch_add(1, Ordering::Relaxed);
        let turn = self.inner.turn().await?;
        self.holds = matches!(turn, Turn::Held(_));
        Ok(turn.may_be_idle(None))
    }

    async fn changed(&mut self) {
        if !self.holds {
            pending::<()>().await;
        }
        self.inner.changed().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.inner.renew().await
    }

    async fn leave(&mut self) -> Result<()> {
        self.inner.leave().await
    }
}

impl Taciturn {
    fn locker(&self) -> LockerBuilder {
        Locker::builder(self.clone()).ttl(HOUR)
    }

    fn turns(&self) -> u32 {
        self.turns.swap(0, Ordering::Relaxed)
    }
}

/// It waits a moment only, and this machine may be slow: in so many attempts it is quick enough once.
const OFTEN: usize = 40;

async fn cycle(locker: &Locker, name: &str) {
    locker.lock(name).await.unwrap().release().await.unwrap();
}

/// How many of so many idle locks a first try gets.
async fn first_tries(here: &Locker, there: &Locker) -> usize {
    let mut had = 0;
    for nth in 0..OFTEN {
        let name = format!("idle/{nth}");
        cycle(here, &name).await;
        had += usize::from(there.try_lock(&name).await.unwrap().is_some());
    }
    had
}

#[tokio::test]
async fn what_is_idle_is_had_although_nobody_tells_that_it_was_given_back() {
    let store = Taciturn::default();
    let (here, there) = (store.locker().warm(true).build(), store.locker().warm(true).build());
    assert_ne!(first_tries(&here, &there).await, 0);
}

#[tokio::test]
async fn whoever_keeps_nothing_gets_what_is_idle_if_the_store_shows_who_holds() {
    let store = Taciturn { shows: true, ..Taciturn::default() };
    let (here, there) = (store.locker().warm(true).build(), store.locker().build());
    assert_ne!(first_tries(&here, &there).await, 0);
    let busy = there.lock("busy").await.unwrap();
    store.turns();
    assert!(here.try_lock("busy").await.unwrap().is_none());
    assert_eq!(store.turns(), 1, "its holder keeps nothing: nobody stands in line");
    busy.release().await.unwrap();
}

#[tokio::test]
async fn where_nobody_shows_who_holds_only_those_who_keep_locks_wait_for_others() {
    let store = Taciturn::default();
    let (here, cold) = (store.locker().warm(true).build(), store.locker().build());
    cycle(&here, "k").await;
    store.turns();
    assert!(cold.try_lock("k").await.unwrap().is_none());
    assert_eq!(store.turns(), 1);
    assert_eq!(here.lines(), 1, "and it was not called");
}
