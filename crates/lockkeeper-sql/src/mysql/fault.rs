//! What can go wrong with the server, in words that say what to do.

use lockkeeper_core::backend::{Fault, FaultKind};

use super::NAME;

/// Why a statement failed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The driver or the server said no.
    Sql(mysql_async::Error),
    /// No answer within the time allowed. The statement may have been done.
    Silent,
    /// The runtime that drives the connection has ended.
    NoRuntime,
    /// Nobody drives the runtime of the connection.
    Stalled,
    /// The statement was done in a transaction that is still open.
    Uncommitted,
    /// We said no.
    Refused(String),
}

pub(crate) type Result<T, E = Trouble> = std::result::Result<T, E>;

impl From<mysql_async::Error> for Trouble {
    fn from(error: mysql_async::Error) -> Self {
        Trouble::Sql(error)
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
    /// The server's error number.
    fn code(&self) -> Option<u16> {
        match self {
            Trouble::Sql(mysql_async::Error::Server(error)) => Some(error.code),
            _ => None,
        }
    }

    pub(crate) fn cure(&self) -> Cure {
        match (self, self.code()) {
            // Deadlock, lock wait timeout, certification conflict, table changed, duplicate key.
            (_, Some(1213 | 1205 | 1020 | 1412 | 1062)) => Cure::Again,
            // Shutdown, killed, broken packets, idle too long, a prepared statement that the session does not know,
            // a transaction that somebody else has begun.
            (_, Some(1053 | 1080 | 1152..=1161 | 1184 | 1243 | 1317 | 1568 | 1927 | 4031)) => Cure::Reconnect,
            (_, Some(1146 | 1305)) => Cure::Recreate,
            (Trouble::Sql(error), None) if error.is_fatal() => Cure::Reconnect,
            (Trouble::Silent | Trouble::NoRuntime | Trouble::Stalled | Trouble::Uncommitted, _) => {
                Cure::Reconnect
            }
            _ => Cure::None,
        }
    }

    /// Whether somebody else is making the same things at this moment: table, procedure, column, key, row.
    pub(crate) fn is_made_by_others(&self) -> bool {
        matches!(
            self.code(),
            Some(1050 | 1060 | 1061 | 1304 | 1305 | 1091 | 1146 | 1213 | 1205 | 1412 | 1684)
        )
    }

    /// Whether there is no such table.
    pub(crate) fn is_missing(&self) -> bool {
        self.code() == Some(1146)
    }

    /// Whether the server has no connection left.
    pub(crate) fn is_crowded(&self) -> bool {
        matches!(self.code(), Some(1040 | 1203 | 1226))
    }

    /// Whether the server, or a proxy before it, has no room for a prepared statement or knows none.
    pub(crate) fn is_unprepared(&self) -> bool {
        matches!(self.code(), Some(1243 | 1295 | 1461))
    }

    /// Whether the server has answered, and is done with it.
    pub(crate) fn is_answer(&self) -> bool {
        self.code().is_some() || matches!(self, Trouble::Uncommitted)
    }

    /// Whether the server says that the session ends: shutdown, killed, broken packets, idle for too long.
    pub(crate) fn ends_session(&self) -> bool {
        matches!(self.code(), Some(1053 | 1080 | 1152..=1161 | 1184 | 1927 | 4031))
    }

    /// Whether the connection may not be used any more.
    pub(crate) fn spoils(&self) -> bool {
        // Others got in between, something is missing, we may not: all that leaves a session as it was. After anything
        // else, such as a disk that was full when it should have rolled back, nobody can tell.
        let got_between = matches!(self.code(), Some(1213 | 1205 | 1020 | 1412 | 1062));
        let missing = matches!(self.code(), Some(1146 | 1305 | 1295 | 1461));
        let forbidden = matches!(self.code(), Some(1044 | 1142 | 1143 | 1227 | 1370 | 1410 | 1419));
        let elsewhere = matches!(self, Trouble::NoRuntime | Trouble::Stalled);
        !(got_between || missing || forbidden || elsewhere)
    }

    /// The fault to tell a caller who was `doing` something.
    pub(crate) fn fault(self, doing: &'static str) -> Fault {
        let code = self.code();
        match self {
            Trouble::Silent => Fault::transient(NAME, doing, "the server did not answer in time"),
            Trouble::NoRuntime => Fault::transient(
                NAME,
                doing,
                "the tokio runtime that drives the connection has ended; connect again on a living one",
            ),
            Trouble::Stalled => {
                Fault::transient(NAME, doing, "nobody drives the tokio runtime of the connection")
            }
            Trouble::Uncommitted => Fault::transient(
                NAME,
                doing,
                "the server leaves our transactions open although the session commits; something between us and the \
                 server changes its settings, perhaps a proxy",
            ),
            Trouble::Refused(message) => Fault::permanent(NAME, doing, message),
            Trouble::Sql(error) => {
                let said = match &error {
                    mysql_async::Error::Server(it) => format!("{} (error {})", it.message, it.code),
                    other => other.to_string(),
                };
                let disk = tells_of_disk(&said).then_some((FaultKind::Transient, FULL));
                let (kind, advice) = tls_advice(&error).or(disk).unwrap_or_else(|| advice(code));
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

/// The same for what concerns encryption: the server or the URL must change.
fn tls_advice(error: &mysql_async::Error) -> Option<(FaultKind, &'static str)> {
    use mysql_async::DriverError::NoClientSslFlagFromServer;
    let advice = match error {
        mysql_async::Error::Driver(NoClientSslFlagFromServer) => {
            Some("the server does not offer TLS; set its ssl_cert and ssl_key, or write `tls=off`")
        }
        other => crate::tls::advice(other),
    };
    advice.map(|it| (FaultKind::Permanent, it))
}

const FULL: &str = "the server's disk or table space is full; free some space";

/// Whether the server's own words tell of a full disk, whatever number it gives to that.
fn tells_of_disk(said: &str) -> bool {
    [
        "No space left",
        "errno: 28",
        "errno 28",
        "errno: 27",
        "errno 27",
        "File too large",
        "Disk full",
        "disk full",
    ]
    .iter()
    .any(|it| said.contains(it))
}

/// Whether trying again can help, and what to do.
fn advice(code: Option<u16>) -> (FaultKind, &'static str) {
    use FaultKind::{Permanent, Transient};
    let Some(code) = code else {
        return (Transient, "the server cannot be reached or the connection broke");
    };
    match code {
        3159 => (Permanent, "the server lets nobody in without TLS; add `tls=on`"),
        1045 | 1698 | 1251 => (
            Permanent,
            "the server does not accept this user and password, or not without TLS; correct the URL or add `tls=on`",
        ),
        1049 => (Permanent, "there is no such database; create it or correct the URL"),
        1044 | 1142 | 1143 | 1227 | 1370 | 1410 | 1419 => {
            (Permanent, "this user may not do that; grant it the rights in docs/backends/mysql.md")
        }
        1146 | 1305 => (
            Permanent,
            "the tables or procedures of Lockkeeper are missing; run the DDL in docs/backends/mysql.md",
        ),
        1665 => (
            Permanent,
            "the server writes its binary log by statement, which READ COMMITTED forbids; set binlog_format to ROW or MIXED",
        ),
        1568 => (Transient, "the session was inside a transaction that we did not begin"),
        1021 | 1026 | 1030 | 1114 => (Transient, FULL),
        1040 | 1203 | 1226 => (Transient, "the server has no connection left; raise max_connections"),
        1290 | 1792 | 1836 => (Transient, "the server is read-only, perhaps a replica"),
        1047 => (Transient, "this node of the cluster does not serve at present"),
        1205 | 1213 => (Transient, "other transactions keep getting in between"),
        // Syntax, data and unknown objects: asking again gives the same answer.
        1048 | 1054 | 1064 | 1136 | 1264 | 1292 | 1318 | 1366 | 1406 => (Permanent, ""),
        _ => (Transient, ""),
    }
}
