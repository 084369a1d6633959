//! A request for a lock: what the caller wants.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::{Guard, Waited};
use crate::clock::{Moment, Sleep, Span};
use crate::engine::ask::Ask;
use crate::engine::hold::Hold;
use crate::engine::shared::Engine;
use crate::engine::waiter::Waiter;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::observe::GrantedBy;
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
    /// Goes over to the guard, so that a lock costs one share in it.
    pub(crate) engine: Option<Arc<Engine>>,
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

/// What a request gets: all of a guard but the engine.
pub(crate) struct Won {
    pub(crate) held: Hold,
    pub(crate) by: GrantedBy,
    pub(crate) waited: Waited,
}

/// The contest at the store.
pub(crate) type Contending = Pin<Box<dyn Future<Output = Result<Won>> + Send>>;

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockRequest").field("key", &self.key).field("ask", &self.ask).finish_non_exhaustive()
    }
}

impl LockRequest {
    #[expect(
        clippy::inline_always,
        reason = "a request that is made elsewhere and moved here costs a quarter of an in-process lock"
    )]
    #[inline(always)]
    pub(crate) fn new(engine: Arc<Engine>, key: Result<Key>) -> Self {
        let key = key.map_err(Box::new);
        let settings = &engine.settings;
        let (ttl, max_hold, wait) = (settings.ttl, settings.max_hold, settings.wait);
        let ask = Ask {
            owner: Owner::current(),
            load: Load::MUTEX,
            ttl,
            max_hold,
            at_least: Span::ZERO,
            patient: true,
            reenters: true,
            warm: settings.warm,
        };
        LockRequest {
            key,
            ask,
            wait,
            note: None,
            started: Moment::NEVER,
            progress: Progress::Fresh,
            engine: Some(engine),
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

    /// Keep the lock at least this long, counted from when it was had: a guard that is given back before leaves it with the
    /// store until then, without renewals, also if the process ends. For jobs that are so short that a late instance would
    /// find the lock free again. Nothing is held longer than the ttl after a crash.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use std::time::Duration;
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let guard = locker.lock("nightly").hold_at_least(Duration::from_secs(60)).await?;
    /// guard.release().await?;
    /// assert!(locker.try_lock("nightly").await?.is_none()); // for the rest of the minute
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold_at_least(mut self, span: Duration) -> Self {
        self.ask.at_least = span.into();
        self
    }

    /// Who asks, for reentrancy. Without it: the owner of the running task, if it has one.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.ask.owner = Some(owner.clone());
        self
    }

    /// Wait for everybody who has the lock, this owner included. For what must not run twice at once although one owner asks
    /// twice, as futures that one task polls side by side do: roles, ticks and buckets are asked for in this way. Who asks so in
    /// the middle of what it holds waits for itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory, Owner};
    /// # let locker = Locker::new(Memory::default());
    /// Owner::new("import")
    ///     .scope(async {
    ///         let guard = locker.lock("report").await?;
    ///         assert!(locker.try_lock("report").await?.is_some()); // the same lock, deeper
    ///         assert!(locker.try_lock("report").not_reentrant().await?.is_none());
    ///         guard.release().await
    ///     })
    ///     .await
    /// # }
    /// ```
    pub fn not_reentrant(mut self) -> Self {
        self.ask.reenters = false;
        self
    }

    /// Let the lock stay with this process after it was given back, as long as nobody outside wants it: see
    /// [`LockerBuilder::warm`](crate::LockerBuilder::warm).
    pub fn warm(mut self) -> Self {
        self.ask.warm = true;
        self
    }

    /// Give the lock back to the store with the guard, also where the locker keeps them warm.
    pub fn cold(mut self) -> Self {
        self.ask.warm = false;
        self
    }

    /// A free text, shown to whoever lists the locks. A warm lock that is taken again keeps that of the guard for which the store gave it:
    /// another would cost a trip.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(Box::new(note.into()));
        self
    }

    /// Do not wait: the answer is `None` if somebody else holds the lock or waits for it.
    pub fn attempt(mut self) -> Attempt {
        self.ask.patient = false;
        Attempt(self)
    }

    /// Wait for the lock, do something while it is held, and give it back. The work is stopped where it awaits if the lock is
    /// lost, and given the guard, for its fence. A release that the store does not confirm is tried again in the background
    /// and is no error here: the work is done.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use std::time::Duration;
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let wait = Duration::from_secs(3);
    /// let fence = locker.lock("orders/42").wait_at_most(wait).with(async |guard| guard.fence()).await?;
    /// assert!(locker.try_lock("orders/42").await?.is_some(), "it was given back");
    /// # let _ = fence;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// As for the request while it waits; later the work is dropped and the lock given back.
    ///
    /// # Errors
    /// As for the request awaited; [`Error::Lost`] if the lock was lost before the work ended.
    pub async fn with<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.await?;
        let done = guard.run(work(&guard)).await;
        let _ = guard.release().await;
        done
    }

    /// [`with`](LockRequest::with) for threads without a runtime. Plain code cannot be stopped: if the lock is lost meanwhile, the
    /// work goes on to its end, and its result is dropped. Ask [`guard.check()`](Guard::check) on the way.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use std::time::Duration;
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let wait = Duration::from_secs(3);
    /// let fence = locker.lock("orders/42").wait_at_most(wait).with_blocking(|guard| guard.fence())?;
    /// assert!(locker.try_lock("orders/42").blocking()?.is_some(), "it was given back");
    /// # let _ = fence;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for the request awaited; [`Error::Lost`] if the lock was lost before the work ended.
    pub fn with_blocking<T>(self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.blocking()?;
        let done = work(&guard);
        // What was made without the lock is no result.
        let done = guard.check().map(|()| done);
        let _ = guard.release_blocking();
        done
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
        let engine = self.engine.clone().ok_or(Error::Closed)?;
        engine.start()?;
        engine.background.block_on(self)
    }

    /// The key, if all of the request makes sense.
    pub(crate) fn checked_key(&self, engine: &Engine) -> Result<&Key> {
        let key = self.key.as_ref().map_err(|it| (**it).clone())?;
        check_ttl(self.ask.ttl, &engine.profile)?;
        if self.ask.load != Load::MUTEX {
            check_load(self.ask.load, &engine.profile)?;
        }
        if self.ask.at_least != Span::ZERO {
            check_at_least(&self.ask, &engine.profile)?;
        }
        if self.ask.max_hold == Span::from(Duration::ZERO) {
            return Err(Error::invalid("`max_hold` is zero: the lock would be lost at once"));
        }
        Ok(key)
    }

    pub(crate) fn label(&self, engine: &Engine) -> Arc<Label> {
        if self.ask.owner.is_none() && self.note.is_none() {
            return engine.label.clone();
        }
        let owner = self.ask.owner.as_ref().map(Owner::name);
        Arc::new(engine.label.with(owner, self.note.as_ref().map(|it| it.as_str())))
    }
}

