//! The store of locks, by its URL: every scheme of the library, counted.

use std::sync::Arc;

use lockkeeper::spi::Backend;
use lockkeeper::{Error, Locker, LockerBuilder};

use crate::counting::{Counting, Trips};

/// A locker in the store behind a URL that counts how often it asks.
pub(crate) async fn locker(url: &str, trips: Arc<Trips>) -> lockkeeper::Result<LockerBuilder> {
    use lockkeeper::{etcd, redis, redlock, sql, sqlite, zookeeper};
    let scheme = url.split_once(':').map_or("", |it| it.0);
    Ok(match scheme {
        "sqlite" => counted(sqlite::Sqlite::connect(url).await?, trips),
        "mysql" | "mariadb" => counted(sql::Mysql::connect(url).await?, trips),
        "postgres" | "postgresql" => counted(sql::Postgres::connect(url).await?, trips),
        "etcd" | "etcds" => counted(etcd::Etcd::connect(url).await?, trips),
        "zookeeper" | "zookeepers" => counted(zookeeper::ZooKeeper::connect(url).await?, trips),
        "redlock" | "redlocks" => counted(redlock::Redlock::<redis::Redis>::connect(url).await?, trips),
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => {
            counted(redis::Redis::connect(url).await?, trips)
        }
        "memory" => {
            let text = "`memory:` is a store of one process, and the shop has several; name another store";
            return Err(Error::invalid(text));
        }
        _ => {
            // The library's own words for what it does not know.
            lockkeeper::open(url).await?;
            return Err(Error::invalid(format!("the sale cannot use locks in `{}:`", scheme.escape_debug())));
        }
    })
}

fn counted(backend: impl Backend, trips: Arc<Trips>) -> LockerBuilder {
    Locker::builder(Counting::new(backend, trips))
}

/// The URL of the one Redis server that the plain lock can use, or why there is none.
pub(crate) fn plain_redis(url: &str) -> Result<&str, &'static str> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme {
        "redis" | "rediss" => {}
        "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" | "redlock"
        | "redlocks" => return Err("skipped: it knows one Redis server, not several"),
        _ => return Err("skipped: this is a lock of Redis and needs a redis:// URL"),
    }
    let (plain, query) = url.split_once('?').unwrap_or((url, ""));
    let needs_files = query
        .split('&')
        .any(|it| ["password_file=", "ca=", "cert=", "key="].iter().any(|name| it.starts_with(name)));
    if needs_files || rest.is_empty() {
        return Err("skipped: it reads no passwords, certificates or keys from files");
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_lock_is_for_one_redis_server() {
        assert_eq!(plain_redis("redis://h/2"), Ok("redis://h/2"));
        assert_eq!(plain_redis("redis://:p@h?prefix=x"), Ok("redis://:p@h"));
        for url in ["sqlite:x", "redis+cluster://h", "redlock://a,b,c", "mysql://h/d", "rediss://h?ca=x", ""]
        {
            assert!(plain_redis(url).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn what_several_processes_cannot_share_is_refused() {
        for url in ["memory:", "ftp://h", "nonsense", "memory:x", ""] {
            let refused = locker(url, Arc::default()).await;
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{url}");
        }
    }
}
