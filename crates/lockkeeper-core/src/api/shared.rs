//! Locks that several may hold at once: readers beside each other, permits of a number.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::api::guard::{Guard, Lost, Timings};
use crate::api::request::{Attempt, LockRequest};
use crate::error::Result;
use crate::fence::SharedFence;
use crate::key::Key;
use crate::owner::Owner;
use crate::spi::claim::Load;

/// A request for a share of a lock: to read, or for permits. Await it, or [`attempt`](SharedRequest::attempt) it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use std::time::Duration;
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let one = locker.read("prices").wait_at_most(Duration::from_secs(3)).await?;
/// let other = locker.read("prices").await?; // beside the first
/// assert!(locker.try_lock("prices").await?.is_none()); // who writes must wait
/// # drop((one, other));
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// As for [`LockRequest`].
///
/// # Errors
/// As for [`LockRequest`]; [`Error::Unsupported`](crate::Error::Unsupported) on a store that has one holder at a time.
///
/// # Fairness
/// Nobody is passed: a reader that comes after somebody who waits to write stands behind it.
#[derive(Debug)]
#[must_use = "a request does nothing unless awaited"]
pub struct SharedRequest(LockRequest);

impl SharedRequest {
    pub(crate) fn new(request: LockRequest, load: Load) -> Self {
        SharedRequest(request.load(load))
    }

    /// See [`LockRequest::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        SharedRequest(self.0.ttl(ttl))
    }

    /// See [`LockRequest::wait_at_most`].
    pub fn wait_at_most(self, wait: Duration) -> Self {
        SharedRequest(self.0.wait_at_most(wait))
    }

    /// See [`LockRequest::max_hold`]. Readers that have one do not share their process's place at the store.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        SharedRequest(self.0.max_hold(max_hold))
    }

    /// See [`LockRequest::owner`].
    pub fn owner(self, owner: &Owner) -> Self {
        SharedRequest(self.0.owner(owner))
    }

    /// See [`LockRequest::warm`].
    pub fn warm(self) -> Self {
        SharedRequest(self.0.warm())
    }

    /// See [`LockRequest::cold`].
    pub fn cold(self) -> Self {
        SharedRequest(self.0.cold())
    }

    /// See [`LockRequest::note`].
    pub fn note(self, note: impl Into<String>) -> Self {
        SharedRequest(self.0.note(note))
    }

    /// Do not wait: the answer is `None` if there is no room now, or if somebody waits.
    pub fn attempt(self) -> SharedAttempt {
        SharedAttempt(self.0.attempt())
    }

    /// Wait on this thread. See [`LockRequest::blocking`].
    ///
    /// # Errors
    /// As for the request awaited.
    pub fn blocking(self) -> Result<SharedGuard> {
        self.0.blocking().map(SharedGuard)
    }
}

impl Future for SharedRequest {
    type Output = Result<SharedGuard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|it| it.map(SharedGuard))
    }
}

/// A [`SharedRequest`] that does not wait.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let writer = locker.write("prices").await?;
/// assert!(locker.read("prices").attempt().await?.is_none());
/// # drop(writer);
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// As for [`LockRequest`].
///
/// # Errors
/// As for [`SharedRequest`], without [`Error::TimedOut`](crate::Error::TimedOut) and [`Error::Full`](crate::Error::Full).
#[derive(Debug)]
#[must_use = "an attempt does nothing unless awaited"]
pub struct SharedAttempt(Attempt);

impl SharedAttempt {
    /// Try on this thread, without a runtime.
    ///
    /// # Errors
    /// As for the attempt awaited.
    pub fn blocking(self) -> Result<Option<SharedGuard>> {
        self.0.blocking().map(|it| it.map(SharedGuard))
    }
}

impl IntoFuture for SharedAttempt {
    type Output = Result<Option<SharedGuard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let attempt = self.0.into_future();
        Box::pin(async move { attempt.await.map(|it| it.map(SharedGuard)) })
    }
}

/// A share of a lock. It is given back like a [`Guard`], and lost like one; readers of one process that share a place at the
/// store are told of its loss together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory, SharedGuard};
/// # let locker = Locker::new(Memory::default());
/// let two: SharedGuard = locker.permits("workers", 2, 5).await?;
/// assert!(locker.permits("workers", 4, 5).attempt().await?.is_none()); // three are left
/// two.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "if unused, the share is given back at once"]
pub struct SharedGuard(pub(crate) Guard);

impl SharedGuard {
    /// The share of one who wrote before.
    pub(crate) fn of(guard: Guard) -> Self {
        SharedGuard(guard)
    }

    /// What is held.
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// Its fence. It is larger than that of every exclusive guard before and smaller than that of every one after;
    /// between those who share it says nothing.
    pub fn fence(&self) -> SharedFence {
        SharedFence::of(self.0.fence())
    }

    /// How long it took to get. See [`Guard::timings`].
    pub fn timings(&self) -> Timings {
        self.0.timings()
    }

    /// See [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// See [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// See [`Guard::check`].
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if it is no longer held.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Resolves when it is lost. See [`Guard::lost`]; for readers that share a place it resolves with the last of them.
    pub fn lost(&self) -> Lost {
        self.0.lost()
    }

    /// Run a future while it is held. See [`Guard::run`].
    ///
    /// # Cancel safety
    /// As safe as `future`; the share stays held.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if it was lost before the future ended; the future is dropped then.
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.0.run(future).await
    }

    /// Give it back and wait until the store knows, if ours was the last share of its place.
    ///
    /// # Cancel safety
    /// As for [`Guard::release`].
    ///
    /// # Errors
    /// As for [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }

    /// [`release`](SharedGuard::release) on this thread.
    ///
    /// # Errors
    /// As for [`Guard::release`].
    pub fn release_blocking(self) -> Result<()> {
        self.0.release_blocking()
    }
}
