//! The sessions of one ttl: one that all free locks share, and those that wait, each for one lock.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::kit::locked;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::name::NameHash;

/// The most sessions that are kept for the next who must wait. The server ends them when they are idle for the ttl.
const SPARE: usize = 16;

/// For so long a name that was waited for is waited for again, without a try on the shared session before.
const CONTENDED: Duration = Duration::from_secs(1);

/// The most names that are remembered to be contended.
const CONTENDED_MOST: usize = 1024;

/// A session whose timeout is the lease of what it holds, on either server.
pub(crate) trait Leased: fmt::Debug + Send + Sync + Sized + 'static {
    /// What all sessions of a store share.
    type Site: Send + Sync + 'static;
    type Trouble: Send + 'static;

    /// Open one; `waits` if it is to wait for locks.
    fn open(
        site: &Arc<Self::Site>,
        ttl: Duration,
        waits: bool,
    ) -> impl Future<Output = Result<Arc<Self>, Self::Trouble>> + Send;

    /// Whether it holds nothing any more, for good.
    fn is_over(&self) -> bool;

    /// End it, and with it all that it holds.
    fn end(&self);

    /// How many may wait at a time.
    fn waiting(site: &Self::Site) -> &Arc<Semaphore>;

    /// The runtime is gone.
    fn no_runtime() -> Self::Trouble;
}

/// The sessions of one runtime and ttl.
pub(crate) struct Leases<S: Leased> {
    site: Arc<S::Site>,
    pub(crate) runtime: Handle,
    pub(crate) ttl: Duration,
    shared: Mutex<Option<Arc<S>>>,
    /// Held while connecting, so that those who find the session over open one, not many.
    connecting: tokio::sync::Mutex<()>,
    spare: Mutex<Vec<Waiter<S>>>,
    contended: Mutex<HashMap<NameHash, Moment>>,
}

/// A session of its own for whoever must wait, and the permission to have it.
#[derive(Debug)]
pub(crate) struct Waiter<S> {
    pub(crate) lease: Arc<S>,
    permit: OwnedSemaphorePermit,
}

impl<S: Leased> Leases<S> {
    pub(crate) fn new(site: &Arc<S::Site>, runtime: Handle, ttl: Duration) -> Self {
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

    pub(crate) fn is_open(&self) -> bool {
        self.open_one().is_some()
    }

    fn open_one(&self) -> Option<Arc<S>> {
        locked(&self.shared).clone().filter(|it| !it.is_over())
    }

    /// The session that all free locks share.
    pub(crate) async fn shared(self: &Arc<Self>) -> Result<Arc<S>, S::Trouble> {
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
        opening.await.unwrap_or(Err(S::no_runtime()))
    }

    async fn open(&self, waits: bool) -> Result<Arc<S>, S::Trouble> {
        S::open(&self.site, self.ttl, waits).await
    }

    /// A session of its own for one who must wait. `None` if there are as many as may be.
    pub(crate) async fn waiter(self: &Arc<Self>) -> Result<Option<Waiter<S>>, S::Trouble> {
        while let Some(spare) = locked(&self.spare).pop() {
            if !spare.lease.is_over() {
                return Ok(Some(spare));
            }
        }
        let Ok(permit) = S::waiting(&self.site).clone().try_acquire_owned() else { return Ok(None) };
        let leases = self.clone();
        let opening = self.runtime.spawn(async move { leases.open(true).await });
        let lease = opening.await.unwrap_or(Err(S::no_runtime()))?;
        Ok(Some(Waiter { lease, permit }))
    }

    /// Its lock was given back: the next who must wait may have the session.
    pub(crate) fn spare(&self, waiter: Waiter<S>) {
        let mut spare = locked(&self.spare);
        spare.retain(|it| !it.lease.is_over());
        if spare.len() < SPARE && !waiter.lease.is_over() {
            spare.push(waiter);
        }
    }

    /// Whether this name is likely to be held by others.
    pub(crate) fn is_contended(&self, lock: &NameHash, now: Moment) -> bool {
        let mut contended = locked(&self.contended);
        let since = contended.get(lock).copied();
        match since {
            Some(at) if now < at.after(CONTENDED) => true,
            Some(_) => {
                contended.remove(lock);
                false
            }
            None => false,
        }
    }

    /// It was waited for, or it was not.
    pub(crate) fn note(&self, lock: NameHash, waited: bool, now: Moment) {
        let mut contended = locked(&self.contended);
        if !waited {
            contended.remove(&lock);
        } else if contended.len() < CONTENDED_MOST || contended.contains_key(&lock) {
            contended.insert(lock, now);
        } else {
            contended.retain(|_, at| now < at.after(CONTENDED));
        }
    }
}

impl<S: Leased> fmt::Debug for Leases<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

impl<S: Leased> Waiter<S> {
    /// The permission outlives the session by nothing.
    pub(crate) fn end(self) {
        self.lease.end();
        drop(self.permit);
    }
}
