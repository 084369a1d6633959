//! A request for a lock: what the caller wants.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::Guard;
use crate::clock::{Moment, Sleep, Span};
use crate::engine::ask::Ask;
use crate::engine::shared::Engine;
use crate::engine::waiter::Waiter;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::owner::Owner;
use crate::spi::backend::{Profile, Rooms};
use crate::spi::claim::{Label, Load};

/// A request for a lock. Await it to wait for the lock, or [`attempt`](LockRequest::attempt) it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use std::time::Duration;
/// # use lockkeeper_core::{Locker, Memory, Owner};
/// # let locker = Locker::new(Memory::default());
/// let import = Owner::new("import");
/// let guard = locker
///     .lock("orders/42")
///     .ttl(Duration::from_secs(10))
///     .wait_at_most(Duration::from_secs(3))
///     .max_hold(Duration::from_secs(60))
///     .owner(&import)
///     .note("release 1.4")
///     .await?;
/// let again = locker.lock("orders/42").owner(&import).await?; // the same owner: the same lock
/// assert_eq!(guard.fence(), again.fence());
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// Dropping the future gives up the place in line; nothing is left in the store. A grant that arrives too
/// late goes to the next caller in line or is given back.
///
/// # Errors
/// [`Error::TimedOut`], [`Error::Full`], [`Error::Unavailable`], [`Error::Unsupported`],
/// [`Error::Invalid`] for a bad name or option, [`Error::Closed`].
///
/// # Fairness
/// First come, first served within the process. Between processes as the store's profile says, and a
/// process that holds the lock may serve a bounded number of its own callers first.
#[must_use = "a request does nothing unless awaited"]
pub struct LockRequest {
    pub(crate) engine: Arc<Engine>,
    /// The error is boxed because it is rare and large.
    pub(crate) key: Result<Key, Box<Error>>,
    pub(crate) ask: Ask,
    pub(crate) wait: Span,
    #[expect(clippy::box_collection, reason = "a request is moved often and rarely has a note")]
    note: Option<Box<String>>,
    /// When it was first polled.
    pub(crate) started: Moment,
    pub(crate) progress: Progress,
}

/// How far a request has come. Only a wait at the store needs a box.
pub(crate) enum Progress {
    Fresh,
    /// In the local line, until then at the longest.
    Standing(Arc<Waiter>, Option<Box<Sleep>>),
    Contending(Contending),
}

/// The contest at the store.
pub(crate) type Contending = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockRequest").field("key", &self.key).field("ask", &self.ask).finish_non_exhaustive()
    }
}

impl LockRequest {
    #[inline]
    pub(crate) fn new(engine: Arc<Engine>, key: Result<Key>) -> Self {
        let key = key.map_err(Box::new);
        let settings = &engine.settings;
        let (ttl, max_hold, wait) = (settings.ttl, settings.max_hold, settings.wait);
        let ask =
            Ask { owner: Owner::current(), load: Load::MUTEX, ttl, max_hold: max_hold.into(), patient: true };
        LockRequest {
            key,
            ask,
            wait: wait.into(),
            note: None,
            started: Moment::NEVER,
            progress: Progress::Fresh,
            engine,
        }
    }

    /// With another load than a mutex's.
    pub(crate) fn load(mut self, load: Load) -> Self {
        self.ask.load = load;
        self
    }

