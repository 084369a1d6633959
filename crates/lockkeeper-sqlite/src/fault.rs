//! What can go wrong with the file, in words that say what to do.

use std::sync::Arc;

use lockkeeper_core::backend::{Fault, FaultKind};
use rusqlite::ErrorCode;

use crate::NAME;

/// Why a piece of work on the file failed.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// SQLite said no.
    Sql(Arc<rusqlite::Error>),
    /// We said no.
    Refused { kind: FaultKind, message: String },
}

pub(crate) type Result<T, E = Trouble> = std::result::Result<T, E>;

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Trouble::Sql(Arc::new(error))
    }
}

impl Trouble {
    /// A refusal that stays until somebody changes something.
    pub(crate) fn permanent(message: impl Into<String>) -> Self {
        Trouble::Refused { kind: FaultKind::Permanent, message: message.into() }
    }

    fn code(&self) -> Option<ErrorCode> {
        match self {
            Trouble::Sql(error) => error.sqlite_error_code(),
            Trouble::Refused { .. } => None,
        }
    }

    /// Whether another process merely got in first. Not all of these pass through SQLite's busy handler.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(
            self.code(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
        )
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    /// Whether a new connection may succeed where this one failed.
    pub(crate) fn may_heal(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen))
    }

    /// The fault to tell a caller who was `doing` something.
    pub(crate) fn fault(&self, doing: &'static str) -> Fault {
        let error = match self {
            Trouble::Refused { kind, message } => {
                return Fault::new(*kind, NAME, doing, message.clone());
            }
            Trouble::Sql(error) => error,
        };
        let (kind, advice) = advice(self.code());
        let message = match advice {
            "" => error.to_string(),
            advice => format!("{advice} ({error})"),
        };
        Fault::new(kind, NAME, doing, message).with_source(error.clone())
    }
}

/// Whether trying again can help, and what to do.
fn advice(code: Option<ErrorCode>) -> (FaultKind, &'static str) {
    use ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, FileLockingProtocolFailed,
        NotADatabase, OperationInterrupted, OutOfMemory, PermissionDenied, ReadOnly, SystemIoFailure,
    };
    match code {
        Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed) => (
            FaultKind::Transient,
            "another program keeps the file's write lock; end its transaction or raise `timeout`",
        ),
        Some(DiskFull) => (FaultKind::Transient, "the disk is full; free some space"),
        Some(SystemIoFailure) => {
            (FaultKind::Transient, "the disk reports an error; look at the system's log")
        }
        Some(OutOfMemory | OperationInterrupted) => (FaultKind::Transient, ""),
        Some(NotADatabase) => {
            (FaultKind::Permanent, "the file is not an SQLite database; choose another path or move it away")
        }
        Some(DatabaseCorrupt) => (
            FaultKind::Permanent,
            "the file is damaged; stop its users and move it away, a new one is made on the next start",
        ),
        Some(ReadOnly | PermissionDenied) => {
            (FaultKind::Permanent, "the file or its folder may not be written; allow this user to write both")
        }
        Some(CannotOpen) => (
            FaultKind::Permanent,
            "the file cannot be opened; allow this user to read and write it and its folder",
        ),
        _ => (FaultKind::Permanent, ""),
    }
}
