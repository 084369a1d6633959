//! The plain lock of the books: set if absent with an expiry, ask again after a pause, delete if it is ours.
//!
//! On Redis these are `SET NX PX` and a script; without a server the same is done on a table, as durable as the
//! library's own.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::spi::{ClaimId, Clock, Moment};
use redis::IntoConnectionInfo as _;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use rusqlite::Connection;

use crate::demo::books::Trouble;
use crate::demo::counting::Trips;
use crate::demo::instance::Task;

/// How long a contender sleeps between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
const TTL: Duration = Duration::from_secs(30);

pub(crate) struct PlainLock {
    place: Place,
    name: String,
    trips: Arc<Trips>,
}

enum Place {
    File(Arc<Mutex<Connection>>),
    Redis(MultiplexedConnection),
}

/// A plain lock that is held.
pub(crate) struct Held<'a> {
    lock: &'a PlainLock,
    token: String,
}

const DELETE_IF_OURS: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

impl PlainLock {
    pub(crate) async fn open(task: &Task, trips: Arc<Trips>) -> Result<Self, Trouble> {
        let place = match &task.redis {
            Some(url) => Place::Redis(redis(url).await?),
            None => Place::File(Arc::new(Mutex::new(file(&task.folder)?))),
        };
        Ok(PlainLock { place, name: task.lock.clone(), trips })
    }

    /// Ask until it is ours or it is too late.
    pub(crate) async fn acquire(&self, until: Moment) -> Result<Option<Held<'_>>, Trouble> {
        let (clock, token) = (Clock::boot(), ClaimId::random()?.to_hex());
        loop {
            let now = clock.now();
            if self.take(&token, now).await? {
                return Ok(Some(Held { lock: self, token }));
            }
            if until <= now {
                return Ok(None);
            }
            clock.sleep(PAUSE).await;
        }
    }

    /// Set it if absent.
    async fn take(&self, token: &str, now: Moment) -> Result<bool, Trouble> {
        self.trips.count();
        let (name, token) = (self.name.clone(), token.to_owned());
        match &self.place {
            Place::Redis(connection) => {
                let mut set = redis::cmd("SET");
                set.arg(name).arg(token).arg("NX").arg("PX").arg(u64::try_from(TTL.as_millis())?);
                let answer: Option<String> = set.query_async(&mut connection.clone()).await?;
                Ok(answer.is_some())
            }
            Place::File(connection) => {
                let nanos = |it: Moment| i64::try_from(it.as_nanos()).unwrap_or(i64::MAX);
                let (now, ends) = (nanos(now), nanos(now.after(TTL)));
                let set = "INSERT INTO lock VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE \
                    SET token = excluded.token, ends = excluded.ends WHERE ends <= ?4";
                let work = move |it: &Connection| it.prepare_cached(set)?.execute((name, token, ends, now));
                Ok(on(connection, work).await? == 1)
            }
        }
    }
}

impl Held<'_> {
    /// Delete it if it is ours.
    pub(crate) async fn release(self) -> Result<(), Trouble> {
        let Held { lock, token } = self;
        lock.trips.count();
        let name = lock.name.clone();
        match &lock.place {
            Place::Redis(connection) => {
                let mut delete = redis::cmd("EVAL");
                delete.arg(DELETE_IF_OURS).arg(1).arg(name).arg(token);
                Ok(delete.exec_async(&mut connection.clone()).await?)
            }
            Place::File(connection) => {
                let delete = "DELETE FROM lock WHERE name = ?1 AND token = ?2";
                let work = move |it: &Connection| it.prepare_cached(delete)?.execute((name, token));
                on(connection, work).await.map(drop)
            }
        }
    }
}

async fn redis(url: &str) -> Result<MultiplexedConnection, Trouble> {
    let tcp = TcpSettings::default().set_nodelay(true);
    let client = redis::Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
    Ok(client.get_multiplexed_async_connection().await?)
}

fn file(folder: &Path) -> Result<Connection, Trouble> {
    let connection = Connection::open(folder.join("plain.db"))?;
    connection.busy_timeout(Duration::from_mins(1))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS lock (name TEXT PRIMARY KEY, token TEXT NOT NULL, ends INTEGER NOT NULL)",
    )?;
    Ok(connection)
}

/// Work on the file, on a thread where it may block.
async fn on<T: Send + 'static>(
    connection: &Arc<Mutex<Connection>>,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, Trouble> {
    let connection = connection.clone();
    let work = move || work(&connection.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(tokio::task::spawn_blocking(work).await??)
}
