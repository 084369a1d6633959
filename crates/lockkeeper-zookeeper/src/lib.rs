//! Locks on ZooKeeper: ephemeral sequential nodes, each waiting for its predecessor, one session per process.
//!
//! ```no_run
//! # async fn f() -> lockkeeper_core::Result<()> {
//! let zookeeper = lockkeeper_zookeeper::ZooKeeper::connect("zookeeper://one,two,three").await?;
//! # let _ = zookeeper; Ok(()) }
//! ```
//!
//! A free lock costs one trip to take, with two requests in it, and one to give back. The ttl of a lock is that of
//! the session, which is set in the URL and agreed with the ensemble. See `docs/backends/zookeeper.md` for what it
//! promises and under which settings.

mod admin;
mod doctor;
mod fault;
mod line;
mod options;
mod place;
mod session;
mod store;
mod tls;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::{Claim, Result};

pub use options::{Options, Secret, Tls};
pub use place::ZooKeeperPlace;
use store::Store;

/// Locks on ZooKeeper. Clones share their session.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_zookeeper::ZooKeeper;
///
/// let store = ZooKeeper::connect("zookeeper://one,two,three/shop?session=10s").await?;
/// let ttl = store.session_timeout(); // what the ensemble gave
/// let guard = Locker::builder(store).ttl(ttl).build().lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ZooKeeper {
    store: Arc<Store>,
    /// The session time-out that the ensemble gave at first.
    session: Duration,
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper({})", self.options().servers.join(","))
    }
}

impl ZooKeeper {
    /// Open a session with the ensemble that the URL names.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// [`Error::Invalid`](lockkeeper_core::Error::Invalid) for a URL that cannot be used,
    /// [`Error::Unavailable`](lockkeeper_core::Error::Unavailable) if no server answers.
    pub async fn connect(url: &str) -> Result<Self> {
        ZooKeeper::with_options(Options::parse(url)?).await
    }

    /// Open a session with options.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`ZooKeeper::connect`].
    pub async fn with_options(options: Options) -> Result<Self> {
        let store = Arc::new(Store::new(options)?);
        let session = store.sessions.session().await?.timeout;
        Ok(ZooKeeper { store, session })
    }

    /// The options it was made with.
    pub fn options(&self) -> &Options {
        &self.store.options
    }

    /// The session time-out that the ensemble gave, which is the ttl of every lock.
    pub fn session_timeout(&self) -> Duration {
        self.session
    }

    /// How many events of watched nodes have reached this process: the price of waiting.
    pub fn events(&self) -> u64 {
        self.store.events.load(Ordering::Relaxed)
    }
}

impl Backend for ZooKeeper {
    type Place = ZooKeeperPlace;

    fn profile(&self) -> Profile {
        Profile::new(fault::NAME, Reach::Network)
            .fifo()
            .weighted()
            .by_session()
            .ttl(Duration::from_millis(100).min(self.session), self.session)
    }

    fn enter(&self, claim: Claim) -> ZooKeeperPlace {
        ZooKeeperPlace::new(self.store.clone(), claim)
    }
}
