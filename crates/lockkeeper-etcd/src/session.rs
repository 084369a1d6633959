//! Our leases: what of ours dies when the cluster does not hear from us, and until when it surely lives.
//!
//! There is one lease for every ttl that claims of this process ask for, however many locks it carries. Each
//! has a deadline of its own, which counts from when a confirmed keep-alive was *sent*; see `beat.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::kit::{Proof, locked};
use tokio::sync::Mutex as AsyncMutex;

use crate::beat::beat;
use crate::connection::Connection;
use crate::fault::{self, NAME};
use crate::names::Names;
use crate::stray;
use crate::wire::lease_client::LeaseClient;
use crate::wire::{Answer as _, LeaseGrantRequest, LeaseRevokeRequest, TxnRequest, put};

const ASKING: &str = "asking for a lease";
/// Keep-alives per ttl.
const BEATS: u32 = 5;
/// A heartbeat is two round trips, and the next must be confirmed before the last one's time is over.
const TRIPS_PER_TTL: u32 = 4;
/// How often the network is measured again before it is called too slow.
const MEASURED: u32 = 5;
/// A lease that nobody uses is kept this long, so that the next lock need not wait for one.
const IDLE_MAX: Duration = Duration::from_secs(60);

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
    pub(crate) marked_at: i64,
    epoch: Mutex<i64>,
    /// Until when the cluster surely keeps it.
    pub(crate) proof: Proof,
}

impl Lease {
    /// The revision at which the marker was last written, as far as we know.
    pub(crate) fn epoch(&self) -> i64 {
        *locked(&self.epoch)
    }

    pub(crate) fn set_epoch(&self, revision: i64) {
        let mut epoch = locked(&self.epoch);
        *epoch = revision.max(*epoch);
    }
}

/// The lease of one ttl.
#[derive(Debug, Default)]
struct Class {
    /// The one in use, if there is one.
    lease: Mutex<Option<Arc<Lease>>>,
    /// Held by whoever asks for a new one.
    asking: AsyncMutex<()>,
}

impl Class {
    fn living(&self) -> Option<Arc<Lease>> {
        locked(&self.lease).clone().filter(|it| !it.proof.is_lost())
    }
}

/// The leases of this process, by ttl in seconds.
#[derive(Debug)]
pub(crate) struct Sessions {
    connection: Arc<Connection>,
    classes: Mutex<HashMap<i64, Arc<Class>>>,
}

impl Sessions {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Sessions { connection, classes: Mutex::default() }
    }

    /// The lease for claims of this ttl; a new one if there is none or the last one was lost.
    pub(crate) async fn lease(&self, ttl: Duration) -> Result<Arc<Lease>> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let class = locked(&self.classes).entry(seconds).or_default().clone();
        if let Some(lease) = class.living() {
            return Ok(lease);
        }
        // Whoever comes first asks for all, on our own thread: the caller's may stand still.
        let connection = self.connection.clone();
        let asked = self.connection.driver.spawn(ask(connection, class, seconds));
        asked.await.map_err(|_| Fault::transient(NAME, ASKING, "the thread for etcd has ended"))?
    }

    /// Give all leases back, at most for `bound`. What is not confirmed then ends by its ttl.
    pub(crate) async fn end(&self, bound: Duration) {
        let classes: Vec<_> = locked(&self.classes).drain().map(|it| it.1).collect();
        let revoked = async {
            for class in classes {
                let _alone = class.asking.lock().await;
                let lease = locked(&class.lease).take();
                if let Some(lease) = lease {
                    revoke(&self.connection, &lease).await;
                }
            }
        };
        tokio::select! {
            () = revoked => {}
            () = self.connection.clock.sleep(bound) => {}
        }
    }
}

async fn ask(connection: Arc<Connection>, class: Arc<Class>, seconds: i64) -> Result<Arc<Lease>> {
    let _alone = class.asking.lock().await;
    if let Some(lease) = class.living() {
        return Ok(lease);
    }
    let fresh = Arc::new(grant(&connection, seconds).await?);
    *locked(&class.lease) = Some(fresh.clone());
    tokio::spawn(keep(connection.clone(), fresh.clone(), class.clone()));
    Ok(fresh)
}

