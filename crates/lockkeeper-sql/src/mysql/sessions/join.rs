//! How a session begins: it is a member, on disk, before it takes a lock.
//!
//! The first one on a server that has started, or on another server, closes the room for as long as members of the
//! server before may believe in their locks, and raises the fences above all that may have been given.

use std::time::Duration;

use lockkeeper_core::{Clock, Label, Moment};
use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, Row};

use super::super::doubt::Identity;
use super::super::fault::{Result, Trouble};
use super::super::session;
use super::super::text::{bytes, text};
use super::names::{StoreId, beginning_name, member_name, member_name_sql};
use crate::name::{micros_up, printable, span};

/// The server's clock in microseconds, at the moment when it is asked. If the server was told to let its clock stand still
/// during a statement, it is an earlier one, which promises less.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// The server: no other has this name.
const SERVER: &str = "UNHEX(SHA2(CONCAT_WS('/', @@server_id, @@hostname, @@port, @@datadir), 256))";

/// Of `UUID_SHORT()` all but the number of the server: when it started, and how often it was asked since.
const COUNT: &str = "(UUID_SHORT() & 72057594037927935)";

/// So many fences are reserved on disk at a time.
pub(super) const RANGE: i64 = 1 << 12;

/// So many fences are passed over on a server that has started: a replica may not know the last that were reserved.
const PASSED_OVER: i64 = 1 << 20;

/// The most rows of those who have gone that a new session removes.
const GONE_MOST: usize = 20;

/// How a session's fences are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epoch {
    pub(super) base: i64,
    pub(super) origin: i64,
}

impl Epoch {
    /// The counter of a fence, from what `UUID_SHORT()` said while the lock was ours.
    pub(super) fn counter(self, uuid: u64) -> Option<i64> {
        let count = i64::try_from(uuid & 0x00ff_ffff_ffff_ffff).ok()?;
        let counter = count.checked_sub(self.origin)?.checked_add(self.base)?;
        (0 < counter && counter < 1 << 48).then_some(counter)
    }
}

/// A session that may take locks.
pub(super) struct Joined {
    pub(super) conn: Conn,
    pub(super) epoch: Epoch,
    /// No fence above it may be given before more are reserved.
    pub(super) ceiling: i64,
    /// For how long nobody is let in.
    pub(super) quiet: Duration,
    /// The server's clock, and when it was asked.
    pub(super) server: i64,
    pub(super) sent_at: Moment,
}

/// A session on this connection that the server ends when it is silent for so many seconds.
pub(super) async fn join(mut conn: Conn, store: &StoreId, seconds: u64, clock: &Clock) -> Result<Joined> {
    conn.query_drop(format!("SET SESSION wait_timeout = {seconds}")).await?;
    let (timeout,): (u64,) = one(&mut conn, "SELECT @@SESSION.wait_timeout").await?;
    if timeout != seconds {
        return Err(Trouble::Refused(format!(
            "the session's wait_timeout is {timeout} and not {seconds}, although it was set; a ttl of {seconds} s cannot be obtained"
        )));
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|_| Trouble::Refused("the system has no randomness to give".into()))?;
    let (ours,): (Option<i64>,) =
        one(&mut conn, &format!("SELECT GET_LOCK('{}', 0)", member_name(&id))).await?;
    if ours != Some(1) {
        return Err(Trouble::Refused("the server refuses named locks (GET_LOCK)".into()));
    }
    let epoch = match epoch(&mut conn).await? {
        Some(epoch) => epoch,
        None => begin(&mut conn, store).await?,
    };
    enrol(&mut conn, &id, seconds).await?;
    let sent_at = clock.now();
    let state = format!(
        "SELECT ceiling, GREATEST(quiet_until - {NOW}, 0), {NOW} FROM lockkeeper_session_store WHERE one = 1"
    );
    let (ceiling, quiet, server): (i64, i64, i64) = one(&mut conn, &state).await?;
    Ok(Joined { conn, epoch, ceiling, quiet: span(quiet), server, sent_at })
}

/// A connection of our own: not one that a proxy may give to others.
pub(super) async fn greet(conn: &mut Conn) -> Result<()> {
    session::greet(conn).await?;
    // A connection that breaks says nothing about who stands between.
    if Identity::of(conn).await?.is_some() {
        return Ok(());
    }
    Err(Trouble::Refused(
        "a proxy stands between, which may give our session, and our locks with it, to somebody else; for `mode=session` \
         name the server itself in the URL, or remove `mode=session`"
            .into(),
    ))
}

/// The server as it runs, if somebody has begun here since it started.
async fn epoch(conn: &mut Conn) -> Result<Option<Epoch>> {
    let sql =
        format!("SELECT base, origin FROM lockkeeper_session_epoch WHERE one = 1 AND server = {SERVER}");
    let found: Option<(i64, i64)> = conn.query_first(sql).await?;
    Ok(found.map(|(base, origin)| Epoch { base, origin }))
}

