//! What is known of one claim, shared by all places of it: where it holds, where it waits, or that it does neither.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::backend::Fault;
use lockkeeper_core::{Claim, Moment};
use tokio::sync::watch;

use super::leases::Waiter;
use super::{Conversation, Lease, Leases};
use crate::name::{NameHash, hash};

/// One claim. Its verbs follow one another.
pub(crate) struct Claimed<W: Conversation> {
    pub(crate) claim: Claim,
    pub(crate) lock: NameHash,
    /// What the server calls it.
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "PostgreSQL's is its number"))]
    pub(crate) name: W::Name,
    pub(super) state: tokio::sync::Mutex<State<W>>,
    /// Counts up when a wait is over, so that whoever listens asks.
    pub(super) rung: watch::Sender<u64>,
}

impl<W: Conversation> Claimed<W> {
    pub(super) fn new(claim: Claim, site: &W::Site) -> Self {
        let (lock, rung) = (hash(&claim.key), watch::Sender::new(0));
        let name = W::name(site, &lock);
        Claimed { claim, lock, name, state: tokio::sync::Mutex::new(State::Out), rung }
    }
}

impl<W: Conversation> fmt::Debug for Claimed<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed").field("claim", &self.claim).finish_non_exhaustive()
    }
}

/// Where a claim stands.
pub(super) enum State<W: Conversation> {
    Out,
    /// A take on the shared session failed, and may have taken it.
    InDoubt(Arc<Lease<W>>),
    Held(Held<W>),
    Waiting(Waiting<W>),
}

pub(super) struct Held<W: Conversation> {
    pub(super) on: On<W>,
    pub(super) mark: W::Mark,
    pub(super) counter: u64,
}

/// The session that has the lock.
pub(super) enum On<W: Conversation> {
    Shared(Arc<Lease<W>>),
    Own(Waiter<W>, Arc<Leases<W>>),
}

impl<W: Conversation> On<W> {
    pub(super) fn lease(&self) -> &Arc<Lease<W>> {
        match self {
            On::Shared(lease) => lease,
            On::Own(waiter, _) => &waiter.lease,
        }
    }
}

/// A session that stands in the server's line.
pub(super) struct Waiting<W: Conversation> {
    pub(super) waiter: Waiter<W>,
    pub(super) leases: Arc<Leases<W>>,
    pub(super) told: watch::Receiver<Option<Told<W::Mark>>>,
}

/// What came of waiting so far.
#[derive(Clone, Debug)]
pub(super) enum Told<M> {
    /// It has begun: the session stands in the server's line.
    Stands,
    /// Whether it has begun could not be found out.
    Unsure(Fault),
    LetIn {
        counter: u64,
        mark: M,
        waited: bool,
        proven_at: Moment,
    },
    /// The session is over, and its place in the line with it.
    Over,
    Failed(Fault),
}

impl<M> Told<M> {
    /// Whether nothing else comes after this.
    pub(super) fn is_outcome(&self) -> bool {
        !matches!(self, Told::Stands | Told::Unsure(_))
    }
}
