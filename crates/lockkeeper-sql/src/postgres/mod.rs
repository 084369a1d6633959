//! Locks in PostgreSQL: first come first served, one statement to take a free lock and one to give it back,
//! waiters called by `NOTIFY`.
//!
//! What holds and what does not, the rights a user needs and the plain DDL are in `docs/backends/postgres.md`.

mod admin;
pub mod advisory;
mod ahead;
mod cleaner;
mod connection;
mod crowd;
mod dial;
mod doctor;
mod doubt;
mod fault;
mod fenced;
mod hear;
mod keeper;
mod memos;
mod options;
mod origin;
mod own;
mod pace;
mod place;
pub mod rowlock;
mod schema;
mod session;
mod sessions;
mod socket;
mod sql;
mod wake;
mod way;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::memos::DynMemos;
use lockkeeper_core::{Claim, Error};
use tokio::runtime::Handle;

pub use fenced::PostgresFences;
pub use memos::memo_ddl;
pub use options::{PostgresMode, PostgresOptions};
pub use own::PostgresClients;
pub use place::PostgresPlace;
pub use schema::ddl;
pub use sessions::{PostgresSessions, PostgresSessionsPlace, durable_switch, session_ddl, session_switch};

use connection::Links;
use dial::Dialer;
use wire::Wire;

const NAME: &str = "postgres";

/// A PostgreSQL server that keeps locks. Clones share its connections.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_sql::Postgres;
///
/// let store = Postgres::connect("postgres://locks:secret@db-1/shop").await?;
/// let guard = Locker::new(store).lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Postgres(Arc<Store>);

#[derive(Debug)]
pub(crate) struct Store {
    links: Links,
    /// Messages arrive: it was not chosen otherwise, and our sessions are ours alone.
    hears: bool,
    /// The table of memos was found. Relaxed: whoever does not see it looks for itself.
    has_memos: AtomicBool,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.0.links.shared.options).finish()
    }
}

impl Postgres {
    /// Connect to the server that the URL names and make its tables ready. The present tokio runtime drives the connection for verbs
    /// that are called on it; lockers have another on their own thread.
    ///
    /// # Cancel safety
    /// Safe to drop; a half-open connection is closed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer, does not let us in, or lacks the tables and we may
    /// not create them; [`Error::Invalid`] for a URL that cannot be used, outside a tokio runtime, or if a file for TLS
    /// cannot be used.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Postgres::with(PostgresOptions::parse(url)?).await
    }

    /// Connect with options.
    ///
    /// # Cancel safety
    /// As for [`Postgres::connect`].
    ///
    /// # Errors
    /// As for [`Postgres::connect`].
    pub async fn with(options: PostgresOptions) -> Result<Self, Error> {
        Handle::try_current()
            .map_err(|_| Error::invalid("a PostgreSQL store must be opened inside a tokio runtime"))?;
        if options.mode != PostgresMode::Durable {
            return Err(Error::invalid(
                "these options are for session locks, which are a `PostgresSessions`; remove `mode=session` for durable \
                 locks, or open it by `lockkeeper::connect`, which knows both",
            ));
        }
        let options = options.ready()?;
        let dialer = Dialer::new(&options, Wire::new(options.tls.as_ref())?);
        let (listens, links) = (options.listen, Links::new(options, dialer));
        let hears = links.prepare("preparing the tables").await? && listens;
        Ok(Postgres(Arc::new(Store { links, hears, has_memos: AtomicBool::new(false) })))
    }

    /// The options it was made with.
    pub fn options(&self) -> &PostgresOptions {
        &self.0.links.shared.options
    }
}

impl Backend for Postgres {
    type Place = PostgresPlace;

    fn profile(&self) -> Profile {
        let profile = Profile::new(NAME, Reach::Network)
            .fifo()
            .weighted()
            .lingering()
            .lowering()
            .ttl(Duration::from_millis(50), Duration::from_secs(365 * 24 * 3600));
        if self.0.hears { profile.notifying() } else { profile }
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> PostgresPlace {
        PostgresPlace::new(self.0.clone(), claim)
    }
}
