//! The log in an SQLite file: one thread writes, and the decisions that wait together share one flush.

mod flush;

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use lockkeeper_core::clock::time_of_day;
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use tokio::sync::oneshot;

use super::{BranchRecord, Cause, Damage, Decided, Decision, ParticipantRecord, Ruling};
use crate::error::{Error, Result};
use crate::id::{LogId, TransactionId};
use crate::observe::Observer;
pub(crate) use flush::Inside;
use flush::{Wanted, decide_all};

const VERSION: i64 = 1;
const BUSY: Duration = Duration::from_secs(30);

const TABLES: &str = "\
    CREATE TABLE IF NOT EXISTS lockkeeper_2pc_log (
        one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, version INTEGER NOT NULL, forgotten INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS lockkeeper_2pc_participant (
        name TEXT PRIMARY KEY, kind TEXT NOT NULL, place TEXT NOT NULL, identity TEXT NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS lockkeeper_2pc_seat (seat INTEGER PRIMARY KEY, fence INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS lockkeeper_2pc_verdict (
        id TEXT PRIMARY KEY, seat INTEGER NOT NULL, fence INTEGER NOT NULL, verdict TEXT NOT NULL, note TEXT NOT NULL,
        branches TEXT NOT NULL, decided INTEGER NOT NULL, finished INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS lockkeeper_2pc_unfinished ON lockkeeper_2pc_verdict (seat) WHERE finished = 0;
    CREATE TABLE IF NOT EXISTS lockkeeper_2pc_damage (
        id TEXT NOT NULL, participant TEXT NOT NULL, expected TEXT NOT NULL, found TEXT NOT NULL, seen INTEGER NOT NULL,
        PRIMARY KEY (id, participant)
    ) STRICT, WITHOUT ROWID;";

const COLUMNS: &str = "id, verdict, note, branches, decided, finished";

type Act = Box<dyn FnOnce(&mut Connection) + Send>;

enum Job {
    Decide(Wanted),
    Other(Act),
}

fn ended() -> Cause {
    Arc::new(std::io::Error::other("the log's thread has ended"))
}

/// A log that is open. Clones share the thread.
#[derive(Clone, Debug)]
pub(crate) struct File {
    jobs: mpsc::Sender<Job>,
}

impl File {
    /// Open the log in this file, and make it if there is none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a log of another version, which is not touched; [`Error::Unavailable`].
    pub(crate) async fn open(path: &Path, observer: Observer) -> Result<(File, LogId)> {
        let (jobs, inbox) = mpsc::channel();
        let (told, opened) = oneshot::channel();
        let (path, shown) = (path.to_owned(), path.display().to_string());
        let begin = move || match open(&path) {
            Ok((connection, id)) => {
                if told.send(Ok(id)).is_ok() {
                    serve(connection, &inbox, &observer);
                }
            }
            Err(error) => drop(told.send(Err(error))),
        };
        let spawned = std::thread::Builder::new().name("lockkeeper-2pc-log".into()).spawn(begin);
        spawned.map_err(|it| Error::unavailable("a thread for the log", it))?;
        let opened = opened.await.map_err(|it| Error::unavailable("the log", it))?;
        let id = opened.map_err(|it| match it {
            Opening::Database(it) => Error::unavailable(format!("the log {shown}"), it),
            Opening::Refused(what) => Error::unsupported(format!("the log {shown} {what}")),
            Opening::Random(it) => it,
        })?;
        Ok((File { jobs }, id))
    }

    async fn act<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (told, answer) = oneshot::channel();
        let job = Job::Other(Box::new(move |connection| drop(told.send(act(connection)))));
        let closed = || Error::unavailable("the log", std::io::Error::other("its thread has ended"));
        self.jobs.send(job).map_err(|_| closed())?;
        let answer = answer.await.map_err(|_| closed())?;
        answer.map_err(|it| Error::unavailable("the log", it))
    }

    pub(super) async fn decide(&self, record: Decision, fence: u64) -> Decided {
        self.decide_with(record, fence, None).await
    }

    /// As [`Log::decide`](super::Log::decide), with work that is done in this file by the same commit.
    pub(crate) async fn decide_with(&self, record: Decision, fence: u64, inside: Option<Inside>) -> Decided {
        let (told, answer) = oneshot::channel();
        if self.jobs.send(Job::Decide(Wanted { record, fence, inside, told })).is_err() {
            return Decided::Failed(ended());
        }
        // The thread answers everything that it takes; if it is gone, it may have been gone after the flush.
        answer.await.unwrap_or_else(|_| Decided::Unsure(ended()))
    }

    pub(super) async fn rule_abort(&self, abort: Decision) -> Result<Ruling> {
        self.act(move |connection| {
            let writing = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            insert(&writing, &abort)?;
            let ruled = look(&writing, &abort.id)?.map_or(Ruling::Abort, |it| it.ruling);
            writing.commit().map(|()| ruled)
        })
        .await
    }

    pub(super) async fn rule_abort_all(&self, aborts: Vec<Decision>) -> Result<()> {
        self.act(move |connection| {
            let writing = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for it in &aborts {
                insert(&writing, it)?;
            }
            writing.commit()
        })
        .await
    }

    pub(super) async fn raise(&self, seat: u32, fence: u64, beyond: bool) -> Result<Option<u64>> {
        self.act(move |connection| {
            let writing = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let newest = newest(&writing, seat)?;
            let fence = match newest {
                Some(newest) if fence <= newest && beyond => newest + 1,
                Some(newest) if fence <= newest => return Ok(None),
                _ => fence,
            };
            writing.execute(
                "INSERT INTO lockkeeper_2pc_seat VALUES (?1, ?2) ON CONFLICT (seat) DO UPDATE SET fence = excluded.fence",
                params![seat, kept(fence)],
            )?;
            writing.commit().map(|()| Some(fence))
        })
        .await
    }

    pub(super) async fn seats(&self) -> Result<Vec<(u32, u64)>> {
        self.act(|connection| {
            let mut rows =
                connection.prepare_cached("SELECT seat, fence FROM lockkeeper_2pc_seat ORDER BY seat")?;
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned())))?;
            rows.collect()
        })
        .await
    }

    pub(super) async fn note(&self, it: ParticipantRecord) -> Result<ParticipantRecord> {
        self.act(move |connection| {
            let writing = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            writing.execute(
                "INSERT INTO lockkeeper_2pc_participant VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (name) DO UPDATE SET place = excluded.place WHERE identity = excluded.identity",
                params![it.name, it.kind, it.place, it.identity],
            )?;
            let noted = participants(&writing)?.into_iter().find(|noted| noted.name == it.name);
            writing.commit()?;
            noted.ok_or(rusqlite::Error::QueryReturnedNoRows)
        })
        .await
    }

    pub(super) async fn participants(&self) -> Result<Vec<ParticipantRecord>> {
        self.act(|connection| participants(connection)).await
    }

    pub(super) async fn unfinished(&self, seat: Option<u32>) -> Result<Vec<Decision>> {
        self.act(move |connection| {
            let sql = format!(
                "SELECT {COLUMNS} FROM lockkeeper_2pc_verdict WHERE finished = 0 AND (?1 IS NULL OR seat = ?1) ORDER BY id"
            );
            let mut rows = connection.prepare_cached(&sql)?;
            let rows = rows.query_map([seat], read)?;
            rows.filter_map(Result::transpose).collect()
        })
        .await
    }

    pub(super) async fn look(&self, id: &TransactionId) -> Result<(Option<Decision>, bool)> {
        let id = id.clone();
        self.act(move |connection| {
            // The row first: who deletes it raises the mark with it.
            let found = look(connection, &id)?;
            Ok((found, id.begun() <= forgotten(connection)?))
        })
        .await
    }

    pub(super) async fn forgotten(&self) -> Result<u64> {
        self.act(|connection| forgotten(connection)).await
    }

    pub(super) async fn looks(&self, ids: Vec<TransactionId>) -> Result<Vec<Decision>> {
        self.act(move |connection| ids.iter().filter_map(|id| look(connection, id).transpose()).collect())
            .await
    }

    pub(super) async fn finish(&self, id: &TransactionId) -> Result<()> {
        self.finish_all(std::slice::from_ref(id)).await
    }

    pub(super) async fn finish_all(&self, ids: &[TransactionId]) -> Result<()> {
        let ids = ids.to_vec();
        self.act(move |connection| {
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            let done = finish(connection, &ids);
            connection.pragma_update(None, "synchronous", "FULL")?;
            done
        })
        .await
    }

    pub(super) async fn forget(&self, older_than: Duration, only: Option<TransactionId>) -> Result<usize> {
        let before = kept(time_of_day().saturating_sub(older_than).as_secs());
        let only = only.map(|it| it.as_str().to_owned());
        self.act(move |connection| {
            let writing = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let ids: Vec<String> = {
                let mut rows = writing.prepare_cached(
                    "SELECT id FROM lockkeeper_2pc_verdict
                     WHERE finished = 1 AND decided <= ?1 AND (?2 IS NULL OR id = ?2)
                     AND id NOT IN (SELECT id FROM lockkeeper_2pc_damage)",
                )?;
                let rows = rows.query_map(params![before, only], |row| row.get(0))?;
                rows.collect::<rusqlite::Result<_>>()?
            };
            for id in &ids {
                let begun = id.parse().map_or(0, |it: TransactionId| it.begun());
                writing
                    .execute("UPDATE lockkeeper_2pc_log SET forgotten = max(forgotten, ?1)", [kept(begun)])?;
                writing.execute("DELETE FROM lockkeeper_2pc_verdict WHERE id = ?1", [id])?;
            }
            writing.commit().map(|()| ids.len())
        })
        .await
    }

    pub(super) async fn forget_until(&self, begun: u64) -> Result<()> {
        self.act(move |connection| {
            let sql = "UPDATE lockkeeper_2pc_log SET forgotten = max(forgotten, ?1)";
            connection.execute(sql, [kept(begun)]).map(drop)
        })
        .await
    }

    pub(super) async fn damage(&self, it: Damage) -> Result<()> {
        self.act(move |connection| {
            connection
                .execute(
                    "INSERT OR IGNORE INTO lockkeeper_2pc_damage VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![it.id.as_str(), it.participant, it.expected.word(), it.found, kept(it.seen)],
                )
                .map(drop)
        })
        .await
    }

    pub(super) async fn damages(&self) -> Result<Vec<Damage>> {
        self.act(|connection| {
            let mut rows = connection.prepare_cached(
                "SELECT id, participant, expected, found, seen FROM lockkeeper_2pc_damage ORDER BY seen, id",
            )?;
            let rows = rows.query_map([], |row| {
                let id: String = row.get(0)?;
                let Ok(id) = id.parse() else { return Ok(None) };
                let (participant, found) = (row.get(1)?, row.get(3)?);
                let (expected, seen) =
                    (Ruling::read(&row.get::<_, String>(2)?), row.get::<_, i64>(4)?.cast_unsigned());
                Ok(Some(Damage { id, participant, expected, found, seen }))
            })?;
            rows.filter_map(Result::transpose).collect()
        })
        .await
    }
}

