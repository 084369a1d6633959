//! Errors of the client as faults of the SPI: what may pass, what will not, and what to do.

use lockkeeper_core::backend::Fault;
use zookeeper_client::Error;

use crate::alone::{self, Unopened};

pub(crate) const NAME: &str = "zookeeper";

/// What a failed call means for the caller.
pub(crate) fn from_error(doing: &'static str, error: Error) -> Fault {
    let message = match &error {
        Error::NoAuth => "the user may not do this; grant it all rights below the URL's path".to_owned(),
        Error::AuthFailed => "the server does not accept the user or the password".to_owned(),
        Error::QuotaExceeded => "the quota of the path is used up; raise it".to_owned(),
        Error::NotReadOnly => "the server is cut off from the ensemble and only lets read".to_owned(),
        Error::Unimplemented => "the server is too old; version 3.5.3 or later is needed".to_owned(),
        Error::NoHosts | Error::Timeout => {
            "no server of the ensemble can be reached; with TLS, see `ca` and the names in their certificates"
                .to_owned()
        }
        _ => error.to_string(),
    };
    let kind = if is_transient(&error) { Fault::transient } else { Fault::permanent };
    kind(NAME, doing, message).with_source(error)
}

/// Why no session was opened.
pub(crate) fn of_opening(doing: &'static str, unopened: Unopened) -> Fault {
    match unopened {
        Unopened::Client(error) => from_error(doing, error),
        Unopened::Alone(servers) => Fault::transient(NAME, doing, alone::about(&servers)),
    }
}

/// Whether it may pass.
pub(crate) fn is_transient(error: &Error) -> bool {
    !matches!(
        error,
        Error::NoAuth
            | Error::AuthFailed
            | Error::InvalidAcl
            | Error::BadArguments(_)
            | Error::QuotaExceeded
            | Error::Unimplemented
    )
}

/// The session is over; what belonged to it is gone, or goes soon.
pub(crate) fn is_session_over(error: &Error) -> bool {
    matches!(error, Error::SessionExpired | Error::ClientClosed | Error::AuthFailed)
}

pub(crate) fn silent(doing: &'static str) -> Fault {
    Fault::transient(NAME, doing, "no answer in time; the client looks for another server")
}
