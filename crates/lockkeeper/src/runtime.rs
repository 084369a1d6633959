//! Whether the caller's runtime can do what a store in a network needs. Tokio has no question for that; it panics where the part is missing.

use std::future::Future as _;
use std::panic;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lockkeeper_core::kit::Home;
use lockkeeper_core::{Clock, Error, Result};
use tokio::net::UnixDatagram;

/// Look before anything is opened: what is spawned later would panic out of sight, and look like a runtime that ends.
///
/// Only where it fails tokio's own words are on standard error as well: those of a panic, which is caught here.
pub(crate) fn check() -> Result<()> {
    let without = |part: &str| {
        Error::invalid(format!(
            "this tokio runtime was built without {part}; build it with `enable_all()`, or open the store by `connect_blocking`"
        ))
    };
    if Home::is_needed() {
        return Ok(());
    }
    panic::catch_unwind(begin_to_sleep).map_err(|_| without("timers"))?;
    // No handle left is told by whoever opens the connection.
    panic::catch_unwind(|| drop(UnixDatagram::unbound())).map_err(|_| without("input and output"))
}

/// The timer is made with the first poll.
fn begin_to_sleep() {
    let clock = Clock::boot();
    let _ = pin!(clock.sleep(Duration::from_secs(1))).poll(&mut Context::from_waker(Waker::noop()));
}
