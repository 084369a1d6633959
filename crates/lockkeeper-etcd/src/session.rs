//! Our leases: what of ours dies when the cluster does not hear from us, and until when it surely lives.
//!
//! There is one lease for every ttl that claims of this process ask for, however many locks it carries. Each
//! has a deadline of its own, which counts from when a confirmed keep-alive was *sent*.
//!
//! A keep-alive alone proves nothing: it is no write, and a leader that was deposed while it slept may
//! answer it. So each one is followed by a write. If both answers name the same term, the write was
//! committed under the leader that took the keep-alive, hence no other leader had been elected when it did;
//! and a later leader gives every lease its full time again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::Moment;
use lockkeeper_core::backend::{Fault, Result};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::connection::Connection;
use crate::fault::{self, NAME};
use crate::names::Names;
use crate::wire::lease_client::LeaseClient;
use crate::wire::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, TxnRequest, created_at, delete, put,
};

/// Keep-alives per ttl.
const BEATS: u32 = 5;
/// A lease that nobody uses is kept this long, so that the next lock need not wait for one.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// What is known of a lease.
#[derive(Clone, Copy, Debug)]
struct State {
    /// The cluster will not end it before this moment.
    proven_until: Moment,
    /// The cluster has ended it. Final.
    lost: bool,
}

/// One lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// What the server gave, which may be more than we asked for.
    pub(crate) ttl: Duration,
    /// A key under the lease. Everybody who joins a line checks that it was last written at `epoch`.
    pub(crate) marker: Bytes,
    /// The names of the keys under the lease.
    pub(crate) names: Names,
    marked_at: i64,
    epoch: Mutex<i64>,
    state: watch::Sender<State>,
}

impl Lease {
    /// Until when the cluster surely keeps it.
    pub(crate) fn proven_until(&self) -> Moment {
        self.state.borrow().proven_until
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.borrow().lost
    }

    /// The cluster has ended it.
    pub(crate) fn lose(&self) {
        self.state.send_modify(|it| it.lost = true);
    }

    /// Resolves when the cluster has ended it.
    pub(crate) async fn when_lost(&self) {
        let mut state = self.state.subscribe();
        // The sender is `self`, which outlives this borrow.
        let _ = state.wait_for(|it| it.lost).await;
    }

    /// Wait until it is proven beyond `moment`, or lost.
    pub(crate) async fn when_proven_beyond(&self, moment: Moment) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|it| it.lost || moment < it.proven_until).await;
    }

    /// The revision at which the marker was last written, as far as we know.
    pub(crate) fn epoch(&self) -> i64 {
        *self.epoch_guard()
    }

    pub(crate) fn set_epoch(&self, revision: i64) {
        let mut epoch = self.epoch_guard();
        *epoch = revision.max(*epoch);
    }

    fn epoch_guard(&self) -> MutexGuard<'_, i64> {
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extend(&self, until: Moment) {
        self.state.send_modify(|it| it.proven_until = it.proven_until.max(until));
    }
}

/// The lease of one ttl, if there is one. Whoever asks for a new one holds the lock meanwhile.
type Class = Arc<AsyncMutex<Option<Arc<Lease>>>>;

/// The leases of this process, by ttl in seconds.
#[derive(Debug)]
pub(crate) struct Sessions {
    connection: Arc<Connection>,
    driver: tokio::runtime::Handle,
    classes: Mutex<HashMap<i64, Class>>,
}

impl Sessions {
    pub(crate) fn new(connection: Arc<Connection>, driver: tokio::runtime::Handle) -> Self {
        Sessions { connection, driver, classes: Mutex::default() }
    }

