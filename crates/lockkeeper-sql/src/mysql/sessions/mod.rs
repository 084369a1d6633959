//! Session locks: the server's own named locks (`GET_LOCK`), with a lease, fences, and names that never meet.
//!
//! A free lock is one statement on a session that all locks of one ttl share; one that is held elsewhere is waited for by
//! a session of its own, which the server wakes. The server ends a session that is silent for the ttl, in whole seconds.
//! What such a lock cannot promise, and for whom it is: `docs/guides/sql-durable-or-session.md`.

mod admin;
mod claimed;
mod doctor;
mod join;
mod lease;
mod names;
mod place;
mod register;
mod schema;
mod tether;

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{Claim, ClaimId, Clock, Error};
use mysql_async::Conn;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::NAME;
use super::fault::Trouble;
use super::options::{MysqlMode, MysqlOptions};
use crate::name::NameHash;

pub use place::MysqlSessionsPlace;
pub(crate) use schema::VERSION;
pub use schema::{durable_switch, session_ddl, session_switch};

use claimed::Claimed;
use names::{StoreId, lock_name};
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

/// The sessions of one ttl.
type Leases = crate::leases::Leases<lease::Lease>;
type Waiter = crate::leases::Waiter<lease::Lease>;

/// The ttl of the session that keeps a lock of this ttl: the server counts whole seconds, so it is rounded up.
fn whole_seconds(ttl: Duration) -> Duration {
    Duration::from_secs(ttl.as_secs() + u64::from(0 < ttl.subsec_nanos()))
}

/// What all claims of one process have in common.
pub(crate) struct Store {
    site: Arc<Site>,
    /// The sessions of each runtime and ttl.
    leases: Mutex<Vec<Arc<Leases>>>,
    /// What is known of each claim: places of the same claim share it.
    claims: Mutex<HashMap<ClaimId, Weak<Claimed>>>,
}

/// The server, as its sessions know it. It knows none of them: they end with the store.
pub(crate) struct Site {
    options: MysqlOptions,
    clock: Clock,
    /// What stands for the database in the names of its locks.
    id: StoreId,
    /// How many sessions may wait at once.
    waiting: Arc<Semaphore>,
    /// Counts up when a session ends, so that what it held is told to be lost.
    alarm: watch::Sender<u64>,
    register: Register,
}

impl Deref for Store {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl fmt::Debug for MysqlSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlSessions").field(&self.0.options).finish()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("options", &self.options).finish_non_exhaustive()
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
            clock: Clock::boot(),
            id: StoreId::default(),
            waiting: Arc::new(Semaphore::new(options.waiting_max.min(Semaphore::MAX_PERMITS))),
            alarm: watch::Sender::new(0),
            register: Register::default(),
            options,
        };
        site.id = site.prepare().await.map_err(|it| it.fault("preparing the tables"))?;
        let store = Store { site: Arc::new(site), leases: Mutex::default(), claims: Mutex::default() };
        Ok(MysqlSessions(Arc::new(store)))
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
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.clock.sleep(self.options.common.timeout) => Err(Trouble::Silent),
        }
    }

    fn leave_sql(&self, lock: &NameHash) -> String {
        place::release_sql(&lock_name(&self.id, lock))
    }
}

impl Store {
    /// The sessions of the present runtime for this ttl.
    fn leases(&self, ttl: Duration) -> super::fault::Result<Arc<Leases>> {
        let own = Handle::try_current().map_err(|_| Trouble::NoRuntime)?;
        let mut all = locked(&self.leases);
        if let Some(leases) = all.iter().find(|it| it.ttl == ttl && it.runtime.id() == own.id()) {
            return Ok(leases.clone());
        }
        // Runtimes that have ended take their sessions with them.
        all.retain(|it| it.is_open() || 1 < Arc::strong_count(it));
        let leases = Arc::new(Leases::new(&self.site, own, ttl));
        all.push(leases.clone());
        Ok(leases)
    }

    /// What is known of this claim.
    fn claimed(&self, claim: &Claim) -> Arc<Claimed> {
        let mut claims = locked(&self.claims);
        if let Some(claimed) = claims.get(&claim.id).and_then(Weak::upgrade) {
            return claimed;
        }
        let claimed = Arc::new(Claimed::new(claim.clone(), &self.site.id));
        claims.insert(claim.id, Arc::downgrade(&claimed));
        claimed
    }

    /// A place is gone; perhaps it was the last of its claim.
    fn forget(&self, id: ClaimId) {
        let mut claims = locked(&self.claims);
        if claims.get(&id).is_some_and(|it| it.strong_count() == 0) {
            claims.remove(&id);
        }
    }
}

impl Backend for MysqlSessions {
    type Place = MysqlSessionsPlace;

    fn profile(&self) -> Profile {
        Profile::new(NAME, Reach::Network).fifo().by_session().ttl(TTL_MIN, TTL_MAX)
    }

    fn alarm(&self) -> Option<watch::Receiver<u64>> {
        Some(self.0.alarm.subscribe())
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> MysqlSessionsPlace {
        MysqlSessionsPlace::new(self.0.clone(), claim)
    }
}
