//! Chaos: a decorator over any backend that loses, delays and swallows calls as a network would.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Clock};

use crate::chance::Chance;

/// A verb of [`Place`], as chaos sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// [`Place::turn`].
    Turn,
    /// [`Place::changed`]. A lost call is a wake-up without a reason.
    Changed,
    /// [`Place::renew`].
    Renew,
    /// [`Place::leave`].
    Leave,
}

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// How long the request travels.
    pub before: Duration,
    /// What happens on the way.
    pub link: Link,
    /// How long the reply travels.
    pub after: Duration,
}

/// What happens to a call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The call reaches the store and the answer comes back.
    Whole,
    /// The store never hears of it; the caller sees an error.
    RequestLost,
    /// The store does it; the caller sees an error.
    ReplyLost,
    /// The store never hears of it; the caller waits for ever.
    Never,
    /// The store does it; the caller waits for ever.
    Unanswered,
}

impl Fate {
    /// Nothing happens to the call.
    pub const OK: Fate = Fate::at_once(Link::Whole);
    /// See [`Link::RequestLost`].
    pub const REQUEST_LOST: Fate = Fate::at_once(Link::RequestLost);
    /// See [`Link::ReplyLost`].
    pub const REPLY_LOST: Fate = Fate::at_once(Link::ReplyLost);
    /// See [`Link::Never`].
    pub const NEVER: Fate = Fate::at_once(Link::Never);
    /// See [`Link::Unanswered`].
    pub const UNANSWERED: Fate = Fate::at_once(Link::Unanswered);

    const fn at_once(link: Link) -> Fate {
        Fate {
            before: Duration::ZERO,
            link,
            after: Duration::ZERO,
        }
    }

    /// The call takes its time, there and back.
    pub const fn slow(before: Duration, after: Duration) -> Fate {
        Fate {
            before,
            link: Link::Whole,
            after,
        }
    }
}

/// How often what happens, in calls of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// See [`Link::RequestLost`].
    pub request_lost: u64,
    /// See [`Link::ReplyLost`].
    pub reply_lost: u64,
    /// See [`Link::Never`]; half of them are [`Link::Unanswered`].
    pub never: u64,
    /// Calls that take up to `slow_max` each way; all others take up to `usual_max`.
    pub slow: u64,
    /// The longest way of a slow call.
    pub slow_max: Duration,
    /// The longest way of any other call.
    pub usual_max: Duration,
}

impl Odds {
    /// Draw the fate of one call.
    pub fn draw(&self, chance: &mut Chance) -> Fate {
        let reach = if chance.per_mille(self.slow) {
            self.slow_max
        } else {
            self.usual_max
        };
        let (before, after) = (chance.span(reach), chance.span(reach));
        let link = match chance.below(1000) {
            it if it < self.request_lost => Link::RequestLost,
            it if it < self.request_lost + self.reply_lost => Link::ReplyLost,
            it if it < self.request_lost + self.reply_lost + self.never / 2 => Link::Never,
            it if it < self.request_lost + self.reply_lost + self.never => Link::Unanswered,
            _ => Link::Whole,
        };
        Fate { before, link, after }
    }
}

/// Fates planned call by call. Clones share the plan; a call that is not planned is [`Fate::OK`].
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<VecDeque<(Verb, Fate)>>>);

impl Script {
    /// Plan the fate of the next call of `verb` that has none yet.
    pub fn then(&self, verb: Verb, fate: Fate) -> &Self {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back((verb, fate));
        self
    }

    fn next(&self, verb: Verb) -> Fate {
        let mut plan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = plan.iter().position(|it| it.0 == verb);
        at.and_then(|it| plan.remove(it)).map_or(Fate::OK, |it| it.1)
    }
}

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
        Chaos {
            inner,
            clock,
            decide: Arc::new(Mutex::new(decide)),
        }
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

    fn enter(&self, claim: Claim) -> Self::Place {
        let name = self.profile().name;
        let (clock, decide) = (self.clock.clone(), self.decide.clone());
        let wire = Wire {
            name,
            clock,
            decide,
            claim: claim.clone(),
        };
        ChaosPlace {
            inner: self.inner.enter(claim),
            wire,
        }
    }
}

/// A place behind a bad network.
#[derive(Debug)]
pub struct ChaosPlace<P> {
    inner: P,
    wire: Wire,
}

struct Wire {
    name: &'static str,
    clock: Clock,
    decide: Decide,
    claim: Claim,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("claim", &self.claim)
            .finish_non_exhaustive()
    }
}

impl Wire {
    fn fate(&self, verb: Verb) -> Fate {
        self.decide.lock().unwrap_or_else(PoisonError::into_inner)(verb, &self.claim)
    }

    async fn carry<T>(&self, verb: Verb, call: impl Future<Output = Result<T>>) -> Result<T> {
        let fate = self.fate(verb);
        let lost = |what| Err(Fault::transient(self.name, "crossing a bad network", what));
        self.clock.sleep(fate.before).await;
        match fate.link {
            Link::RequestLost => return lost("the request was lost"),
            Link::Never => return pending().await,
            Link::Whole | Link::ReplyLost | Link::Unanswered => {}
        }
        let answer = call.await;
        self.clock.sleep(fate.after).await;
        match fate.link {
            Link::ReplyLost => lost("the reply was lost"),
            Link::Unanswered => pending().await,
            _ => answer,
        }
    }
}

impl<P: Place> Place for ChaosPlace<P> {
    async fn turn(&mut self) -> Result<Turn> {
        self.wire.carry(Verb::Turn, self.inner.turn()).await
    }

    async fn changed(&mut self) {
        let changed = async {
            self.inner.changed().await;
            Ok(())
        };
        // A lost call comes back as an error, and an error here is a wake-up without a reason.
        let _ = self.wire.carry(Verb::Changed, changed).await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.wire.carry(Verb::Renew, self.inner.renew()).await
    }

    async fn leave(&mut self) -> Result<()> {
        self.wire.carry(Verb::Leave, self.inner.leave()).await
    }
}
