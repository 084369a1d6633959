//! The sessions of one ttl: one that all free locks share, and those that wait, each for one lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::kit::locked;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::Lease;
use super::conversation::{Conversation, Trouble as _};
use crate::name::NameHash;

/// The most sessions that are kept for the next who must wait. The server ends them when they are idle for the ttl.
const SPARE: usize = 16;

/// For so long a name that was waited for is waited for again, without a try on the shared session before.
const CONTENDED: Duration = Duration::from_secs(1);

/// The most names that are remembered to be contended.
const CONTENDED_MOST: usize = 1024;

/// The sessions of one runtime and ttl.
pub(super) struct Leases<W: Conversation> {
    site: Arc<W::Site>,
    pub(super) runtime: Handle,
    pub(super) ttl: Duration,
    shared: Mutex<Option<Arc<Lease<W>>>>,
    /// Held while connecting, so that those who find the session over open one, not many.
    connecting: tokio::sync::Mutex<()>,
    spare: Mutex<Vec<Waiter<W>>>,
    /// Names that were waited for: when that was last, and for how long.
    contended: Mutex<HashMap<NameHash, (Moment, Duration)>>,
}

/// A session of its own for whoever must wait, and the permission to have it.
pub(super) struct Waiter<W: Conversation> {
    pub(super) lease: Arc<Lease<W>>,
    permit: OwnedSemaphorePermit,
}

impl<W: Conversation> Leases<W> {
    pub(super) fn new(site: &Arc<W::Site>, runtime: Handle, ttl: Duration) -> Self {
        Leases {
            site: site.clone(),
            runtime,
            ttl,
            shared: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            spare: Mutex::default(),
            contended: Mutex::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open_one().is_some()
    }

    fn open_one(&self) -> Option<Arc<Lease<W>>> {
        locked(&self.shared).clone().filter(|it| !it.is_over())
    }

    /// The session that all free locks share.
    pub(super) async fn shared(self: &Arc<Self>) -> Result<Arc<Lease<W>>, W::Trouble> {
        if let Some(lease) = self.open_one() {
            return Ok(lease);
        }
        let leases = self.clone();
        // By a task of its own: whoever wants it may go away, and others want it, too.
        let opening = self.runtime.spawn(async move {
            let _connecting = leases.connecting.lock().await;
            if let Some(lease) = leases.open_one() {
                return Ok(lease);
            }
            let lease = leases.open(false).await?;
            // Whoever holds locks on the one before it learns that by itself.
            *locked(&leases.shared) = Some(lease.clone());
            Ok(lease)
        });
        opening.await.unwrap_or(Err(W::Trouble::no_runtime()))
    }

    async fn open(&self, waits: bool) -> Result<Arc<Lease<W>>, W::Trouble> {
        Lease::open(&self.site, self.ttl, waits).await
    }

    /// A session of its own for one who must wait. `None` if there are as many as may be.
    pub(super) async fn waiter(self: &Arc<Self>) -> Result<Option<Waiter<W>>, W::Trouble> {
        while let Some(spare) = locked(&self.spare).pop() {
            if !spare.lease.is_over() {
                return Ok(Some(spare));
            }
        }
        let Ok(permit) = self.site.waiting.clone().try_acquire_owned() else { return Ok(None) };
        let leases = self.clone();
        let opening = self.runtime.spawn(async move { leases.open(true).await });
        let lease = opening.await.unwrap_or(Err(W::Trouble::no_runtime()))?;
        Ok(Some(Waiter { lease, permit }))
    }

    /// Its lock was given back: the next who must wait may have the session.
    pub(super) fn spare(&self, waiter: Waiter<W>) {
        let mut spare = locked(&self.spare);
        spare.retain(|it| !it.lease.is_over());
        if spare.len() < SPARE && !waiter.lease.is_over() {
            spare.push(waiter);
        }
    }

    /// Whether this name is likely to be held by others.
    pub(super) fn is_contended(&self, lock: &NameHash, now: Moment) -> bool {
        let mut contended = locked(&self.contended);
        let since = contended.get(lock).map(|it| it.0);
        match since {
            Some(at) if now < at.after(CONTENDED) => true,
            Some(_) => {
                contended.remove(lock);
                false
            }
            None => false,
        }
    }

    /// For how long this name may be waited for, by the last wait: twice as long.
    pub(super) fn expected(&self, lock: &NameHash) -> Duration {
        locked(&self.contended).get(lock).map_or(Duration::ZERO, |it| it.1 * 2)
    }

    /// It was waited for, for so long; or it was not.
    pub(super) fn note(&self, lock: NameHash, waited: Option<Duration>, now: Moment) {
        let mut contended = locked(&self.contended);
        let Some(waited) = waited else {
            contended.remove(&lock);
            return;
        };
        if contended.len() < CONTENDED_MOST || contended.contains_key(&lock) {
            contended.insert(lock, (now, waited));
        } else {
            contended.retain(|_, it| now < it.0.after(CONTENDED));
        }
    }
}

impl<W: Conversation> Waiter<W> {
    /// The permission outlives the session by nothing.
    pub(super) fn end(self) {
        self.lease.end();
        drop(self.permit);
    }
}
