//! Distributed locks for Rust: one API over the stores you already run.
//!
//! ```
//! # use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! let locker = lockkeeper::connect("memory:").await?;
//! let guard = locker.lock("orders/42").wait_at_most(Duration::from_secs(3)).await?;
//! // … work, and send guard.fence() along with every write …
//! guard.release().await?; // the store has confirmed it
//!
//! if let Some(guard) = locker.try_lock("daily-report").await? {
//!     guard.run_and_release(async { /* stopped if the lock is lost */ }).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A mutex guards a variable in one process. A service on three hosts needs more: one holder at a time for a product in a
//! flash sale, a cache entry, a nightly job. [`connect`] gives a [`Locker`] for the store behind a URL; [`Locker::lock`] waits,
//! [`Locker::try_lock`] does not; a [`Guard`] is held until it is released or dropped, renewed meanwhile, and tells when it is
//! lost. No lock with an expiry can stop a holder that was paused: send [`Guard::fence`] along with every write, so that your
//! data can refuse the loser.
//!
//! Programs without async: [`connect_blocking`], then `.blocking()` on every request and `release_blocking()` on every guard.
//!
//! # Stores
//!
//! | URL | feature | reaches | order |
//! |---|---|---|---|
//! | `memory:` | always there | this process | first come, first served |
//! | `sqlite:PATH` | `sqlite` | all processes of one host | first come, first served |
//! | `redis://HOST`, `redis+sentinel://HOSTS/SERVICE`, `redis+cluster://HOSTS` | `redis` | the network | first come, first served |
//! | `redlock://HOST,HOST,HOST` | `redlock` | the network, over a majority of Redis servers | whoever asks at the right moment |
//! | `postgres://HOST/DATABASE` | `postgres` | the network | first come, first served |
//! | `mysql://HOST/DATABASE` | `mysql` | the network | first come, first served |
//! | `etcd://HOSTS` | `etcd` | the network | first come, first served |
//! | `zookeeper://HOSTS/PATH` | `zookeeper` | the network | first come, first served |
//!
//! A URL of a store whose feature is off is refused with [`Error::Unsupported`], which names the feature.
//!
//! # Features
//!
//! None is on unless you name it, and without one there is no client crate to compile.
//!
//! | feature | what it adds |
//! |---|---|
//! | `sqlite`, `redis`, `redlock`, `postgres`, `mysql`, `etcd`, `zookeeper` | the stores above, and the modules `sqlite`, `redis`, `redlock`, `sql`, `etcd`, `zookeeper` with their options |
//! | `tls` | TLS for those of them that are on, but ZooKeeper, with rustls and ring |
//! | `zookeeper-tls` | `zookeepers://`; its client builds a second cryptographic library |
//! | `macros` | the attribute `#[locked("product:{product_id}")]` |
//! | `config` | `lockkeeper.toml`, `LOCKKEEPER_*`, `Config`, and `init` for the whole process |
//! | `cache` | one load per missing cache entry: the module `cache`; with `redis` also a cache on Redis |
//! | `twophase` | two-phase commit over PostgreSQL, MariaDB and MySQL, with recovery: the module `twophase` |
//! | `tracing` | [`observe`]: every event as a `tracing` event |
//! | `test-util` | for your tests: the module `test` with a locker for each test, locks that are lost when you say so, and time that stands still |
//!
//! # Settings
//!
//! A URL may carry settings: `redis://db-1?timeout=500ms&tls=on`. Those that several stores have mean the same on each, and a
//! misspelt one is answered with the one that was meant. In code every store has the same doors: `X::connect(url)`, and
//! `X::with(XOptions::parse(url)?)` with a setter for each setting.
//!
//! # Drivers
//!
//! Fenced writes and row locks speak to connections of yours, so the drivers `rusqlite`, `redis`, `tokio_postgres` and
//! `mysql_async` are part of this interface, and their modules here re-export them. When a driver makes a breaking release, the
//! next minor release of this crate (0.x) follows, never a patch.
//!
//! # Guides
//!
//! [The library](https://github.com/lockkeeper/lockkeeper/blob/main/docs/guides/library.md) in one page,
//! [which store when](https://github.com/lockkeeper/lockkeeper/blob/main/docs/guides/which-store.md),
//! [what a lock promises](https://github.com/lockkeeper/lockkeeper/blob/main/docs/concepts/promises.md),
//! [fenced writes](https://github.com/lockkeeper/lockkeeper/blob/main/docs/guides/fenced-writes.md),
//! [web services](https://github.com/lockkeeper/lockkeeper/blob/main/docs/guides/web-services.md),
//! [testing](https://github.com/lockkeeper/lockkeeper/blob/main/docs/guides/testing.md), and
//! [all pages](https://github.com/lockkeeper/lockkeeper/blob/main/docs/README.md).
//!
//! # Where it runs
//!
//! On Unix, with Rust 1.89 or newer. It is tested on Linux, with the servers of Debian 12: Redis 7.0, PostgreSQL 15,
//! MariaDB 10.11, etcd 3.4, ZooKeeper 3.8, and the SQLite that is built in. On the BSDs the clock may stand still while the
//! machine sleeps, so that a holder that slept learns of its loss late.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "macros")]
#[doc(hidden)]
#[path = "locked.rs"]
pub mod __private;
#[cfg(feature = "config")]
pub mod config;
mod connect;
mod here;
pub mod meters;
mod process;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
mod runtime;
#[cfg(feature = "test-util")]
pub mod test;

#[cfg(feature = "config")]
pub use config::{Config, init, init_blocking, init_with, init_with_blocking};
pub use connect::{Store, connect, connect_blocking, open, open_blocking};
pub use lockkeeper_core::{
    Attempt, Barrier, Campaign, Error, Fence, FencedError, Guard, Key, Label, Latch, LatchStatus, Leader,
    Leaders, Leadership, Load, LockRequest, Locker, LockerBuilder, Lost, LostReason, MultiAttempt,
    MultiGuard, MultiRequest, NotDowngraded, Once, OnceRequest, Owner, Result, SharedAttempt, SharedFence,
    SharedGuard, SharedRequest, Stage, Tick, Timings, Wish,
};
pub use lockkeeper_core::{barrier, buckets, election, multi, observe};
#[cfg(feature = "macros")]
pub use lockkeeper_macros::locked;
pub use meters::Meters;
pub use process::{default_locker, set_default};

/// For authors of backends and tools: the traits below the locker.
pub mod spi {
    pub use lockkeeper_core::backend::*;
    pub use lockkeeper_core::clock::Sleep;
    pub use lockkeeper_core::inspect::*;
    pub use lockkeeper_core::{Claim, ClaimId, Clock, Memory, Moment, Spawn, Task};
    pub use lockkeeper_core::{kit, memos, node};
}

#[cfg(feature = "cache")]
pub use lockkeeper_cache as cache;
#[cfg(feature = "etcd")]
pub use lockkeeper_etcd as etcd;
#[cfg(feature = "redis")]
pub use lockkeeper_redis as redis;
#[cfg(feature = "redlock")]
pub use lockkeeper_redlock as redlock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use lockkeeper_sql as sql;
#[cfg(feature = "sqlite")]
pub use lockkeeper_sqlite as sqlite;
#[cfg(feature = "twophase")]
pub use lockkeeper_twophase as twophase;
#[cfg(feature = "zookeeper")]
pub use lockkeeper_zookeeper as zookeeper;
