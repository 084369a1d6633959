//! What functions with `#[locked]` call. Not for people: it changes without notice.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::future::Future;
use std::time::Duration;

use lockkeeper_core::{
    Error, Guard, Key, LockRequest, Locker, MultiGuard, MultiRequest, Owner, Result, SharedGuard,
    SharedRequest, Stage, Wish,
};

/// The system this process belongs to.
pub fn system() -> Option<&'static str> {
    crate::process::system()
}

/// The key `system:words`, or the words alone.
///
/// # Errors
/// [`Error::Invalid`] if that is no key.
#[inline]
pub fn key(system: Option<&str>, words: fmt::Arguments<'_>) -> Result<Key> {
    // Empty if a key is being made right now: formatting one may call a locked function.
    let mut id = ID.try_with(Cell::take).unwrap_or_default();
    id.clear();
    if let Some(system) = system {
        id.push_str(system);
        id.push(':');
    }
    id.write_fmt(words).map_err(|_| Error::invalid("a part of the lock's name cannot be written as text"))?;
    let key = Key::new(&id);
    if id.capacity() <= ID_BYTES_KEPT {
        let _ = ID.try_with(|it| it.set(id));
    }
    key
}

/// More than any valid key needs. Whoever formats more than that gets an error, and must not cost us the memory.
const ID_BYTES_KEPT: usize = 1024;

thread_local! {
    /// Where keys are written before they are checked. Kept, because a fresh text for each would cost more than the
    /// rest of what the attribute adds to a call.
    static ID: Cell<String> = const { Cell::new(String::new()) };
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

/// A request of any kind, with these spans.
macro_rules! with {
    ($request:expr, $spans:ident) => {{
        let mut request = $request;
        if let Some(wait) = $spans.wait {
            request = request.wait_at_most(wait);
        }
        if let Some(ttl) = $spans.ttl {
            request = request.ttl(ttl);
        }
        if let Some(max_hold) = $spans.max_hold {
            request = request.max_hold(max_hold);
        }
        request
    }};
}

/// Who calls the locked function of this path: the owner of the task, or a new one for this call and all
/// within it.
#[inline]
pub fn owner(function: &'static str) -> Owner {
    Owner::current().unwrap_or_else(|| Owner::of_function(function))
}

/// The request of this owner. Awaited where it is made, because moving it costs more than the rest.
#[inline]
pub fn request(owner: &Owner, locker: &Locker, key: Result<Key>, spans: Spans) -> LockRequest {
    with!(locker.lock_key(key).owner(owner), spans)
}

/// The same request to share the lock.
///
/// # Errors
/// That of the key.
pub fn shared(owner: &Owner, locker: &Locker, key: Result<Key>, spans: Spans) -> Result<SharedRequest> {
    Ok(with!(locker.read(key?).owner(owner), spans))
}

/// The same request for so many permits of so many.
///
/// # Errors
/// That of the key.
pub fn permits(
    owner: &Owner,
    locker: &Locker,
    key: Result<Key>,
    (count, of): (u32, u32),
    spans: Spans,
) -> Result<SharedRequest> {
    Ok(with!(locker.permits(key?, count, of).owner(owner), spans))
}

/// The same request for several locks.
///
/// # Errors
/// That of the first key that is none.
pub fn several<const N: usize>(
    owner: &Owner,
    locker: &Locker,
    keys: [Result<Key>; N],
    spans: Spans,
) -> Result<MultiRequest> {
    let wishes: Vec<Wish> =
        keys.into_iter().map(|it| it.map(|it| Wish::lock(it.as_str()))).collect::<Result<_>>()?;
    Ok(with!(locker.lock_all(wishes).owner(owner), spans))
}

/// What a try brought. A taken lock is a wait of no length that timed out.
///
/// # Errors
/// [`Error::TimedOut`] if it brought nothing.
pub fn tried<G>(guard: Option<G>) -> Result<G> {
    guard.ok_or(TAKEN)
}

const TAKEN: Error = Error::timed_out(Stage::Remote, Duration::ZERO, None);

/// Give the lock back after a body that could not be stopped, and tell whether it was held to the end.
///
/// # Errors
/// [`Error::Lost`] if it was not.
pub fn release_blocking(guard: impl Held) -> Result<()> {
    guard.check()?;
    guard.give_back();
    Ok(())
}

/// A guard of any kind.
pub trait Held {
    /// See [`Guard::check`].
    ///
    /// # Errors
    /// [`Error::Lost`] if it is no longer held.
    fn check(&self) -> Result<()>;
    /// A release that the store does not confirm is tried again in the background.
    fn give_back(self);
}

macro_rules! held {
    ($($guard:ty),*) => {$(
        impl Held for $guard {
            #[inline]
            fn check(&self) -> Result<()> {
                <$guard>::check(self)
            }

            #[inline]
            fn give_back(self) {
                let _ = self.release_blocking();
            }
        }
    )*};
}

held!(Guard, SharedGuard, MultiGuard);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_whole_whatever_was_written_before() {
        for len in [510, 1, 64, 128, 200, 509, 2] {
            let word = "ü".repeat(len / 2) + &"x".repeat(len % 2);
            assert_eq!(key(Some("s"), format_args!("{word}")).unwrap().as_str(), format!("s:{word}"));
            assert_eq!(key(None, format_args!("{word}")).unwrap().as_str(), word);
        }
        assert!(matches!(key(None, format_args!("")), Err(Error::Invalid { .. })));
        let longer = "x".repeat(100_000);
        assert!(matches!(key(Some("s"), format_args!("{longer}")), Err(Error::Invalid { .. })));
        assert!(ID.take().capacity() <= ID_BYTES_KEPT);
    }

    #[test]
    fn a_key_may_be_made_while_another_is_being_made() {
        struct Inner;
        impl fmt::Display for Inner {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(key(Some("inner"), format_args!("{}", 7)).map_err(|_| fmt::Error)?.as_str())
            }
        }
        let outer = key(Some("outer"), format_args!("a{Inner}b")).unwrap();
        assert_eq!(outer.as_str(), "outer:ainner:7b");
    }
}
