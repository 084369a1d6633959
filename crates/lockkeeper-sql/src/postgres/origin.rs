//! Which store a server is, among several of one URL: the number of its data, and how often they were taken over by a standby.
//!
//! Two servers that both take writes have two tables of locks, and each would give a lock of its own. So a process keeps to
//! the store that it has seen, and to the latest promotion of it that it has heard of.

use tokio_postgres::error::SqlState;

use super::fault::{Result, Trouble};
use super::session::Session;

/// The timeline of the server's log grows by one with each promotion, and is read from the name of the present file of
/// the log: what is kept about the last checkpoint follows a promotion late.
const ASK: &str = "SELECT system_identifier, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint, \
     pg_postmaster_start_time()::text FROM pg_control_system()";

/// A server that takes writes, as it tells itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Drawn when the data were first made; a standby has its primary's.
    system: i64,
    /// How often the data have changed hands.
    timeline: i64,
    /// When it was started: the same server by two ways tells the same.
    started: String,
}

/// A host that takes writes, and what it tells, if it may be asked.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub(crate) host: String,
    pub(crate) origin: Option<Origin>,
}

/// Ask a server that takes writes. `None` if this user may not ask.
pub(crate) async fn ask(session: &Session) -> Result<Option<Origin>> {
    let _alone = session.alone().await;
    let row = match session.client.query_typed_one(ASK, &[]).await {
        Err(error) if error.code().is_some_and(is_refusal) => return Ok(None),
        answered => answered?,
    };
    Ok(Some(Origin { system: row.try_get(0)?, timeline: row.try_get(1)?, started: row.try_get(2)? }))
}

fn is_refusal(code: &SqlState) -> bool {
    *code == SqlState::INSUFFICIENT_PRIVILEGE || *code == SqlState::UNDEFINED_FUNCTION
}

/// Which of those who take writes is the store. `known` is what this process has seen.
pub(crate) fn choose(known: Option<&Writer>, writers: &[Writer]) -> Result<usize> {
    let ours = writers.iter().any(|it| known.is_some_and(|known| is_same(known, it)));
    let mut refused = None;
    let mut best: Option<(usize, &Writer)> = None;
    for (at, writer) in writers.iter().enumerate() {
        if let Some(why) = known.and_then(|it| differs(it, writer)) {
            refused = refused.or(Some(why));
            continue;
        }
        // A copy of the data tells their number, too. Only beside the very server that was seen it is known for one.
        if ours && known.is_some_and(|it| are_apart(it, writer)) {
            continue;
        }
        let Some((_, other)) = best else {
            best = Some((at, writer));
            continue;
        };
        if are_apart(other, writer) {
            return Err(Trouble::Stranger(both(other, writer)));
        }
        if timeline(other) < timeline(writer) {
            best = Some((at, writer));
        }
    }
    match (best, refused) {
        (Some((at, _)), _) => Ok(at),
        (None, Some(why)) => Err(Trouble::Stranger(why)),
        (None, None) => Err(Trouble::Silent),
    }
}

/// Why a server is not the one that this process has seen, if it is not.
fn differs(known: &Writer, writer: &Writer) -> Option<String> {
    let (seen, told) = (known.origin.as_ref()?, writer.origin.as_ref()?);
    let (known, host) = (&known.host, &writer.host);
    if seen.system != told.system {
        return Some(format!(
            "{host} is another store than {known}: both take writes, and their data were never the same (system identifiers {} and {}); \
             take it out of the URL, or make it a standby",
            told.system, seen.system
        ));
    }
    if told.timeline < seen.timeline {
        return Some(format!(
            "{host} is an old primary: it is in timeline {}, and {known} was promoted to timeline {}; stop it, or make it a standby",
            told.timeline, seen.timeline
        ));
    }
    None
}

/// Whether two servers are two stores, and neither came after the other.
pub(crate) fn are_apart(one: &Writer, other: &Writer) -> bool {
    let (Some(one), Some(other)) = (&one.origin, &other.origin) else { return false };
    one.system != other.system || (one.timeline == other.timeline && one.started != other.started)
}

