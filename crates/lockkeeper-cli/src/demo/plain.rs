//! The plain lock of the books: set if absent with an expiry, ask again after a pause, delete if it is ours.
//!
//! On Redis these are `SET NX PX` and a script; here the same is done on a table, as durable as the library's own.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::spi::{ClaimId, Clock, Moment};
use rusqlite::Connection;

use crate::demo::books::Trouble;
use crate::demo::counting::Trips;

/// How long a contender sleeps between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
const TTL: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(crate) struct PlainLock {
    connection: Arc<Mutex<Connection>>,
    trips: Arc<Trips>,
}

/// A plain lock that is held.
pub(crate) struct Held<'a> {
    lock: &'a PlainLock,
    name: &'static str,
    token: String,
}

impl PlainLock {
    pub(crate) fn open(folder: &Path, trips: Arc<Trips>) -> Result<Self, Trouble> {
        let connection = Connection::open(folder.join("plain.db"))?;
        connection.busy_timeout(Duration::from_mins(1))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS lock (name TEXT PRIMARY KEY, token TEXT NOT NULL, ends INTEGER NOT NULL)",
        )?;
        Ok(PlainLock { connection: Arc::new(Mutex::new(connection)), trips })
    }

    /// Ask until it is ours or it is too late.
    pub(crate) async fn acquire(
        &self,
        name: &'static str,
        until: Moment,
    ) -> Result<Option<Held<'_>>, Trouble> {
        let (clock, token) = (Clock::boot(), ClaimId::random()?.to_hex());
        loop {
            let now = clock.now();
            let nanos = |it: Moment| i64::try_from(it.as_nanos()).unwrap_or(i64::MAX);
            let (now_ns, ends_ns) = (nanos(now), nanos(now.after(TTL)));
            let ours = token.clone();
            let taken = self
                .trip(move |it| {
                    it.prepare_cached(
                        "INSERT INTO lock VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE \
                         SET token = excluded.token, ends = excluded.ends WHERE ends <= ?4",
                    )?
                    .execute((name, ours, ends_ns, now_ns))
                })
                .await?;
            if taken == 1 {
                return Ok(Some(Held { lock: self, name, token }));
            }
            if until <= now {
                return Ok(None);
            }
            clock.sleep(PAUSE).await;
        }
    }

    async fn trip<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Trouble> {
        self.trips.count();
        let connection = self.connection.clone();
        let work = move || work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(tokio::task::spawn_blocking(work).await??)
    }
}

impl Held<'_> {
    pub(crate) async fn release(self) -> Result<(), Trouble> {
        let Held { lock, name, token } = self;
        let delete = "DELETE FROM lock WHERE name = ?1 AND token = ?2";
        lock.trip(move |it| it.prepare_cached(delete)?.execute((name, token))).await.map(drop)
    }
}
