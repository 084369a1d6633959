//! Cache and locks on a real Redis server.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_cache::{Cache, CacheError, Rebuild, RedisCache};
use lockkeeper_core::Locker;
use lockkeeper_servers::{Redis, RedisOptions};

const MINUTE: Duration = Duration::from_secs(60);

/// What `?` asks of an error in a program with `anyhow`, or with an error type of its own.
fn is_an_error_like_others<E: std::error::Error + Send + Sync + 'static>(error: &E) -> String {
    assert_eq!(format!("{error:?}"), error.to_string(), "a `main` that returns it prints a sentence");
    error.to_string()
}

#[test]
fn what_cannot_be_opened_is_an_error_like_others() {
    let said = is_an_error_like_others(&RedisCache::new("teapot").unwrap_err());
    assert!(said.contains("write redis://"), "{said}");
    let below = CacheError::new(std::io::Error::other("nobody answers"));
    assert_eq!(is_an_error_like_others(&below), "nobody answers");
}

#[tokio::test]
async fn what_is_put_is_found_by_everybody_until_it_expires() {
    let server = Redis::start(RedisOptions::default()).await.unwrap();
    let (one, other) = (RedisCache::new(&server.url()).unwrap(), RedisCache::new(&server.url()).unwrap());
    assert!(Cache::<String>::get(&one, "k").await.unwrap().is_none());
    for value in [Some("a \u{1f512}".to_owned()), Some(String::new()), None] {
        one.put("k", value.as_ref(), MINUTE).await.unwrap();
        let found = Cache::<String>::get(&other, "k").await.unwrap().unwrap();
        assert_eq!(found.value, value);
        assert!(found.expires_in <= MINUTE && MINUTE / 2 < found.expires_in, "{found:?}");
    }
    Cache::<String>::remove(&other, "k").await.unwrap();
    assert!(Cache::<String>::get(&one, "k").await.unwrap().is_none());
    server.command(&["SET", "cache:odd", "x", "PX", "60000"]).await.unwrap();
    assert!(Cache::<String>::get(&one, "odd").await.is_err(), "somebody else's key");
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again() {
    let server = Redis::start(RedisOptions::default()).await.unwrap();
    let cache = RedisCache::new(&server.url()).unwrap();
    cache.put("k", Some(&1), MINUTE).await.unwrap();
    server.restart_empty().await.unwrap();
    // The first call may find the old connection broken; the next one opens another.
    let _ = Cache::<u32>::get(&cache, "k").await;
    assert!(Cache::<u32>::get(&cache, "k").await.unwrap().is_none());
}

#[tokio::test]
async fn four_lockers_with_250_callers_each_make_one_load() {
    let server = Redis::start(RedisOptions::default()).await.unwrap();
    let loads = Arc::new(AtomicU32::new(0));
    let mut callers = Vec::new();
    for _ in 0..4 {
        // To the store each of them is a process of its own.
        let locker = Locker::new(lockkeeper_redis::Redis::connect(&server.url()).await.unwrap());
        let rebuild = Arc::new(Rebuild::new(RedisCache::new(&server.url()).unwrap(), locker).ttl(MINUTE));
        for _ in 0..250 {
            let (rebuild, loads) = (rebuild.clone(), loads.clone());
            callers.push(tokio::spawn(async move {
                let loader = || ready(Ok::<_, Infallible>(Some(loads.fetch_add(1, Ordering::SeqCst) + 1)));
                rebuild.get_or_load("k", loader).await.unwrap()
            }));
        }
    }
    for caller in callers {
        assert_eq!(caller.await.unwrap(), Some(1));
    }
    assert_eq!(loads.load(Ordering::SeqCst), 1);
}

#[test]
fn a_bad_url_is_refused_and_no_password_is_shown() {
    for url in ["", "http://u:hunter2@h", "redis://u:hunter2@h:x"] {
        let error = RedisCache::new(url).unwrap_err();
        assert!(!error.to_string().contains("hunter2") && error.to_string().contains("redis://"), "{error}");
    }
    let cache = RedisCache::new("redis://u:hunter2@h").unwrap();
    assert!(!format!("{cache:?}").contains("hunter2"));
}