/// Whether this is the very server that was seen: it has not been started again since. One that was may be a copy of it.
pub(crate) fn is_same(seen: &Writer, writer: &Writer) -> bool {
    seen.origin == writer.origin
}

/// Whether two servers take writes, and are not one server by two ways.
pub(crate) fn are_two(one: &Writer, other: &Writer) -> bool {
    one.origin.is_some() && other.origin.is_some() && one.origin != other.origin
}

fn timeline(writer: &Writer) -> i64 {
    writer.origin.as_ref().map_or(0, |it| it.timeline)
}

/// Whether this one was promoted after that one was.
pub(crate) fn is_later(one: &Writer, that: &Writer) -> bool {
    timeline(that) < timeline(one)
}

fn both(one: &Writer, other: &Writer) -> String {
    let (one, other) = (&one.host, &other.host);
    format!(
        "{one} and {other} both take writes, and each is a store of its own: two processes could hold one lock; \
         name one of them, or make one a standby of the other"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(host: &str, system: i64, timeline: i64, started: &str) -> Writer {
        let origin = Some(Origin { system, timeline, started: started.to_owned() });
        Writer { host: host.to_owned(), origin }
    }

    fn why(known: Option<&Writer>, writers: &[Writer]) -> String {
        choose(known, writers).unwrap_err().fault("connecting").message
    }

    #[test]
    fn a_process_keeps_to_the_store_that_it_has_seen() {
        let (ours, stranger) = (writer("a", 1, 1, "x"), writer("b", 2, 9, "y"));
        assert!(why(Some(&ours), std::slice::from_ref(&stranger)).contains("b is another store than a"));
        assert_eq!(choose(Some(&ours), &[stranger.clone(), ours.clone()]).unwrap(), 1);
        assert!(why(None, &[ours, stranger]).contains("a and b both take writes"));
    }

    #[test]
    fn the_latest_promotion_is_believed_and_none_before_it() {
        let (old, new) = (writer("a", 1, 1, "x"), writer("b", 1, 2, "y"));
        assert_eq!(choose(None, &[old.clone(), new.clone()]).unwrap(), 1);
        assert_eq!(choose(Some(&old), &[old.clone(), new.clone()]).unwrap(), 1);
        assert!(why(Some(&new), std::slice::from_ref(&old)).contains("a is an old primary"));
        assert!(is_later(&new, &old) && !is_later(&old, &new));
    }

    #[test]
    fn one_server_by_two_ways_is_one_and_two_copies_are_two() {
        let (way, other_way) = (writer("a", 1, 1, "x"), writer("b", 1, 1, "x"));
        assert_eq!(choose(None, &[way.clone(), other_way.clone()]).unwrap(), 0);
        assert!(!are_two(&way, &other_way));
        let copy = writer("c", 1, 1, "y");
        assert!(are_two(&way, &copy));
        assert!(why(None, &[way.clone(), copy.clone()]).contains("a and c both"));
        assert_eq!(choose(Some(&way), &[way.clone(), copy]).unwrap(), 0);
        assert_eq!(
            choose(Some(&way), &[writer("c", 1, 1, "y"), way.clone()]).unwrap(),
            1,
            "the one that was seen"
        );
        let again = writer("a", 1, 1, "z");
        assert!(why(Some(&way), &[again.clone(), writer("c", 1, 1, "y")]).contains("a and c both"));
        assert_eq!(choose(Some(&way), std::slice::from_ref(&again)).unwrap(), 0, "it was started again");
        assert!(is_same(&way, &other_way) && !is_same(&way, &again));
        let promoted = writer("e", 1, 2, "y");
        assert_eq!(choose(Some(&way), &[way.clone(), promoted]).unwrap(), 1);
        let silent = Writer { host: "d".into(), origin: None };
        assert_eq!(choose(Some(&way), std::slice::from_ref(&silent)).unwrap(), 0);
        assert_eq!(choose(None, &[silent, way]).unwrap(), 1);
    }
}
