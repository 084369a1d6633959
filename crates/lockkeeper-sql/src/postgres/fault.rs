//! What can go wrong with the server, in words that say what to do.

use lockkeeper_core::backend::{Fault, FaultKind};
use tokio_postgres::error::SqlState;

use super::NAME;

/// Why a statement failed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The driver or the server said no.
    Sql(tokio_postgres::Error),
    /// The server was not reached.
    Unreached(std::io::Error),
    /// It takes no writes.
    ReadOnly,
    /// No answer within the time allowed. The statement may have been done.
    Silent,
    /// The runtime that drives the connection has ended.
    NoRuntime,
    /// We said no.
    Refused(String),
    /// Who answers is not the store that we use. Ours may be back soon.
    Stranger(String),
}

const UNREACHED: &str = "the server cannot be reached or the connection broke";
const READ_ONLY: &str = "no server of the URL takes writes: each is a standby, or `default_transaction_read_only` is on for this \
                         user and a pooler keeps us from switching it off";

pub(crate) type Result<T, E = Trouble> = std::result::Result<T, E>;

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        Trouble::Sql(error)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Trouble::Unreached(error)
    }
}

/// What to do about a trouble before telling anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cure {
    /// Others got in between: the same statement again, soon.
    Again,
    /// The connection is gone: the same statement on a new one. Every verb is harmless when repeated.
    Reconnect,
    /// The tables are gone: make them anew.
    Recreate,
    None,
}

impl Trouble {
    pub(crate) fn cure(&self) -> Cure {
        let error = match self {
            Trouble::Sql(error) => error,
            Trouble::Unreached(_) | Trouble::ReadOnly => return Cure::Reconnect,
            Trouble::Silent | Trouble::NoRuntime | Trouble::Refused(_) | Trouble::Stranger(_) => {
                return Cure::None;
            }
        };
        let Some(code) = error.code() else {
            return if error.is_closed() || is_io(error) { Cure::Reconnect } else { Cure::None };
        };
        match *code {
            SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::LOCK_NOT_AVAILABLE
            | SqlState::UNIQUE_VIOLATION => Cure::Again,
            SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::CONNECTION_FAILURE
            | SqlState::CONNECTION_EXCEPTION => Cure::Reconnect,
            SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_FUNCTION | SqlState::INVALID_SCHEMA_NAME => {
                Cure::Recreate
            }
            _ if code.code() == "57P05" => Cure::Reconnect,
            _ => Cure::None,
        }
    }

    /// The fault to tell a caller who was `doing` something.
    pub(crate) fn fault(self, doing: &'static str) -> Fault {
        match self {
            Trouble::Silent => Fault::transient(NAME, doing, "the server did not answer in time"),
            Trouble::NoRuntime => Fault::transient(
                NAME,
                doing,
                "the tokio runtime that drives the connection has ended; connect again on a living one",
            ),
            Trouble::Refused(message) => Fault::permanent(NAME, doing, message),
            Trouble::Stranger(message) => Fault::transient(NAME, doing, message),
            Trouble::Unreached(error) => {
                let message = format!("{UNREACHED}: error connecting to server: {error}");
                Fault::transient(NAME, doing, message).with_source(error)
            }
            Trouble::ReadOnly => Fault::transient(NAME, doing, READ_ONLY),
            Trouble::Sql(error) => {
                let text = error.as_db_error().map_or("", |it| it.message());
                let (kind, advice) = tls_advice(&error).unwrap_or_else(|| advice(error.code(), text));
                let said = match error.as_db_error() {
                    Some(it) => format!("{} (SQLSTATE {})", it.message(), it.code().code()),
                    None => spelt_out(&error),
                };
                let message = if advice.is_empty() { said } else { format!("{advice}: {said}") };
                Fault::new(kind, NAME, doing, message).with_source(error)
            }
        }
    }
}

impl crate::sessions::Trouble for Trouble {
    fn silent() -> Self {
        Trouble::Silent
    }

    fn is_silent(&self) -> bool {
        matches!(self, Trouble::Silent)
    }

    fn no_runtime() -> Self {
        Trouble::NoRuntime
    }

    fn fault(self, doing: &'static str) -> Fault {
        Trouble::fault(self, doing)
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<std::io::Error>)
}

/// The error with its causes. The driver puts no password into them.
fn spelt_out(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(it) = cause {
        let said = it.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = it.source();
    }
    text
}

/// The same for what concerns encryption: the server or the URL must change.
fn tls_advice(error: &tokio_postgres::Error) -> Option<(FaultKind, &'static str)> {
    // The driver has no other way to tell.
    let advice = if spelt_out(error).contains("server does not support TLS") {
        Some("the server does not offer TLS; switch `ssl` on there, or write `tls=off`")
    } else {
        crate::tls::advice(error)
    };
    advice.map(|it| (FaultKind::Permanent, it))
}

/// What a server says whose disk is full; the code differs from version to version.
fn is_disk_full(code: &SqlState, text: &str) -> bool {
    let internal = *code == SqlState::INTERNAL_ERROR || *code == SqlState::IO_ERROR;
    let words = ["could not extend file", "could not write", "No space left on device", "File too large"];
    *code == SqlState::DISK_FULL || (internal && words.iter().any(|it| text.contains(it)))
}

/// Whether trying again can help, and what to do.
fn advice(code: Option<&SqlState>, text: &str) -> (FaultKind, &'static str) {
    use FaultKind::{Permanent, Transient};
    let Some(code) = code else {
        return (Transient, UNREACHED);
    };
    if is_disk_full(code, text) {
        return (Transient, "the server's disk is full; free some space");
    }
    match *code {
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (Permanent, "the server does not accept this user and password; correct the URL")
        }
        SqlState::INVALID_CATALOG_NAME => {
            (Permanent, "there is no such database; create it or correct the URL")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            (Permanent, "this user may not do that; grant it the rights in docs/backends/postgres.md")
        }
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_FUNCTION | SqlState::INVALID_SCHEMA_NAME => (
            Permanent,
            "the tables or functions of Lockkeeper are missing; run the DDL in docs/backends/postgres.md",
        ),
        SqlState::TOO_MANY_CONNECTIONS => {
            (Transient, "the server has no connection left; raise max_connections")
        }
        SqlState::OUT_OF_MEMORY => (
            Transient,
            "the server has no room for another lock; raise max_locks_per_transaction (locks that are held stay)",
        ),
        SqlState::QUERY_CANCELED => {
            (Transient, "the server cancelled the statement; is `statement_timeout` very short?")
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => (Transient, "the server is read-only, perhaps a standby"),
        _ => match code.code().get(..2) {
            // Syntax, data and internal errors: asking again gives the same answer.
            Some("22" | "23" | "28" | "2F" | "3D" | "42" | "0A") => (Permanent, ""),
            _ => (Transient, ""),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_known_by_its_code_or_its_words() {
        let full = |code: &SqlState, text: &str| advice(Some(code), text).1.contains("disk is full");
        assert!(full(&SqlState::DISK_FULL, ""));
        assert!(full(&SqlState::INTERNAL_ERROR, "could not extend file \"base/5/16395\": File too large"));
        assert!(full(&SqlState::IO_ERROR, "could not write to file: No space left on device"));
        assert!(!full(&SqlState::INTERNAL_ERROR, "cache lookup failed"));
        assert!(!full(&SqlState::UNDEFINED_TABLE, "could not extend file"));
    }
}
