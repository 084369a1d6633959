//! What functions with `#[locked]` call. Not for people: it changes without notice.

use std::fmt::{self, Write as _};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use lockkeeper_core::{Error, Guard, Key, LockRequest, Locker, Owner, Result, Stage};

/// The system this process belongs to.
pub fn system() -> Option<&'static str> {
    crate::process::system()
}

/// The key `system:words`, or the words alone.
///
/// # Errors
/// [`Error::Invalid`] if that is no key.
pub fn key(system: Option<&str>, words: fmt::Arguments<'_>) -> Result<Key> {
    // Most ids are shorter; a longer one grows the text once or twice.
    let mut id = String::with_capacity(64);
    if let Some(system) = system {
        id.push_str(system);
        id.push(':');
    }
    id.write_fmt(words).map_err(|_| Error::invalid("a part of the lock's name cannot be written as text"))?;
    Key::new(&id)
}

/// The spans that the attribute names.
#[derive(Clone, Copy, Debug)]
pub struct Spans {
    /// See [`LockRequest::wait_at_most`].
    pub wait: Option<Duration>,
    /// See [`LockRequest::ttl`].
    pub ttl: Option<Duration>,
    /// See [`LockRequest::max_hold`].
    pub max_hold: Option<Duration>,
}

/// Who calls a locked function: the owner of the task, or a new one for this call and all within it.
#[derive(Debug)]
pub struct Caller {
    owner: Owner,
    is_new: bool,
}

impl Caller {
    /// The caller of the function with this path.
    pub fn new(function: &'static str) -> Self {
        match Owner::current() {
            Some(owner) => Caller { owner, is_new: false },
            None => Caller { owner: Owner::new(function), is_new: true },
        }
    }

    /// The request of this caller.
    ///
    /// # Errors
    /// Those of its parts.
    pub fn request(&self, locker: Result<&Locker>, key: Result<Key>, spans: Spans) -> Result<LockRequest> {
        let mut request = locker?.lock_key(key).owner(&self.owner);
        if let Some(wait) = spans.wait {
            request = request.wait_at_most(wait);
        }
        if let Some(ttl) = spans.ttl {
            request = request.ttl(ttl);
        }
        if let Some(max_hold) = spans.max_hold {
            request = request.max_hold(max_hold);
        }
        Ok(request)
    }

    /// Run the body while the lock is held.
    ///
    /// # Cancel safety
    /// Dropping it stops the body.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before the body ended.
    pub async fn run<T>(&self, guard: &Guard, body: Pin<&mut impl Future<Output = T>>) -> Result<T> {
        if self.is_new { self.owner.scope(guard.run(body)).await } else { guard.run(body).await }
    }

    /// Run a body that does not await.
    pub fn run_blocking<T>(&self, body: impl FnOnce() -> T) -> T {
        if self.is_new { self.owner.scope_blocking(body) } else { body() }
    }
}

/// Wait for the lock.
///
/// # Cancel safety
/// As for [`LockRequest`].
///
/// # Errors
/// As for [`LockRequest`].
pub async fn obtain(request: Result<LockRequest>) -> Result<Guard> {
    request?.await
}

/// [`obtain`] without waiting.
///
/// # Cancel safety
/// As for [`LockRequest`].
///
/// # Errors
/// As for [`LockRequest`]; a taken lock is a wait of no length that timed out.
pub async fn attempt(request: Result<LockRequest>) -> Result<Guard> {
    request?.attempt().await?.ok_or(TAKEN)
}

/// [`obtain`] on this thread.
///
/// # Errors
/// As for [`obtain`].
pub fn obtain_blocking(request: Result<LockRequest>) -> Result<Guard> {
    request?.blocking()
}

/// [`attempt`] on this thread.
///
/// # Errors
/// As for [`attempt`].
pub fn attempt_blocking(request: Result<LockRequest>) -> Result<Guard> {
    request?.attempt().blocking()?.ok_or(TAKEN)
}

const TAKEN: Error = Error::TimedOut { stage: Stage::Remote, waited: Duration::ZERO, ahead: None };

/// Give the lock back after a body that held it to its end.
///
/// # Cancel safety
/// The release goes on.
pub async fn release(guard: Guard) {
    // The body is done and the lock was held throughout: a store that does not confirm the release changes
    // nothing about its answer. The release is tried again in the background.
    let _ = guard.release().await;
}

/// Give the lock back after a body that could not be stopped, and tell whether it was held to the end.
///
/// # Errors
/// [`Error::Lost`] if it was not.
pub fn release_blocking(guard: Guard) -> Result<()> {
    guard.check()?;
    let _ = guard.release_blocking();
    Ok(())
}

/// The answer of a function whose lock was not obtained or was lost.
pub fn failed<R: LockedAnswer>(error: Error) -> R {
    R::of_lock_error(error)
}

/// What `or_else` makes of the error.
pub fn or_else<R>(error: Error, function: impl FnOnce(Error) -> R) -> R {
    function(error)
}

/// What a locked function may return: something that can hold [`Error`].
#[diagnostic::on_unimplemented(
    message = "`#[locked]` has nothing to answer here when the lock is not obtained",
    label = "`{Self}` cannot hold a `lockkeeper::Error`",
    note = "return a `Result` whose error is `From<lockkeeper::Error>`",
    note = "or say what to answer: `#[locked(…, or = value)]` or `#[locked(…, or_else = |error| …)]`"
)]
pub trait LockedAnswer {
    /// The error as such an answer.
    fn of_lock_error(error: Error) -> Self;
}

impl<T, E: From<Error>> LockedAnswer for Result<T, E> {
    fn of_lock_error(error: Error) -> Self {
        Err(error.into())
    }
}

/// Refuses, when compiled, a function that only makes a future: its lock would be gone before the future runs.
pub fn answer_is_no_future<T: ?Sized + IsNoFuture<Proof>, Proof>(_answer: &T) {}

/// Implemented twice for futures, so that nobody can tell which one is meant.
pub trait IsNoFuture<Proof> {}
impl<T: ?Sized> IsNoFuture<()> for T {}
impl<T: ?Sized + Future> IsNoFuture<u8> for T {}
