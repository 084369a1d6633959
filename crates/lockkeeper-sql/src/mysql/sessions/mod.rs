//! Session locks: the server's own named locks (`GET_LOCK`), with a lease, fences, and names that never meet.
//!
//! A free lock is one statement on a session that all locks of one ttl share; one that is held elsewhere is waited for by
//! a session of its own, which the server wakes. The server ends a session that is silent for the ttl, in whole seconds.
//! What such a lock cannot promise, and for whom it is: `docs/guides/sql-durable-or-session.md`.

mod admin;
mod doctor;
mod join;
mod line;
mod names;
mod register;
mod schema;
mod tether;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::{Claim, Error};
use mysql_async::Conn;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::NAME;
use super::fault::Trouble;
use super::options::{MysqlMode, MysqlOptions};
use crate::sessions::{self, Ground, SessionPlace, session_place};

pub(crate) use schema::VERSION;
pub use schema::{durable_switch, session_ddl, session_switch};

use line::Line;
use names::StoreId;
use register::Register;

/// The server counts in whole seconds.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(24 * 24 * 3600);

/// A MySQL or MariaDB server that keeps session locks. Clones share its sessions.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_sql::MysqlSessions;
///
/// let store = MysqlSessions::connect("mysql://locks:secret@db-1/shop?mode=session").await?;
/// let guard = Locker::new(store).lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MysqlSessions(Arc<Store>);

session_place! {
    /// A claim's place in a line of [`MysqlSessions`].
    MysqlSessionsPlace, Line
}

/// What all claims of one process have in common.
type Store = sessions::Store<Line>;

/// The server, as its sessions know it.
pub(crate) struct Site {
    options: MysqlOptions,
    ground: Ground,
    /// What stands for the database in the names of its locks.
    id: StoreId,
    register: Register,
}

impl Deref for Site {
    type Target = Ground;

    fn deref(&self) -> &Ground {
        &self.ground
    }
}

impl fmt::Debug for MysqlSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlSessions").field(&self.0.options).finish()
    }
}

impl MysqlSessions {
    /// Connect to the server that the URL names and make its tables ready. The URL says `mode=session`.
    ///
    /// # Cancel safety
    /// Safe to drop; a half-open connection is closed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer, does not let us in, is reached through a proxy, is a node of
    /// Galera, or keeps durable locks in this database; [`Error::Invalid`] for a URL that cannot be used, outside a tokio
    /// runtime, or if a file for TLS cannot be used.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        MysqlSessions::with(MysqlOptions::parse(url)?).await
    }

    /// Connect with options, whose mode is [`MysqlMode::Session`].
    ///
    /// # Cancel safety
    /// As for [`MysqlSessions::connect`].
    ///
    /// # Errors
    /// As for [`MysqlSessions::connect`].
    pub async fn with(options: MysqlOptions) -> Result<Self, Error> {
        Handle::try_current()
            .map_err(|_| Error::invalid("a MySQL store must be opened inside a tokio runtime"))?;
        if options.chosen_mode() != MysqlMode::Session {
            return Err(Error::invalid(
                "these options are for durable locks, which are a `Mysql`; add `mode=session` for session locks",
            ));
        }
        let options = options.ready()?;
        let mut site = Site {
            ground: Ground::new(options.common.timeout, options.waiting_max, options.common.clean_every),
            id: StoreId::default(),
            register: Register::default(),
            options,
        };
        site.id = site.prepare().await.map_err(|it| it.fault("preparing the tables"))?;
        Ok(MysqlSessions(Store::new(site)))
    }

    /// The options it was made with.
    pub fn options(&self) -> &MysqlOptions {
        &self.0.options
    }
}

impl Site {
    async fn prepare(&self) -> super::fault::Result<StoreId> {
        let mut conn = self.dial().await?;
        schema::prepare(&mut conn, &self.options).await?;
        let id = self.in_time(join::store_id(&mut conn)).await?;
        let _ = conn.disconnect().await;
        Ok(id)
    }

    /// A connection of our own, not one that a proxy may give to others.
    async fn dial(&self) -> super::fault::Result<Conn> {
        let dialling = async {
            let mut conn = Conn::new(self.options.opts.clone()).await?;
            join::greet(&mut conn).await?;
            Ok(conn)
        };
        tokio::select! {
            biased;
            conn = dialling => conn,
            () = self.clock.sleep(self.options.connect_patience()) => Err(Trouble::Silent),
        }
    }

    async fn in_time<T>(
        &self,
        answer: impl Future<Output = super::fault::Result<T>>,
    ) -> super::fault::Result<T> {
        self.ground.in_time(answer).await
    }
}

impl Backend for MysqlSessions {
    type Place = MysqlSessionsPlace;

    fn profile(&self) -> Profile {
        Profile::new(NAME, Reach::Network).fifo().by_session().ttl(TTL_MIN, TTL_MAX)
    }

    fn alarm(&self) -> Option<watch::Receiver<u64>> {
        Some(self.0.alarm())
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> MysqlSessionsPlace {
        MysqlSessionsPlace(SessionPlace::new(self.0.clone(), claim))
    }
}
