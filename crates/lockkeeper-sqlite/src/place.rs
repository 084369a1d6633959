//! The backend and its places: what the keeper calls, turned into verbs for the connection's thread.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::backend::{Backend, Place, Profile, Reach, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Clock, Error};
use tokio::sync::oneshot;

use crate::NAME;
use crate::fault::Trouble;
use crate::line::Spot;
use crate::options::SqliteOptions;
use crate::verb::{AskLeave, AskRenew, AskTurn};
use crate::wake::{Mood, Watch};
use crate::wire::Wire;

/// Locks in an SQLite file.
///
/// It owns a thread, which owns the connection. When the backend and all its places are dropped, the thread
/// closes the file and ends; it does not keep the process alive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_sqlite::{SqliteBackend, SqliteOptions};
///
/// let folder = tempfile::tempdir()?;
/// let store = SqliteBackend::open(SqliteOptions::new(folder.path().join("locks.db"))).await?;
/// let locker = Locker::new(store);
/// let guard = locker.lock("orders/42").await?; // against every process of this host
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteBackend {
    pub(crate) wire: Wire,
    options: SqliteOptions,
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBackend").field("options", &self.options).finish_non_exhaustive()
    }
}

impl SqliteBackend {
    /// Open the file. Its folder, the file and its tables are made if they are missing.
    ///
    /// # Cancel safety
    /// Safe to drop: the file may have been made, nothing else remains.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with what is wrong and what to do: a folder instead of a file, no permission, no
    /// database, a damaged file, a full disk, a newer version, a network file system.
    pub async fn open(options: SqliteOptions) -> std::result::Result<Self, Error> {
        let (told, opened) = oneshot::channel();
        let start = Wire::start(options.clone(), |it| drop(told.send(it)));
        let opened = match start {
            Ok(()) => opened.await.unwrap_or_else(|_| Err(no_thread("it ended at once"))),
            Err(error) => Err(no_thread(error)),
        };
        SqliteBackend::of(options, opened)
    }

    /// As [`SqliteBackend::open`], for threads without a runtime.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use lockkeeper_core::Locker;
    /// # use lockkeeper_sqlite::{SqliteBackend, SqliteOptions};
    /// # let folder = tempfile::tempdir()?;
    /// let store = SqliteBackend::open_blocking(SqliteOptions::new(folder.path().join("locks.db")))?;
    /// let guard = Locker::new(store).lock("orders/42").blocking()?;
    /// guard.release_blocking()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SqliteBackend::open`].
    pub fn open_blocking(options: SqliteOptions) -> std::result::Result<Self, Error> {
        let (told, opened) = std::sync::mpsc::channel();
        let start = Wire::start(options.clone(), move |it| drop(told.send(it)));
        let opened = match start {
            Ok(()) => opened.recv().unwrap_or_else(|_| Err(no_thread("it ended at once"))),
            Err(error) => Err(no_thread(error)),
        };
        SqliteBackend::of(options, opened)
    }

    fn of(options: SqliteOptions, opened: crate::fault::Result<Wire>) -> std::result::Result<Self, Error> {
        match opened {
            Ok(wire) => Ok(SqliteBackend { wire, options }),
            Err(trouble) => {
                let fault = trouble.fault("opening the file");
                Err(Error::faulted(format!("the lock file {}", options.path().display()), fault))
            }
        }
    }

    /// Which file, and how.
    pub fn options(&self) -> &SqliteOptions {
        &self.options
    }
}

fn no_thread(why: impl fmt::Display) -> Trouble {
    Trouble::permanent(format!("no thread can be had for the connection: {why}"))
}

impl Backend for SqliteBackend {
    type Place = SqlitePlace;

    fn profile(&self) -> Profile {
        Profile::new(NAME, Reach::Host).fifo().weighted()
    }

    fn enter(&self, claim: Claim) -> SqlitePlace {
        SqlitePlace { wire: self.wire.clone(), claim: Arc::new(self.wire.marked(claim)), told: Told::Nothing }
    }
}

/// A place in a line of an SQLite file.
#[derive(Debug)]
pub struct SqlitePlace {
    wire: Wire,
    claim: Arc<Claim>,
    told: Told,
}

/// What the file told us last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Wait { spot: Spot, waiting_before: u64 },
    Held { wanted: bool },
}

impl Place for SqlitePlace {
    async fn turn(&mut self) -> Result<Turn> {
        let waits = match self.told {
            Told::Wait { spot, .. } => Some(spot),
            Told::Nothing | Told::Held { .. } => None,
        };
        let answer = self.wire.ask(AskTurn::new(self.claim.clone(), waits)).await?;
        self.told = match (answer.turn, answer.spot) {
            (Turn::Held(grant), _) => Told::Held { wanted: grant.wanted },
            (Turn::Wait { .. }, Some(spot)) => Told::Wait { spot, waiting_before: answer.waiting_before },
            (Turn::Wait { .. }, None) => Told::Nothing,
        };
        Ok(answer.turn)
    }

    async fn changed(&mut self) {
        let mood = match self.told {
            Told::Nothing => return std::future::pending().await,
            Told::Wait { spot, waiting_before } => Mood::Waiting { spot, waiting_before },
            Told::Held { wanted } => Mood::Holding { knows_wanted: wanted },
        };
        let (wake, woken) = oneshot::channel();
        self.wire.watch(Watch::new(self.claim.clone(), mood, wake, Clock::boot().now()));
        if woken.await.is_err() {
            // The thread has ended; the next verb says so. Resolving now would make a busy loop.
            std::future::pending::<()>().await;
        }
        if let Told::Held { wanted } = &mut self.told {
            *wanted = true;
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        if let Told::Wait { .. } = self.told {
            // Whoever left may have let us in without our knowing; only `turn` may take that.
            return Ok(Renewal::Lost);
        }
        let renewal = self.wire.ask(AskRenew(self.claim.clone())).await?;
        self.told = match renewal {
            Renewal::Held { wanted, .. } => Told::Held { wanted },
            Renewal::Lost => Told::Nothing,
        };
        Ok(renewal)
    }

    async fn leave(&mut self) -> Result<()> {
        let wanted = self.told == Told::Held { wanted: true };
        self.wire.ask(AskLeave { claim: self.claim.clone(), wanted }).await?;
        self.told = Told::Nothing;
        Ok(())
    }
}