async fn grant(connection: &Connection, seconds: i64) -> Result<Lease> {
    let asked_at = connection.clock.now();
    let (id, ttl) = grant_id(connection, seconds).await?;
    let marker = Bytes::from(format!("{}/sessions/{:016x}", connection.options.prefix, id));
    let mark = TxnRequest { success: vec![put(&marker, "", id)], ..TxnRequest::default() };
    let marked = connection.txn(mark).await.map_err(|it| fault::from_status(ASKING, &it));
    let enough = long_enough(connection, ttl).await;
    let marked = match (marked, enough) {
        (Ok(marked), Ok(())) => marked,
        (Err(fault), _) | (_, Err(fault)) => {
            // Nobody will use it.
            revoke_id(connection, id).await;
            return Err(fault);
        }
    };
    Ok(Lease {
        id,
        ttl,
        marker,
        names: Names::default(),
        marked_at: marked.revision(),
        epoch: Mutex::new(marked.revision()),
        proof: Proof::until(asked_at.after(ttl)),
    })
}

/// A bare lease of so many seconds, and what the server made of them.
pub(crate) async fn grant_id(connection: &Connection, seconds: i64) -> Result<(i64, Duration)> {
    let grant = LeaseGrantRequest { ttl: seconds, id: 0 };
    let call = |channel, request| async move { LeaseClient::new(channel).lease_grant(request).await };
    let granted = connection.call(grant, call).await.map_err(|it| fault::from_status(ASKING, &it))?;
    let ttl = u64::try_from(granted.ttl).ok().filter(|it| *it != 0 && granted.error.is_empty());
    match ttl {
        Some(ttl) => Ok((granted.id, Duration::from_secs(ttl))),
        None => Err(Fault::transient(NAME, ASKING, granted.error)),
    }
}

/// A ttl that the network is too slow for is refused in words: its lock would be lost again and again.
async fn long_enough(connection: &Connection, ttl: Duration) -> Result<()> {
    // A machine that stood still for a moment is no slow network.
    for _ in 0..MEASURED {
        if connection.trips.quickest() * TRIPS_PER_TTL <= ttl {
            return Ok(());
        }
        let nothing = TxnRequest::default();
        connection.txn(nothing).await.map_err(|it| fault::from_status(ASKING, &it))?;
    }
    let trip = connection.trips.quickest();
    let least = trip * TRIPS_PER_TTL;
    if least <= ttl {
        return Ok(());
    }
    let text = format!(
        "a ttl of {ttl:?} is too short for this network, where an answer takes {trip:.1?}: a lock could not be kept; \
         use at least {}s",
        least.as_secs() + 1
    );
    Err(Fault::permanent(NAME, ASKING, text))
}

/// Keep a lease alive until it is lost or nobody has used it for a while.
async fn keep(connection: Arc<Connection>, lease: Arc<Lease>, class: Arc<Class>) {
    let clock = connection.clock.clone();
    let (mut used_at, mut began_at, mut tidied_at) = (clock.now(), clock.now(), connection.dials());
    while !lease.proof.is_lost() {
        clock.sleep_until(began_at.after(lease.ttl / BEATS)).await;
        began_at = clock.now();
        beat(&connection, &lease).await;
        let dials = connection.dials();
        if dials != tidied_at && !lease.proof.is_lost() && stray::remove(&connection, &lease).await.is_ok() {
            tidied_at = dials;
        }
        // One is ours and one is the class's.
        if 2 < Arc::strong_count(&lease) {
            used_at = clock.now();
        } else if IDLE_MAX.max(lease.ttl * 2) < clock.now() - used_at {
            let mut current = locked(&class.lease);
            if Arc::strong_count(&lease) <= 2 {
                *current = None;
                break;
            }
        }
    }
    if !lease.proof.is_lost() {
        revoke(&connection, &lease).await;
    }
}

/// End a lease, and everything under it.
pub(crate) async fn revoke(connection: &Connection, lease: &Lease) {
    revoke_id(connection, lease.id).await;
    lease.proof.lose();
}

pub(crate) async fn revoke_id(connection: &Connection, id: i64) {
    let call = |channel, request| async move { LeaseClient::new(channel).lease_revoke(request).await };
    // If it is not heard the lease ends by its ttl.
    let _ = connection.call(LeaseRevokeRequest { id }, call).await;
}
