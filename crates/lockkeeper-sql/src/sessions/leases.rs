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
    shared: Mutex<Option<Shared<W>>>,
    /// Held while connecting, so that those who find the session over open one, not many.
    connecting: tokio::sync::Mutex<()>,
    /// Sessions that have waited. They have no permission: it is for those who wait now, with whatever ttl.
    spare: Mutex<Vec<Arc<Lease<W>>>>,
    /// Names that others held: when that was last, and whether somebody was let in then.
    contended: Mutex<HashMap<NameHash, (Moment, bool)>>,
}

/// The session that all free locks share, and when somebody last asked for it.
struct Shared<W: Conversation> {
    lease: Arc<Lease<W>>,
    used_at: Moment,
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
        locked(&self.shared).as_ref().is_some_and(|it| !it.lease.is_over())
    }

    /// The shared session, for whoever is about to use it.
    fn open_one(&self) -> Option<Arc<Lease<W>>> {
        let mut shared = locked(&self.shared);
        let found = shared.as_mut().filter(|it| !it.lease.is_over())?;
        found.used_at = self.site.clock.now();
        Some(found.lease.clone())
    }

    /// Give up the shared session if nobody has used it for long: programs may use many ttls, and connections are few. It ends
    /// when its caller drops it.
    pub(super) fn retire(&self, lease: &Arc<Lease<W>>) -> bool {
        let (now, mut shared) = (self.site.clock.now(), locked(&self.shared));
        let Some(found) = shared.as_mut().filter(|it| Arc::ptr_eq(&it.lease, lease)) else { return false };
        // Two are the one here and the caller's. Whoever has another is about to ask, or holds something; and nobody gets one
        // while this is locked.
        if 2 < Arc::strong_count(lease) || lease.holds() {
            found.used_at = now;
        }
        let over = found.used_at.after(self.site.idle.max(self.ttl)) <= now;
        if over {
            *shared = None;
        }
        over
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
            let used_at = leases.site.clock.now();
            *locked(&leases.shared) = Some(Shared { lease: lease.clone(), used_at });
            Ok(lease)
        });
        opening.await.unwrap_or(Err(W::Trouble::no_runtime()))
    }

    async fn open(self: &Arc<Self>, waits: bool) -> Result<Arc<Lease<W>>, W::Trouble> {
        Lease::open(self, &self.site, waits).await
    }

    /// A session of its own for one who must wait. `None` if there are as many as may be.
    pub(super) async fn waiter(self: &Arc<Self>) -> Result<Option<Waiter<W>>, W::Trouble> {
        let Ok(permit) = self.site.waiting.clone().try_acquire_owned() else { return Ok(None) };
        if let Some(lease) = self.take_spare() {
            return Ok(Some(Waiter { lease, permit }));
        }
        let leases = self.clone();
        let opening = self.runtime.spawn(async move { leases.open(true).await });
        let lease = opening.await.unwrap_or(Err(W::Trouble::no_runtime()))?;
        Ok(Some(Waiter { lease, permit }))
    }

    fn take_spare(&self) -> Option<Arc<Lease<W>>> {
        let mut spare = locked(&self.spare);
        spare.retain(|it| !it.is_over());
        spare.pop()
    }

    /// Its lock was given back: the next who must wait may have the session, and the permission whoever comes first.
    pub(super) fn spare(&self, waiter: Waiter<W>) {
        let Waiter { lease, permit } = waiter;
        drop(permit);
        let mut spare = locked(&self.spare);
        spare.retain(|it| !it.is_over());
        if spare.len() < SPARE && !lease.is_over() {
            spare.push(lease);
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

    /// Whether this name is handed on: somebody here has waited for it a moment ago, and was let in.
    pub(super) fn is_handed_on(&self, lock: &NameHash) -> bool {
        locked(&self.contended).get(lock).is_some_and(|it| it.1)
    }

    /// Nobody else had it.
    pub(super) fn free(&self, lock: &NameHash) {
        locked(&self.contended).remove(lock);
    }

    /// Others had it, and have `handed_on` it to somebody here.
    pub(super) fn met(&self, lock: NameHash, handed_on: bool, now: Moment) {
        let mut contended = locked(&self.contended);
        if contended.len() < CONTENDED_MOST || contended.contains_key(&lock) {
            contended.insert(lock, (now, handed_on));
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
