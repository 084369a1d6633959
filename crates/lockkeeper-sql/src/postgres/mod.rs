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
mod options;
mod place;
pub mod rowlock;
mod schema;
mod session;
mod sql;
mod wake;
mod way;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::{Claim, Error};
use tokio::runtime::Handle;

pub use fenced::PostgresFences;
pub use options::PostgresOptions;
pub use place::PostgresPlace;
pub use schema::ddl;

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
        let options = options.ready()?;
        let dialer = Dialer::new(&options, Wire::new(options.tls.as_ref())?);
        let store = Arc::new(Store { links: Links::new(options, dialer) });
        store.links.prepare("preparing the tables").await?;
        Ok(Postgres(store))
    }

    /// The options it was made with.
    pub fn options(&self) -> &PostgresOptions {
        &self.0.links.shared.options
    }
}

impl Backend for Postgres {
    type Place = PostgresPlace;

    fn profile(&self) -> Profile {
        Profile::new(NAME, Reach::Network)
            .fifo()
            .weighted()
            .ttl(Duration::from_millis(50), Duration::from_secs(365 * 24 * 3600))
    }

    fn enter(&self, claim: Claim) -> PostgresPlace {
        PostgresPlace::new(self.0.clone(), claim)
    }
}
