//! Strays: keys under a lease of ours that no place of ours stands for. They come back with a snapshot that is restored, or
//! with a request that is said twice, and as long as the lease lived nobody else would remove them.

use bytes::Bytes;
use tonic::Status;

use crate::connection::Connection;
use crate::session::Lease;
use crate::wire::lease_client::LeaseClient;
use crate::wire::{KeyValue, LeaseTimeToLiveRequest, TxnRequest, created_at, delete};

/// Remove what is under the lease and is not ours any more. To be done after a new connection: no store is restored
/// without ending all of them.
pub(crate) async fn remove(connection: &Connection, lease: &Lease) -> Result<(), Status> {
    let ask = LeaseTimeToLiveRequest { id: lease.id, keys: true };
    let call = |channel, request| async move { LeaseClient::new(channel).lease_time_to_live(request).await };
    for key in connection.call(ask, call).await?.keys {
        let Some((line, number)) = place_of(&key, lease.id) else { continue };
        // Nobody takes this name while its key is removed.
        let Some(held_by_us) = lease.names.take_stray(&line, number) else { continue };
        let removed =
            connection.txn(TxnRequest { success: vec![delete(&key)], ..TxnRequest::default() }).await;
        lease.names.give_back(&line, held_by_us);
        removed?;
    }
    Ok(())
}

/// Remove a key that has the name of a place of ours and was never written by it: a late copy of what another said that had
/// the name before, sent once more by the network. It weighs what that other weighed.
pub(crate) async fn remove_one(connection: &Connection, found: &KeyValue) -> Result<(), Status> {
    let txn = TxnRequest {
        compare: vec![created_at(&found.key, found.create_revision)],
        success: vec![delete(&found.key)],
        failure: Vec::new(),
    };
    connection.txn(txn).await.map(drop)
}

/// The line of a key of ours, and the number of its name.
fn place_of(key: &Bytes, lease: i64) -> Option<(Bytes, u32)> {
    let at = key.iter().rposition(|it| *it == b'/')? + 1;
    let name = std::str::from_utf8(&key[at..]).ok()?;
    let number = name.strip_prefix(&format!("{lease:016x}-"))?.parse().ok()?;
    Some((key.slice(..at), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_its_line_and_the_number_of_its_name() {
        let key = Bytes::from("p/locks/job/000000000000002a-7");
        assert_eq!(place_of(&key, 42), Some((Bytes::from("p/locks/job/"), 7)));
        assert_eq!(place_of(&key, 43), None, "that of another lease");
        assert_eq!(place_of(&Bytes::from("p/sessions/000000000000002a"), 42), None, "the marker");
    }
}
