//! Why a sale was not shown, with the exit code that says so.

use lockkeeper::Error;

/// A strategy that promises not to oversell did.
pub(crate) const NO: u8 = 1;
/// Bad usage: an option or a URL that makes no sense.
pub(crate) const USAGE: u8 = 64;
/// The store of locks or the database cannot be used.
const UNREACHABLE: u8 = 69;
/// The operating system refused something, such as another process.
pub(crate) const SYSTEM: u8 = 71;
/// The plot cannot be written.
pub(crate) const OUTPUT: u8 = 74;
/// Somebody pressed the interrupt key: 128 and the signal's number, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why the demo ends without a table.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure {
    /// What the process should exit with.
    pub code: u8,
    /// What is wrong. May hold what strangers wrote: make it fit to print.
    pub text: String,
    /// What can be done.
    pub hint: Option<String>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure without a hint.
    pub fn new(code: u8, text: impl Into<String>) -> Self {
        let (text, hint) = (text.into(), None);
        Failure { code, text, hint }
    }

    /// Something the operating system refused.
    pub(crate) fn system(what: &str, error: &dyn std::fmt::Display) -> Self {
        Failure::new(SYSTEM, format!("{what}: {error}"))
    }

    /// A store or a database that does not do what it should.
    pub(crate) fn unreachable(text: impl Into<String>) -> Self {
        Failure::new(UNREACHABLE, text)
    }

    /// The same failure with a word on what can be done.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::Invalid { .. } | Error::Unsupported { .. } => Failure::new(USAGE, error.to_string()),
            _ => Failure::unreachable(error.to_string()),
        }
    }
}
