//! A ring on an SQLite file: each process sleeps on a socket as ours do, looks into the file who is next, and writes down the one
//! after it. A step costs one look, one write transaction and one ring of a bell.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use rusqlite::{Connection, params};

use super::Member;
use crate::Answer;
use crate::rival::Rival;

/// Longer than any transaction of the others.
const BUSY: Duration = Duration::from_secs(10);

/// One process.
#[derive(Clone)]
pub(crate) struct SqliteRing {
    file: Arc<Mutex<Connection>>,
    bell: Arc<UnixDatagram>,
    next_bell: PathBuf,
    member: Member,
    has_token: bool,
}

impl SqliteRing {
    pub(crate) fn open(url: &str, key: &str, member: Member) -> Answer<Self> {
        let path = format!("{}.{key}", url.trim_start_matches("sqlite:"));
        let file = Connection::open(Path::new(&path))?;
        file.busy_timeout(BUSY)?;
        let _: String = file.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        file.pragma_update(None, "synchronous", "NORMAL")?;
        file.execute_batch(
            "BEGIN IMMEDIATE;
             CREATE TABLE IF NOT EXISTS ring (one INTEGER PRIMARY KEY, at INTEGER NOT NULL);
             INSERT OR IGNORE INTO ring VALUES (1, 0);
             COMMIT",
        )?;
        let bell = |at: u32| PathBuf::from(format!("{path}.bell-{at}"));
        Ok(SqliteRing {
            file: Arc::new(Mutex::new(file)),
            bell: Arc::new(UnixDatagram::bind(bell(member.at))?),
            next_bell: bell(member.next()),
            member,
            has_token: member.begins(),
        })
    }

    fn is_ours(&self) -> Answer<bool> {
        let file = locked(&self.file);
        let mut look = file.prepare_cached("SELECT at FROM ring WHERE one = 1")?;
        let at: u32 = look.query_row([], |row| row.get(0))?;
        Ok(at == self.member.at)
    }
}

impl Rival for SqliteRing {
    type Taken = ();

    async fn take(&mut self, _key: &str) -> Answer<()> {
        if !std::mem::take(&mut self.has_token) {
            self.bell.recv(&mut [0])?;
        }
        if self.is_ours()? { Ok(()) } else { Err("the bell rang for somebody else".into()) }
    }

    async fn give_back(&mut self, _token: ()) -> Answer<()> {
        let file = locked(&self.file);
        file.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        file.prepare_cached("UPDATE ring SET at = ?1 WHERE one = 1")?.execute(params![self.member.next()])?;
        file.prepare_cached("COMMIT")?.execute([])?;
        drop(file);
        match self.bell.send_to(&[1], &self.next_bell) {
            // At the end: it has had its last turn and is gone.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
            sent => Ok(sent.map(drop)?),
        }
    }
}
