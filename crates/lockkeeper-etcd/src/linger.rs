//! Giving a lock back later: its key moves under a lease of its own, which nobody keeps alive and which outlives us.
//!
//! The key stays the same, and with it our number in line: a write does not change when a key was created. Whole seconds
//! are the shortest that a lease can be told, and two are what a server with its defaults gives at least. A process that
//! still lives when the time is over deletes the key itself, so that nobody waits for the rest of them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::backend::Result;

use crate::connection::Connection;
use crate::fault;
use crate::leave::Parting;
use crate::session::{grant_id, revoke_id};
use crate::store::Store;
use crate::wire::{TxnRequest, created_at, move_to};

const LINGERING: &str = "giving the lock back later";

/// The longest, far below what etcd can count.
const SPAN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Keep the key of this claim for so long, whoever lives. `false` if it is not there any more.
pub(crate) async fn keep(connection: &Connection, parting: &Parting, span: Duration) -> Result<bool> {
    let Some(own) = parting.revision else { return Ok(false) };
    let (lease, _) = grant_id(connection, whole_seconds(span)).await?;
    let txn = TxnRequest {
        compare: vec![created_at(&parting.key, own)],
        success: vec![move_to(&parting.key, lease)],
        failure: Vec::new(),
    };
    match connection.txn(txn).await {
        Ok(answer) if answer.succeeded => Ok(true),
        Ok(_) => {
            revoke_id(connection, lease).await;
            Ok(false)
        }
        // Perhaps it was done: the lease must not be touched, and ends by itself.
        Err(status) => Err(fault::from_status(LINGERING, &status)),
    }
}

/// Once the time is over the key goes, if its process still lives; and its name is free again.
pub(crate) async fn leave_at(
    until: Moment,
    parting: Parting,
    connection: Arc<Connection>,
    store: Weak<Store>,
) {
    connection.clock.sleep_until(until).await;
    parting.by_itself(connection, store).await;
}

/// Rounded up: the store keeps it at least as long as was said.
pub(crate) fn whole_seconds(span: Duration) -> i64 {
    let seconds = span.min(SPAN_MAX).as_nanos().div_ceil(1_000_000_000).max(1);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_what_was_asked_for() {
        let spans = [0, 1, 999_999_999, 1_000_000_000, 1_000_000_001].map(Duration::from_nanos);
        assert_eq!(spans.map(whole_seconds), [1, 1, 1, 1, 2]);
        assert_eq!(whole_seconds(Duration::MAX), 100 * 365 * 24 * 3600);
    }
}
