//! What happens to locks, told as events to an observer: logs, metrics and dashboards all stand here.

use std::fmt;
use std::time::Duration;

use crate::error::{LostReason, Stage};
use crate::fence::Fence;
use crate::key::Key;
use crate::spi::fault::Fault;

/// Something that happened to a lock of this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A caller got a guard.
    #[non_exhaustive]
    Granted {
        /// What is locked.
        key: &'a Key,
        /// The guard's fence.
        fence: Fence,
        /// How it came.
        by: GrantedBy,
        /// How long the caller stood in this process's line.
        local: Duration,
        /// How long it stood in the store's line.
        remote: Duration,
    },
    /// A caller gave up waiting.
    #[non_exhaustive]
    TimedOut {
        /// What it waited for.
        key: &'a Key,
        /// Where it stood.
        stage: Stage,
        /// How long it waited.
        waited: Duration,
    },
    /// A caller was refused because too many wait already.
    #[non_exhaustive]
    Refused {
        /// What it wanted.
        key: &'a Key,
    },
    /// The store confirmed that we still hold.
    #[non_exhaustive]
    Renewed {
        /// What is held.
        key: &'a Key,
        /// How long from now the tenure lasts.
        valid_for: Duration,
    },
    /// The store gave no usable answer; the keeper asks again while there is time.
    #[non_exhaustive]
    Faulted {
        /// About which key.
        key: &'a Key,
        /// What went wrong.
        fault: &'a Fault,
    },
    /// A held lock is gone.
    #[non_exhaustive]
    Lost {
        /// What was held.
        key: &'a Key,
        /// The fence of the guard at that time.
        fence: Fence,
        /// How it was lost.
        reason: LostReason,
    },
    /// A guard was given back.
    #[non_exhaustive]
    Released {
        /// What was held.
        key: &'a Key,
        /// The guard's fence.
        fence: Fence,
        /// Whether the next caller of this process got it without asking the store.
        handed_on: bool,
    },
    /// The store confirmed that a lock or a place in line was given up.
    #[non_exhaustive]
    Left {
        /// Which key.
        key: &'a Key,
    },
    /// The store did not confirm in time that a place was given up; it forgets the place by itself.
    #[non_exhaustive]
    Abandoned {
        /// Which key.
        key: &'a Key,
    },
}

/// How a guard came to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrantedBy {
    /// The store granted it.
    Store,
    /// The last holder in this process left it to us.
    HandOn,
    /// The owner held it already.
    Reentry,
    /// Other readers of this process held it, and it joined them.
    Sharing,
}

/// Something that wants to know. Called on the path of every lock: be quick, do not block, do not panic.
///
/// ```
/// # use std::sync::Arc;
/// # use std::sync::atomic::{AtomicU64, Ordering};
/// use lockkeeper_core::observe::{Event, GrantedBy, Observer};
/// use lockkeeper_core::{Locker, Memory};
///
/// /// Counts the guards that cost no trip to the store.
/// #[derive(Debug, Default)]
/// struct HandedOn(Arc<AtomicU64>);
///
/// impl Observer for HandedOn {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::Granted { by: GrantedBy::HandOn, .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// let count = Arc::<AtomicU64>::default();
/// let locker = Locker::builder(Memory::default()).observer(HandedOn(count.clone())).build();
/// let first = locker.lock("orders/42").await?;
/// let second = tokio::spawn(async move { locker.lock("orders/42").await });
/// tokio::task::yield_now().await; // it stands in line now
/// first.release().await?;
/// drop(second.await);
/// assert_eq!(count.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Something happened.
    fn observe(&self, event: &Event<'_>);
}

/// Writes every event to `tracing`: losses and faults as warnings, the rest at debug level.
///
/// ```
/// use lockkeeper_core::observe::TracingObserver;
/// use lockkeeper_core::{Locker, Memory};
///
/// let locker = Locker::builder(Memory::default()).observer(TracingObserver).build();
/// ```
#[cfg(feature = "tracing")]
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingObserver;

#[cfg(feature = "tracing")]
impl Observer for TracingObserver {
    fn observe(&self, event: &Event<'_>) {
        use tracing::{debug, warn};
        match event {
            Event::Granted { key, fence, by, local, remote } => {
                debug!(%key, %fence, ?by, ?local, ?remote, "lock granted");
            }
            Event::TimedOut { key, stage, waited } => {
                debug!(%key, ?stage, ?waited, "lock not obtained in time");
            }
            Event::Refused { key } => warn!(%key, "too many callers wait for this lock"),
            Event::Renewed { key, valid_for } => debug!(%key, ?valid_for, "lock renewed"),
            Event::Faulted { key, fault } => warn!(%key, %fault, "the lock store gave no usable answer"),
            Event::Lost { key, fence, reason } => warn!(%key, %fence, %reason, "lock lost"),
            Event::Released { key, fence, handed_on } => debug!(%key, %fence, handed_on, "lock released"),
            Event::Left { key } => debug!(%key, "place given up"),
            Event::Abandoned { key } => warn!(%key, "giving up a place was not confirmed; it will expire"),
        }
    }
}