enum Opening {
    Database(rusqlite::Error),
    Refused(String),
    Random(Error),
}

impl From<rusqlite::Error> for Opening {
    fn from(error: rusqlite::Error) -> Self {
        Opening::Database(error)
    }
}

fn open(path: &Path) -> std::result::Result<(Connection, LogId), Opening> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    // Look before anything is written: a log of another version is not ours to touch.
    if connection.table_exists(None, "lockkeeper_2pc_log")? {
        let version: Option<i64> =
            connection.query_one("SELECT version FROM lockkeeper_2pc_log", [], |it| it.get(0)).optional()?;
        if let Some(version) = version.filter(|it| *it != VERSION) {
            return Err(Opening::Refused(format!(
                "has format version {version}, and this program knows {VERSION}; nothing was touched, use the program that wrote it"
            )));
        }
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let drawn = LogId::draw().map_err(Opening::Random)?;
    let writing = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    writing.execute_batch(TABLES)?;
    writing.execute(
        "INSERT OR IGNORE INTO lockkeeper_2pc_log VALUES (1, ?1, ?2, 0)",
        params![drawn.0, VERSION],
    )?;
    let id = writing.query_one("SELECT id FROM lockkeeper_2pc_log", [], |it| it.get(0))?;
    writing.commit()?;
    let id =
        LogId::read(id).ok_or_else(|| Opening::Refused("has a name that no log has; is it one?".into()))?;
    Ok((connection, id))
}

