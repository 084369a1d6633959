//! One connection to the file: opening it safely beside others, and transactions that wait their turn.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::clock::pause_thread;
use lockkeeper_core::{ClaimId, Clock, Key, Moment};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::fault::{Result, Trouble};
use crate::forked::Opened;
use crate::host::{self, Disk};
use crate::line::Tx;
use crate::options::{Durability, SqliteOptions};
use crate::schema;
use crate::work::Look;

/// The bytes that the write-ahead log may keep after it was copied back.
const WAL_BYTES_MAX: i64 = 8 << 20;

/// The longest pause between attempts at first, and after a while.
const PAUSE_FIRST: Duration = Duration::from_micros(100);
const PAUSE_LATER: Duration = Duration::from_millis(20);
/// Between attempts there is at least so many times the span that one took, but not more than that.
const ATTEMPT_SHARE: u32 = 16;
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A file, by its device and its number there.
pub(crate) type Identity = (u64, u64);

/// An open file, ready for this boot.
#[derive(Debug)]
pub(crate) struct File {
    connection: Connection,
    /// After the connection: it is closed before it is forgotten.
    opened: Opened,
    options: SqliteOptions,
    boot: String,
    identity: Option<Identity>,
    pauses: Pauses,
    /// The last failure was one that a new connection may heal.
    is_suspect: bool,
    /// Whether a commit waits for the disk; `None` if the connection has not been told.
    flushes: Option<bool>,
}

