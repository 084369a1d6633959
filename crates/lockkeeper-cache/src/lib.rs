//! Cache rebuild under a lock: of all callers that miss the same entry, one loads it and the others get what it
//! loaded.
//!
//! ```
//! # use std::time::Duration;
//! # use lockkeeper_cache::{MemoryCache, Rebuild};
//! # async fn from_database(id: u64) -> Result<Option<String>, std::io::Error> { Ok(Some(id.to_string())) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let products = Rebuild::local(MemoryCache::new(10_000)).ttl(Duration::from_secs(60));
//! let product = products.get_or_load("product/42", || from_database(42)).await?;
//! assert_eq!(product.as_deref(), Some("42"));
//! # Ok(())
//! # }
//! ```
//!
//! Read, lock, read again, load, store: whoever waited for the lock finds the entry when it looks again. With
//! [`Rebuild::local`] there is one load per process, which is enough for most; with [`Rebuild::new`] and a
//! locker that other processes share, one load for all of them.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod cache;
mod error;
mod memory;
mod rebuild;
#[cfg(feature = "redis")]
mod redis;

#[cfg(feature = "redis")]
pub use crate::redis::RedisCache;
pub use cache::{Cache, Found};
pub use error::CacheError;
pub use memory::MemoryCache;
pub use rebuild::{Rebuild, RebuildError};
