//! A process without a locker: locked functions say so, and a system name that comes too late is refused.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lockkeeper::{Error, Locker, locked};

#[locked("x")]
fn without() -> Result<(), Error> {
    panic!("the body ran without a lock");
}

#[locked("x", locker = locker, guard = lock)]
fn with(locker: &Locker) -> Result<String, Error> {
    Ok(lock.key().to_string())
}

#[tokio::test]
async fn a_system_name_cannot_come_after_the_first_lock() {
    assert!(matches!(without(), Err(Error::Invalid { .. })));
    let locker = lockkeeper::connect("memory:").await.unwrap();
    assert_eq!(with(&locker).unwrap(), "x");
    let error = lockkeeper::set_default(locker.clone(), Some("shop")).unwrap_err();
    assert!(error.to_string().contains("where the program begins"), "{error}");
    lockkeeper::set_default(locker, None).unwrap();
    assert!(lockkeeper::default_locker().is_ok());
}
