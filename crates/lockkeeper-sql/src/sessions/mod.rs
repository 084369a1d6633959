//! Session locks, whichever server keeps them: the walk of a place, a session's lease, and what a store's claims share.
//!
//! A free lock is one statement on a session that all locks of one ttl share; one that is held elsewhere is waited for by
//! a session of its own, which the server wakes. What differs from server to server and from driver to driver is `Conversation`.

mod claimed;
mod conversation;
mod lease;
mod leases;
mod place;
mod reckoning;
mod wait;

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Claim, ClaimId, Clock};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

pub(crate) use claimed::Claimed;
pub(crate) use conversation::{Beat, Conversation, Opened, Taken, Trouble};
use lease::Lease;
use leases::Leases;
pub(crate) use place::{SessionPlace, session_place};

/// What all sessions of a store share on any server.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) clock: Clock,
    /// How long an answer is waited for.
    timeout: Duration,
    /// How many sessions may wait at once.
    waiting: Arc<Semaphore>,
    /// Counts up when a session ends, so that what it held is told to be lost.
    alarm: watch::Sender<u64>,
    /// After how long a session that nobody uses is closed, if its ttl is not longer.
    idle: Duration,
}

impl Ground {
    pub(crate) fn new(timeout: Duration, waiting_max: usize, idle: Duration) -> Self {
        Ground {
            clock: Clock::boot(),
            timeout,
            waiting: Arc::new(Semaphore::new(waiting_max.min(Semaphore::MAX_PERMITS))),
            alarm: watch::Sender::new(0),
            idle,
        }
    }

    pub(crate) fn alarm(&self) -> watch::Receiver<u64> {
        self.alarm.subscribe()
    }

    /// A session has ended: whoever holds something looks whether it was by that one.
    fn tell_of_an_end(&self) {
        self.alarm.send_modify(|it| *it = it.wrapping_add(1));
    }

    /// An answer that comes soon, or the word that it did not.
    pub(crate) async fn in_time<T, E: Trouble>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.clock.sleep(self.timeout) => Err(E::silent()),
        }
    }
}

/// What all claims of one process have in common.
pub(crate) struct Store<W: Conversation> {
    /// The server, as its sessions know it. It knows none of them: they end with the store.
    site: Arc<W::Site>,
    /// The sessions of each runtime and ttl.
    leases: Mutex<Vec<Arc<Leases<W>>>>,
    /// What is known of each claim: places of the same claim share it.
    claims: Mutex<HashMap<ClaimId, Weak<Claimed<W>>>>,
}

impl<W: Conversation> Deref for Store<W> {
    type Target = W::Site;

    fn deref(&self) -> &W::Site {
        &self.site
    }
}

impl<W: Conversation> fmt::Debug for Store<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl<W: Conversation> Store<W> {
    pub(crate) fn new(site: W::Site) -> Arc<Self> {
        Arc::new(Store { site: Arc::new(site), leases: Mutex::default(), claims: Mutex::default() })
    }

    /// The sessions of the present runtime for this ttl.
    fn leases(&self, ttl: Duration) -> Result<Arc<Leases<W>>, W::Trouble> {
        let (own, ttl) = (Handle::try_current().map_err(|_| W::Trouble::no_runtime())?, W::ttl(ttl));
        let mut all = locked(&self.leases);
        if let Some(leases) = all.iter().find(|it| it.ttl == ttl && it.runtime.id() == own.id()) {
            return Ok(leases.clone());
        }
        // Runtimes that have ended take their sessions with them.
        all.retain(|it| it.is_open() || 1 < Arc::strong_count(it));
        let leases = Arc::new(Leases::new(&self.site, own, ttl));
        all.push(leases.clone());
        Ok(leases)
    }

    /// What is known of this claim.
    fn claimed(&self, claim: &Claim) -> Arc<Claimed<W>> {
        let mut claims = locked(&self.claims);
        if let Some(claimed) = claims.get(&claim.id).and_then(Weak::upgrade) {
            return claimed;
        }
        let claimed = Arc::new(Claimed::<W>::new(claim.clone(), &self.site));
        claims.insert(claim.id, Arc::downgrade(&claimed));
        claimed
    }

    /// A place is gone; perhaps it was the last of its claim.
    fn forget(&self, id: ClaimId) {
        let mut claims = locked(&self.claims);
        if claims.get(&id).is_some_and(|it| it.strong_count() == 0) {
            claims.remove(&id);
        }
    }
}
