//! The tables, and what a process must find in a file before it uses it.

use rusqlite::{Connection, OptionalExtension, params};

use crate::fault::{Result, Trouble};

/// The version this code reads and writes.
pub(crate) const VERSION: i64 = 1;

/// `lockkeeper_store` has one row. `boot` is the boot in which the times of all claims count; `counter` is the
/// last number given and never goes back, whatever happens to claims. It starts at ten times
/// the time in milliseconds, so that a file that was deleted and made anew still gives larger fences.
///
/// Numbers come in blocks. The first of each block is on disk before it is told, so a power cut makes the file forget
/// numbers of the block that it knows, at most; the next boot begins with the next block.
///
/// `lockkeeper_claim` has one row for each claim that holds or waits. `seq` comes from the store's
/// counter when a claim arrives, `counter` when it is granted (0 while it waits). Times are nanoseconds of the boot
/// clock. The names have a prefix so that an application may keep its own tables in the file.
const CREATE: &str = "
    CREATE TABLE lockkeeper_store (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        version INTEGER NOT NULL,
        boot TEXT NOT NULL,
        counter INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE lockkeeper_claim (
        key TEXT NOT NULL COLLATE BINARY,
        seq INTEGER NOT NULL,
        id BLOB NOT NULL,
        counter INTEGER NOT NULL,
        expires INTEGER NOT NULL,
        since INTEGER NOT NULL,
        weight INTEGER NOT NULL,
        capacity INTEGER NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        owner TEXT,
        note TEXT,
        PRIMARY KEY (key, seq)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO lockkeeper_store VALUES (1, 1, '', CAST(10000 * unixepoch('subsec') AS INTEGER));
";

/// How many numbers are in a block: few, so that they are not ahead of the clock when a file is made anew.
pub(crate) const BLOCK: i64 = 1 << 14;

/// The block of a number.
pub(crate) fn block(number: i64) -> i64 {
    number.div_euclid(BLOCK)
}

/// Whether the file is ready for this boot; if not, [`prepare`] makes it so. Takes no lock.
pub(crate) fn is_ready(connection: &Connection, boot: &str) -> Result<bool> {
    Ok(has_tables(connection)? && boot_of(connection)? == boot)
}

/// Make the tables if there are none, and void the claims of earlier boots. Runs inside a write transaction.
pub(crate) fn prepare(connection: &Connection, boot: &str) -> Result<()> {
    if !has_tables(connection)? {
        connection.execute_batch(CREATE)?;
    }
    if boot_of(connection)? != boot {
        connection.execute("DELETE FROM lockkeeper_claim", [])?;
        // The power may have failed, and numbers that were told are not in the file. A new file has told none.
        let next = "UPDATE lockkeeper_store SET counter = (counter / ?1 + 1) * ?1 WHERE boot <> ''";
        connection.execute(next, params![BLOCK])?;
        connection.execute("UPDATE lockkeeper_store SET boot = ?1", params![boot])?;
    }
    Ok(())
}

fn has_tables(connection: &Connection) -> Result<bool> {
    let find = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'lockkeeper_store'";
    Ok(connection.query_row(find, [], |_| Ok(())).optional()?.is_some())
}

fn boot_of(connection: &Connection) -> Result<String> {
    let read = "SELECT version, boot FROM lockkeeper_store WHERE one = 1";
    let row: Option<(i64, String)> =
        connection.query_row(read, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    match row {
        Some((VERSION, boot)) => Ok(boot),
        Some((version, _)) => Err(wrong_version(version)),
        None => Err(Trouble::permanent(
            "the table `lockkeeper_store` is empty; somebody changed it: stop the file's users and move it away",
        )),
    }
}

/// What to say about a version that this code does not know.
pub(crate) fn wrong_version(version: i64) -> Trouble {
    Trouble::permanent(format!(
        "the file has schema version {version}, this program knows version {VERSION}; \
         use a newer Lockkeeper or another file"
    ))
}
