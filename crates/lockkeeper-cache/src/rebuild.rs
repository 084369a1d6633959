//! Read, lock, read again, load, store.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use lockkeeper_core::{Error, Guard, Locker, Memory};

use crate::cache::Cache;
use crate::error::CacheError;

/// A cache whose missing entries are loaded under a lock.
///
/// All processes that share the cache and the locker must agree on the [`prefix`](Rebuild::prefix).
///
/// ```
/// # use std::time::Duration;
/// # async fn from_database(id: u64) -> Result<Option<String>, std::io::Error> { Ok(Some(format!("product {id}"))) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_cache::{MemoryCache, Rebuild};
/// use lockkeeper_core::{Locker, Memory};
///
/// # let locker = Locker::new(Memory::default());
/// let products = Rebuild::new(MemoryCache::new(10_000), locker)
///     .ttl(Duration::from_secs(60))
///     .absent_ttl(Duration::from_secs(5))
///     .jitter_percent(10)
///     .serve_stale(Duration::from_secs(30))
///     .wait_at_most(Duration::from_secs(3));
/// let product = products.get_or_load("product/42", || from_database(42)).await?;
/// assert_eq!(product.as_deref(), Some("product 42"));
/// products.remove::<String>("product/42").await?; // its source has changed
/// assert!(products.cache().is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Rebuild<C> {
    cache: C,
    locker: Locker,
    ttl: Duration,
    absent_ttl: Duration,
    jitter_percent: u8,
    stale: Duration,
    wait: Option<Duration>,
    prefix: String,
}

/// Why there is no value.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_cache::{MemoryCache, Rebuild, RebuildError};
///
/// let products = Rebuild::local(MemoryCache::<String>::new(10));
/// let failed = products.get_or_load("product/42", || async { Err("the database is down") }).await;
/// assert!(matches!(failed, Err(RebuildError::Loader("the database is down"))));
/// assert!(products.cache().is_empty()); // the next caller tries again
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RebuildError<E> {
    /// The lock for the load was not obtained, or was lost while loading. What was loaded was not stored.
    #[error("the entry could not be loaded: {0}")]
    Lock(#[source] Error),
    /// The loader failed. Nothing was stored; the next caller tries again.
    #[error("the entry could not be loaded: {0}")]
    Loader(E),
    /// The cache could not be read or written.
    #[error("the cache cannot be used: {0}")]
    Cache(#[source] CacheError),
}

/// As `Display`, because that is what a `main` that returns an error prints. The loader's own error is shown in its own way.
impl<E: fmt::Debug> fmt::Debug for RebuildError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RebuildError::Lock(it) => write!(f, "the entry could not be loaded: {it}"),
            RebuildError::Loader(it) => write!(f, "the entry could not be loaded: {it:?}"),
            RebuildError::Cache(it) => write!(f, "the cache cannot be used: {it}"),
        }
    }
}

/// What the cache has.
enum Look<V> {
    Fresh(Option<V>),
    Stale(Option<V>),
    Nothing,
}

impl<C> Rebuild<C> {
    /// One load at a time for each key, among all who use the same store of locks.
    pub fn new(cache: C, locker: Locker) -> Self {
        Rebuild {
            cache,
            locker,
            ttl: Duration::from_secs(60),
            absent_ttl: Duration::from_secs(5),
            jitter_percent: 10,
            stale: Duration::ZERO,
            wait: None,
            prefix: "cache:".into(),
        }
    }

    /// One load at a time for each key in this process. Other processes load for themselves.
    pub fn local(cache: C) -> Self {
        Rebuild::new(cache, Locker::builder(Memory::default()).waiters_max(usize::MAX).build())
    }

    /// How long a loaded value is fresh. Default: a minute.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long it is remembered that something does not exist. Default: 5 seconds: shorter than for values, because
    /// what does not exist is often about to.
    #[must_use]
    pub fn absent_ttl(mut self, ttl: Duration) -> Self {
        self.absent_ttl = ttl;
        self
    }

