//! Chaos: a decorator over any backend that loses, delays and swallows calls as a network would.

use std::fmt;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::kit::locked;
use lockkeeper_core::memos::DynMemos;
use lockkeeper_core::node::{Node, RaiseCounter, Standing};
use lockkeeper_core::{Claim, Clock, Load};

use crate::chance::Chance;

mod fate;

pub use fate::{Delivery, Fate, Odds, Script, Verb};

type Decide = Arc<Mutex<dyn FnMut(Verb, &Claim) -> Fate + Send>>;

/// A backend behind a bad network. It never answers at once, whatever the store inside can do.
pub struct Chaos<B> {
    inner: B,
    clock: Clock,
    decide: Decide,
}

impl<B: Backend> Chaos<B> {
    /// `inner` behind a network where `decide` gives every call its fate. Delays are `clock`'s.
    pub fn new(inner: B, clock: Clock, decide: impl FnMut(Verb, &Claim) -> Fate + Send + 'static) -> Self {
        Chaos { inner, clock, decide: Arc::new(Mutex::new(decide)) }
    }

    /// `inner` behind a network that follows `script`.
    pub fn scripted(inner: B, clock: Clock, script: &Script) -> Self {
        let script = script.clone();
        Chaos::new(inner, clock, move |verb, _| script.next(verb))
    }

    /// `inner` behind a network that draws fates by `odds`, the same for the same seed and order of calls.
    pub fn seeded(inner: B, clock: Clock, seed: u64, odds: Odds) -> Self {
        let mut chance = Chance::seeded(seed);
        Chaos::new(inner, clock, move |_, _| odds.draw(&mut chance))
    }
}

impl<B: fmt::Debug> fmt::Debug for Chaos<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Chaos").field(&self.inner).finish()
    }
}

impl<B: Backend> Backend for Chaos<B> {
    type Place = ChaosPlace<B::Place>;

    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    /// As they are: what happens to calls here happens to locks.
    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        self.inner.memos()
    }

    fn enter(&self, claim: Claim) -> Self::Place {
        let name = self.profile().name;
        let (clock, decide) = (self.clock.clone(), self.decide.clone());
        let network = Network { name, clock, decide, claim: claim.clone() };
        ChaosPlace { inner: self.inner.enter(claim), network }
    }
}

/// A place behind a bad network.
#[derive(Debug)]
pub struct ChaosPlace<P> {
    inner: P,
    network: Network,
}

struct Network {
    name: &'static str,
    clock: Clock,
    decide: Decide,
    claim: Claim,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("claim", &self.claim).finish_non_exhaustive()
    }
}

impl Network {
    fn fate(&self, verb: Verb) -> Fate {
        locked(&self.decide)(verb, &self.claim)
    }

    async fn carry<T>(&self, verb: Verb, call: impl Future<Output = Result<T>>) -> Result<T> {
        let fate = self.fate(verb);
        let lost = |what| Err(Fault::transient(self.name, "crossing a bad network", what));
        self.clock.sleep(fate.before).await;
        match fate.delivery {
            Delivery::RequestLost => return lost("the request was lost"),
            Delivery::Never => return pending().await,
            Delivery::Whole | Delivery::ReplyLost | Delivery::Unanswered => {}
        }
        let answer = call.await;
        self.clock.sleep(fate.after).await;
        match fate.delivery {
            Delivery::ReplyLost => lost("the reply was lost"),
            Delivery::Unanswered => pending().await,
            _ => answer,
        }
    }
}

impl<P: Place> Place for ChaosPlace<P> {
    async fn turn(&mut self) -> Result<Turn> {
        self.network.carry(Verb::Turn, self.inner.turn()).await
    }

    async fn changed(&mut self) {
        let changed = async {
            self.inner.changed().await;
            Ok(())
        };
        // A lost call comes back as an error, and an error here is a wake-up without a reason.
        let _ = self.network.carry(Verb::Changed, changed).await;
    }

    fn was_called(&self) -> bool {
        self.inner.was_called()
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.network.carry(Verb::Renew, self.inner.renew()).await
    }

    async fn leave(&mut self) -> Result<()> {
        self.network.carry(Verb::Leave, self.inner.leave()).await
    }

    /// What happens to a leave happens to it.
    async fn linger(&mut self, span: Duration) -> Result<()> {
        self.network.carry(Verb::Leave, self.inner.linger(span)).await
    }

    /// What happens to a renewal happens to it.
    async fn lower(&mut self, load: Load) -> Result<bool> {
        self.network.carry(Verb::Renew, self.inner.lower(load)).await
    }
}

/// What a node tells of itself comes through: it is about the node, not about a claim.
impl<B: Node> Node for Chaos<B> {
    fn standing(&self) -> impl Future<Output = Result<Standing>> + Send {
        self.inner.standing()
    }
}

impl<P: RaiseCounter> RaiseCounter for ChaosPlace<P> {
    async fn raise(&mut self, counter: u64) -> Result<Option<u64>> {
        self.network.carry(Verb::Raise, self.inner.raise(counter)).await
    }
}
