//! What a cache must be able to do.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

/// Why a cache did not answer.
pub type CacheError = Box<dyn Error + Send + Sync>;

/// A place for values of one type that forgets them after a while.
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
pub struct Found<V> {
    /// The value; `None` if it is known not to exist.
    pub value: Option<V>,
    /// How long the cache will keep it, by the cache's own clock.
    pub expires_in: Duration,
}