    /// Let each entry expire earlier by a random part of up to so many percent, so that entries of one hour are not
    /// all loaded in the same second of the next. Default: 10, at most 100.
    #[must_use]
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.jitter_percent = percent.min(100);
        self
    }

    /// Keep values for this much longer than they are fresh. Meanwhile one caller loads anew and everybody else gets
    /// the old value at once; so does whoever finds that the lock cannot be obtained or that the loader fails.
    /// Default: nothing is served stale.
    #[must_use]
    pub fn serve_stale(mut self, stale: Duration) -> Self {
        self.stale = stale;
        self
    }

    /// How long to wait for another caller's load. Default: as long as the locker says.
    #[must_use]
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// What the lock's name has before the entry's key. Default: `cache:`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The cache itself.
    pub fn cache(&self) -> &C {
        &self.cache
    }

    /// The value of this key: from the cache, or loaded by this caller or by another one. `None` says that it
    /// does not exist; so does the loader. A loader that asks for its own entry waits for itself.
    ///
    /// # Cancel safety
    /// Dropping it stops a loader where it awaits and gives the lock back. A loader that panics or fails does the
    /// same. Nothing is stored then.
    ///
    /// # Errors
    /// See [`RebuildError`].
    pub async fn get_or_load<V, E, Loading>(
        &self,
        key: &str,
        loader: impl FnOnce() -> Loading,
    ) -> Result<Option<V>, RebuildError<E>>
    where
        C: Cache<V>,
        Loading: Future<Output = Result<Option<V>, E>>,
    {
        match self.look(key).await? {
            Look::Fresh(value) => Ok(value),
            Look::Stale(old) => {
                // Somebody else is at it, or nobody can be: the old value will do.
                let Ok(Some(guard)) = self.request(key).attempt().await else { return Ok(old) };
                match self.load(key, loader, guard).await {
                    Err(RebuildError::Loader(_) | RebuildError::Lock(_)) => Ok(old),
                    other => other,
                }
            }
            Look::Nothing => {
                let guard = self.request(key).await.map_err(RebuildError::Lock)?;
                self.load(key, loader, guard).await
            }
        }
    }

    /// Forget an entry, because its source has changed. A load that is under way may still store what it read before
    /// the change; to be sure, change the source under the same lock.
    ///
    /// # Cancel safety
    /// Dropped half-way, the entry may be there or not.
    ///
    /// # Errors
    /// [`CacheError`] as the cache says.
    pub async fn remove<V>(&self, key: &str) -> Result<(), CacheError>
    where
        C: Cache<V>,
    {
        self.cache.remove(key).await
    }

    fn request(&self, key: &str) -> lockkeeper_core::LockRequest {
        // Two who miss an entry in one owner's scope are two: one loads, the other waits and finds it.
        let request = self.locker.lock(format!("{}{key}", self.prefix)).not_reentrant();
        match self.wait {
            Some(wait) => request.wait_at_most(wait),
            None => request,
        }
    }

    async fn look<V, E>(&self, key: &str) -> Result<Look<V>, RebuildError<E>>
    where
        C: Cache<V>,
    {
        let found = self.cache.get(key).await.map_err(RebuildError::Cache)?;
        Ok(match found {
            None => Look::Nothing,
            Some(it) if self.stale < it.expires_in => Look::Fresh(it.value),
            Some(it) => Look::Stale(it.value),
        })
    }

    /// With the lock held: look again, because whoever held it before us has most likely loaded the entry.
    async fn load<V, E, Loading>(
        &self,
        key: &str,
        loader: impl FnOnce() -> Loading,
        guard: Guard,
    ) -> Result<Option<V>, RebuildError<E>>
    where
        C: Cache<V>,
        Loading: Future<Output = Result<Option<V>, E>>,
    {
        let loaded = guard
            .run(async {
                if let Look::Fresh(value) = self.look(key).await? {
                    return Ok(value);
                }
                let value = loader().await.map_err(RebuildError::Loader)?;
                let fresh = if value.is_some() { self.ttl } else { self.absent_ttl };
                let expires_in = self.jittered(fresh).saturating_add(self.stale);
                self.cache.put(key, value.as_ref(), expires_in).await.map_err(RebuildError::Cache)?;
                Ok(value)
            })
            .await;
        // The entry is what counts: a release that the store does not confirm is tried again in the background.
        let _ = guard.release().await;
        loaded.map_err(RebuildError::Lock)?
    }

    /// The span less a random part of it.
    fn jittered(&self, span: Duration) -> Duration {
        let mut chance = [0; 4];
        // Without chance all entries live as long as they may.
        let chance = getrandom::fill(&mut chance).map_or(0, |()| u32::from_ne_bytes(chance));
        let part = f64::from(self.jitter_percent) / 100.0 * f64::from(chance) / f64::from(u32::MAX);
        span.saturating_sub(span.mul_f64(part.clamp(0.0, 1.0)))
    }
}
