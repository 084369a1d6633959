//! Locks in MySQL and MariaDB: first come first served, one statement to take a free lock and one to give it
//! back; whoever waits looks at its own row, and keeps its place by it, without locking the line.
//!
//! What holds and what does not, the rights a user needs and the plain DDL are in `docs/backends/mysql.md`.

mod admin;
mod ahead;
mod alone;
mod cleaner;
mod connection;
mod doctor;
mod doubt;
mod fault;
mod fenced;
mod herald;
mod known;
mod lanes;
mod line;
mod link;
mod memos;
pub mod named;
mod options;
mod place;
pub mod rowlock;
mod schema;
mod session;
mod sessions;
mod text;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::memos::DynMemos;
use lockkeeper_core::{Claim, Error};
use tokio::runtime::Handle;

pub use fenced::MysqlFences;
pub use memos::memo_ddl;
pub use options::{MysqlMode, MysqlOptions};
pub use place::MysqlPlace;
pub use schema::ddl;
pub use sessions::{MysqlSessions, MysqlSessionsPlace, durable_switch, session_ddl, session_switch};

use ahead::Chair;
use connection::Links;
use known::Names;

use crate::ahead::Chairs;

const NAME: &str = "mysql";

/// A MySQL or MariaDB server that keeps locks. Clones share its connections.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_sql::Mysql;
///
/// let store = Mysql::connect("mysql://locks:secret@db-1/shop").await?;
/// let guard = Locker::new(store).lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mysql(Arc<Store>);

#[derive(Debug)]
pub(crate) struct Store {
    links: Links,
    chairs: Chairs<Chair>,
    known: Names,
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mysql").field(&self.0.links.options).finish()
    }
}

impl Mysql {
    /// Connect to the server that the URL names and make its tables ready. The present tokio runtime drives the connection.
    ///
    /// # Cancel safety
    /// Safe to drop; a half-open connection is closed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer, does not let us in, or lacks the tables and we may
    /// not create them; [`Error::Invalid`] for a URL that cannot be used, outside a tokio runtime, or if a file for TLS
    /// cannot be used.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Mysql::with(MysqlOptions::parse(url)?).await
    }

    /// Connect with options.
    ///
    /// # Cancel safety
    /// As for [`Mysql::connect`].
    ///
    /// # Errors
    /// As for [`Mysql::connect`].
    pub async fn with(options: MysqlOptions) -> Result<Self, Error> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::invalid("a MySQL store must be opened inside a tokio runtime"))?;
        if options.chosen_mode() == MysqlMode::Session {
            return Err(Error::invalid(
                "these options are for session locks, which are a `MysqlSessions`; remove `mode=session` for durable locks, or \
                 open it by `lockkeeper::connect`, which knows both",
            ));
        }
        let links = Links::new(options.ready()?, runtime);
        let store = Arc::new(Store { links, chairs: Chairs::default(), known: Names::default() });
        store.links.prepare("preparing the tables").await?;
        // Processes that do not live long clean as well. A fault here is met again by the first verb.
        let _ = cleaner::clean_some(&store).await;
        cleaner::start(&store);
        Ok(Mysql(store))
    }

    /// The options it was made with.
    pub fn options(&self) -> &MysqlOptions {
        &self.0.links.options
    }
}

impl Backend for Mysql {
    type Place = MysqlPlace;

    fn profile(&self) -> Profile {
        Profile::new(NAME, Reach::Network)
            .fifo()
            .weighted()
            .lingering()
            .lowering()
            .looking()
            .ttl(Duration::from_millis(50), Duration::from_secs(365 * 24 * 3600))
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> MysqlPlace {
        MysqlPlace::new(self.0.clone(), claim)
    }
}
