//! From a URL to a store: the scheme chooses the backend.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::backend::Backend;
use lockkeeper_core::inspect::{DynInspect, Inspect};
use lockkeeper_core::kit::Home;
use lockkeeper_core::{Error, Locker, LockerBuilder, Memory, Result};

use crate::here::Here;

/// An opened store: a locker to be, and the operator's view of it.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::Store;
///
/// let Store { locker, inspect, .. } = lockkeeper::open("memory:").await?;
/// let locker = locker.ttl(Duration::from_secs(5)).build();
/// let guard = locker.lock("orders/42").await?;
/// assert_eq!(inspect.list("orders/").await?.len(), 1); // as `lockkeeper ls` does
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct Store {
    /// Set what you like and [`build`](LockerBuilder::build) it.
    pub locker: LockerBuilder,
    /// Who holds what and who waits.
    pub inspect: Arc<dyn DynInspect>,
}

impl Store {
    /// The locker alone. A store in memory that only its locker can reach is faster.
    pub(crate) fn into_locker(self) -> Locker {
        drop(self.inspect);
        self.locker.build()
    }

    /// With this thread as the locker's own.
    fn at(self, home: Home) -> Self {
        Store { locker: self.locker.home(home), inspect: self.inspect }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("inspect", &self.inspect).finish_non_exhaustive()
    }
}

/// A locker with default settings for the store behind a URL.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let locker = lockkeeper::connect("memory:").await?;
/// let guard = locker.lock("orders/42").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// Safe to drop; a half-open connection is closed.
///
/// # Errors
/// As for [`open`].
pub async fn connect(url: &str) -> Result<Locker> {
    Ok(open(url).await?.into_locker())
}

/// [`connect`] for programs and threads without a runtime. It blocks this thread until the store answers.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// let locker = lockkeeper::connect_blocking("memory:")?;
/// let guard = locker.lock("orders/42").blocking()?;
/// guard.release_blocking()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`open`].
pub fn connect_blocking(url: &str) -> Result<Locker> {
    Ok(open_blocking(url)?.into_locker())
}

/// Open the store behind a URL; the scheme says which. Each store but `memory:` needs the feature of its name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let locker = lockkeeper::open("memory:").await?.locker.waiters_max(100).build();
/// assert!(lockkeeper::open("ftp://example.org").await.is_err());
/// # Ok(())
/// # }
/// ```
///
/// It may be called with any executor. Outside of a tokio runtime the store is opened on the locker's own thread.
///
/// # Cancel safety
/// Safe to drop; a half-open connection is closed.
///
/// # Errors
/// [`Error::Invalid`] for an unknown scheme or option, [`Error::Unsupported`] for a store that this program was
/// built without, [`Error::Unavailable`] if the store does not answer.
pub async fn open(url: &str) -> Result<Store> {
    if !Home::is_needed() {
        return open_here(url).await;
    }
    let (home, url) = (Home::start()?, url.to_owned());
    let store = home.run(async move { open_here(&url).await }).await??;
    Ok(store.at(home))
}

/// [`open`] for programs and threads without a runtime. It blocks this thread until the store answers; the store's
/// connections live on the locker's own thread. `inspect` is for those who have a runtime.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> lockkeeper::Result<()> {
/// let locker = lockkeeper::open_blocking("memory:")?.locker.ttl(Duration::from_secs(5)).build();
/// locker.lock("orders/42").blocking()?.release_blocking()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`open`].
pub fn open_blocking(url: &str) -> Result<Store> {
    let (home, url) = (Home::start()?, url.to_owned());
    let store = home.block_on(async move { open_here(&url).await })??;
    Ok(store.at(home))
}

