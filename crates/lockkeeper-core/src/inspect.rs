//! Looking at a store as an operator does: who holds what, who waits, and breaking a lock by hand.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::backend::Result;
use crate::claim::Label;
use crate::fence::Fence;
use crate::key::Key;

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

    /// What about this store's settings endangers locks.
    fn doctor(&self) -> impl Future<Output = Result<Vec<Finding>>> + Send;
}

/// A lock as the store sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// Its name.
    pub key: Key,
    /// Who holds it.
    pub holders: Vec<Occupant>,
    /// Who waits, first in line first.
    pub waiters: Vec<Occupant>,
}

/// Somebody who holds a lock or waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub weight: u32,
}

/// One thing the doctor found.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Locks work; something is weaker than it could be.
    Warning,
    /// Locks can be lost or given twice.
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

    fn doctor(&self) -> Boxed<'_, Vec<Finding>> {
        Box::pin(Inspect::doctor(self))
    }
}