impl File {
    /// Open the file; make its folder, itself and its tables if they are missing.
    pub(crate) fn open(mut options: SqliteOptions) -> Result<Self> {
        options.path = absolute(&options.path)?;
        host::check_clock()?;
        let boot = host::boot_id()?;
        make_folder(&options.path)?;
        let (connection, opened) = connect(&options, &boot)?;
        let identity = identity(&options.path);
        Ok(File {
            connection,
            opened,
            options,
            boot,
            identity,
            pauses: Pauses::new(),
            is_suspect: false,
            flushes: None,
        })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn options(&self) -> &SqliteOptions {
        &self.options
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Look at the file, again if another process was in the way.
    pub(crate) fn look<T>(&mut self, mut what: impl FnMut(&Look<'_>) -> Result<T>) -> Result<T> {
        let File { connection, options, pauses, .. } = self;
        let clock = Clock::boot();
        let deadline = clock.now().after(options.timeout);
        pauses.retry(deadline, || what(&Look { connection, options, now: clock.now() }))
    }

    /// Look at the file, whoever is in the way.
    pub(crate) fn look_once<T>(&self, what: impl FnOnce(&Look<'_>) -> Result<T>) -> Result<T> {
        what(&Look { connection: &self.connection, options: &self.options, now: Clock::boot().now() })
    }

    pub(crate) fn tx<'a>(
        &'a self,
        now: Moment,
        touched: &'a mut Vec<Key>,
        called: &'a mut Vec<ClaimId>,
    ) -> Tx<'a> {
        Tx {
            connection: &self.connection,
            boot: &self.boot,
            now,
            touched,
            called,
            has_granted: false,
            must_last: false,
        }
    }

    /// About `span`, so that processes do not do the same thing at the same time.
    pub(crate) fn spread(&mut self, span: Duration) -> Duration {
        self.pauses.between(span * 3 / 4, span * 5 / 4)
    }

    /// A number below `end`, and above 0.
    pub(crate) fn any_below(&mut self, end: u32) -> u32 {
        let span = self.pauses.between(Duration::from_nanos(4096), Duration::from_nanos(4096) * end);
        u32::try_from(span.as_nanos() / 4096).unwrap_or(1)
    }

    /// Whether the path now means another file, or none, or a new connection is needed for some other reason.
    pub(crate) fn has_moved(&self) -> bool {
        self.is_suspect || self.identity.is_none() || identity(&self.options.path) != self.identity
    }

    /// If the path now means another file, or none, use that one: others who open it do not see ours.
    ///
    /// `true` if it was so. The locks in the old file are lost, and renewals will say so.
    pub(crate) fn reopen_if_moved(&mut self) -> Result<bool> {
        if !self.has_moved() {
            return Ok(false);
        }
        make_folder(&self.options.path)?;
        (self.connection, self.opened) = connect(&self.options, &self.boot)?;
        self.identity = identity(&self.options.path);
        (self.is_suspect, self.flushes) = (false, None);
        Ok(true)
    }

    /// Whether a commit with a grant in it has to wait for the disk.
    pub(crate) fn must_flush(&self) -> bool {
        self.options.durability == Durability::Full
    }

    /// Begin a write transaction, waiting for the write lock until `deadline`. Its commit waits for the disk if it
    /// `flushes`.
    pub(crate) fn begin(&mut self, deadline: Moment, flushes: bool) -> Result<()> {
        self.set_flushes(flushes)?;
        let began = begin_immediate(&self.connection, &mut self.pauses, deadline);
        began.inspect_err(|it| self.is_suspect = it.may_heal())
    }

    /// Begin a write transaction if nobody is in the way. Its commit does not wait for the disk.
    pub(crate) fn begin_once(&mut self) -> Result<()> {
        self.set_flushes(false)?;
        statement(&self.connection, "BEGIN IMMEDIATE")
    }

    fn set_flushes(&mut self, flushes: bool) -> Result<()> {
        if self.flushes != Some(flushes) {
            // SQLite does not change this in the middle of a transaction.
            let mode = if flushes { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            statement(&self.connection, mode)?;
            self.flushes = Some(flushes);
        }
        Ok(())
    }

    pub(crate) fn commit(&mut self) -> Result<()> {
        let committed = statement(&self.connection, "COMMIT");
        committed.inspect_err(|it| self.is_suspect = it.may_heal())
    }

    /// End a transaction that failed.
    pub(crate) fn roll_back(&mut self) {
        // After some errors SQLite has rolled back by itself.
        if !self.connection.is_autocommit() && statement(&self.connection, "ROLLBACK").is_err() {
            self.is_suspect = true;
        }
    }

    /// Copy the log back, so that the next transaction writes over it and needs no new space.
    pub(crate) fn copy_log(&mut self) {
        // It may fail, on a full disk or because another process does it. What is wrong is met by the next transaction, which
        // can tell.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
}

fn statement(connection: &Connection, sql: &str) -> Result<()> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}

fn begin_immediate(connection: &Connection, pauses: &mut Pauses, deadline: Moment) -> Result<()> {
    pauses.retry(deadline, || statement(connection, "BEGIN IMMEDIATE"))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    // An absolute path is never one of the names that are special to SQLite.
    std::path::absolute(path).map_err(|it| {
        Trouble::permanent(format!("the path \"{}\" means no file ({it}); name a file", path.display()))
    })
}

/// Make the folder, and refuse places where locks in a file do not work.
fn make_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(Trouble::permanent("the path is a folder; name a file in it"));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(|it| {
        Trouble::permanent(format!(
            "its folder {} cannot be made ({it}); make it or choose another",
            folder.display()
        ))
    })?;
    // The file itself may be mounted elsewhere, as containers do.
    for place in [folder, path] {
        if let Disk::Shared(kind) = host::disk_of(place) {
            return Err(Trouble::permanent(format!(
                "{} is on a network file system ({kind}), where locks in a file fail silently; \
                 use a local disk, or a server",
                place.display()
            )));
        }
    }
    Ok(())
}

/// Which file a path means now.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

fn connect(options: &SqliteOptions, boot: &str) -> Result<(Connection, Opened)> {
    let mut opened = Opened::check(identity(&options.path))?;
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&options.path, flags)?;
    // SQLite opens what it may not write for reading. Asking its own connection is done differently in each version.
    if accessat(CWD, &options.path, Access::WRITE_OK, AtFlags::EACCESS).is_err() {
        return Err(Trouble::permanent("the file may not be written; allow this user to read and write it"));
    }
    // We wait ourselves: SQLite's own way is unfair under contention and is not used everywhere.
    connection.busy_timeout(Duration::ZERO)?;
    connection.set_prepared_statement_cache_capacity(64);
    // The file may come from anywhere; nothing in it but our tables shall run.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // No plan of ours depends on a value. Without this SQLite plans a cached statement anew each time it is used.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let mut pauses = Pauses::new();
    let deadline = Clock::boot().now().after(options.timeout);
    pauses.retry(deadline, || configure(&connection))?;
    if !pauses.retry(deadline, || schema::is_ready(&connection, boot))? {
        begin_immediate(&connection, &mut pauses, deadline)?;
        schema::prepare(&connection, boot)?;
        statement(&connection, "COMMIT")?;
    }
    opened.note(identity(&options.path))?;
    Ok((connection, opened))
}

fn configure(connection: &Connection) -> Result<()> {
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    if mode != "wal" {
        let set: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        if set != "wal" {
            return Err(Trouble::permanent(format!(
                "the file cannot have a write-ahead log (it stays in mode {set:?}); use a local disk"
            )));
        }
    }
    // Making the tables waits for the disk in either mode.
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Copying the log back waits for the disk, so it is not for whoever happens to commit.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES_MAX)?;
    Ok(())
}

