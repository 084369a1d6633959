//! Going on as a reader: our key stays where it is in the line and says that we weigh less.
//!
//! A write does not change when a key was created, so the place is the same. It does change when it was last written, by
//! which operators find the fence of whoever is inside; so the record tells the counter from then on. Those who could
//! share the room watch what is written to the key of whoever keeps them out, see [`Interest::Lighter`](crate::standing::Interest).

use lockkeeper_core::Claim;
use lockkeeper_core::backend::Result;
use lockkeeper_core::record::Record;

use crate::connection::Connection;
use crate::fault;
use crate::leave::Parting;
use crate::wire::{Answer as _, TxnRequest, created_at, put};

const LOWERING: &str = "sharing what is held";

/// Write what this claim weighs now. Answers when it was written; `None` if its key is not there any more.
pub(crate) async fn rewrite(
    connection: &Connection,
    parting: &Parting,
    claim: &Claim,
    counter: u64,
) -> Result<Option<i64>> {
    let (lease, Some(own)) = (&parting.lease, parting.revision) else { return Ok(None) };
    let value = format!("{}counter={counter}\n", Record::text_of(claim));
    let txn = TxnRequest {
        compare: vec![created_at(&parting.key, own)],
        success: vec![put(&parting.key, value, lease.id)],
        failure: Vec::new(),
    };
    match connection.txn(txn).await {
        Ok(answer) => Ok(answer.succeeded.then(|| answer.revision())),
        Err(status) if fault::is_lease_gone(&status) => {
            lease.proof.lose();
            Ok(None)
        }
        Err(status) => Err(fault::from_status(LOWERING, &status)),
    }
}

/// The counter that a claim's record tells, if it went on as a reader.
pub(crate) fn counter_in(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    text.lines().find_map(|it| it.strip_prefix("counter=")?.parse().ok())
}
