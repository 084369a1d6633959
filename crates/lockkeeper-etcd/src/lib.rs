//! Locks on etcd: fair, woken one by one, under one lease per process.
//!
//! ```no_run
//! # async fn f() -> lockkeeper_core::Result<()> {
//! let etcd = lockkeeper_etcd::Etcd::connect("etcd://one,two,three").await?;
//! # let _ = etcd; Ok(()) }
//! ```
//!
//! A free lock costs one transaction to take and one to give back. Whoever waits is told of its turn at once, by a watch that
//! stands for the line, and few others are. Whoever holds costs nothing but the heartbeat that its process sends anyway. Any
//! minority of the named nodes may be silent, and fences grow also when a snapshot is restored. Building needs no protocol compiler. See `docs/backends/etcd.md` for what it promises and under which settings.
//!
//! No type of the client crates is part of this interface; they may change in any release.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod beat;
mod channel;
mod cluster;
mod connection;
mod doctor;
mod fault;
mod fences;
mod grants;
mod leave;
mod lines;
mod linger;
mod lower;
mod memos;
mod names;
mod opening;
mod options;
mod place;
mod session;
mod standing;
mod store;
mod stray;
mod trips;
mod wake;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::memos::DynMemos;
use lockkeeper_core::{Claim, Result};

pub use lockkeeper_core::kit::tls::Tls;
pub use options::EtcdOptions;
pub use place::EtcdPlace;
use store::Store;

/// Locks on etcd. Clones share their connections, their leases and their watches.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_etcd::Etcd;
///
/// let etcd = Etcd::connect("etcd://one,two,three/shop").await?; // name all nodes
/// let guard = Locker::new(etcd.clone()).lock("orders/42").await?;
/// guard.release().await?;
/// println!("{} events so far", etcd.events());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Etcd(Arc<Store>);

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.options().endpoints.join(","))
    }
}

impl Etcd {
    /// Connect to the cluster that the URL names.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// [`Error::Invalid`](lockkeeper_core::Error::Invalid) for a URL that cannot be used,
    /// [`Error::Unavailable`](lockkeeper_core::Error::Unavailable) if no node answers, or if those that do belong to
    /// different clusters and none is that of most.
    pub async fn connect(url: &str) -> Result<Self> {
        Etcd::with(EtcdOptions::parse(url)?).await
    }

    /// Connect with options.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`Etcd::connect`].
    pub async fn with(options: EtcdOptions) -> Result<Self> {
        let etcd = Etcd(Arc::new(Store::new(options.ready()?)?));
        etcd.0.open().await?;
        Ok(etcd)
    }

    /// The options it was made with.
    pub fn options(&self) -> &EtcdOptions {
        &self.0.connection.options
    }

    /// How many events of watched keys the cluster has sent to this process: the price of waiting.
    pub fn events(&self) -> u64 {
        self.0.wake.events()
    }
}

impl Backend for Etcd {
    type Place = EtcdPlace;

    fn profile(&self) -> Profile {
        Profile::new(fault::NAME, Reach::Network)
            .fifo()
            .weighted()
            .lingering()
            .lowering()
            .notifying()
            .by_session()
            .ttl(Duration::from_secs(1), Duration::from_secs(3600))
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> EtcdPlace {
        EtcdPlace::new(self.0.clone(), claim)
    }
}
