//! Locks in PostgreSQL: first come first served, one statement to take a free lock and one to give it back,
//! waiters called by `NOTIFY`.
//!
//! What holds and what does not, the rights a user needs and the plain DDL are in `docs/backends/postgres.md`.

mod admin;
pub mod advisory;
mod cleaner;
mod connection;
mod doctor;
mod fault;
mod fenced;
mod options;
mod place;
pub mod rowlock;
mod schema;
mod wake;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::{Claim, ClaimId, Error};
use tokio::runtime::Handle;

pub use fenced::PostgresFences;
pub use options::PostgresOptions;
pub use place::PostgresPlace;
pub use schema::ddl;

use crate::batch::Batch;
use connection::Links;
use wake::Wake;
use wire::Wire;

const NAME: &str = "postgres";

/// A PostgreSQL server that keeps locks. Clones share its connections.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_sql::{Postgres, PostgresOptions};
///
/// let options = PostgresOptions::from_url("postgres://locks:secret@db-1/shop")?;
/// let guard = Locker::new(Postgres::connect(options).await?).lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Postgres(Arc<Store>);

#[derive(Debug)]
pub(crate) struct Store {
    links: Links,
    wake: Wake,
    batch: Batch,
    sql: Statements,
}

/// The statements, with the schema's name in them.
#[derive(Debug)]
struct Statements {
    turn: String,
    leave: String,
    renew: String,
    look: String,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.0.links.options).finish()
    }
}

impl Postgres {
    /// Connect to a server and make its tables ready. The present tokio runtime drives the connections.
    ///
    /// # Cancel safety
    /// Safe to drop; a half-open connection is closed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer, does not let us in, or lacks the tables and we may
    /// not create them; [`Error::Invalid`] outside a tokio runtime, or if a file for TLS cannot be used.
    pub async fn connect(options: PostgresOptions) -> Result<Self, Error> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::invalid("a PostgreSQL store must be opened inside a tokio runtime"))?;
        let wire = Wire::new(options.tls.as_ref())?;
        let links = Links::new(options, wire, runtime);
        let schema = &links.options.schema;
        let sql = Statements {
            turn: format!(
                "SELECT {schema}.lockkeeper_turn_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
            ),
            leave: format!("SELECT {schema}.lockkeeper_leave_1($1, $2)"),
            renew: format!("SELECT {schema}.lockkeeper_renew_1($1, $2, $3)"),
            look: format!("SELECT {schema}.lockkeeper_look_1($1, $2)"),
        };
        let store = Arc::new(Store {
            wake: Wake::new(format!("lockkeeper_{}", ClaimId::random()?.to_hex())),
            batch: Batch::default(),
            sql,
            links,
        });
        store.links.prepare("preparing the tables").await?;
        cleaner::start(&store);
        Ok(Postgres(store))
    }
}

impl Store {
    /// The channel on which we can be called, if we can.
    fn channel(&self) -> Option<&str> {
        self.links.options.listen.then(|| self.wake.channel())
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
