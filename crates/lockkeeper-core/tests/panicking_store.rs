//! A store whose verb panics on the keeper's thread must not leave a line without a representative.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::{Claim, Locker, Memory};
use tokio::sync::Notify;

/// A store that answers no `turn` until told to, and then panics once.
#[derive(Clone, Debug)]
struct Panicking {
    store: Memory,
    go: Arc<Notify>,
    panics: Arc<AtomicBool>,
}

#[derive(Debug)]
struct PanickingPlace {
    place: MemoryPlace,
    of: Panicking,
}

impl Backend for Panicking {
    type Place = PanickingPlace;

    fn profile(&self) -> Profile {
        self.store.profile()
    }

    fn enter(&self, claim: Claim) -> PanickingPlace {
        PanickingPlace { place: self.store.enter(claim), of: self.clone() }
    }
}

impl Place for PanickingPlace {
    async fn turn(&mut self) -> Result<Turn> {
        if self.of.panics.load(Ordering::Acquire) {
            self.of.go.notified().await;
            self.of.panics.store(false, Ordering::Release);
            panic!("planted: the verb panics");
        }
        self.place.turn().await
    }

    async fn changed(&mut self) {
        self.place.changed().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.place.renew().await
    }

    async fn leave(&mut self) -> Result<()> {
        self.place.leave().await
    }
}

#[tokio::test]
async fn the_next_caller_takes_the_part_of_a_verb_that_panicked() {
    let store =
        Panicking { store: Memory::default(), go: Arc::default(), panics: Arc::new(AtomicBool::new(true)) };
    let locker = Locker::new(store.clone());
    let mut gone = Box::pin(locker.lock("k"));
    assert!(gone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let next = tokio::spawn(locker.lock("k").wait_at_most(Duration::from_secs(30)));
    tokio::task::yield_now().await;
    // The verb goes on in the background, and panics there.
    drop(gone);
    store.go.notify_one();
    assert!(next.await.unwrap().unwrap().is_valid());
}
