//! From a configuration to the process-wide locker. One test, because a process has one.

#![cfg(all(feature = "macros", feature = "config"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use lockkeeper::{Config, Error, locked};

#[locked("product:{id}", guard = lock)]
async fn id_of(id: u64) -> Result<String, Error> {
    Ok(lock.key().to_string())
}

#[tokio::test]
async fn a_configuration_becomes_the_locker_of_the_process() {
    let config =
        Config::from_toml("system = \"shop\"\nurl = \"memory:\"\nwait = \"10ms\"", "x.toml").unwrap();
    let locker = lockkeeper::init_with(&config).await.unwrap();
    assert_eq!(id_of(7).await.unwrap(), "shop:product:7");
    let _taken = locker.lock("shop:product:7").await.unwrap();
    let error = tokio::time::timeout(Duration::from_secs(30), id_of(7)).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "the wait is the configured one: {error}");
    assert!(lockkeeper::init_with(&config).await.is_err(), "once is enough");
}
