//! Distributed locks for Rust: one API over the stores you already run.
//!
//! ```
//! # use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! let locker = lockkeeper::connect("memory:").await?;
//! let guard = locker.lock("orders/42").ttl(Duration::from_secs(10)).wait_at_most(Duration::from_secs(3)).await?;
//! // … work, and send guard.fence() along with every write …
//! guard.release().await?;
//!
//! if let Some(guard) = locker.try_lock("daily-report").await? {
//!     guard.run(async { /* stopped if the lock is lost */ }).await?;
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "macros")]
#[doc(hidden)]
#[path = "locked.rs"]
pub mod __private;
#[cfg(feature = "config")]
pub mod config;
mod connect;
mod process;
#[cfg(feature = "redlock")]
pub mod redlock;

#[cfg(feature = "config")]
pub use config::{Config, init, init_with};
pub use connect::{Store, connect, open};
pub use lockkeeper_core::{
    Attempt, Error, Fence, FencedError, Guard, Key, Label, Load, LockRequest, Locker, LockerBuilder, Lost,
    LostReason, Owner, Result, Stage, Timings,
};
pub use lockkeeper_core::{buckets, observe};
#[cfg(feature = "macros")]
pub use lockkeeper_macros::locked;
pub use process::{default_locker, set_default};

/// For authors of backends and tools: the traits below the locker.
pub mod spi {
    pub use lockkeeper_core::backend::*;
    pub use lockkeeper_core::inspect::*;
    pub use lockkeeper_core::{Claim, ClaimId, Clock, Memory, Moment};
}

#[cfg(feature = "cache")]
pub use lockkeeper_cache as cache;
#[cfg(feature = "etcd")]
pub use lockkeeper_etcd as etcd;
#[cfg(feature = "redis")]
pub use lockkeeper_redis as redis;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use lockkeeper_sql as sql;
#[cfg(feature = "sqlite")]
pub use lockkeeper_sqlite as sqlite;
#[cfg(feature = "zookeeper")]
pub use lockkeeper_zookeeper as zookeeper;