fn check_ttl(ttl: Duration, profile: &Profile) -> Result<()> {
    if profile.takes(ttl) {
        return Ok(());
    }
    let Profile { name, ttl_min, ttl_max, .. } = *profile;
    let most = in_days(ttl_max);
    Err(Error::invalid(format!("a ttl of {ttl:?} is not allowed: {name} allows {ttl_min:?} to {most}")))
}

/// As people write it: many seconds are days.
fn in_days(span: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    let days = span.as_secs() / DAY;
    if 0 < days && span == Duration::from_secs(days * DAY) {
        format!("{days}days")
    } else {
        format!("{span:?}")
    }
}

fn check_at_least(ask: &Ask, profile: &Profile) -> Result<()> {
    if !profile.lingers {
        return Err(Error::unsupported(
            profile.name,
            "`hold_at_least`: it keeps no lock for a holder that is gone",
        ));
    }
    if ask.max_hold < ask.at_least {
        return Err(Error::invalid(
            "`hold_at_least` is longer than `max_hold`: the lock would be lost before",
        ));
    }
    Ok(())
}

fn check_load(load: Load, profile: &Profile) -> Result<()> {
    let Load { weight, capacity } = load;
    if weight == 0 || capacity == 0 {
        return Err(Error::invalid(format!("{load} permits are nothing to hold; ask for at least 1 of 1")));
    }
    if capacity < weight {
        return Err(Error::invalid(format!(
            "{weight} permits of {capacity} can never be granted; ask for {capacity} at most, or allow more"
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

    /// See [`LockRequest::hold_at_least`].
    pub fn hold_at_least(self, span: Duration) -> Self {
        Attempt(self.0.hold_at_least(span))
    }

    /// See [`LockRequest::owner`].
    pub fn owner(self, owner: &Owner) -> Self {
        Attempt(self.0.owner(owner))
    }

    /// See [`LockRequest::not_reentrant`].
    pub fn not_reentrant(self) -> Self {
        Attempt(self.0.not_reentrant())
    }

    /// See [`LockRequest::warm`].
    pub fn warm(self) -> Self {
        Attempt(self.0.warm())
    }

    /// See [`LockRequest::cold`].
    pub fn cold(self) -> Self {
        Attempt(self.0.cold())
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
        let engine = self.0.engine.clone().ok_or(Error::Closed)?;
        engine.start()?;
        engine.background.block_on(self.into_future())
    }
}
