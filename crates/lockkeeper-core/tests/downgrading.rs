//! From writing to reading in place: who gets in, who does not, and what happens where it cannot be done.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::{Claim, Error, Load, Locker, LostReason, Memory, NotDowngraded, Owner};

/// Two lockers on one store, as two processes would have them.
fn two() -> (Locker, Locker) {
    let store = Memory::default();
    (Locker::new(store.clone()), Locker::new(store))
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn readers_of_both_processes_enter_and_the_writer_behind_them_does_not() {
    let (here, there) = two();
    let writer = here.write("prices").await.unwrap();
    let (mut near, mut far) = (here.read("prices"), there.read("prices"));
    assert!(poll_once(&mut near).is_pending() && poll_once(&mut far).is_pending());
    let mut next = there.write("prices");
    assert!(poll_once(&mut next).is_pending());
    let before = writer.fence().get();
    let reader = writer.downgrade().await.unwrap();
    let (near, far) = (near.await.unwrap(), far.await.unwrap());
    assert!(reader.is_valid() && near.is_valid() && far.is_valid());
    assert!(before < reader.fence().get(), "a reader's fence is above that of the one who wrote");
    assert!(poll_once(&mut next).is_pending(), "a writer got in beside readers");
    for it in [reader, near, far] {
        it.release().await.unwrap();
    }
    let next = next.await.unwrap();
    assert!(before < next.fence().get());
}

#[tokio::test]
async fn where_the_line_is_the_whole_lock_it_works_too() {
    let locker = Locker::new(Memory::default());
    let writer = locker.lock("prices").await.unwrap();
    let mut waiting = locker.read("prices");
    assert!(poll_once(&mut waiting).is_pending());
    let lost = writer.lost();
    let reader = writer.downgrade().await.unwrap();
    assert_eq!(lost.await, LostReason::Released, "the guard that wrote is over");
    let beside = waiting.await.unwrap();
    assert_eq!(reader.fence().get(), beside.fence().get(), "they share one place");
    drop((reader, beside));
    locker.lock("prices").await.unwrap().release().await.unwrap();
    assert_eq!(locker.lines(), 0);
}

#[tokio::test]
async fn an_owner_that_went_on_as_a_reader_reads_again_and_does_not_write() {
    let (here, _there) = two();
    let owner = Owner::new("import");
    let reader = here.write("prices").owner(&owner).await.unwrap().downgrade().await.unwrap();
    let again = here.read("prices").owner(&owner).await.unwrap();
    assert_eq!(reader.fence().get(), again.fence().get());
    let refused = here.write("prices").owner(&owner).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    drop((reader, again));
    here.write("prices").owner(&owner).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_outer_guard_is_not_narrowed_by_an_inner_one() {
    let (here, there) = two();
    let owner = Owner::new("import");
    let outer = here.write("prices").owner(&owner).await.unwrap();
    let inner = here.write("prices").owner(&owner).await.unwrap();
    let NotDowngraded { guard: inner, error, .. } = inner.downgrade().await.unwrap_err();
    assert!(matches!(&error, Error::Invalid { what, .. } if what.contains("more than once")), "{error}");
    assert!(inner.is_valid() && outer.is_valid());
    assert!(there.read("prices").attempt().await.unwrap().is_none(), "it is still held alone");
    inner.release().await.unwrap();
    drop(outer.downgrade().await.unwrap());
}

#[test]
fn it_works_on_a_thread_without_a_runtime() {
    let (here, there) = two();
    let reader = here.write("prices").blocking().unwrap().downgrade_blocking().unwrap();
    let beside = there.read("prices").blocking().unwrap();
    reader.release_blocking().unwrap();
    beside.release_blocking().unwrap();
}

#[tokio::test]
async fn what_was_lost_stays_lost() {
    let (here, _there) = two();
    let guard = here.write("prices").await.unwrap();
    here.shutdown(Duration::from_secs(60)).await.unwrap();
    let NotDowngraded { error, .. } = guard.downgrade().await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::Closed, .. }), "{error}");
}

#[tokio::test]
async fn dropped_half_way_it_gives_the_lock_back() {
    let (here, there) = two();
    for _ in 0..100 {
        let mut downgrade = Box::pin(here.write("prices").await.unwrap().downgrade());
        let _ = poll_once(&mut downgrade);
        drop(downgrade);
        there.write("prices").await.unwrap().release().await.unwrap();
    }
}

/// A store that fails to lower so often, or cannot.
#[derive(Clone, Debug)]
struct Clumsy {
    memory: Memory,
    failures: Arc<AtomicU32>,
    can: bool,
}

struct ClumsyPlace(MemoryPlace, Arc<AtomicU32>);

impl Backend for Clumsy {
    type Place = ClumsyPlace;

    fn profile(&self) -> Profile {
        let mut profile = self.memory.profile().named("clumsy");
        profile.lowers = self.can;
        profile
    }

    fn enter(&self, claim: Claim) -> ClumsyPlace {
        ClumsyPlace(self.memory.enter(claim), self.failures.clone())
    }
}

impl Place for ClumsyPlace {
    async fn turn(&mut self) -> Result<Turn> {
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

    async fn lower(&mut self, load: Load) -> Result<bool> {
        if self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |it| it.checked_sub(1)).is_ok() {
            return Err(Fault::transient("clumsy", "sharing what is held", "it stumbled"));
        }
        self.0.lower(load).await
    }
}

fn clumsy(failures: u32, can: bool) -> (Locker, Locker) {
    let store = Clumsy { memory: Memory::default(), failures: Arc::new(AtomicU32::new(failures)), can };
    let locker = || Locker::builder(store.clone()).outage_max(Duration::from_millis(20)).build();
    (locker(), locker())
}

#[tokio::test]
async fn a_store_that_cannot_leaves_the_guard_as_it_was() {
    let (here, there) = clumsy(0, false);
    let writer = here.write("prices").await.unwrap();
    let NotDowngraded { guard, error, .. } = writer.downgrade().await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { backend: "clumsy", .. }), "{error}");
    assert!(guard.is_valid());
    assert!(there.read("prices").attempt().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_asked_until_others_may_read() {
    let (here, there) = clumsy(6, true);
    let reader = here.write("prices").await.unwrap().downgrade().await.unwrap();
    let mine = here.read("prices").await.unwrap();
    // Whoever is outside waits until the store has heard of it.
    let far = there.read("prices").await.unwrap();
    assert!(reader.is_valid() && mine.is_valid() && far.is_valid());
}
