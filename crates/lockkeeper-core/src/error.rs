//! Errors, sorted by what the caller can do about them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::fence::Fence;
use crate::spi::fault::Fault;

/// The result of everything a user of the library calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lock could not be obtained, or was not kept. A taken lock is no error in `try_lock`.
///
/// `Debug` reads as `Display` does, because that is what a `main` that returns an error prints.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Error, Locker, LostReason, Memory, Stage};
///
/// let locker = Locker::new(Memory::default());
/// let _held = locker.lock("orders/42").await?;
/// match locker.lock("orders/42").wait_at_most(Duration::from_millis(1)).await {
///     Err(error @ Error::TimedOut { stage: Stage::Local, .. }) => assert!(error.is_transient()),
///     Err(Error::Lost { reason: LostReason::Expired, .. }) => println!("take it again"),
///     Err(error) => return Err(error),
///     Ok(guard) => guard.release().await?,
/// }
/// assert!(!Error::invalid("the name is empty").is_transient());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait was over before our turn came. Try later, or wait longer.
    #[error("the lock was not obtained within {}: {}", Seconds(*.waited), TimedOutIn { stage: *.stage, ahead: *.ahead })]
    #[non_exhaustive]
    TimedOut {
        /// Which of the two lines we were standing in.
        stage: Stage,
        /// How long we waited in all.
        waited: Duration,
        /// How many stood before us when last seen, if known.
        ahead: Option<u64>,
    },
    /// Too many callers of this process already wait for this key. Shed the load.
    #[error("{waiters} callers of this process already wait for this lock; raise `waiters_max` or shed load")]
    #[non_exhaustive]
    Full {
        /// The cap that was reached.
        waiters: usize,
    },
    /// The lock was held and is gone. Stop what it protected; take it again to go on.
    #[error("the lock with fence {fence} was lost: {reason}")]
    #[non_exhaustive]
    Lost {
        /// The fence of the guard that lost it.
        fence: Fence,
        /// How it was lost.
        reason: LostReason,
    },
    /// The store did not answer as it should. See [`Error::is_transient`].
    #[error("{what} cannot be used: {source}")]
    #[non_exhaustive]
    Unavailable {
        /// Which store, without secrets.
        what: String,
        /// What went wrong.
        source: Arc<dyn std::error::Error + Send + Sync>,
        /// Whether trying again can help.
        transient: bool,
    },
    /// The store cannot do what was asked, and never will.
    #[error("{backend} cannot do this: {what}")]
    #[non_exhaustive]
    Unsupported {
        /// Which backend.
        backend: &'static str,
        /// What it cannot do, and what it can.
        what: String,
    },
    /// The request makes no sense. Nothing was changed.
    #[error("{what}")]
    #[non_exhaustive]
    Invalid {
        /// What is wrong with it, and what would be right.
        what: String,
    },
    /// The locker was shut down.
    #[error("the locker was shut down")]
    Closed,
    /// The locker or guard was made in another process and inherited by `fork`. Its threads and connections did not come
    /// along: open a locker of this process's own.
    #[error(
        "this locker was made in process {made_in} and came here by a fork; open a new one in this process"
    )]
    #[non_exhaustive]
    Forked {
        /// The process that made it.
        made_in: u32,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Something the caller must change.
    pub fn invalid(what: impl Into<String>) -> Self {
        Error::Invalid { what: what.into() }
    }

    /// Something that this store or build cannot do.
    pub fn unsupported(backend: &'static str, what: impl Into<String>) -> Self {
        Error::Unsupported { backend, what: what.into() }
    }

    /// Not obtained within the wait, in one of the two lines.
    pub const fn timed_out(stage: Stage, waited: Duration, ahead: Option<u64>) -> Self {
        Error::TimedOut { stage, waited, ahead }
    }

    /// What cannot be used because of a fault, by a name that the user knows it by.
    pub fn faulted(what: impl Into<String>, fault: Fault) -> Self {
        let transient = fault.is_transient();
        Error::Unavailable { what: what.into(), source: Arc::new(fault), transient }
    }

    /// Something that does not answer and may answer later.
    pub fn unavailable(
        what: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Error::Unavailable { what: what.into(), source: Arc::new(source), transient: true }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::TimedOut { .. } | Error::Full { .. } | Error::Lost { .. } => true,
            Error::Unavailable { transient, .. } => *transient,
            Error::Unsupported { .. } | Error::Invalid { .. } | Error::Closed | Error::Forked { .. } => false,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::faulted(format!("the {} store", fault.backend), fault)
    }
}

/// One of the two lines a request stands in.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper_core::{Error, Stage};
///
/// let error = Error::timed_out(Stage::Remote, Duration::from_secs(3), Some(2));
/// assert_eq!(error.to_string(), "the lock was not obtained within 3.000 s: 2 ahead in the store's queue");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The queue of this process.
    Local,
    /// The store's queue.
    Remote,
}

/// How a held lock was lost.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Locker, LostReason, Memory};
///
/// let locker = Locker::new(Memory::default());
/// let guard = locker.lock("orders/42").max_hold(Duration::from_millis(5)).await?;
/// assert_eq!(guard.lost().await, LostReason::MaxHold);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// No renewal was confirmed before the deadline.
    Expired,
    /// The store says that it is not ours any more.
    Taken,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// The locker was shut down while it was held.
    Closed,
    /// This process is a fork of the one that holds it.
    Forked,
    /// It was not lost: its guard was released. Only [`Guard::lost`](crate::Guard::lost) tells this, so that whoever
    /// awaits a loss ends with the guard.
    Released,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LostReason::Expired => "no renewal was confirmed in time",
            LostReason::Taken => "the store no longer knows it as ours (expired, broken or removed)",
            LostReason::MaxHold => "it was held as long as `max_hold` allows",
            LostReason::Closed => "the locker was shut down",
            LostReason::Forked => "it belongs to the process that this one was forked from",
            LostReason::Released => "it was released",
        })
    }
}

struct TimedOutIn {
    stage: Stage,
    ahead: Option<u64>,
}

impl fmt::Display for TimedOutIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self.stage {
            Stage::Local => "in this process's queue",
            Stage::Remote => "in the store's queue",
        };
        match self.ahead {
            Some(ahead) => write!(f, "{ahead} ahead {line}"),
            None => write!(f, "still waiting {line}"),
        }
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.0.as_secs_f64())
    }
}
