//! For tests of code that uses locks: a default locker for each test, a lock that is lost now, time that stands still.
//!
//! Name the feature `test-util` in `[dev-dependencies]` only.

use std::future::Future;
use std::time::Duration;

use lockkeeper_core::{Clock, Guard, Locker, Memory, MultiGuard, Result, SharedGuard};

use crate::process;

/// What a scope has in place of the process's own.
#[derive(Clone, Copy)]
pub(crate) struct Scoped {
    pub(crate) locker: &'static Locker,
    pub(crate) system: Option<&'static str>,
}

tokio::task_local! {
    static SCOPED: Scoped;
}

pub(crate) fn current() -> Option<Scoped> {
    SCOPED.try_with(|it| *it).ok()
}

fn scoped(locker: Locker, system: Option<&str>) -> Result<Scoped> {
    system.map_or(Ok(()), process::check_system)?;
    // `default_locker` gives a reference that lasts as long as the process. A test's process does not last.
    let locker: &'static Locker = Box::leak(Box::new(locker));
    Ok(Scoped { locker, system: system.map(|it| &*it.to_owned().leak()) })
}

/// Run a future in which this is the process-wide locker, and this the system of `#[locked]` functions: tests run side by side
/// in one process, and each has locks of its own.
///
/// It does not follow into tasks that the future spawns: wrap what they run in a scope as well. The locker lives until
/// the process ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::test;
///
/// async fn code_under_test() -> lockkeeper::Result<()> {
///     lockkeeper::default_locker()?.lock("orders/42").await?.release().await
/// }
///
/// let locker = lockkeeper::connect("memory:").await?;
/// let held = locker.lock("other").await?;
/// test::scope(locker.clone(), Some("shop"), code_under_test()).await??;
/// assert!(lockkeeper::default_locker().is_err()); // outside of it there is none
/// # drop(held);
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// As safe as `future`.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) if `system` is no system name.
pub async fn scope<F: Future>(locker: Locker, system: Option<&str>, future: F) -> Result<F::Output> {
    let scoped = scoped(locker, system)?;
    Ok(SCOPED.scope(scoped, future).await)
}

/// [`scope`] for code that does not await.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// # use lockkeeper::test;
/// let locker = lockkeeper::connect_blocking("memory:")?;
/// test::scope_blocking(locker, None, || {
///     lockkeeper::default_locker()?.lock("orders/42").blocking()?.release_blocking()
/// })??;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`scope`].
pub fn scope_blocking<T>(locker: Locker, system: Option<&str>, work: impl FnOnce() -> T) -> Result<T> {
    let scoped = scoped(locker, system)?;
    Ok(SCOPED.sync_scope(scoped, work))
}

/// A locker in memory whose time stands still, and the clock that moves it. Waits, `max_hold` and `hold_at_least` end when
/// [`Clock::advance_by`] says so, and not before; `#[tokio::test(start_paused = true)]` does not move it.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::test;
///
/// let (locker, clock) = test::paused();
/// let guard = locker.lock("orders/42").max_hold(Duration::from_secs(3600)).await?;
/// clock.advance_by(Duration::from_secs(3599));
/// assert!(guard.is_valid());
/// clock.advance_by(Duration::from_secs(1));
/// assert!(!guard.is_valid());
/// # Ok(())
/// # }
/// ```
pub fn paused() -> (Locker, Clock) {
    // Any beginning will do that leaves room for what is counted backwards.
    let clock = Clock::virtual_from(Duration::from_secs(1_000_000));
    (Locker::builder(Memory::new(clock.clone())).clock(clock.clone()).build(), clock)
}

/// What [`lose`] takes away: a [`Guard`], a [`SharedGuard`], a [`MultiGuard`] with all that it holds, or what you wrap around one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::test::{self, Losable};
///
/// struct Seat(lockkeeper::Guard);
///
/// impl Losable for Seat {
///     fn lose_now(&self) {
///         self.0.lose_now();
///     }
/// }
///
/// # let locker = lockkeeper::connect("memory:").await?;
/// let seat = Seat(locker.lock("seat/7").await?);
/// test::lose(&seat);
/// assert!(!seat.0.is_valid());
/// # Ok(())
/// # }
/// ```
pub trait Losable {
    /// Lose it now, as if somebody had broken it.
    fn lose_now(&self);
}

macro_rules! losable {
    ($($guard:ty),+) => {
        $(impl Losable for $guard {
            fn lose_now(&self) {
                <$guard>::lose_now(self);
            }
        })+
    };
}

losable!(Guard, SharedGuard, MultiGuard);

/// Lose this lock now, as if somebody had broken it: its guard is not valid from here on, [`Guard::lost`] resolves,
/// [`Guard::run`] stops its work, and another can have the lock. Readers of one process may share a place at the store, and lose
/// it together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::{Error, test};
///
/// let locker = lockkeeper::connect("memory:").await?;
/// let guard = locker.lock("orders/42").await?;
/// let work = guard.run(async {
///     test::lose(&guard);
///     std::future::pending::<()>().await // never goes on
/// });
/// assert!(matches!(work.await, Err(Error::Lost { .. })));
/// # Ok(())
/// # }
/// ```
///
/// Whatever is [`Losable`] can be lost:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// # let locker = lockkeeper::connect("memory:").await?;
/// let both = locker.lock_all(["accounts/3", "accounts/7"]).await?;
/// lockkeeper::test::lose(&both);
/// assert!(!both.is_valid());
/// # Ok(())
/// # }
/// ```
pub fn lose(guard: &impl Losable) {
    guard.lose_now();
}
