//! The heartbeat of a lease: keep-alives, each proven by a write, asked of several endpoints until one answers.
//!
//! A keep-alive alone proves nothing: it is no write, and a leader that was deposed while it slept may
//! answer it. So each one is followed by a write. If both answers name the same term, the write was
//! committed under the leader that took the keep-alive, hence no other leader had been elected when it did;
//! and a later leader gives every lease its full time again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::connection::Connection;
use crate::session::{Lease, revoke};
use crate::wire::kv_client::KvClient;
use crate::wire::lease_client::LeaseClient;
use crate::wire::{Answer as _, LeaseKeepAliveRequest, TxnRequest, created_at, delete};

/// Of what the lease has left, how much may pass before another endpoint is asked as well.
const SHARE: u32 = 8;
const STEP_MIN: Duration = Duration::from_millis(50);
/// The longest pause after a refusal.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Beat until it is confirmed, or the lease is lost. Ends in any case once the lease's time is over.
///
/// Nobody is waited for alone: a node that is silent, or that has asked a leader which sleeps, may still answer, but
/// the next one is asked meanwhile, on a fresh connection if it has been silent itself.
pub(crate) async fn beat(connection: &Arc<Connection>, lease: &Arc<Lease>) {
    let clock = &connection.clock;
    let (first, end) = (connection.current(), clock.now().after(lease.ttl));
    let mut tries = JoinSet::new();
    let mut at = first;
    while clock.now() < end && !lease.proof.is_lost() {
        let asked_at = clock.now();
        tries.spawn(once(connection.clone(), lease.clone(), at));
        let step = step(connection, lease);
        loop {
            let answer = tokio::select! {
                Some(answer) = tries.join_next() => answer,
                () = clock.sleep_until(asked_at.after(step)) => {
                    connection.silent(at, asked_at);
                    break;
                }
            };
            match answer {
                Ok((by, Ok(()))) => {
                    if by != first {
                        connection.turn_to(by);
                    }
                    // What was sent later proves more, should it still be answered.
                    tries.detach_all();
                    return;
                }
                // Refused: another may know better, but not at once.
                _ if tries.is_empty() => {
                    let pause = (lease.ttl / 50).clamp(STEP_MIN, PAUSE_MAX);
                    clock.sleep_until(asked_at.after(pause)).await;
                    break;
                }
                _ => {}
            }
        }
        at = at.wrapping_add(1);
    }
}

/// How long to wait before the next endpoint is asked.
fn step(connection: &Connection, lease: &Lease) -> Duration {
    let left = lease.proof.proven_until() - connection.clock.now();
    // Two round trips are what it takes if all is well.
    let usual = (connection.trips.slowest() * 3).min(left / 3);
    (left / SHARE).max(usual).max(STEP_MIN).min(connection.options.timeout)
}

/// One keep-alive and the write that proves it, at one endpoint. Answers which.
async fn once(connection: Arc<Connection>, lease: Arc<Lease>, at: usize) -> (usize, Result<(), Status>) {
    let proven = prove(&connection, &lease, at).await;
    (at, proven)
}

async fn prove(connection: &Connection, lease: &Lease, at: usize) -> Result<(), Status> {
    let sent_at = connection.clock.now();
    // An answer that comes later proves nothing that is worth having.
    let patience = connection.options.timeout.max(lease.ttl / 2);
    let (term, ttl) = keep_alive(connection, at, patience, lease.id).await?;
    let Some(ttl) = u64::try_from(ttl).ok().filter(|it| *it != 0) else {
        lease.proof.lose();
        return Ok(());
    };
    // Nothing is deleted, yet it goes through the log: a write that leaves no trace in the store.
    let nothing = Bytes::from(format!("{}/nothing", connection.options.prefix));
    let proof = TxnRequest {
        compare: vec![created_at(&lease.marker, lease.marked_at)],
        success: vec![delete(&nothing)],
        failure: vec![delete(&nothing)],
    };
    let call = |channel, request| async move { KvClient::new(channel).txn(request).await };
    let reached = connection.history.reached();
    let proof = connection.call_at(at, patience, proof, call).await?;
    if proof.revision() < reached {
        // A snapshot was restored: what we gave back since may be there again, and what we hold may not.
        connection.history.went_back_to(proof.revision());
        revoke(connection, lease).await;
        return Ok(());
    }
    connection.history.saw(proof.revision());
    if !proof.succeeded {
        lease.proof.lose();
        return Ok(());
    }
    if proof.term() != term {
        return Err(Status::aborted("the leader changed; the keep-alive is repeated"));
    }
    lease.proof.extend(sent_at.after(Duration::from_secs(ttl)));
    Ok(())
}

/// Term and remaining ttl in seconds; 0 if there is no such lease.
async fn keep_alive(
    connection: &Connection,
    at: usize,
    patience: Duration,
    id: i64,
) -> Result<(u64, i64), Status> {
    // A stream of its own for every beat, so that an answer cannot be taken for that of another request.
    let call = |channel, mut request: tonic::Request<LeaseKeepAliveRequest>| async move {
        let metadata = std::mem::take(request.metadata_mut());
        // The stream stays open until it is answered: closed, the server might not bother.
        let once = tokio_stream::once(request.into_inner()).chain(tokio_stream::pending());
        let mut stream = tonic::Request::new(once);
        *stream.metadata_mut() = metadata;
        let mut answers = LeaseClient::new(channel).lease_keep_alive(stream).await?.into_inner();
        let answer = answers.message().await?;
        answer.map(tonic::Response::new).ok_or_else(|| Status::unavailable("the keep-alive was not answered"))
    };
    let answer = connection.call_at(at, patience, LeaseKeepAliveRequest { id }, call).await?;
    Ok((answer.term(), answer.ttl))
}
