//! Looking at a store as an operator does: who holds what, who waits, and breaking a lock by hand.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::fence::Fence;
use crate::key::Key;
use crate::spi::claim::{Label, Load};
use crate::spi::fault::Result;

/// The operator's view of a store. Every backend implements it beside [`Backend`](crate::backend::Backend).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant, Severity};
/// use lockkeeper_core::{Locker, Memory};
///
/// let store = Memory::default();
/// let guard = Locker::new(store.clone()).lock("orders/42").note("import").await?;
///
/// let locks: Vec<LockInfo> = store.list("orders/").await?;
/// let Occupant { label, fence, .. } = &locks[0].holders[0];
/// assert_eq!(label.note.as_deref(), Some("import"));
/// assert_eq!(*fence, Some(guard.fence()));
///
/// let broken = store.break_lock(guard.key()).await?;
/// assert_eq!(broken.len(), 1);
/// assert_eq!(store.show(guard.key()).await?, None);
///
/// for Finding { severity, what, remedy, .. } in store.doctor().await? {
///     assert!(severity < Severity::Danger, "{what}: {remedy}");
/// }
/// # Ok(())
/// # }
/// ```
pub trait Inspect: fmt::Debug + Send + Sync + 'static {
    /// All locks that are held or waited for and whose name begins with `prefix`, by name.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<LockInfo>>> + Send;

    /// One lock, or `None` if nobody holds it or waits for it.
    fn show(&self, key: &Key) -> impl Future<Output = Result<Option<LockInfo>>> + Send;

    /// Take the lock away from whoever holds it, so that the next in line gets it.
    ///
    /// Those who wait keep their places. The next grant has a larger counter. Answers who lost it.
    fn break_lock(&self, key: &Key) -> impl Future<Output = Result<Vec<Occupant>>> + Send;

    /// Take the lock away from the holder with this fence, as [`list`](Inspect::list) or [`show`](Inspect::show) told it, and from
    /// nobody else: whoever got it in the meantime keeps it, and so do those who share it.
    ///
    /// Comparing and taking away are one step. A store that cannot do that leaves this out.
    fn break_holder(&self, key: &Key, fence: Fence) -> impl Future<Output = Result<Broken>> + Send {
        let _ = (key, fence);
        std::future::ready(Ok(Broken::Unsupported))
    }

    /// What about this store's settings endangers locks.
    fn doctor(&self) -> impl Future<Output = Result<Vec<Finding>>> + Send;
}

/// What came of [`Inspect::break_holder`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::inspect::{Broken, Inspect};
/// use lockkeeper_core::{Locker, Memory};
///
/// let store = Memory::default();
/// let locker = Locker::new(store.clone());
/// let seen = locker.lock("orders/42").await?.fence(); // and given back at once
/// let guard = locker.lock("orders/42").await?;
/// assert_eq!(store.break_holder(guard.key(), seen).await?, Broken::Changed);
/// assert!(matches!(store.break_holder(guard.key(), guard.fence()).await?, Broken::Lost(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Broken {
    /// The holder that was meant, which has lost the lock.
    Lost(Occupant),
    /// Nobody holds the lock by that fence any more. Nothing was changed.
    Changed,
    /// The store cannot compare and take away in one step. Nothing was changed.
    Unsupported,
}

/// A lock as the store sees it.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::inspect::{LockInfo, Occupant};
/// use lockkeeper_core::{Key, Label};
///
/// let holder = Occupant::new(Label::of_this_process(), Duration::from_secs(7));
/// let info = LockInfo::new(Key::new("orders/42")?, vec![holder], Vec::new());
/// assert!(info.holders[0].fence.is_none() && info.foreign.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub key: Key,
    /// Who holds it.
    pub holders: Vec<Occupant>,
    /// Who waits, first in line first.
    pub waiters: Vec<Occupant>,
    /// What stands in this lock's line and was not put there by us: its name in the store, and what to do. A lock whose own
    /// name cannot be read is listed by its name in the store, where all are listed.
    pub foreign: Vec<String>,
}

impl LockInfo {
    /// A lock with these holders and waiters.
    pub fn new(key: Key, holders: Vec<Occupant>, waiters: Vec<Occupant>) -> Self {
        LockInfo { key, holders, waiters, foreign: Vec::new() }
    }

    /// Whether nobody holds it, nobody waits, and nothing foreign is in the way.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.foreign.is_empty()
    }
}

