//! The process-wide locker and the system name that begins every id. One test, because a process has one.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lockkeeper::{Error, locked};

#[locked("product:{id}", guard = lock)]
async fn id_of(id: u64) -> Result<String, Error> {
    Ok(lock.key().to_string())
}

#[locked(name = "nightly", system = "bank", guard = lock)]
fn id_elsewhere() -> Result<String, Error> {
    Ok(lock.key().to_string())
}

#[tokio::test]
async fn the_process_has_one_locker_and_one_system() {
    let error = lockkeeper::default_locker().unwrap_err();
    assert!(error.to_string().contains("lockkeeper::init"), "{error}");
    let locker = || async { lockkeeper::connect("memory:").await.unwrap() };
    assert!(lockkeeper::set_default(locker().await, Some("a:b")).is_err(), "a system name has no colon");
    lockkeeper::set_default(locker().await, Some("shop")).unwrap();
    assert!(lockkeeper::set_default(locker().await, Some("shop")).is_err(), "once is enough");
    assert_eq!(id_of(7).await.unwrap(), "shop:product:7");
    assert_eq!(id_elsewhere().unwrap(), "bank:nightly");
}
