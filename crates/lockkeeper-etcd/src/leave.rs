//! Leaving a line: once, as the keeper asks; or by itself, for a place that was dropped without a word.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::ClaimId;
use lockkeeper_core::backend::{Fault, Result};

use crate::connection::Connection;
use crate::fault::{self, NAME};
use crate::session::Lease;
use crate::store::Store;
use crate::wire::{Answer as _, TxnRequest, TxnResponse, created_at, delete, one, put, range, written_at};

const LEAVING: &str = "giving the lock back";
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What is left to take out of the store.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) lease: Arc<Lease>,
    pub(crate) line: Bytes,
    pub(crate) key: Bytes,
    pub(crate) id: ClaimId,
    /// The revision that created the key, if we know it.
    pub(crate) revision: Option<i64>,
    /// A request to create the key may still be under way.
    pub(crate) unsure: bool,
}

impl Parting {
    /// Take our key out, and make sure that it cannot come back. Then its name is free again.
    pub(crate) async fn once(&self, connection: &Connection) -> Result<()> {
        let lease = &self.lease;
        // A key that we know goes by its number. But a request under way could create it again: rewriting the
        // marker makes all such requests void.
        let txn = match self.revision {
            _ if lease.proof.is_lost() => TxnRequest::default(),
            _ if self.unsure => TxnRequest {
                compare: vec![written_at(&lease.marker, lease.epoch())],
                success: vec![delete(&self.key), put(&lease.marker, "", lease.id)],
                failure: vec![range(one(&lease.marker))],
            },
            Some(own) => TxnRequest {
                compare: vec![created_at(&self.key, own)],
                success: vec![delete(&self.key)],
                failure: Vec::new(),
            },
            None => TxnRequest::default(),
        };
        if !txn.success.is_empty() {
            match connection.txn(txn).await {
                Err(status) if fault::is_lease_gone(&status) => lease.proof.lose(),
                Err(status) => return Err(fault::from_status(LEAVING, &status)),
                Ok(answer) => {
                    connection.history.saw(answer.revision());
                    if self.unsure {
                        void(lease, &answer)?;
                    }
                }
            }
        }
        lease.names.give_back(&self.line, self.id);
        Ok(())
    }

    /// Leave for a place that was dropped: as long as its process lives its lease does, and its key with it.
    pub(crate) async fn by_itself(self, connection: Arc<Connection>, store: Weak<Store>) {
        let mut pause = Duration::from_millis(10);
        // With the store all leases end.
        while store.strong_count() != 0 && !self.lease.proof.is_lost() {
            match self.once(&connection).await {
                Err(fault) if fault.is_transient() => {}
                // A permanent answer does not change by asking again.
                Ok(()) | Err(_) => return,
            }
            connection.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// The answer to rewriting the marker.
fn void(lease: &Lease, answer: &TxnResponse) -> Result<()> {
    if answer.succeeded {
        lease.set_epoch(answer.revision());
        return Ok(());
    }
    let Some(marker) = answer.range(0).and_then(|it| it.kvs.first()) else {
        lease.proof.lose();
        return Ok(());
    };
    lease.set_epoch(marker.mod_revision);
    Err(Fault::transient(NAME, LEAVING, "another release came first; ask again"))
}
