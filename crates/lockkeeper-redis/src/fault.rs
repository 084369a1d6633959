//! What a Redis error means for a lock: whether asking again can help, and what the user can do.

use lockkeeper_core::backend::{Fault, FaultKind};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The backend's name in faults and events.
pub(crate) const NAME: &str = "redis";

/// The error as a fault. Redis errors quote the server, never the password we sent.
pub(crate) fn of(doing: &'static str, error: RedisError) -> Fault {
    let (kind, hint) = meaning(&error);
    let message = match hint {
        // The parser's own words fill lines and help nobody.
        _ if error.to_string().contains("Parse error at") => NOT_REDIS.to_owned(),
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    };
    Fault::new(kind, NAME, doing, message).with_source(error)
}

const NOT_REDIS: &str =
    "the answer is not in the protocol of Redis: is it a Redis server, and does it expect TLS (rediss://)?";
const FOREIGN: &str = "another program uses our key: remove it, or choose another ?prefix=";
const SEE_RIGHTS: &str = "see the least rights in docs/backends/redis.md";

/// Whether a script met a right that is missing: in the words of Redis 7.0, and of everything newer.
fn lacks_right(text: &str) -> bool {
    text.contains("user executing the script") || text.contains("ACL failure in script")
}

fn meaning(error: &RedisError) -> (FaultKind, Option<&'static str>) {
    use FaultKind::{Permanent, Transient};
    match error.code() {
        Some("READONLY") => {
            return (
                Transient,
                Some("this server is a replica: name the primary, or use redis+sentinel:// to follow it"),
            );
        }
        Some("NOPERM") => return (Permanent, Some(SEE_RIGHTS)),
        Some("NOAUTH" | "WRONGPASS") => return (Permanent, Some("check user and password in the URL")),
        Some("WRONGTYPE" | "FOREIGN") => return (Permanent, Some(FOREIGN)),
        // A script read bytes that are not as long as ours.
        _ if error.detail().is_some_and(|it| it.contains("data string too short")) => {
            return (Permanent, Some(FOREIGN));
        }
        Some("OOM") => return (Transient, Some("the server is out of memory (maxmemory)")),
        Some("NOREPLICAS") => return (Transient, Some("too few replicas for min-replicas-to-write")),
        Some("MISCONF") => return (Transient, Some("the server cannot save to disk")),
        _ if error.detail().is_some_and(|it| it.starts_with("max number of clients")) => {
            return (Transient, Some("the server takes no further connection (maxclients)"));
        }
        _ if error.detail().is_some_and(lacks_right) => return (Permanent, Some(SEE_RIGHTS)),
        _ => {}
    }
    let kind = match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
            Permanent
        }
        ErrorKind::Server(ServerErrorKind::ResponseError | ServerErrorKind::CrossSlot) => Permanent,
        _ => Transient,
    };
    (kind, None)
}

/// Whether no answer came: the connection was cut, or stays silent. Then it is not known what was done.
pub(crate) fn is_unanswered(error: &RedisError) -> bool {
    error.is_timeout()
        || error.is_connection_dropped()
        || matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
}

/// Whether the connection is of no use after this answer.
pub(crate) fn breaks_connection(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "NOAUTH" | "LOADING" | "MASTERDOWN"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_else_than_redis_is_told_in_one_line() {
        let error = RedisError::from(redis::ParsingError::from("Parse error at 1\nUnexpected `72`"));
        let said = of("connecting", error).to_string();
        assert!(said.contains("is it a Redis server") && !said.contains('\n'), "{said}");
    }
}