/// Do what comes, until every clone of the log is gone.
fn serve(mut connection: Connection, inbox: &mpsc::Receiver<Job>, observer: &Observer) {
    while let Ok(first) = inbox.recv() {
        let (mut decisions, mut others) = (Vec::new(), Vec::new());
        for job in std::iter::once(first).chain(std::iter::from_fn(|| inbox.try_recv().ok())) {
            match job {
                Job::Decide(it) => decisions.push(it),
                Job::Other(act) => others.push(act),
            }
        }
        decide_all(&mut connection, decisions, observer);
        for act in others {
            act(&mut connection);
        }
    }
}

/// Whether it could be written: only by the newest holder of the seat.
fn decide(writing: &Transaction<'_>, record: &Decision, fence: u64) -> rusqlite::Result<bool> {
    if newest(writing, record.id.seat())? != Some(fence) {
        return Ok(false);
    }
    // A row that is there says abort: somebody ruled for us.
    Ok(insert(writing, record)? == 1)
}

fn newest(connection: &Connection, seat: u32) -> rusqlite::Result<Option<u64>> {
    let mut row = connection.prepare_cached("SELECT fence FROM lockkeeper_2pc_seat WHERE seat = ?1")?;
    row.query_one([seat], |it| it.get::<_, i64>(0)).optional().map(|it| it.map(i64::cast_unsigned))
}

