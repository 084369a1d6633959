//! Locks on ZooKeeper: ephemeral sequential nodes, each waiting for its predecessor, one session per process and ttl.
//!
//! ```no_run
//! # async fn f() -> lockkeeper_core::Result<()> {
//! let zookeeper = lockkeeper_zookeeper::ZooKeeper::connect("zookeeper://one,two,three").await?;
//! # let _ = zookeeper; Ok(()) }
//! ```
//!
//! A free lock costs one trip to take, with two requests in it, and one to give back. All locks of one ttl share a
//! session of that length, as far as the ensemble gives one. See `docs/backends/zookeeper.md` for what it promises and
//! under which settings.
//!
//! No type of the client crate is part of this interface; it may change in any release.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod alone;
mod connection;
mod doctor;
mod fault;
mod fences;
mod forked;
mod line;
mod memos;
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
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::memos::DynMemos;
use lockkeeper_core::{Claim, Result};

pub use lockkeeper_core::kit::tls::Tls;
pub use options::ZooKeeperOptions;
pub use place::ZooKeeperPlace;
use store::Store;

/// Locks on ZooKeeper. Clones share their sessions.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use std::time::Duration;
///
/// use lockkeeper_core::Locker;
/// use lockkeeper_zookeeper::ZooKeeper;
///
/// let store = ZooKeeper::connect("zookeeper://one,two,three/shop").await?;
/// let locker = Locker::builder(store).ttl(Duration::from_secs(5)).build();
/// let guard = locker.lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ZooKeeper {
    store: Arc<Store>,
    /// The session timeout that the ensemble gave at first.
    first: Duration,
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
    /// [`Error::Unavailable`](lockkeeper_core::Error::Unavailable) if no server answers, or in a fork of a process that used ZooKeeper.
    pub async fn connect(url: &str) -> Result<Self> {
        ZooKeeper::with(ZooKeeperOptions::parse(url)?).await
    }

    /// Open a session with options.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`ZooKeeper::connect`].
    pub async fn with(options: ZooKeeperOptions) -> Result<Self> {
        forked::check()?;
        let store = Arc::new(Store::new(options.ready()?)?);
        let first = store.sessions.usual().await?.timeout;
        Ok(ZooKeeper { store, first })
    }

    /// The options it was made with.
    pub fn options(&self) -> &ZooKeeperOptions {
        &self.store.options
    }

    /// The session timeout that the ensemble gave when the store was opened: asked for was that of `session` in the URL,
    /// or else 10 s, which is the ttl of locks that name none.
    pub fn session_timeout(&self) -> Duration {
        self.first
    }

    /// How many events of watched nodes have reached this process: the price of waiting.
    pub fn events(&self) -> u64 {
        self.store.events.load(Ordering::Relaxed)
    }
}

impl Backend for ZooKeeper {
    type Place = ZooKeeperPlace;

    fn profile(&self) -> Profile {
        // What the ensemble gives is known when it is asked; what it does not give is refused then, in words.
        Profile::new(fault::NAME, Reach::Network)
            .fifo()
            .weighted()
            .by_session()
            .lingering()
            .lowering()
            .notifying()
            .ttl(options::TTL_MIN, options::TTL_MAX)
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> ZooKeeperPlace {
        ZooKeeperPlace::new(self.store.clone(), claim)
    }
}
