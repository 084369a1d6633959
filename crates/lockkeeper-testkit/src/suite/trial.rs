//! A trial: one run of one case, with its own key, its own record and its own ttl.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Lease, Order, Profile, Rooms};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::{Claim, ClaimId, Clock, Key, Label, Load};

use super::contender::Contender;
use super::harness::Harness;
use crate::chaos::{Chaos, Script};
use crate::history::{self, History, Violation};

/// What a case answers.
pub type Verdict = Result<Outcome, Failure>;

/// How a case that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store does what the contract says.
    Shown,
    /// The store's profile does not promise it, so there was nothing to show.
    NotPromised(&'static str),
}

/// Why a case failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The store broke the contract.
    Broken(String),
    /// The machine was too slow to tell: something could have expired, rightly, before it was looked at.
    Stalled(String),
}

impl Failure {
    /// The store broke the contract.
    pub fn broken(what: impl fmt::Display) -> Self {
        Failure::Broken(what.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Broken(what) => f.write_str(what),
            Failure::Stalled(what) => write!(f, "the machine was too slow to tell: {what}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::broken(format!("a healthy store answered with an error: {fault}"))
    }
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        Failure::broken(violation)
    }
}

/// One run of one case.
#[derive(Debug)]
pub struct Trial<H> {
    harness: Arc<H>,
    /// The clock of the case.
    pub clock: Clock,
    /// The lock that the case is about; nobody else uses it.
    pub key: Key,
    /// The ttl of the case's claims.
    pub ttl: Duration,
    /// After how long a wait is called a hang.
    pub patience: Duration,
    /// What the contenders saw. Exclusion and growing counters are checked at the end of every case.
    pub history: History,
}

/// How often a case may begin again, each time with twice the ttl.
const TRIES_MAX: u32 = 6;

impl<H: Harness> Trial<H> {
    fn new(harness: Arc<H>, ttl: Duration) -> Result<Self, Failure> {
        let clock = harness.clock();
        Ok(Trial {
            key: harness.key()?,
            patience: harness.patience().max(ttl * 20),
            history: History::new(clock.clone()),
            harness,
            clock,
            ttl,
        })
    }

    /// A fresh backend, as a new process would have.
    pub async fn connect(&self) -> H::Backend {
        self.harness.connect().await
    }

    /// A fresh backend behind a network that follows `script`.
    pub async fn connect_through(&self, script: &Script) -> Chaos<H::Backend> {
        Chaos::scripted(self.connect().await, self.clock.clone(), script)
    }

