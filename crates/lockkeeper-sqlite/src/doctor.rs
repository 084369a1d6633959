//! The doctor: what about this file and its place could endanger locks.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lockkeeper_core::inspect::Finding;
use rusqlite::Connection;

use crate::fault::Result;
use crate::host::{self, Disk};
use crate::line::Tx;
use crate::options::{Durability, SqliteOptions};
use crate::work::{Look, Verb};

/// Look at everything that could endanger locks in this file.
#[derive(Debug)]
pub(crate) struct Examine(pub(crate) SqliteOptions);

impl Examine {
    fn findings(&self, connection: &Connection) -> Result<Vec<Finding>> {
        let options = &self.0;
        let findings =
            [disk(options), durability(options), soundness(connection)?, permissions(options), log(options)];
        Ok(findings.into())
    }
}

impl Verb for Examine {
    type Answer = Vec<Finding>;
    const DOING: &'static str = "examining the file";

    fn look(&mut self, look: &Look<'_>) -> Result<Option<Self::Answer>> {
        self.findings(look.connection).map(Some)
    }

    /// Nothing here needs a write lock, but whoever comes while others wait for one travels along.
    fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Answer> {
        self.findings(tx.connection)
    }
}

fn disk(options: &SqliteOptions) -> Finding {
    match host::disk_of(&options.path) {
        Disk::Local => Finding::fine(
            "the file is on a local disk".to_owned(),
            "all processes of this host see the same locks",
        ),
        Disk::Fuse => Finding::warning(
            "the file is on a FUSE file system".to_owned(),
            "if another host can mount it too, a lock can be held by two at once",
            "make sure that it is local, or use a local disk",
        ),
        Disk::Shared(kind) => Finding::danger(
            format!("the file is on a network file system ({kind})"),
            "a lock can be held by two at once",
            "use a local disk, or a server",
        ),
    }
}

fn durability(options: &SqliteOptions) -> Finding {
    match options.durability {
        Durability::Full => {
            Finding::fine("durability is full".to_owned(), "no power cut can make a fence go back")
        }
        Durability::Normal => Finding::fine(
            "durability is normal".to_owned(),
            "a power cut undoes the last grants, which end with the host anyway; fences still grow",
        ),
    }
}

fn soundness(connection: &Connection) -> Result<Finding> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" {
        return Ok(Finding::fine("the file is sound".to_owned(), "every claim is where it should be"));
    }
    Ok(Finding::danger(
        format!("the file is damaged: {verdict}"),
        "claims may be missing, so that a lock can be held by two at once",
        "stop its users and move the file away; a new one is made on the next start",
    ))
}

fn permissions(options: &SqliteOptions) -> Finding {
    let mode = fs::metadata(&options.path).map_or(0, |it| it.permissions().mode() & 0o777);
    if mode & 0o002 == 0 {
        return Finding::fine(format!("the file's mode is {mode:03o}"), "not everybody can write it");
    }
    Finding::warning(
        format!("the file's mode is {mode:03o}"),
        "every user of this host can take, break and forge locks",
        "share it with a group instead: chmod o-w",
    )
}

/// Longer than the log grows while it is copied back as it should.
const LOG_BYTES_MAX: u64 = 64 << 20;

fn log(options: &SqliteOptions) -> Finding {
    let mut path = options.path.clone().into_os_string();
    path.push("-wal");
    let bytes = fs::metadata(path).map_or(0, |it| it.len());
    if bytes <= LOG_BYTES_MAX {
        return Finding::fine(
            format!("the write-ahead log has {bytes} bytes"),
            "it is copied back as it should",
        );
    }
    Finding::warning(
        format!("the write-ahead log has {bytes} bytes"),
        "every verb gets slower",
        "find the program that keeps a read transaction open on this file",
    )
}
