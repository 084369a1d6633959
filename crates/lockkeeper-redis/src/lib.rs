//! Locks on Redis: one server, a primary that sentinels watch over, or a cluster.
//!
//! ```no_run
//! # async fn f() -> lockkeeper_core::Result<()> {
//! let redis = lockkeeper_redis::Redis::connect("redis://127.0.0.1/").await?;
//! # let _ = redis; Ok(()) }
//! ```
//!
//! Each verb is one script that judges by the server's clock; a free lock costs one trip to take and one
//! to give back. Whoever leaves appoints the next in line, which is holder when the message arrives. See
//! `docs/backends/redis.md` for what each deployment and each setting gives and does not give.
//!
//! [`RedisFences`] speaks to connections of yours, so [`redis`] is part of this interface and re-exported. When it makes a
//! breaking release, the next minor release of this crate (0.x) follows, never a patch.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod bulk;
mod cluster;
mod connection;
mod desk;
mod dial;
mod doctor;
mod fault;
mod fenced;
mod joint;
mod lone;
mod memos;
mod naming;
mod node;
mod options;
mod place;
mod pulse;
mod record;
mod renewal;
mod road;
mod script;
mod seen;
mod sentinel;
mod shards;
mod store;
mod sync;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Profile, Reach};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::kit::Driver;
use lockkeeper_core::memos::DynMemos;
use lockkeeper_core::node::UrlNode;
use lockkeeper_core::{Claim, Result};
use tokio::runtime::Handle;

pub use fenced::{FencedScript, RedisFences};
pub use lockkeeper_core::kit::tls::Tls;
pub use options::{RedisOptions, Replicas};
pub use place::RedisPlace;
pub use redis;
use store::Store;

const CONNECTING: &str = "connecting";

/// Locks on Redis. Clones share their connections.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::Locker;
/// use lockkeeper_redis::Redis;
///
/// let locker = Locker::new(Redis::connect("redis://db-1/0?timeout=500ms").await?);
/// let guard = locker.lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redis(Arc<Store>);

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.0.options())
    }
}

impl Redis {
    /// Connect to the store that the URL names.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// [`Error::Invalid`](lockkeeper_core::Error::Invalid) for a URL that cannot be used,
    /// [`Error::Unavailable`](lockkeeper_core::Error::Unavailable) if the store does not answer.
    pub async fn connect(url: &str) -> Result<Self> {
        Redis::with(RedisOptions::parse(url)?).await
    }

    /// Connect with options.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`Redis::connect`].
    pub async fn with(options: RedisOptions) -> Result<Self> {
        let redis = Redis::lazy(options)?;
        match Handle::try_current() {
            Ok(_) => redis.reach().await?,
            Err(_) => redis.reach_from_a_thread().await?,
        }
        Ok(redis)
    }

    /// Whether the store answers.
    async fn reach(&self) -> Result<()> {
        self.0.own_desk(CONNECTING)?.commands.reach(CONNECTING).await?;
        Ok(())
    }

    /// The same for a caller without a runtime. Its locker has one, so that nothing else will be missing.
    async fn reach_from_a_thread(&self) -> Result<()> {
        let (driver, redis) = (Driver::start("lockkeeper-connect", async || {})?, self.clone());
        driver.handle().spawn(async move { redis.reach().await }).await.unwrap_or_else(|_| {
            let what = "the thread that connects ended without a word";
            Err(Fault::transient(fault::NAME, CONNECTING, what).into())
        })
    }

    /// Make a backend that connects when first asked.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_redis::{Redis, RedisOptions};
    /// let redis = Redis::lazy(RedisOptions::parse("redis://db-1/0")?)?; // nobody need answer yet
    /// assert_eq!(redis.options().to_string(), "redis://db-1:6379");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the options ask for what this build or this server cannot do.
    pub fn lazy(options: RedisOptions) -> Result<Self> {
        Ok(Redis(Store::new(options.ready()?)?))
    }

    /// The options it was made with.
    pub fn options(&self) -> &RedisOptions {
        self.0.options()
    }
}

impl Backend for Redis {
    type Place = RedisPlace;

    fn profile(&self) -> Profile {
        Profile::new(fault::NAME, Reach::Network)
            .fifo()
            .weighted()
            .lingering()
            .lowering()
            .notifying()
            .ttl(Duration::from_millis(50), Duration::from_secs(365 * 24 * 3600))
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
    }

    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> RedisPlace {
        RedisPlace::new(self.0.clone(), claim)
    }
}

impl UrlNode for Redis {
    const SCHEME: &'static str = "redis";
    const SETTINGS: &'static [&'static str] = options::OF_NODES;

    fn lazy_from(url: &str) -> Result<Self> {
        Redis::lazy(RedisOptions::parse(url)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_node_of_redlock_is_given_is_known_to_it() {
        for name in Redis::SETTINGS {
            let value = if *name == "password_file" { "/dev/null" } else { "1s" };
            if let Err(error) = Redis::lazy_from(&format!("redis://a?{name}={value}")) {
                assert!(!error.to_string().contains("is unknown"), "{name}: {error}");
            }
        }
    }
}
