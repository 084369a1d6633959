//! Errors of the wire as faults of the SPI: what may pass, what will not, and what to do.

use lockkeeper_core::backend::Fault;
use tonic::{Code, Status};

pub(crate) const NAME: &str = "etcd";

/// What a refused call means for the caller.
pub(crate) fn from_status(doing: &'static str, status: &Status) -> Fault {
    let text = status.message();
    let message = match status.code() {
        Code::Unauthenticated => format!("the server does not accept the user or the password: {text}"),
        Code::PermissionDenied => {
            format!("the user may not do this ({text}); grant it read and write below the prefix")
        }
        Code::InvalidArgument if text.contains("user name is empty") => {
            "the server wants a user and a password; put them in the URL".to_owned()
        }
        Code::ResourceExhausted if text.contains("space exceeded") => {
            format!("the server's disk quota is used up ({text}); compact, defragment and disarm the alarm")
        }
        Code::Unavailable if text.is_empty() => "no node can be reached".to_owned(),
        _ => text.to_owned(),
    };
    if is_transient(status) {
        return Fault::transient(NAME, doing, message);
    }
    Fault::permanent(NAME, doing, message)
}

fn is_transient(status: &Status) -> bool {
    !matches!(
        status.code(),
        Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument | Code::Unimplemented
    )
}

/// The server says no, and has done nothing.
pub(crate) fn is_refusal(status: &Status) -> bool {
    let no = matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument);
    no || is_lease_gone(status)
}

/// A node that serves says that the cluster does not, at present: there is no leader, or it has changed.
pub(crate) fn is_settling(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.message().starts_with("etcdserver: ")
}

/// The lease that a write named does not exist any more.
pub(crate) fn is_lease_gone(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

/// The token that the server gave us is missing or not valid any more, or the rights changed meanwhile.
pub(crate) fn is_token_stale(status: &Status) -> bool {
    let stale = ["invalid auth token", "revision of auth store is old", "user name is empty"];
    stale.iter().any(|it| status.message().contains(it))
}

/// A well-formed answer lacks what it must hold.
pub(crate) fn garbled(doing: &'static str) -> Fault {
    Fault::permanent(NAME, doing, "the answer lacks what it must hold; is this an etcd server of version 3?")
}
