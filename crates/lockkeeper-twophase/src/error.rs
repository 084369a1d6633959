//! Errors, sorted by what the caller may do after them.

use std::fmt;
use std::sync::Arc;

use crate::id::TransactionId;

/// Anything that a branch's work may end with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a transaction did not do what was asked, or an office could not be opened.
///
/// ```
/// # use lockkeeper_twophase::Error;
/// fn may_try_again(error: &Error) -> bool {
///     match error {
///         Error::Aborted { .. } | Error::Superseded { .. } | Error::Unavailable { .. } => true,
///         Error::Unknown { .. } => false, // ask `Office::verdict` first
///         _ => false,
///     }
/// }
/// # assert!(!may_try_again(&lockkeeper_twophase::Participant::mysql("").unwrap_err()));
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing happened at any participant. Try again if the reason may pass.
    #[error("the transaction {id} was rolled back everywhere: {}{source}", Whom(.by.as_deref()))]
    #[non_exhaustive]
    Aborted {
        /// The transaction.
        id: TransactionId,
        /// The participant that said no, unless it was the coordinator.
        by: Option<String>,
        /// Why.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The log did not say whether the decision was written, or somebody ruled by hand before all had promised. Do not try again: ask [`Office::verdict`](crate::Office::verdict).
    #[error(
        "whether the transaction {id} is committed is not known yet: {source}; ask for its verdict, do not repeat it"
    )]
    #[non_exhaustive]
    Unknown {
        /// The transaction.
        id: TransactionId,
        /// What the log said.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Our seat was taken by somebody else before the decision, who rolls back what we left. Nothing was committed, and the log
    /// says so: not even a person can rule otherwise any more. Open another office to go on.
    #[error(
        "another coordinator took the seat of the transaction {id} before it was decided; it is rolled back"
    )]
    #[non_exhaustive]
    Superseded {
        /// The transaction.
        id: TransactionId,
    },
    /// Committed, but not everywhere: a participant has rolled back, by somebody else's hand, what it had promised to keep, or
    /// somebody ruled by hand about what it had not promised. If the log cannot note it now, the sweep does it later.
    #[error("the transaction {id} is damaged: {}", .branches.join("; "))]
    #[non_exhaustive]
    Damaged {
        /// The transaction.
        id: TransactionId,
        /// What is wrong, one line for each branch.
        branches: Vec<String>,
    },
    /// The log, the lock store or a participant does not answer. Nothing was decided.
    #[error("{what} cannot be used: {source}")]
    #[non_exhaustive]
    Unavailable {
        /// Which one, without secrets.
        what: String,
        /// What went wrong.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The participant or the log cannot do this, as it is set up.
    #[error("{what}")]
    #[non_exhaustive]
    Unsupported {
        /// What it cannot do, and what would help.
        what: String,
    },
    /// The request makes no sense. Nothing was changed.
    #[error("{what}")]
    #[non_exhaustive]
    Invalid {
        /// What is wrong, and what would be right.
        what: String,
    },
}

/// As `Display`, because that is what a `main` that returns an error prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The result of what this crate does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

struct Whom<'a>(Option<&'a str>);

impl std::fmt::Display for Whom<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(name) => write!(f, "{name}: "),
            None => Ok(()),
        }
    }
}

impl Error {
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Error::Invalid { what: what.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Error::Unsupported { what: what.into() }
    }

    pub(crate) fn unavailable(
        what: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Error::Unavailable { what: what.into(), source: Arc::new(source) }
    }

    pub(crate) fn aborted(id: &TransactionId, by: Option<&str>, source: impl Into<BoxError>) -> Self {
        Error::Aborted { id: id.clone(), by: by.map(str::to_owned), source: Arc::from(source.into()) }
    }
}

impl From<lockkeeper_core::Error> for Error {
    fn from(error: lockkeeper_core::Error) -> Self {
        match error {
            lockkeeper_core::Error::Invalid { what, .. } => Error::Invalid { what },
            other => Error::unavailable("the lock store of the seats", other),
        }
    }
}