fn insert(connection: &Connection, record: &Decision) -> rusqlite::Result<usize> {
    let mut row = connection.prepare_cached(
        "INSERT INTO lockkeeper_2pc_verdict VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (id) DO NOTHING",
    )?;
    row.execute(params![
        record.id.as_str(),
        record.id.seat(),
        kept(record.id.fence()),
        record.ruling.word(),
        record.note,
        BranchRecord::all_written(&record.branches),
        kept(record.decided),
        record.finished
    ])
}

fn look(connection: &Connection, id: &TransactionId) -> rusqlite::Result<Option<Decision>> {
    let sql = format!("SELECT {COLUMNS} FROM lockkeeper_2pc_verdict WHERE id = ?1");
    connection.prepare_cached(&sql)?.query_one([id.as_str()], read).optional().map(Option::flatten)
}

fn forgotten(connection: &Connection) -> rusqlite::Result<u64> {
    connection
        .query_one("SELECT forgotten FROM lockkeeper_2pc_log", [], |it| it.get(0))
        .map(i64::cast_unsigned)
}

fn finish(connection: &mut Connection, ids: &[TransactionId]) -> rusqlite::Result<()> {
    let writing = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for id in ids {
        let mut row =
            writing.prepare_cached("UPDATE lockkeeper_2pc_verdict SET finished = 1 WHERE id = ?1")?;
        row.execute([id.as_str()])?;
    }
    writing.commit()
}

/// `None` for a row that somebody else made: it is left alone.
fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<Decision>> {
    let id: String = row.get(0)?;
    let Ok(id) = id.parse() else { return Ok(None) };
    let branches: String = row.get(3)?;
    Ok(Some(Decision {
        id,
        ruling: Ruling::read(&row.get::<_, String>(1)?),
        note: row.get(2)?,
        branches: BranchRecord::read_all(&branches),
        decided: row.get::<_, i64>(4)?.cast_unsigned(),
        finished: row.get::<_, i64>(5)? != 0,
    }))
}

fn participants(connection: &Connection) -> rusqlite::Result<Vec<ParticipantRecord>> {
    let mut rows = connection
        .prepare_cached("SELECT name, kind, place, identity FROM lockkeeper_2pc_participant ORDER BY name")?;
    let rows = rows.query_map([], |row| {
        Ok(ParticipantRecord {
            name: row.get(0)?,
            kind: row.get(1)?,
            place: row.get(2)?,
            identity: row.get(3)?,
        })
    })?;
    rows.collect()
}

/// Numbers of 64 bits as the file keeps them.
fn kept(number: u64) -> i64 {
    number.cast_signed()
}
