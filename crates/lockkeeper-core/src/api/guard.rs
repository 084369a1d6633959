//! The guard: what the user holds while the lock is held.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::engine::background::InRuntime;
use crate::engine::hold::Hold;
use crate::engine::leave;
use crate::engine::shared::Engine;
use crate::engine::tenure::Tenure;
use crate::error::{Error, LostReason, Result};
use crate::fence::Fence;
use crate::key::Key;

/// A held lock. It can move between tasks and threads.
///
/// Dropping it gives the lock back soon, not now: the drop never blocks, and the store is told in the
/// background. [`release`](Guard::release) tells it before returning. A process that ends right after a drop
/// may not get to it; others then wait for the ttl.
///
/// ```
/// # use lockkeeper_core::{Locker, Memory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # let locker = Locker::new(Memory::default());
/// let guard = locker.lock("orders/42").await?;
/// assert_eq!(guard.key().as_str(), "orders/42");
/// assert!(guard.is_valid() && !guard.remaining().is_zero());
///
/// // … a step of the work, with guard.fence() sent along with each write …
/// guard.check()?; // an error if the lock is gone
/// // … the next step …
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
#[clippy::has_significant_drop]
pub struct Guard {
    engine: Arc<Engine>,
    held: Hold,
    timings: Timings,
    given_back: bool,
}

