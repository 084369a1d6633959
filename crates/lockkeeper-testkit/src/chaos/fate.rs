//! Fates: what becomes of one call, planned by a script or drawn by odds.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::chance::Chance;

/// A verb of [`Place`](lockkeeper_core::backend::Place), as chaos sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// `turn`.
    Turn,
    /// `changed`. A lost call is a wake-up without a reason.
    Changed,
    /// `renew`.
    Renew,
    /// `leave`.
    Leave,
    /// `raise`, of places at one of several nodes.
    Raise,
}

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// How long the request travels.
    pub before: Duration,
    /// What happens on the way.
    pub delivery: Delivery,
    /// How long the reply travels.
    pub after: Duration,
}

/// What happens to a call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
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
    pub const OK: Fate = Fate::at_once(Delivery::Whole);
    /// See [`Delivery::RequestLost`].
    pub const REQUEST_LOST: Fate = Fate::at_once(Delivery::RequestLost);
    /// See [`Delivery::ReplyLost`].
    pub const REPLY_LOST: Fate = Fate::at_once(Delivery::ReplyLost);
    /// See [`Delivery::Never`].
    pub const NEVER: Fate = Fate::at_once(Delivery::Never);
    /// See [`Delivery::Unanswered`].
    pub const UNANSWERED: Fate = Fate::at_once(Delivery::Unanswered);

    const fn at_once(delivery: Delivery) -> Fate {
        Fate { before: Duration::ZERO, delivery, after: Duration::ZERO }
    }

    /// The call takes its time, there and back.
    pub const fn slow(before: Duration, after: Duration) -> Fate {
        Fate { before, delivery: Delivery::Whole, after }
    }
}

/// How often what happens, in calls of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// See [`Delivery::RequestLost`].
    pub request_lost: u64,
    /// See [`Delivery::ReplyLost`].
    pub reply_lost: u64,
    /// See [`Delivery::Never`]; half of them are [`Delivery::Unanswered`].
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
        let reach = if chance.per_mille(self.slow) { self.slow_max } else { self.usual_max };
        let (before, after) = (chance.span(reach), chance.span(reach));
        let delivery = match chance.below(1000) {
            it if it < self.request_lost => Delivery::RequestLost,
            it if it < self.request_lost + self.reply_lost => Delivery::ReplyLost,
            it if it < self.request_lost + self.reply_lost + self.never / 2 => Delivery::Never,
            it if it < self.request_lost + self.reply_lost + self.never => Delivery::Unanswered,
            _ => Delivery::Whole,
        };
        Fate { before, delivery, after }
    }
}

/// Fates planned call by call. Clones share the plan; a call that is not planned is [`Fate::OK`].
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<VecDeque<(Verb, Fate)>>>);

impl Script {
    /// Plan the fate of the next call of `verb` that has none yet.
    pub fn then(&self, verb: Verb, fate: Fate) -> &Self {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((verb, fate));
        self
    }

    pub(super) fn next(&self, verb: Verb) -> Fate {
        let mut plan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = plan.iter().position(|it| it.0 == verb);
        at.and_then(|it| plan.remove(it)).map_or(Fate::OK, |it| it.1)
    }
}
