//! What a server and its driver are to session locks: one session, and what is asked on it.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::Fault;
use lockkeeper_core::{ClaimId, Moment};

use super::{Claimed, Ground};
use crate::name::NameHash;

/// Why a statement failed, in the words of a server.
pub(crate) trait Trouble: fmt::Debug + Send + Sized + 'static {
    /// No answer within the time allowed.
    fn silent() -> Self;
    fn is_silent(&self) -> bool;
    /// The runtime that drives the connection has ended.
    fn no_runtime() -> Self;
    /// The fault to tell a caller who was `doing` something.
    fn fault(self, doing: &'static str) -> Fault;
}

/// What came of asking, and the moment before the question left this process.
pub(crate) type Answer<W, T> = Result<(T, Moment), <W as Conversation>::Trouble>;

/// One open session at a server. What breaks stays broken: its locks are gone.
pub(crate) trait Conversation: Send + Sync + Sized + 'static {
    /// The server, as all sessions of a store know it.
    type Site: Deref<Target = Ground> + Send + Sync + 'static;
    type Trouble: Trouble;
    /// What the server calls a lock, if that is known beforehand.
    type Name: fmt::Debug + Send + Sync;
    /// By what the server tells which lock of a session it means.
    type Mark: Copy + PartialEq + fmt::Debug + Send + Sync;

    /// The store, as faults name it.
    const NAME: &'static str;
    /// How often a session that holds something must look whether it still stands; `None` if its driver tells.
    const LOOK: Option<Duration>;

    /// The ttl of the session that keeps a lock of this ttl.
    fn ttl(ttl: Duration) -> Duration;

    fn name(site: &Self::Site, lock: &NameHash) -> Self::Name;

    /// Open one on the present runtime, with this timeout; `waits` if it is to wait for locks.
    fn open(
        site: &Arc<Self::Site>,
        ttl: Duration,
        waits: bool,
    ) -> impl Future<Output = Result<Opened<Self>, Self::Trouble>> + Send;

    fn is_closed(&self) -> bool;

    /// Never use it again.
    fn end(&self);

    /// When it has ended.
    fn ended(&self) -> impl Future<Output = ()> + Send + 'static;

    /// Take the lock with a fence of its own if it is free; or, if `wait`, when it is.
    fn take(
        &self,
        claimed: &Claimed<Self>,
        wait: bool,
    ) -> impl Future<Output = Answer<Self, Option<Taken<Self::Mark>>>> + Send;

    /// Give back what was taken for this claim.
    fn release(
        &self,
        claimed: &Claimed<Self>,
        mark: Self::Mark,
    ) -> impl Future<Output = Answer<Self, ()>> + Send;

    /// Give back whatever a take did whose answer is not known.
    fn undo(&self, claimed: &Claimed<Self>) -> impl Future<Output = Answer<Self, ()>> + Send;

    /// Give back what an operator has taken away.
    fn give_up(&self, mark: Self::Mark) -> impl Future<Output = Answer<Self, ()>> + Send;

    /// The statement that proves the session.
    fn beat(&self) -> impl Future<Output = Answer<Self, Beat<Self::Mark>>> + Send;

    /// Ask whether the server is there.
    fn look(&self) -> impl Future<Output = Answer<Self, ()>> + Send;

    /// What one session of a ttl does for all from time to time.
    fn tend(&self) -> impl Future<Output = ()> + Send;

    /// Whether the other session stands in the server's line.
    fn stands(&self, other: &Self) -> impl Future<Output = Answer<Self, bool>> + Send;

    /// End the other session, which waits. Answers whether it is known to be gone.
    fn end_other(&self, other: &Self) -> impl Future<Output = Answer<Self, bool>> + Send;

    /// Whether the other session is still there.
    fn lives(&self, other: &Self) -> impl Future<Output = Answer<Self, bool>> + Send;

    /// A claim waits (counter 0) or holds by this session since the server's clock showed `since`: for operators.
    fn stands_here(&self, _claimed: &Arc<Claimed<Self>>, _counter: u64, _since: i64) {}

    /// It neither holds nor waits any more.
    fn left(_site: &Self::Site, _id: ClaimId) {}
}

/// A session that has begun.
pub(crate) struct Opened<W> {
    pub(crate) wire: W,
    /// For how long nobody is let in: the server has started not long ago.
    pub(crate) quiet: Duration,
    /// What the server's clock showed, and when it was asked.
    pub(crate) server: i64,
    pub(crate) sent_at: Moment,
}

/// A lock that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<M> {
    pub(crate) counter: u64,
    pub(crate) mark: M,
    /// What the server's clock showed when it was granted; nothing (0) after a try, which was answered at once.
    pub(crate) server: i64,
    /// Somebody else had it when we came.
    pub(crate) waited: bool,
}

/// What a beat was answered.
#[derive(Debug)]
pub(crate) struct Beat<M> {
    /// What the server's clock showed.
    pub(crate) server: i64,
    /// Locks that somebody waits for, whoever has them.
    pub(crate) wanted: Vec<M>,
    /// Locks that this session shall give back, because an operator says so.
    pub(crate) broken: Vec<M>,
}