/// Somebody who holds a lock or waits for it.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper_core::inspect::Occupant;
/// use lockkeeper_core::{Fence, Label, Load};
///
/// let left = Duration::from_secs(7);
/// let holder = Occupant::new(Label::of_this_process(), left)
///     .since(Some(Duration::from_secs(3)))
///     .fence(Some(Fence::of_grant(17)))
///     .load(Load::new(2, 5));
/// assert_eq!((holder.valid_for, holder.load.weight), (left, 2));
/// assert!(holder.valid_for(Duration::ZERO).valid_for.is_zero());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupant {
    /// Who it is.
    pub label: Label,
    /// How long it has held, or waited, if the store knows.
    pub since: Option<Duration>,
    /// The fence of the holder's first guard; `None` for waiters.
    pub fence: Option<Fence>,
    /// How long the store will keep the lock or the place without hearing from its owner.
    pub valid_for: Duration,
    /// How much of the room it takes.
    pub load: Load,
}

impl Occupant {
    /// Somebody with a mutex's load, of whom no more is known than who it is and how long the store keeps it.
    pub fn new(label: Label, valid_for: Duration) -> Self {
        Occupant { label, since: None, fence: None, valid_for, load: Load::MUTEX }
    }

    /// How long the store will keep it without hearing from its owner.
    #[must_use]
    pub fn valid_for(mut self, valid_for: Duration) -> Self {
        self.valid_for = valid_for;
        self
    }

    /// How long it has held, or waited.
    #[must_use]
    pub fn since(mut self, since: Option<Duration>) -> Self {
        self.since = since;
        self
    }

    /// The fence of the holder's first guard.
    #[must_use]
    pub fn fence(mut self, fence: Option<Fence>) -> Self {
        self.fence = fence;
        self
    }

    /// How much of the room it takes.
    #[must_use]
    pub fn load(mut self, load: Load) -> Self {
        self.load = load;
        self
    }
}

/// One thing the doctor found.
///
/// ```
/// use lockkeeper_core::inspect::{Finding, Severity};
///
/// let finding = Finding::warning("no replica is attached", "a lost disk loses all locks", "attach one");
/// assert_eq!(finding.severity, Severity::Warning);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at and seen.
    pub what: String,
    /// What follows for locks.
    pub consequence: String,
    /// What to do.
    pub remedy: String,
}

impl Finding {
    /// A finding of any severity.
    pub fn new(
        severity: Severity,
        what: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding { severity, what: what.into(), consequence: consequence.into(), remedy: remedy.into() }
    }

    /// As it should be: what was seen, and what follows for locks. There is nothing to do.
    pub fn fine(what: impl Into<String>, consequence: impl Into<String>) -> Self {
        Finding::new(Severity::Fine, what, consequence, "")
    }

    /// Locks work; something is weaker than it could be.
    pub fn warning(
        what: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding::new(Severity::Warning, what, consequence, remedy)
    }

    /// Locks can be lost, or have two holders at once.
    pub fn danger(
        what: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding::new(Severity::Danger, what, consequence, remedy)
    }
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Locks work; something is weaker than it could be.
    Warning,
    /// Locks can be lost, or held by two at once.
    Danger,
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// [`Inspect`] without its type, for tools that open any store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::Memory;
/// use lockkeeper_core::inspect::DynInspect;
///
/// let store: Box<dyn DynInspect> = Box::new(Memory::default());
/// assert!(store.list("").await?.is_empty());
/// # Ok(())
/// # }
/// ```
pub trait DynInspect: fmt::Debug + Send + Sync + 'static {
    /// See [`Inspect::list`].
    fn list<'a>(&'a self, prefix: &'a str) -> Boxed<'a, Vec<LockInfo>>;
    /// See [`Inspect::show`].
    fn show<'a>(&'a self, key: &'a Key) -> Boxed<'a, Option<LockInfo>>;
    /// See [`Inspect::break_lock`].
    fn break_lock<'a>(&'a self, key: &'a Key) -> Boxed<'a, Vec<Occupant>>;
    /// See [`Inspect::break_holder`].
    fn break_holder<'a>(&'a self, key: &'a Key, fence: Fence) -> Boxed<'a, Broken>;
    /// See [`Inspect::doctor`].
    fn doctor(&self) -> Boxed<'_, Vec<Finding>>;
}

impl<I: Inspect> DynInspect for I {
    fn list<'a>(&'a self, prefix: &'a str) -> Boxed<'a, Vec<LockInfo>> {
        Box::pin(Inspect::list(self, prefix))
    }

    fn show<'a>(&'a self, key: &'a Key) -> Boxed<'a, Option<LockInfo>> {
        Box::pin(Inspect::show(self, key))
    }

    fn break_lock<'a>(&'a self, key: &'a Key) -> Boxed<'a, Vec<Occupant>> {
        Box::pin(Inspect::break_lock(self, key))
    }

    fn break_holder<'a>(&'a self, key: &'a Key, fence: Fence) -> Boxed<'a, Broken> {
        Box::pin(Inspect::break_holder(self, key, fence))
    }

    fn doctor(&self) -> Boxed<'_, Vec<Finding>> {
        Box::pin(Inspect::doctor(self))
    }
}