/// Pauses of random length between attempts, and the random numbers for them.
#[derive(Debug)]
pub(crate) struct Pauses(u64);

impl Pauses {
    pub(crate) fn new() -> Self {
        let seed = ClaimId::random()
            .map_or(0, |it| it.as_bytes().iter().fold(0, |sum: u64, byte| (sum << 4) ^ u64::from(*byte)));
        Pauses(seed ^ u64::from(std::process::id()) | 1)
    }

    /// Repeat what another process was in the way of, until `deadline`.
    pub(crate) fn retry<T>(&mut self, deadline: Moment, mut what: impl FnMut() -> Result<T>) -> Result<T> {
        let clock = Clock::boot();
        let mut began = None;
        loop {
            let tried = clock.now();
            match what() {
                Err(trouble) if trouble.is_busy() => {
                    let now = clock.now();
                    if deadline <= now {
                        return Err(trouble);
                    }
                    let waited = now - *began.get_or_insert(tried);
                    // On a machine that is short of time an attempt takes long. Were all to repeat theirs at once, the one
                    // whom they wait for would not get on.
                    let pause = self.next(waited).max((now - tried) * ATTEMPT_SHARE);
                    pause_thread(pause.min(PAUSE_MAX).min(deadline - now));
                }
                result => return result,
            }
        }
    }

    /// How long to pause before the next attempt: up to half of the time that we have waited. Most transactions are over
    /// in a moment; and where hundreds wait, they must not take the time from the one whom they wait for.
    fn next(&mut self, waited: Duration) -> Duration {
        let most = (waited / 2).clamp(PAUSE_FIRST, PAUSE_LATER);
        self.between(most / 8, most)
    }

    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        // Xorshift: good enough to be out of step with others.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let part = u32::try_from(self.0 >> 40).unwrap_or(0);
        least + (most.saturating_sub(least) / (1 << 12)) * (part >> 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_tries_soon_at_first_and_less_often_later() {
        let (mut pauses, second) = (Pauses::new(), Duration::from_secs(1));
        let (mut waited, mut attempts) = (Duration::ZERO, 0);
        while waited < second {
            let pause = pauses.next(waited);
            assert!(pause <= PAUSE_FIRST.max(waited / 2), "{pause:?} after {waited:?}");
            waited += pause;
            attempts += 1;
        }
        // Two hundred of them together: forty in a millisecond would leave the machine for nobody else.
        assert!(attempts <= 500, "{attempts} attempts in a second");
    }
}
