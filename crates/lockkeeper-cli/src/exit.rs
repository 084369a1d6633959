//! Exit codes, and failures on their way to one.

use lockkeeper::spi::Fault;
use lockkeeper::{Error, LostReason};

use crate::{help, text};

/// The doctor found a danger, or the user said no.
pub(crate) const NO: u8 = 1;
/// Bad usage: a name, an option or a URL that makes no sense.
pub(crate) const USAGE: u8 = 64;
/// The store cannot be used.
pub(crate) const UNREACHABLE: u8 = 69;
/// The operating system refused something, such as another process.
pub(crate) const SYSTEM: u8 = 71;
/// Standard output cannot be written.
pub(crate) const OUTPUT: u8 = 74;
/// The lock was not obtained in time.
pub(crate) const BUSY: u8 = 75;
/// The lock was lost, or would have been, and the command was stopped.
pub(crate) const LOST: u8 = 76;
/// The command exists and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code of a process that a signal ended, as shells have it.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |it| 128_u8.saturating_add(it))
}

/// Why the program ends without having done its job.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        let (text, hint) = (text.into(), None);
        Failure { code, text, hint }
    }

    /// Something the operating system refused.
    pub(crate) fn system(what: &str, error: &dyn std::fmt::Display) -> Self {
        Failure::new(SYSTEM, format!("{what}: {error}"))
    }

    /// The same failure with a word on what can be done, unless it has one.
    pub(crate) fn or_hint(mut self, hint: impl FnOnce() -> String) -> Self {
        self.hint = self.hint.or_else(|| Some(hint()));
        self
    }

    /// What goes to standard error: no secret, and nothing that moves a cursor.
    pub(crate) fn lines(&self) -> String {
        let shown = |it: &str| text::message(&text::without_secrets(&help::with_pages(it)));
        let mut out = format!("lockkeeper: error: {}\n", shown(self.text.trim_end()));
        if let Some(hint) = &self.hint {
            out.push_str("hint: ");
            out.push_str(&shown(hint));
            out.push('\n');
        }
        out
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Invalid { .. } | Error::Unsupported { .. } => USAGE,
            Error::TimedOut { .. } | Error::Full { .. } => BUSY,
            Error::Lost { .. } => LOST,
            _ => UNREACHABLE,
        };
        let mut failure = Failure::new(code, error.to_string());
        if let Error::Lost { reason, .. } = &error {
            failure.hint = Some(after_loss(*reason).to_owned());
        }
        failure
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::from(Error::from(fault))
    }
}

/// What to do after a loss.
pub(crate) fn after_loss(reason: LostReason) -> &'static str {
    match reason {
        LostReason::MaxHold => "give the command a longer --max-hold, or less to do",
        LostReason::Taken => {
            "somebody broke the lock or removed it from the store; look with `lockkeeper ls`"
        }
        _ => "the store did not answer in time; see `lockkeeper doctor`, or take a longer --ttl",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_no_password_and_no_escape() {
        let failure =
            Failure::new(USAGE, "bad \x1b[31mURL redis://u:hunter2@h").or_hint(|| "try\nagain".into());
        let expected = "lockkeeper: error: bad \\u{1b}[31mURL redis://***@h\nhint: try\nagain\n";
        assert_eq!(failure.lines(), expected);
    }

    #[test]
    fn a_page_is_named_as_everybody_can_read_it() {
        let failure = Failure::new(USAGE, "docs/guides/a.md says").or_hint(|| "docs/backends/b.md".into());
        let pages = help::PAGES;
        let expected = format!("lockkeeper: error: {pages}guides/a.md says\nhint: {pages}backends/b.md\n");
        assert_eq!(failure.lines(), expected);
    }

    #[test]
    fn a_signal_becomes_128_and_its_number() {
        assert_eq!(of_signal(15), 143);
        assert_eq!(of_signal(9), 137);
    }
}
