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
            // Deadlock, lock wait time-out, certification conflict, table changed, duplicate key.
            (_, Some(1213 | 1205 | 1020 | 1412 | 1062)) => Cure::Again,
            // Shutdown, killed, broken packets, idle too long, a prepared statement that the session does not know.
            (_, Some(1053 | 1080 | 1152..=1161 | 1184 | 1243 | 1927 | 4031)) => Cure::Reconnect,
            (_, Some(1146 | 1305)) => Cure::Recreate,
            (Trouble::Sql(error), None) if error.is_fatal() => Cure::Reconnect,
            _ => Cure::None,
        }
    }

    /// Whether the server, or a proxy before it, has no room for a prepared statement or knows none.
    pub(crate) fn is_unprepared(&self) -> bool {
        matches!(self.code(), Some(1243 | 1295 | 1461))
    }

    /// Whether the connection may still be used.
    pub(crate) fn spoils(&self) -> bool {
        match self {
            Trouble::Silent => true,
            Trouble::Sql(error) => error.is_fatal() || self.cure() == Cure::Reconnect,
            Trouble::NoRuntime | Trouble::Refused(_) => false,
        }
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
            Trouble::Refused(message) => Fault::permanent(NAME, doing, message),
            Trouble::Sql(error) => {
                let (kind, advice) = tls_advice(&error).unwrap_or_else(|| advice(code));
                let said = match &error {
                    mysql_async::Error::Server(it) => format!("{} (error {})", it.message, it.code),
                    other => other.to_string(),
                };
                let message = if advice.is_empty() { said } else { format!("{advice}: {said}") };
                Fault::new(kind, NAME, doing, message).with_source(error)
            }
        }
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
        1568 => (Permanent, "the session is inside a transaction; no `init_connect` may begin one"),
        1021 | 1114 | 1030 => (Transient, "the server's disk or table space is full; free some space"),
        1040 | 1203 | 1226 => (Transient, "the server has no connection left; raise max_connections"),
        1290 | 1792 | 1836 => (Transient, "the server is read-only, perhaps a replica"),
        1047 => (Transient, "this node of the cluster does not serve at present"),
        1205 | 1213 => (Transient, "other transactions keep getting in between"),
        // Syntax, data and unknown objects: asking again gives the same answer.
        1048 | 1054 | 1064 | 1136 | 1264 | 1292 | 1318 | 1366 | 1406 => (Permanent, ""),
        _ => (Transient, ""),
    }
}
