//! A cache on a Redis server.
//!
//! ```text
//!   key          prefix + the entry's key
//!   value        `+` and the value as JSON, or `-` for what is known not to exist
//!   expiry       the server's own, so that machines with different clocks agree on what is fresh
//! ```

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo as _, RedisError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use crate::cache::{Cache, Found};
use crate::error::CacheError;

/// A cache on one Redis server, shared by all who use the same server and prefix. Values are stored as JSON.
///
/// One connection serves all callers. When it breaks, the calls under way fail and the next one opens another.
///
/// ```no_run
/// # async fn from_database(id: u64) -> Result<Option<String>, std::io::Error> { Ok(Some(format!("product {id}"))) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_cache::{Rebuild, RedisCache};
/// use lockkeeper_core::{Locker, Memory};
///
/// # let locker = Locker::new(Memory::default());
/// let cache = RedisCache::new("redis://db-1/0")?.prefix("shop:cache:");
/// let products = Rebuild::new(cache, locker);
/// let product: Option<String> = products.get_or_load("product/42", || from_database(42)).await?;
/// # Ok(())
/// # }
/// ```
pub struct RedisCache {
    client: Client,
    prefix: String,
    open: Mutex<Option<MultiplexedConnection>>,
}

impl fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client would show its password.
        f.debug_struct("RedisCache").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl RedisCache {
    /// The server behind a `redis://` URL. It is connected to when first asked.
    ///
    /// # Errors
    /// [`CacheError`] if it is no such URL.
    pub fn new(url: &str) -> Result<Self, CacheError> {
        let bad = |_| "this is no URL of a Redis server; write redis://[user:password@]host[:port][/db]";
        // Without it small answers wait for company.
        let tcp = TcpSettings::default().set_nodelay(true);
        let server = url.into_connection_info().map_err(bad)?.set_tcp_settings(tcp);
        let client = Client::open(server).map_err(bad)?;
        Ok(RedisCache { client, prefix: "cache:".into(), open: Mutex::new(None) })
    }

    /// What every key begins with. Default: `cache:`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    async fn ask<T: redis::FromRedisValue>(&self, question: &redis::Pipeline) -> Result<T, CacheError> {
        let mut connection = {
            let mut open = self.open.lock().await;
            match &*open {
                Some(connection) => connection.clone(),
                None => open.insert(self.client.get_multiplexed_async_connection().await?).clone(),
            }
        };
        let answer: Result<T, RedisError> = question.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(|it| it.is_io_error() || it.is_connection_dropped()) {
            *self.open.lock().await = None;
        }
        Ok(answer?)
    }
}

impl<V: Serialize + DeserializeOwned + Send + Sync> Cache<V> for RedisCache {
    async fn get(&self, key: &str) -> Result<Option<Found<V>>, CacheError> {
        let key = self.key(key);
        let mut question = redis::pipe();
        question.atomic().get(&key).pttl(&key);
        let (stored, expires_ms): (Option<Vec<u8>>, i64) = self.ask(&question).await?;
        // Less than nothing says that it has just expired.
        let (Some(stored), Ok(expires_ms)) = (stored, u64::try_from(expires_ms)) else { return Ok(None) };
        let value = match stored.split_first() {
            Some((b'-', [])) => None,
            Some((b'+', json)) => Some(serde_json::from_slice(json)?),
            _ => return Err(format!("{key:?} in Redis was not written by this cache").into()),
        };
        Ok(Some(Found { value, expires_in: Duration::from_millis(expires_ms) }))
    }

    async fn put(&self, key: &str, value: Option<&V>, expires_in: Duration) -> Result<(), CacheError> {
        let mut stored = vec![if value.is_some() { b'+' } else { b'-' }];
        if let Some(value) = value {
            serde_json::to_writer(&mut stored, value)?;
        }
        let expires_ms =
            u64::try_from(expires_in.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX as u64 / 2);
        let mut question = redis::pipe();
        question.pset_ex(self.key(key), stored, expires_ms).ignore();
        self.ask::<()>(&question).await
    }

    async fn remove(&self, key: &str) -> Result<(), CacheError> {
        let mut question = redis::pipe();
        question.del(self.key(key)).ignore();
        self.ask::<()>(&question).await
    }
}
