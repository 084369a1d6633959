//! What is known of one claim, shared by all places of it: where it holds, where it waits, or that it does neither.

use std::sync::Arc;

use lockkeeper_core::backend::Fault;
use lockkeeper_core::{Claim, Moment};
use tokio::sync::watch;

use super::lease::Lease;
use super::names::{StoreId, lock_name};
use super::{Leases, Waiter};
use crate::name::{NameHash, hash};

/// One claim. Its verbs follow one another.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) claim: Claim,
    pub(super) lock: NameHash,
    /// What the lock is called at the server.
    pub(super) name: String,
    pub(super) state: tokio::sync::Mutex<State>,
    /// Counts up when a wait is over, so that whoever listens asks.
    pub(super) rung: watch::Sender<u64>,
}

impl Claimed {
    pub(super) fn new(claim: Claim, store: &StoreId) -> Self {
        let (lock, rung) = (hash(&claim.key), watch::Sender::new(0));
        let name = lock_name(store, &lock);
        Claimed { claim, lock, name, state: tokio::sync::Mutex::new(State::Out), rung }
    }
}

/// Where a claim stands.
#[derive(Debug)]
pub(super) enum State {
    Out,
    /// A take on the shared session failed, and may have taken it.
    InDoubt(Arc<Lease>),
    Held(Held),
    Waiting(Waiting),
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) on: On,
    pub(super) counter: u64,
}

/// The session that has the lock.
#[derive(Debug)]
pub(super) enum On {
    Shared(Arc<Lease>),
    Own(Waiter, Arc<Leases>),
}

impl On {
    pub(super) fn lease(&self) -> &Arc<Lease> {
        match self {
            On::Shared(lease) => lease,
            On::Own(waiter, _) => &waiter.lease,
        }
    }
}

/// A session that stands in the server's line.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) waiter: Waiter,
    pub(super) leases: Arc<Leases>,
    pub(super) told: watch::Receiver<Option<Told>>,
}

/// What came of waiting.
#[derive(Clone, Debug)]
pub(super) enum Told {
    LetIn {
        counter: u64,
        waited: bool,
        proven_at: Moment,
    },
    /// The session is over, and its place in the line with it.
    Over,
    Failed(Fault),
}
