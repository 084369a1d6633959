//! Session locks: PostgreSQL's own advisory locks, with a lease, fences, and names that never meet.
//!
//! A free lock is one statement on a session that all locks of one ttl share; one that is held elsewhere is waited for by
//! a session of its own, which the server wakes. The server ends a session that is silent for the ttl. What such a lock
//! cannot promise, and for whom it is: `docs/guides/sql-durable-or-session.md`.

mod admin;
mod doctor;
mod line;
mod numbers;
mod schema;
mod statements;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::{Claim, Error};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::NAME;
use super::dial::Dialer;
use super::fault::Trouble;
use super::options::{PostgresMode, PostgresOptions};
use super::origin::Writer;
use super::session::{Ears, Session};
use super::wire::Wire;
use crate::sessions::{self, Ground, SessionPlace, session_place};

pub(crate) use schema::VERSION;
pub use schema::{durable_switch, session_ddl, session_switch};

use line::Line;
use statements::Statements;

/// The longest timeout that a session can have: as many milliseconds as fit into 31 bits.
const TTL_MAX: Duration = Duration::from_secs(24 * 24 * 3600);

/// A PostgreSQL server that keeps session locks. Clones share its sessions.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_sql::PostgresSessions;
///
/// let store = PostgresSessions::connect("postgres://locks:secret@db-1/shop?mode=session").await?;
/// let guard = Locker::new(store).lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresSessions(Arc<Store>);

session_place! {
    /// A claim's place in a line of [`PostgresSessions`].
    PostgresSessionsPlace, Line
}

/// What all claims of one process have in common.
type Store = sessions::Store<Line>;

/// The server, as its sessions know it.
pub(crate) struct Site {
    pub(crate) options: PostgresOptions,
    ground: Ground,
    dialer: Dialer,
    sql: Statements,
}

impl Deref for Site {
    type Target = Ground;

    fn deref(&self) -> &Ground {
        &self.ground
    }
}

impl fmt::Debug for PostgresSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresSessions").field(&self.0.options).finish()
    }
}

impl PostgresSessions {
    /// Connect to the server that the URL names and make its tables ready. The URL says `mode=session`.
    ///
    /// # Cancel safety
    /// Safe to drop; a half-open connection is closed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer, does not let us in, is older than PostgreSQL 14, is reached
    /// through a pooler, or keeps durable locks in this schema; [`Error::Invalid`] for a URL that cannot be used, outside
    /// a tokio runtime, or if a file for TLS cannot be used.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        PostgresSessions::with(PostgresOptions::parse(url)?).await
    }

    /// Connect with options, whose mode is [`PostgresMode::Session`].
    ///
    /// # Cancel safety
    /// As for [`PostgresSessions::connect`].
    ///
    /// # Errors
    /// As for [`PostgresSessions::connect`].
    pub async fn with(options: PostgresOptions) -> Result<Self, Error> {
        Handle::try_current()
            .map_err(|_| Error::invalid("a PostgreSQL store must be opened inside a tokio runtime"))?;
        if options.mode != PostgresMode::Session {
            return Err(Error::invalid(
                "these options are for durable locks, which are a `Postgres`; add `mode=session` for session locks",
            ));
        }
        let options = options.ready()?;
        let dialer = Dialer::new(&options, Wire::new(options.tls.as_ref())?);
        let site = Site {
            ground: Ground::new(options.common.timeout, options.waiting_max, options.common.clean_every),
            sql: Statements::new(&options.schema),
            dialer,
            options,
        };
        site.prepare().await.map_err(|it| it.fault("preparing the tables"))?;
        Ok(PostgresSessions(Store::new(site)))
    }

    /// The options it was made with.
    pub fn options(&self) -> &PostgresOptions {
        &self.0.options
    }
}

impl Site {
    async fn prepare(&self) -> super::fault::Result<()> {
        let session = self.dial(None).await?;
        self.in_time(schema::prepare(&session.client, &self.options)).await
    }

    /// A connection of our own on the present runtime, not one that a pooler may give to others.
    pub(crate) async fn dial(&self, ears: Option<&Arc<Ears>>) -> super::fault::Result<Session> {
        let session = self.dialer.dial(ears).await?;
        if session.is_ours() {
            return Ok(session);
        }
        Err(Trouble::Refused(
            "a pooler stands between, which may give our session, and our locks with it, to somebody else; for \
             `mode=session` name the server itself in the URL, or remove `mode=session`"
                .into(),
        ))
    }

    /// See whether another host was promoted.
    pub(crate) async fn look(&self) {
        self.dialer.look().await;
    }

    /// Which hosts take writes.
    pub(crate) async fn writers(&self) -> Vec<Writer> {
        self.dialer.writers().await
    }

    pub(crate) async fn in_time<T, E: Into<Trouble>>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> super::fault::Result<T> {
        self.ground.in_time(async { answer.await.map_err(Into::into) }).await
    }
}

impl Backend for PostgresSessions {
    type Place = PostgresSessionsPlace;

    fn profile(&self) -> Profile {
        Profile::new(NAME, Reach::Network).fifo().by_session().ttl(Duration::from_millis(50), TTL_MAX)
    }

    fn alarm(&self) -> Option<watch::Receiver<u64>> {
        Some(self.0.alarm())
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> PostgresSessionsPlace {
        PostgresSessionsPlace(SessionPlace::new(self.0.clone(), claim))
    }
}