    /// The lease for claims of this ttl; a new one if there is none or the last one was lost.
    pub(crate) async fn lease(&self, ttl: Duration) -> Result<Arc<Lease>> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let class = self.classes().entry(seconds).or_default().clone();
        // Whoever comes first asks for all. A verb is never dropped half-way, so the lock is not held for ever.
        let mut lease = class.lock().await;
        if let Some(lease) = lease.as_ref().filter(|it| !it.is_lost()) {
            return Ok(lease.clone());
        }
        let fresh = Arc::new(self.grant(seconds).await?);
        *lease = Some(fresh.clone());
        drop(lease);
        self.driver.spawn(keep(self.connection.clone(), fresh.clone(), class));
        Ok(fresh)
    }

    async fn grant(&self, seconds: i64) -> Result<Lease> {
        const DOING: &str = "asking for a lease";
        let (asked_at, connection) = (self.connection.clock.now(), &self.connection);
        let grant = LeaseGrantRequest { ttl: seconds, id: 0 };
        let call = |channel, request| async move { LeaseClient::new(channel).lease_grant(request).await };
        let granted = connection.call(grant, call).await.map_err(|it| fault::from_status(DOING, &it))?;
        let ttl = u64::try_from(granted.ttl).ok().filter(|it| *it != 0 && granted.error.is_empty());
        let Some(ttl) = ttl.map(Duration::from_secs) else {
            return Err(Fault::transient(NAME, DOING, granted.error));
        };
        let marker = Bytes::from(format!("{}/sessions/{:016x}", connection.options.prefix, granted.id));
        let mark = TxnRequest { success: vec![put(&marker, "", granted.id)], ..TxnRequest::default() };
        let marked = connection.txn(mark).await.map_err(|it| fault::from_status(DOING, &it))?;
        let state = State { proven_until: asked_at.after(ttl), lost: false };
        Ok(Lease {
            id: granted.id,
            ttl,
            marker,
            names: Names::default(),
            marked_at: marked.revision(),
            epoch: Mutex::new(marked.revision()),
            state: watch::Sender::new(state),
        })
    }

    /// Give all leases back, at most for `bound`. What is not confirmed then ends by its ttl.
    pub(crate) async fn end(&self, bound: Duration) {
        let classes: Vec<_> = self.classes().drain().map(|it| it.1).collect();
        let revoked = async {
            for class in classes {
                if let Some(lease) = class.lock().await.take() {
                    revoke(&self.connection, &lease).await;
                }
            }
        };
        tokio::select! {
            () = revoked => {}
            () = self.connection.clock.sleep(bound) => {}
        }
    }

    fn classes(&self) -> MutexGuard<'_, HashMap<i64, Class>> {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keep a lease alive until it is lost or nobody has used it for a while.
async fn keep(connection: Arc<Connection>, lease: Arc<Lease>, class: Class) {
    let clock = connection.clock.clone();
    let mut used_at = clock.now();
    while !lease.is_lost() {
        clock.sleep(lease.ttl / BEATS).await;
        if beat(&connection, &lease).await.is_err() {
            // Soon again, at another endpoint: the deadline does not wait.
            clock.sleep((lease.ttl / 50).min(Duration::from_millis(200))).await;
            let _ = beat(&connection, &lease).await;
        }
        // One is ours and one is the class's.
        if 2 < Arc::strong_count(&lease) {
            used_at = clock.now();
        } else if IDLE_MAX.max(lease.ttl * 2) < clock.now() - used_at {
            let mut class = class.lock().await;
            if Arc::strong_count(&lease) <= 2 {
                *class = None;
                break;
            }
        }
    }
    if !lease.is_lost() {
        revoke(&connection, &lease).await;
    }
}

/// One keep-alive and the write that proves it.
async fn beat(connection: &Connection, lease: &Lease) -> std::result::Result<(), Status> {
    let sent_at = connection.clock.now();
    // A silent node must not cost the lease: there is time for another.
    let patience = connection.options.timeout.min(lease.ttl / 6);
    let (term, ttl) = keep_alive(connection, patience, lease.id).await?;
    let Some(ttl) = u64::try_from(ttl).ok().filter(|it| *it != 0) else {
        lease.lose();
        return Ok(());
    };
    // Nothing is deleted, yet it goes through the log: a write that leaves no trace in the store.
    let nothing = Bytes::from(format!("{}/nothing", connection.options.prefix));
    let proof = TxnRequest {
        compare: vec![created_at(&lease.marker, lease.marked_at)],
        success: vec![delete(&nothing)],
        failure: vec![delete(&nothing)],
    };
    let proof = connection.txn_within(patience, proof).await?;
    if !proof.succeeded {
        lease.lose();
        return Ok(());
    }
    if proof.term() != term {
        return Err(Status::aborted("the leader changed; the keep-alive is repeated"));
    }
    lease.extend(sent_at.after(Duration::from_secs(ttl)));
    Ok(())
}

/// Term and remaining ttl in seconds; 0 if there is no such lease.
async fn keep_alive(
    connection: &Connection,
    patience: Duration,
    id: i64,
) -> std::result::Result<(u64, i64), Status> {
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
    let answer = connection.call_within(patience, LeaseKeepAliveRequest { id }, call).await?;
    Ok((answer.header.map_or(0, |it| it.raft_term), answer.ttl))
}

async fn revoke(connection: &Connection, lease: &Lease) {
    let call = |channel, request| async move { LeaseClient::new(channel).lease_revoke(request).await };
    // If it is not heard the lease ends by its ttl.
    let _ = connection.call(LeaseRevokeRequest { id: lease.id }, call).await;
    lease.lose();
}
