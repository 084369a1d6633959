//! The guard: what the user holds while the lock is held.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::{Moment, Span};
use crate::engine::background::InRuntime;
use crate::engine::hold::Hold;
use crate::engine::leave;
use crate::engine::shared::Engine;
use crate::engine::tenure::Tenure;
use crate::engine::warm;
use crate::error::{Error, LostReason, Result};
use crate::fence::Fence;
use crate::key::Key;

/// A held lock. It can move between tasks and threads.
///
/// Dropping it gives the lock back soon, not now: the drop never blocks, and the store is told in the
/// background. [`release`](Guard::release) tells it before returning. A process that ends normally right after a drop
/// waits until the store has heard of it, within [a bound](crate::LockerBuilder::exit_wait); one that is killed leaves it to
/// the ttl.
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
    waited: Waited,
    given_back: bool,
}

/// [`Timings`] in half the room: a guard is moved with every lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited {
    pub(crate) local: Span,
    pub(crate) remote: Span,
}

impl Waited {
    pub(crate) const NOT: Waited = Waited { local: Span::ZERO, remote: Span::ZERO };

    pub(crate) fn in_lines(local: Duration, remote: Duration) -> Self {
        Waited { local: local.into(), remote: remote.into() }
    }
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
/// println!("{local:?} in this process's queue, {remote:?} in the store's");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// In this process's queue.
    pub local: Duration,
    /// In the store's queue, the trips to it included.
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
    pub(crate) fn new(engine: Arc<Engine>, held: Hold, waited: Waited) -> Self {
        Guard { engine, held, waited, given_back: false }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn held(&self) -> &Hold {
        &self.held
    }

    /// The tenure became one of readers: its fence is ours.
    pub(crate) fn renumber(&mut self) {
        self.held.fence = self.held.tenure.fence();
    }

    /// What is locked.
    pub fn key(&self) -> &Key {
        &self.held.tenure.key
    }

    /// The number to send along with every write that the lock protects.
    pub fn fence(&self) -> Fence {
        self.held.told_fence()
    }

    /// How long the caller waited for it.
    pub fn timings(&self) -> Timings {
        Timings { local: self.waited.local.into(), remote: self.waited.remote.into() }
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
        self.check_at(self.held.judged_at(&self.engine.clock))
    }

    fn check_at(&self, now: Moment) -> Result<()> {
        self.engine.check_process()?;
        if self.held.is_valid(now) { Ok(()) } else { Err(self.lost_error()) }
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
            fence: self.held.told_fence(),
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

    /// [`run`](Guard::run) a future, and [`release`](Guard::release) the lock when it has ended, well or not. A release that
    /// the store does not confirm is tried again in the background and is no error here: the work is done.
    ///
    /// ```
    /// # use lockkeeper_core::{Locker, Memory};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # let locker = Locker::new(Memory::default());
    /// if let Some(guard) = locker.try_lock("nightly-report").await? {
    ///     let lines = guard.run_and_release(async { 42 }).await?;
    ///     assert_eq!(lines, 42);
    /// }
    /// assert!(locker.try_lock("nightly-report").await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping it drops `future` and the guard.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before the future ended.
    pub async fn run_and_release<T>(self, future: impl Future<Output = T>) -> Result<T> {
        let done = self.run(future).await;
        let _ = self.release().await;
        done
    }

    /// [`release`](Guard::release), and do not keep the lock here if nobody of this process waits for it: when this
    /// returns, the store has it. It makes a difference for [warm locks](crate::LockerBuilder::warm) only.
    ///
    /// # Cancel safety
    /// As [`release`](Guard::release).
    ///
    /// # Errors
    /// As [`release`](Guard::release).
    pub async fn release_fully(self) -> Result<()> {
        self.held.tenure.stay.set_warm(false);
        self.release().await
    }

    /// Give the lock back and wait until the store, or the next caller of this process, has it. A
    /// [warm lock](crate::LockerBuilder::warm) stays with this process instead, until somebody else wants it.
    ///
    /// # Cancel safety
    /// Once polled the release goes on, even if this future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock had been lost before. [`Error::Unavailable`] if the store did not confirm:
    /// the release is tried again in the background, and the ttl ends the lock if nothing else does.
    pub async fn release(mut self) -> Result<()> {
        let now = self.held.judged_at(&self.engine.clock);
        let check = self.check_at(now);
        if let Err(Error::Forked { .. }) = check {
            return check;
        }
        self.given_back = true;
        let (engine, held) = (&self.engine, &self.held);
        if warm::keep_at(engine, held, now) {
            return check;
        }
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

    /// Lose the lock now, as if somebody had broken it: for tests of what your code does then.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, LostReason, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let guard = locker.lock("orders/42").await?;
    /// guard.lose_now();
    /// assert!(!guard.is_valid());
    /// assert_eq!(guard.lost().await, LostReason::Taken);
    /// assert!(locker.try_lock("orders/42").await?.is_some(), "another has it");
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn lose_now(&self) {
        leave::lose(&self.engine, &self.held.tenure, LostReason::Taken);
    }

    fn lost_error(&self) -> Error {
        let held = &self.held;
        let by_clock =
            if held.until < held.tenure.valid_until() { LostReason::MaxHold } else { LostReason::Expired };
        Error::Lost { fence: held.told_fence(), reason: held.tenure.lost().unwrap_or(by_clock) }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        // The lock of a process that forked is not ours to give back, and nobody would do it here.
        if !self.given_back && self.engine.is_here() && !warm::keep(&self.engine, &self.held) {
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
