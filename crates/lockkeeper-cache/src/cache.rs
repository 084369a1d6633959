//! What a cache must be able to do.

use std::future::Future;
use std::time::Duration;

use crate::error::CacheError;

/// A place for values of one type that forgets them after a while.
///
/// ```
/// # use std::time::Duration;
/// use std::collections::HashMap;
/// use std::sync::Mutex;
///
/// use lockkeeper_cache::{Cache, CacheError, Found, Rebuild};
///
/// /// Forgets nothing: good for a test.
/// #[derive(Default)]
/// struct Forever(Mutex<HashMap<String, Option<u64>>>);
///
/// impl Cache<u64> for Forever {
///     async fn get(&self, key: &str) -> Result<Option<Found<u64>>, CacheError> {
///         let entry = self.0.lock().map_err(|it| it.to_string())?.get(key).copied();
///         Ok(entry.map(|value| Found::new(value, Duration::from_secs(3600))))
///     }
///
///     async fn put(&self, key: &str, value: Option<&u64>, _expires_in: Duration) -> Result<(), CacheError> {
///         self.0.lock().map_err(|it| it.to_string())?.insert(key.to_owned(), value.copied());
///         Ok(())
///     }
///
///     async fn remove(&self, key: &str) -> Result<(), CacheError> {
///         self.0.lock().map_err(|it| it.to_string())?.remove(key);
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let squares = Rebuild::local(Forever::default());
/// let loaded = squares.get_or_load("7", || async { Ok::<_, CacheError>(Some(49)) }).await?;
/// let cached = squares.get_or_load("7", || async { Err(CacheError::from("not asked")) }).await?;
/// assert_eq!((loaded, cached), (Some(49), Some(49)));
/// # Ok(())
/// # }
/// ```
pub trait Cache<V>: Send + Sync {
    /// What is there, if it has not expired.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Found<V>>, CacheError>> + Send;

    /// Keep a value, or `None` for what is known not to exist, for this long.
    fn put(
        &self,
        key: &str,
        value: Option<&V>,
        expires_in: Duration,
    ) -> impl Future<Output = Result<(), CacheError>> + Send;

    /// Forget it.
    fn remove(&self, key: &str) -> impl Future<Output = Result<(), CacheError>> + Send;
}

/// An entry of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found<V> {
    /// The value; `None` if it is known not to exist.
    pub value: Option<V>,
    /// How long the cache will keep it, by the cache's own clock.
    pub expires_in: Duration,
}

impl<V> Found<V> {
    /// An entry with this value, or with `None` for what is known not to exist, that is kept so long.
    pub fn new(value: Option<V>, expires_in: Duration) -> Self {
        Found { value, expires_in }
    }
}