    /// How long the store keeps the lock without hearing from this process. While the guard lives it is
    /// renewed at a third of this; after a crash others wait at most this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ask.ttl = ttl;
        self
    }

    /// How long to wait, over both lines together. Without it the request waits as the locker's
    /// settings say, by default without end.
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.wait = wait.into();
        self
    }

    /// How long the guard may live at the longest, renewals or not; after that it is lost.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.ask.max_hold = max_hold.into();
        self
    }

    /// Who asks, for reentrancy. Without it: the owner of the running task, if it has one.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.ask.owner = Some(owner.clone());
        self
    }

    /// A word for whoever lists the locks.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(Box::new(note.into()));
        self
    }

    /// Do not wait: the answer is `None` if somebody else holds the lock or waits for it.
    pub fn attempt(mut self) -> Attempt {
        self.ask.patient = false;
        Attempt(self)
    }

    /// Wait on this thread. For threads without a runtime; it blocks a runtime's worker as any wait does.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use std::time::Duration;
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let guard = locker.lock("orders/42").wait_at_most(Duration::from_secs(3)).blocking()?;
    /// guard.release_blocking()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for the request awaited.
    pub fn blocking(self) -> Result<Guard> {
        self.engine.background.start()?;
        let engine = self.engine.clone();
        engine.background.block_on(self)
    }

    /// The key, if all of the request makes sense.
    pub(crate) fn checked_key(&self) -> Result<&Key> {
        let key = self.key.as_ref().map_err(|it| (**it).clone())?;
        check_ttl(self.ask.ttl, &self.engine.profile)?;
        if self.ask.load != Load::MUTEX {
            check_load(self.ask.load, &self.engine.profile)?;
        }
        if self.ask.max_hold == Span::from(Duration::ZERO) {
            return Err(Error::invalid("`max_hold` is zero: the lock would be lost at once"));
        }
        Ok(key)
    }

    pub(crate) fn label(&self) -> Arc<Label> {
        if self.ask.owner.is_none() && self.note.is_none() {
            return self.engine.label.clone();
        }
        let owner = self.ask.owner.as_ref().map(Owner::name);
        Arc::new(self.engine.label.with(owner, self.note.as_ref().map(|it| it.as_str())))
    }
}

fn check_ttl(ttl: Duration, profile: &Profile) -> Result<()> {
    let Profile { name, ttl_min, ttl_max, .. } = *profile;
    if (ttl_min..=ttl_max).contains(&ttl) {
        return Ok(());
    }
    Err(Error::invalid(format!("a ttl of {ttl:?} cannot be had: {name} takes {ttl_min:?} to {ttl_max:?}")))
}

fn check_load(load: Load, profile: &Profile) -> Result<()> {
    let Load { weight, capacity } = load;
    if weight == 0 || capacity == 0 {
        return Err(Error::invalid(format!("{load} permits are nothing to hold; ask for at least 1 of 1")));
    }
    if capacity < weight {
        return Err(Error::invalid(format!(
            "{weight} permits of {capacity} can never be had; ask for {capacity} at most, or allow more"
        )));
    }
    if profile.rooms == Rooms::MutexOnly {
        return Err(Error::unsupported(profile.name, "shares: it has one holder at a time; use `lock`"));
    }
    Ok(())
}

/// A [`LockRequest`] that does not wait. Its answer is `None` if the lock is taken.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use std::time::Duration;
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let first = locker.try_lock("nightly-report").ttl(Duration::from_secs(10)).note("on db1").await?;
/// assert!(first.is_some());
/// assert!(locker.try_lock("nightly-report").await?.is_none()); // taken is no error
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// As for [`LockRequest`].
///
/// # Errors
/// As for [`LockRequest`], without [`Error::TimedOut`] and [`Error::Full`].
#[derive(Debug)]
#[must_use = "an attempt does nothing unless awaited"]
pub struct Attempt(pub(crate) LockRequest);

impl Attempt {
    /// See [`LockRequest::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Attempt(self.0.ttl(ttl))
    }

    /// See [`LockRequest::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Attempt(self.0.max_hold(max_hold))
    }

    /// See [`LockRequest::owner`].
    pub fn owner(self, owner: &Owner) -> Self {
        Attempt(self.0.owner(owner))
    }

    /// See [`LockRequest::note`].
    pub fn note(self, note: impl Into<String>) -> Self {
        Attempt(self.0.note(note))
    }

    /// Try on this thread, without a runtime.
    ///
    /// # Errors
    /// As for the attempt awaited.
    pub fn blocking(self) -> Result<Option<Guard>> {
        self.0.engine.background.start()?;
        let engine = self.0.engine.clone();
        engine.background.block_on(self.into_future())
    }
}
