//! Memos: small values in the file that outlive their writer, and the machine's next start.

use std::time::Duration;

use lockkeeper_core::backend;
use lockkeeper_core::memos::{Memo, Memos, Swap};
use lockkeeper_core::{Key, Moment};
use rusqlite::{Connection, OptionalExtension, params};

use crate::Sqlite;
use crate::fault::Result;
use crate::line::{Tx, nanos};
use crate::work::{Look, Verb};

/// Made with the first memo, so a file that never has one stays as it was.
///
/// Within a boot its clock decides when a memo is over, so that nobody who sets the time of day ends one. After the next start
/// only the time of day is left to go by.
const CREATE: &str = "
    CREATE TABLE IF NOT EXISTS lockkeeper_memo (
        key TEXT NOT NULL PRIMARY KEY COLLATE BINARY,
        version INTEGER NOT NULL,
        value BLOB NOT NULL,
        boot TEXT NOT NULL,
        expires INTEGER NOT NULL,
        wall INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS lockkeeper_memo_wall ON lockkeeper_memo (wall);
";

/// The time of day in milliseconds, as SQLite knows it.
const WALL: &str = "SELECT CAST(1000 * unixepoch('subsec') AS INTEGER)";

const READ: &str = "SELECT version, value FROM lockkeeper_memo WHERE key = ?1 \
    AND CASE boot WHEN (SELECT boot FROM lockkeeper_store) THEN ?2 < expires ELSE ?3 < wall END";

const WRITE: &str = "INSERT INTO lockkeeper_memo SELECT ?1, counter, ?2, boot, ?3, ?4 FROM lockkeeper_store WHERE true \
    ON CONFLICT (key) DO UPDATE SET version = excluded.version, value = excluded.value, boot = excluded.boot, \
    expires = excluded.expires, wall = excluded.wall RETURNING version";

/// A few of those whose time is over go with each write.
const CLEAN: &str = "DELETE FROM lockkeeper_memo WHERE key IN (SELECT key FROM lockkeeper_memo \
    WHERE wall <= ?1 AND (boot <> (SELECT boot FROM lockkeeper_store) OR expires <= ?2) LIMIT 32)";

impl Memos for Sqlite {
    async fn read(&self, key: &Key) -> backend::Result<Option<Memo>> {
        self.worker.ask(Read(key.clone())).await
    }

    async fn swap(
        &self,
        key: &Key,
        seen: Option<u64>,
        value: &[u8],
        keep: Duration,
    ) -> backend::Result<Swap> {
        self.worker.ask(Write { key: key.clone(), seen, value: value.to_vec(), keep }).await
    }
}

/// The memo of a key, if its time is not over.
fn read(connection: &Connection, key: &Key, now: Moment) -> Result<Option<Memo>> {
    let find = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'lockkeeper_memo'";
    if connection.prepare_cached(find)?.query_row([], |_| Ok(())).optional()?.is_none() {
        return Ok(None);
    }
    let wall = wall(connection)?;
    let memo = |row: &rusqlite::Row<'_>| Ok(Memo::new(row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?));
    let mut statement = connection.prepare_cached(READ)?;
    Ok(statement.query_row(params![key.as_str(), nanos(now), wall], memo).optional()?)
}

fn wall(connection: &Connection) -> Result<i64> {
    Ok(connection.prepare_cached(WALL)?.query_row([], |row| row.get(0))?)
}

#[derive(Debug)]
struct Read(Key);

impl Verb for Read {
    type Answer = Option<Memo>;
    const DOING: &'static str = "reading a memo";

    fn look(&mut self, look: &Look<'_>) -> Result<Option<Self::Answer>> {
        read(look.connection, &self.0, look.now).map(Some)
    }

    fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Answer> {
        read(tx.connection, &self.0, tx.now)
    }
}

#[derive(Debug)]
struct Write {
    key: Key,
    seen: Option<u64>,
    value: Vec<u8>,
    keep: Duration,
}

impl Verb for Write {
    type Answer = Swap;
    const DOING: &'static str = "writing a memo";
    /// A job that has run once must not run again because the power failed.
    const IS_LASTING: bool = true;

    fn run(&self, tx: &mut Tx<'_>) -> Result<Swap> {
        tx.must_last = true;
        let (connection, now) = (tx.connection, tx.now);
        let there = read(connection, &self.key, now)?;
        if there.as_ref().map(|it| it.version) != self.seen {
            return Ok(Swap::Conflict(there));
        }
        connection.execute_batch(CREATE)?;
        let wall = wall(connection)?;
        connection.prepare_cached(CLEAN)?.execute(params![wall, nanos(now)])?;
        // Versions come from the counter of the fences, which never goes back.
        connection.prepare_cached("UPDATE lockkeeper_store SET counter = counter + 1")?.execute([])?;
        if self.keep.is_zero() {
            connection
                .prepare_cached("DELETE FROM lockkeeper_memo WHERE key = ?1")?
                .execute([self.key.as_str()])?;
            let counter = "SELECT counter FROM lockkeeper_store";
            let counter: i64 = connection.prepare_cached(counter)?.query_row([], |row| row.get(0))?;
            return Ok(Swap::Done(counter.unsigned_abs()));
        }
        let keep = i64::try_from(self.keep.as_millis()).unwrap_or(i64::MAX);
        let until = (nanos(now.after(self.keep)), wall.saturating_add(keep));
        let mut write = connection.prepare_cached(WRITE)?;
        let version: i64 =
            write.query_row(params![self.key.as_str(), self.value, until.0, until.1], |row| row.get(0))?;
        Ok(Swap::Done(version.unsigned_abs()))
    }
}
