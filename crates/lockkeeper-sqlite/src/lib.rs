//! Locks in an SQLite file, for the processes of one host. Nothing to install, nothing to run.
//!
//! ```no_run
//! # async fn f() -> lockkeeper_core::Result<()> {
//! let sqlite = lockkeeper_sqlite::Sqlite::connect("sqlite:/var/lib/shop/locks.db").await?;
//! # let _ = sqlite; Ok(()) }
//! ```
//!
//! Time is the kernel's boot clock and counts only within one boot, whose id is kept in the file: a claim
//! of an earlier boot is void. The wall clock never decides about a lock.
//!
//! The walk of a verb (`work`, `verb`): `place` gives it to its `worker`, which runs it at the `desk` if that is free and it
//! will not wait for the disk, and otherwise sends it to the thread of `connection`, which runs it together with all
//! others that wait in one transaction on the key's `line`; `bell` tells those of other processes whom that let
//! in, and `wake` those who wait here.
//!
//! [`SqliteFences`] speaks to connections of yours, so [`rusqlite`] is part of this interface and re-exported. When it
//! makes a breaking release, the next minor release of this crate (0.x) follows, never a patch.

mod admin;
mod bell;
mod connection;
mod desk;
mod doctor;
mod fault;
mod fenced;
mod file;
mod forked;
mod host;
mod line;
mod linger;
mod lower;
mod memos;
mod options;
mod place;
mod quiet;
mod schema;
mod spin;
mod verb;
mod wake;
mod work;
mod worker;

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::memos::DynMemos;
use lockkeeper_core::{Claim, Result};
use tokio::sync::oneshot;

use fault::Trouble;
use worker::Worker;

pub use fenced::SqliteFences;
pub use options::{Durability, SqliteOptions};
pub use place::SqlitePlace;
pub use rusqlite;

/// The backend's name in profiles, errors and events.
const NAME: &str = "sqlite";

/// Locks in an SQLite file.
///
/// It owns a connection, and a thread that does there whatever may take time. When the store and all its places are dropped, the thread
/// closes the file and ends; it does not keep the process alive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_sqlite::{Sqlite, SqliteOptions};
///
/// let folder = tempfile::tempdir()?;
/// let store = Sqlite::with(SqliteOptions::new(folder.path().join("locks.db"))).await?;
/// let locker = Locker::new(store);
/// let guard = locker.lock("orders/42").await?; // against every process of this host
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Sqlite {
    pub(crate) worker: Worker,
    options: SqliteOptions,
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Sqlite {
    /// Open the file that the URL names. Its folder, the file and its tables are made if they are missing.
    ///
    /// # Cancel safety
    /// Safe to drop: the file may have been made, nothing else remains.
    ///
    /// # Errors
    /// [`Error::Invalid`](lockkeeper_core::Error::Invalid) for a URL that cannot be used,
    /// [`Error::Unavailable`](lockkeeper_core::Error::Unavailable) with what is wrong and what to do: a folder instead of
    /// a file, no permission, no database, a damaged file, a full disk, a newer version, a network file system.
    pub async fn connect(url: &str) -> Result<Self> {
        Sqlite::with(SqliteOptions::parse(url)?).await
    }

    /// Open a file with options.
    ///
    /// # Cancel safety
    /// As for [`Sqlite::connect`].
    ///
    /// # Errors
    /// As for [`Sqlite::connect`].
    pub async fn with(options: SqliteOptions) -> Result<Self> {
        let (told, opened) = oneshot::channel();
        let start = Worker::start(options.clone(), |it| drop(told.send(it)));
        let opened = match start {
            Ok(()) => opened.await.unwrap_or_else(|_| Err(no_thread("it ended at once"))),
            Err(error) => Err(no_thread(error)),
        };
        Sqlite::of(options, opened)
    }

    /// As [`Sqlite::with`], for threads without a runtime.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use lockkeeper_core::Locker;
    /// # use lockkeeper_sqlite::{Sqlite, SqliteOptions};
    /// # let folder = tempfile::tempdir()?;
    /// let store = Sqlite::with_blocking(SqliteOptions::new(folder.path().join("locks.db")))?;
    /// let guard = Locker::new(store).lock("orders/42").blocking()?;
    /// guard.release_blocking()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Sqlite::connect`].
    pub fn with_blocking(options: SqliteOptions) -> Result<Self> {
        let (told, opened) = std::sync::mpsc::channel();
        let start = Worker::start(options.clone(), move |it| drop(told.send(it)));
        let opened = match start {
            Ok(()) => opened.recv().unwrap_or_else(|_| Err(no_thread("it ended at once"))),
            Err(error) => Err(no_thread(error)),
        };
        Sqlite::of(options, opened)
    }

    fn of(options: SqliteOptions, opened: fault::Result<Worker>) -> Result<Self> {
        match opened {
            Ok(worker) => Ok(Sqlite { worker, options }),
            Err(trouble) => {
                let fault = trouble.fault("opening the file");
                let what = format!("the lock file {}", options.path().display());
                Err(lockkeeper_core::Error::faulted(what, fault))
            }
        }
    }

    /// The options it was made with.
    pub fn options(&self) -> &SqliteOptions {
        &self.options
    }
}

fn no_thread(why: impl fmt::Display) -> Trouble {
    Trouble::permanent(format!("no thread can be started for the connection: {why}"))
}

impl Backend for Sqlite {
    type Place = SqlitePlace;

    fn profile(&self) -> Profile {
        Profile::new(NAME, Reach::Host).fifo().weighted().lingering().lowering().notifying()
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> SqlitePlace {
        SqlitePlace::new(self.worker.clone(), claim)
    }
}