/// On the present runtime.
async fn open_here(url: &str) -> Result<Store> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Error::invalid(format!("the store's URL has no scheme; begin it with {KNOWN}")));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(store(Memory::default())),
        "memory" => Err(Error::invalid("a `memory:` URL has nothing after the colon")),
        "mysql" | "mariadb" => mysql(url).await,
        "postgres" | "postgresql" => postgres(url).await,
        "etcd" | "etcds" => etcd(url).await,
        "sqlite" => sqlite(url).await,
        "zookeeper" | "zookeepers" => zookeeper(url).await,
        "redlock" | "redlocks" => redlock(url).await,
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => {
            redis(url).await
        }
        _ => {
            let scheme: String = scheme.escape_debug().take(40).collect();
            Err(Error::invalid(format!("the URL scheme `{scheme}` is unknown; known are {KNOWN}")))
        }
    }
}

const KNOWN: &str = "`memory:`, `sqlite:PATH`, `redis://HOST`, `redis+sentinel://HOSTS/SERVICE`, \
    `redis+cluster://HOSTS`, `postgres://HOST/DATABASE`, `mysql://HOST/DATABASE`, `etcd://HOSTS`, \
    `zookeeper://HOSTS/PATH`, `redlock://HOST,HOST,HOST`";

fn store(backend: impl Backend + Inspect + Clone) -> Store {
    let inspect = Here::new(backend.clone(), backend.profile().name);
    Store { inspect: Arc::new(inspect), locker: Locker::builder(backend) }
}

/// One function per store, which says what is missing where its feature is off. `check` is done before it is opened: by those
/// whose connections live on the caller's runtime.
macro_rules! stores {
    ($($name:ident $feature:literal $($check:path)?: |$url:ident| $open:expr;)*) => {
        $(
            #[cfg(feature = $feature)]
            async fn $name($url: &str) -> Result<Store> {
                $($check()?;)?
                Ok(store($open))
            }

            #[cfg(not(feature = $feature))]
            async fn $name(_url: &str) -> Result<Store> {
                let feature = $feature;
                let what = format!(
                    "this program was built without it; add the feature `{feature}` of the crate `lockkeeper`"
                );
                Err(Error::unsupported(feature, what))
            }
        )*
    };
}

stores! {
    etcd "etcd" crate::runtime::check: |url| lockkeeper_etcd::Etcd::connect(url).await?;
    redis "redis" crate::runtime::check: |url| lockkeeper_redis::Redis::connect(url).await?;
    mysql "mysql" crate::runtime::check: |url| {
        let options = lockkeeper_sql::MysqlOptions::parse(url)?;
        if options.chosen_mode() == lockkeeper_sql::mysql::MysqlMode::Session {
            return Ok(store(lockkeeper_sql::MysqlSessions::with(options).await?));
        }
        lockkeeper_sql::Mysql::with(options).await?
    };
    postgres "postgres" crate::runtime::check: |url| {
        let options = lockkeeper_sql::PostgresOptions::parse(url)?;
        if options.chosen_mode() == lockkeeper_sql::postgres::PostgresMode::Session {
            return Ok(store(lockkeeper_sql::PostgresSessions::with(options).await?));
        }
        lockkeeper_sql::Postgres::with(options).await?
    };
    redlock "redlock" crate::runtime::check: |url| lockkeeper_redlock::Redlock::<lockkeeper_redis::Redis>::connect(url).await?;
    sqlite "sqlite": |url| lockkeeper_sqlite::Sqlite::connect(url).await?;
    zookeeper "zookeeper": |url| lockkeeper_zookeeper::ZooKeeper::connect(url).await?;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_no_store_is_refused_with_what_would_be_one() {
        for url in ["", "locks.db", "ftp:x", "memory:x", "\u{1b}[31m:x"] {
            let error = open(url).await.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{url:?}: {error}");
            assert!(!error.to_string().contains('\u{1b}'), "{error}");
        }
    }

    #[tokio::test]
    async fn a_store_in_memory_needs_nothing() {
        let Store { locker, inspect } = open("memory:").await.unwrap();
        let locker = locker.build();
        let guard = locker.lock("k").await.unwrap();
        assert_eq!(inspect.list("").await.unwrap().len(), 1, "the operator sees it");
        guard.release().await.unwrap();
        assert!(inspect.list("").await.unwrap().is_empty());
    }
}