/// How long a caller waited in each of the two lines.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Locker, Memory, Timings};
///
/// let guard = Locker::new(Memory::default()).lock("orders/42").await?;
/// let Timings { local, remote, .. } = guard.timings();
/// println!("{local:?} in this process's line, {remote:?} in the store's");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// In this process's line.
    pub local: Duration,
    /// In the store's line, the trips to it included.
    pub remote: Duration,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", self.key())
            .field("fence", &self.fence())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl Guard {
    pub(crate) fn new(engine: Arc<Engine>, held: Hold, timings: Timings) -> Self {
        Guard { engine, held, timings, given_back: false }
    }

    /// What is locked.
    pub fn key(&self) -> &Key {
        &self.held.tenure.key
    }

    /// The number to send along with every write that the lock protects.
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// How long the caller waited for it.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Whether the lock is held right now. Judged by the clock at every call, not by a timer that may lag.
    ///
    /// Time passes between this answer and your next write. Only a fence that the resource checks closes
    /// that gap.
    pub fn is_valid(&self) -> bool {
        self.held.is_valid_by(&self.engine.clock) && self.engine.is_here()
    }

    /// How long the lock lasts if no renewal succeeds any more; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        let now = self.engine.clock.now();
        let valid = self.held.is_valid(now) && self.engine.is_here();
        if valid { self.held.valid_until() - now } else { Duration::ZERO }
    }

    /// `Ok` while the lock is held.
    ///
    /// # Errors
    /// [`Error::Lost`] once it is not; [`Error::Forked`] in a fork of the process that holds it.
    pub fn check(&self) -> Result<()> {
        self.engine.check_process()?;
        if self.held.is_valid_by(&self.engine.clock) { Ok(()) } else { Err(self.lost_error()) }
    }

    /// Resolves when the lock is lost, before the store may give it to somebody else; or with
    /// [`LostReason::Released`] when this guard is given back, so that a task that awaits it ends with the guard.
    ///
    /// The future does not borrow the guard and does not keep the lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockkeeper_core::{Locker, LostReason, Memory};
    /// # async fn work() { std::future::pending().await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # let locker = Locker::new(Memory::default());
    /// let guard = locker.lock("orders/42").max_hold(Duration::from_millis(5)).await?;
    /// let lost = guard.lost();
    /// let reason = tokio::select! {
    ///     reason = lost => reason,
    ///     () = work() => panic!("the work never ends"),
    /// };
    /// assert_eq!(reason, LostReason::MaxHold);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub fn lost(&self) -> Lost {
        Lost {
            engine: self.engine.clone(),
            tenure: self.held.tenure.clone(),
            fence: self.held.fence,
            ticket: None,
        }
    }

    /// Run a future, and stop it where it awaits when the lock is lost.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockkeeper_core::{Error, Locker, Memory};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # let locker = Locker::new(Memory::default());
    /// let guard = locker.lock("orders/42").await?;
    /// let sum = guard.run(async { 2 + 2 }).await?;
    /// assert_eq!(sum, 4);
    ///
    /// let short = locker.lock("orders/43").max_hold(Duration::from_millis(5)).await?;
    /// let stopped = short.run(std::future::pending::<()>()).await;
    /// assert!(matches!(stopped, Err(Error::Lost { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping it drops `future`; the guard stays.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before the future ended, also when it ended in the same
    /// moment: its result was made without the lock and is dropped.
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        let (mut future, mut lost) = (pin!(future), self.lost());
        poll_fn(|cx| {
            if !self.is_valid() || Pin::new(&mut lost).poll(cx).is_ready() {
                return Poll::Ready(Err(self.lost_error()));
            }
            future.as_mut().poll(cx).map(|out| self.check().map(|()| out))
        })
        .await
    }

    /// Give the lock back and wait until the store, or the next caller of this process, has it.
    ///
    /// # Cancel safety
    /// Once polled the release goes on, even if this future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock had been lost before. [`Error::Unavailable`] if the store did not confirm:
    /// the release is tried again in the background, and the ttl ends the lock if nothing else does.
    pub async fn release(mut self) -> Result<()> {
        let check = self.check();
        if let Err(Error::Forked { .. }) = check {
            return check;
        }
        self.given_back = true;
        let (engine, held) = (&self.engine, &self.held);
        if leave::give_back(engine, held)
            && let Some(leave) = leave::leave_in_caller(engine, &held.tenure)
        {
            let left = InRuntime::new(&engine.background, leave.confirmed()).await;
            return check.and(left);
        }
        check
    }

    /// [`release`](Guard::release) for threads without a runtime.
    ///
    /// ```
    /// # use lockkeeper_core::{Locker, Memory};
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # let locker = Locker::new(Memory::default());
    /// let guard = locker.lock("orders/42").blocking()?;
    /// guard.release_blocking()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`release`](Guard::release).
    pub fn release_blocking(self) -> Result<()> {
        let engine = self.engine.clone();
        engine.background.block_on(self.release())
    }

    fn lost_error(&self) -> Error {
        let held = &self.held;
        let by_clock =
            if held.until < held.tenure.valid_until() { LostReason::MaxHold } else { LostReason::Expired };
        Error::Lost { fence: held.fence, reason: held.tenure.lost().unwrap_or(by_clock) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The lock of a process that forked is not ours to give back, and nobody would do it here.
        if !self.given_back && self.engine.is_here() {
            leave::release(&self.engine, &self.held);
        }
    }
}

/// The future of [`Guard::lost`].
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, LostReason, Memory};
/// let locker = Locker::new(Memory::default());
/// let guard = locker.lock("orders/42").await?;
/// let watcher = tokio::spawn(guard.lost()); // borrows nothing
/// locker.shutdown(Duration::from_secs(1)).await?;
/// assert_eq!(watcher.await.ok(), Some(LostReason::Closed));
/// # Ok(())
/// # }
/// ```
#[must_use = "a future does nothing unless awaited"]
pub struct Lost {
    /// Keeps the rounds walking, which tell the loss.
    engine: Arc<Engine>,
    tenure: Arc<Tenure>,
    fence: Fence,
    ticket: Option<u64>,
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost").field("key", &self.tenure.key).finish_non_exhaustive()
    }
}

impl Future for Lost {
    type Output = LostReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LostReason> {
        let it = &mut *self;
        if !it.engine.is_here() {
            return Poll::Ready(LostReason::Forked);
        }
        it.tenure.poll_lost(it.fence, &mut it.ticket, cx)
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.tenure.stop_listening(ticket);
        }
    }
}
