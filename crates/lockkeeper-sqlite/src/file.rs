//! One connection to the file: opening it safely beside others, and transactions that wait their turn.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::clock::pause_thread;
use lockkeeper_core::{ClaimId, Clock, Key, Moment};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::connection::Look;
use crate::fault::{Result, Trouble};
use crate::forked::Opened;
use crate::host::{self, Disk};
use crate::line::Tx;
use crate::options::{Durability, SqliteOptions};
use crate::schema;

/// Pages in the write-ahead log before it is copied back, and the bytes it may keep after that.
const WAL_PAGES: i64 = 1000;
const WAL_BYTES_MAX: i64 = 8 << 20;

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

    pub(crate) fn tx<'a>(
        &'a self,
        now: Moment,
        touched: &'a mut Vec<Key>,
        called: &'a mut Vec<ClaimId>,
    ) -> Tx<'a> {
        Tx { connection: &self.connection, boot: &self.boot, now, touched, called, has_granted: false }
    }

    /// About `span`, so that processes do not do the same thing at the same time.
    pub(crate) fn spread(&mut self, span: Duration) -> Duration {
        self.pauses.between(span * 3 / 4, span * 5 / 4)
    }

    /// If the path now means another file, or none, use that one: others who open it do not see ours.
    ///
    /// `true` if it was so. The locks in the old file are lost, and renewals will say so.
    pub(crate) fn reopen_if_moved(&mut self) -> Result<bool> {
        let is_same = self.identity.is_some() && identity(&self.options.path) == self.identity;
        if is_same && !self.is_suspect {
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
        if self.flushes != Some(flushes) {
            // SQLite does not change this in the middle of a transaction.
            self.connection.pragma_update(None, "synchronous", if flushes { "FULL" } else { "NORMAL" })?;
            self.flushes = Some(flushes);
        }
        let began = begin_immediate(&self.connection, &mut self.pauses, deadline);
        began.inspect_err(|it| self.is_suspect = it.may_heal())
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
    pub(crate) fn reuse_log(&mut self) {
        // On a disk this full it may fail; then so does the next transaction, which can tell.
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
    if connection.is_readonly("main")? {
        return Err(Trouble::permanent("the file may not be written; allow this user to read and write it"));
    }
    // We wait ourselves: SQLite's own way is unfair under contention and is not used everywhere.
    connection.busy_timeout(Duration::ZERO)?;
    connection.set_prepared_statement_cache_capacity(64);
    // The file may come from anywhere; nothing in it but our tables shall run.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
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
    connection.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
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
            match what() {
                Err(trouble) if trouble.is_busy() => {
                    let now = clock.now();
                    if deadline <= now {
                        return Err(trouble);
                    }
                    let waited = now - *began.get_or_insert(now);
                    pause_thread(self.next(waited).min(deadline - now));
                }
                result => return result,
            }
        }
    }

    /// How long to pause before the next attempt. Whoever has waited long tries more often, so that among
    /// many nobody is left behind.
    fn next(&mut self, waited: Duration) -> Duration {
        let us = Duration::from_micros;
        match waited.as_millis() {
            0..4 => self.between(us(50), us(500)),
            4..200 => self.between(us(500), us(5000)),
            200..1000 => self.between(us(200), us(2000)),
            _ => self.between(us(100), us(500)),
        }
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
