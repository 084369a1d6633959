//! A fault: the outcome of a verb is unknown, or the store cannot serve us.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The result of a verb.
pub type Result<T> = std::result::Result<T, Fault>;

/// The outcome of a verb is unknown, or the store cannot serve us.
///
/// ```
/// use lockkeeper_core::backend::{Fault, FaultKind};
///
/// let cause = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
/// let fault = Fault::transient("redis", "taking the lock", "the connection broke").with_source(cause);
/// assert!(fault.is_transient());
/// assert_eq!(fault.to_string(), "redis failed while taking the lock: the connection broke");
///
/// let fault = Fault::permanent("redis", "connecting", "wrong password");
/// assert_eq!(fault.kind, FaultKind::Permanent);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Fault {
    /// Which backend.
    pub backend: &'static str,
    /// What it was doing, in words a user understands: `"taking the lock"`.
    pub doing: &'static str,
    /// Whether trying again can help.
    pub kind: FaultKind,
    /// What is wrong and, if it is known, what to do. Holds no secret.
    pub message: String,
    /// The driver's own error.
    pub source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// A lost connection, a timeout, a failover: ask again.
    Transient,
    /// Wrong password, no permission, a broken file: asking again gives the same answer.
    Permanent,
}

impl Fault {
    /// A fault of either kind.
    pub fn new(
        kind: FaultKind,
        backend: &'static str,
        doing: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Fault { backend, doing, kind, message: message.into(), source: None }
    }

    /// A fault that may pass.
    pub fn transient(backend: &'static str, doing: &'static str, message: impl Into<String>) -> Self {
        Fault::new(FaultKind::Transient, backend, doing, message)
    }

    /// A fault that stays until somebody changes something.
    pub fn permanent(backend: &'static str, doing: &'static str, message: impl Into<String>) -> Self {
        Fault::new(FaultKind::Permanent, backend, doing, message)
    }

    /// The same fault met while doing something else.
    #[must_use]
    pub fn while_doing(mut self, doing: &'static str) -> Self {
        self.doing = doing;
        self
    }

    /// The same fault with the driver's error behind it.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Whether trying again can help.
    pub fn is_transient(&self) -> bool {
        self.kind == FaultKind::Transient
    }
}

/// As `Display`, because that is what a `main` that returns an error prints.
impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed while {}: {}", self.backend, self.doing, self.message)
    }
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|it| it.as_ref() as _)
    }
}