    /// See [`Harness::inspect`].
    pub fn inspect<'b>(&self, backend: &'b H::Backend) -> Option<&'b dyn DynInspect> {
        self.harness.inspect(backend)
    }

    /// A second name that nobody else uses.
    ///
    /// # Errors
    /// If the system has no randomness to give.
    pub fn another_key(&self) -> Result<Key, Failure> {
        self.harness.key()
    }

    /// A patient claim to the case's lock, as a mutex.
    ///
    /// # Errors
    /// If the system has no randomness to give.
    pub fn claim(&self) -> Result<Claim, Failure> {
        let id = ClaimId::random().map_err(Failure::broken)?;
        Ok(Claim::known_as(id, self.key.clone(), self.ttl)
            .labelled(Arc::new(Label::of_this_process().with(Some(&id.to_hex()), None))))
    }

    /// A claim of `weight` in a room of `capacity`.
    ///
    /// # Errors
    /// As [`Trial::claim`].
    pub fn weighing(&self, weight: u32, capacity: u32) -> Result<Claim, Failure> {
        Ok(self.claim()?.load(Load::new(weight, capacity)))
    }

    /// A claim that does not wait.
    ///
    /// # Errors
    /// As [`Trial::claim`].
    pub fn impatient(&self) -> Result<Claim, Failure> {
        Ok(self.claim()?.impatient())
    }

    /// Somebody with an ordinary claim to the case's lock.
    ///
    /// # Errors
    /// As [`Trial::claim`].
    pub fn contender<B: Backend>(&self, backend: &B) -> Result<Contender<B::Place>, Failure> {
        Ok(self.contender_with(backend, self.claim()?))
    }

    /// Somebody with this claim.
    pub fn contender_with<B: Backend>(&self, backend: &B, claim: Claim) -> Contender<B::Place> {
        let lease = backend.profile().lease;
        Contender::new(
            backend.enter(claim.clone()),
            claim,
            lease,
            self.history.clone(),
            self.clock.clone(),
            self.patience,
        )
    }

    /// The process of `backend` dies with everybody in it.
    pub async fn crash(
        &self,
        backend: H::Backend,
        contenders: impl IntoIterator<Item = Contender<<H::Backend as Backend>::Place>>,
    ) {
        let places = contenders.into_iter().map(Contender::crash).collect();
        self.harness.crash(backend, places).await;
    }

    /// The lock is free, now, and nobody is behind whoever takes it: a stranger who will not wait gets it.
    ///
    /// # Errors
    /// If he does not.
    pub async fn nothing_is_left<B: Backend>(&self, backend: &B, after: &str) -> Result<(), Failure> {
        let mut stranger = self.contender_with(backend, self.impatient()?);
        let grant = stranger.takes_at_once(&format!("after {after} nobody should be in the way")).await?;
        if grant.wanted {
            return Err(Failure::broken(format!("after {after} the store still says that somebody waits")));
        }
        stranger.leaves().await
    }

    /// Run `case` in trials of its own until the machine is fast enough for one.
    ///
    /// # Errors
    /// What the case or the checkers found.
    pub async fn run(harness: &Arc<H>, case: impl AsyncFn(&Trial<H>) -> Verdict) -> Verdict {
        let mut ttl = harness.ttl();
        let mut stalled = String::new();
        for _ in 0..TRIES_MAX {
            let trial = Trial::new(harness.clone(), ttl)?;
            let verdict = case(&trial).await;
            let events = trial.history.events();
            // What the checkers find is found on any machine, however slow.
            history::exclusion(&events)?;
            history::fences(&events)?;
            match verdict {
                Err(Failure::Stalled(what)) => stalled = what,
                verdict => return verdict,
            }
            ttl *= 2;
        }
        Err(Failure::Stalled(format!("{stalled} ({TRIES_MAX} tries, the last with a ttl of {ttl:?})")))
    }
}

/// `NotPromised` unless the store promises first come, first served.
pub(super) fn unless_fifo(profile: Profile) -> Option<Outcome> {
    (profile.order != Order::Fifo).then_some(Outcome::NotPromised("the profile says Order::Barging"))
}

/// `NotPromised` unless the store can hold any weight.
pub(super) fn unless_weighted(profile: Profile) -> Option<Outcome> {
    (profile.rooms != Rooms::Weighted).then_some(Outcome::NotPromised("the profile says Rooms::MutexOnly"))
}

/// `NotPromised` unless each claim expires by itself.
pub(super) fn unless_leased_by_claim(profile: Profile) -> Option<Outcome> {
    (profile.lease != Lease::Claim).then_some(Outcome::NotPromised("the profile says Lease::Session"))
}

/// What a test made by [`suite!`](crate::suite!) does: its own runtime, its own harness, one case.
///
/// A case that the profile does not promise is told on standard error, past the capture of the test
/// runner: a suite that shows less than it seems to must be seen to do so.
///
/// # Panics
/// If the case fails; that is how a test says so.
pub fn test<H: Harness, M: Future<Output = H>>(
    name: &str,
    make: impl FnOnce() -> M,
    case: impl AsyncFn(&Trial<H>) -> Verdict,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(it) => it,
        Err(error) => panic!("{name}: no runtime to run in: {error}"),
    };
    let verdict = runtime.block_on(async {
        let harness = Arc::new(make().await);
        Trial::run(&harness, case).await
    });
    match verdict {
        Ok(Outcome::Shown) => {}
        Ok(Outcome::NotPromised(why)) => {
            let _ = writeln!(std::io::stderr(), "suite: {name} shows nothing here: {why}");
        }
        Err(failure) => panic!("{name}: {failure}"),
    }
}