/// The first session since the server started. Those who come at the same time do this one after the other.
async fn begin(conn: &mut Conn, store: &StoreId) -> Result<Epoch> {
    let name = beginning_name(store);
    let (ours,): (Option<i64>,) = one(conn, &format!("SELECT GET_LOCK('{name}', 60)")).await?;
    if ours != Some(1) {
        return Err(Trouble::Silent);
    }
    let epoch = match epoch(conn).await? {
        Some(epoch) => epoch,
        None => begin_anew(conn).await?,
    };
    conn.query_drop(format!("DO RELEASE_LOCK('{name}')")).await?;
    Ok(epoch)
}

async fn begin_anew(conn: &mut Conn) -> Result<Epoch> {
    let sql = format!(
        "SELECT {NOW}, {COUNT}, ceiling, GREATEST(COALESCE((SELECT MAX(ttl) FROM lockkeeper_session_member), 0), \
         IF(quiet_until > {NOW}, quiet, 0)) FROM lockkeeper_session_store WHERE one = 1"
    );
    let (now, origin, ceiling, quiet): (i64, i64, i64, i64) = one(conn, &sql).await?;
    let base = (ceiling + PASSED_OVER).max(now / 1000);
    // On disk, in this order: should we be interrupted, the next one finds either the members or what was made of them.
    let closed = format!(
        "UPDATE lockkeeper_session_store SET ceiling = {}, quiet = {quiet}, quiet_until = {} WHERE one = 1",
        base + RANGE,
        now.saturating_add(quiet)
    );
    conn.query_drop(closed).await?;
    for table in ["member", "claim", "broken"] {
        conn.query_drop(format!("DELETE FROM lockkeeper_session_{table}")).await?;
    }
    let epoch =
        format!("REPLACE INTO lockkeeper_session_epoch SELECT 1, {SERVER}, {base}, {origin} FROM DUAL");
    conn.query_drop(epoch).await?;
    Ok(Epoch { base, origin })
}

/// Become a member, and remove some of those who have gone: nobody has their lock.
async fn enrol(conn: &mut Conn, id: &[u8; 16], seconds: u64) -> Result<()> {
    let label = Label::of_this_process();
    let (ttl, number) = (micros_up(Duration::from_secs(seconds)), conn.id());
    let gone = format!(
        "SELECT HEX(id), conn FROM lockkeeper_session_member WHERE IS_FREE_LOCK({}) LIMIT {GONE_MOST}",
        member_name_sql("id")
    );
    let gone: Vec<(String, i64)> = conn.query(gone).await?;
    if !gone.is_empty() {
        let ids: Vec<String> = gone.iter().map(|it| format!("x'{}'", it.0)).collect();
        let conns: Vec<String> = gone.iter().map(|it| it.1.to_string()).collect();
        for (table, column, of) in
            [("claim", "conn", &conns), ("broken", "conn", &conns), ("member", "id", &ids)]
        {
            let remove =
                format!("DELETE FROM lockkeeper_session_{table} WHERE {column} IN ({})", of.join(", "));
            // Others do the same at this moment; what is left is removed by the next who comes.
            let _ = conn.query_drop(remove).await;
        }
    }
    let host = text(&printable(&label.host));
    let enrol = format!(
        "INSERT INTO lockkeeper_session_member (id, ttl, conn, host, pid) VALUES ({}, {ttl}, {number}, {host}, {})",
        bytes(id),
        label.pid
    );
    Ok(conn.query_drop(enrol).await?)
}

/// What stands for this database in the names of its locks.
pub(super) async fn store_id(conn: &mut Conn) -> Result<StoreId> {
    let (id,): (Vec<u8>,) = one(conn, "SELECT id FROM lockkeeper_session_store WHERE one = 1").await?;
    id.try_into().map_err(|_| odd())
}

/// The only row of an answer.
pub(super) async fn one<T: FromRow + Send + 'static>(conn: &mut Conn, sql: &str) -> Result<T> {
    let row: Option<Row> = conn.query_first(sql).await?;
    row.and_then(|it| mysql_async::from_row_opt(it).ok()).ok_or_else(odd)
}

pub(super) fn odd() -> Trouble {
    Trouble::Refused("the server gave another answer than expected".into())
}

/// A number as the digits that a statement left in a row.
pub(super) fn number_of(word: &str) -> Result<i64> {
    word.parse().map_err(|_| odd())
}

/// The hash of a name, from its digits.
pub(super) fn hash_of(word: &str) -> Option<crate::name::NameHash> {
    let mut hash = [0; 32];
    if word.len() != 64 {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(word.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_goes_on_from_its_base_whatever_the_servers_number() {
        let (started, epoch) = (1_700_000_000_u64 << 24, Epoch { base: 5000, origin: 1_700_000_000 << 24 });
        assert_eq!(epoch.counter(started + 7), Some(5007));
        assert_eq!(epoch.counter((3 << 56) + started + 7), Some(5007));
        assert_eq!(epoch.counter(started - 6000), None, "a server that counts backwards");
        assert_eq!(epoch.counter(started + (1 << 49)), None, "more than a fence can hold");
    }

    #[test]
    fn hashes_are_read_as_they_were_written() {
        let hash: [u8; 32] = std::array::from_fn(|at| u8::try_from(at * 7).unwrap());
        assert_eq!(hash_of(&super::super::names::digits(&hash)), Some(hash));
        assert_eq!(hash_of("12"), None);
        assert_eq!(hash_of(&"g".repeat(64)), None);
    }
}
