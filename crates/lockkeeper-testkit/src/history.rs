//! What happened, as the contenders saw it: the record that the checkers judge.
//!
//! A contender believes that it holds from the moment the answer reached it until it calls `leave`, is
//! told of the loss, or its validity runs out. Beliefs are what must exclude each other: the store's own
//! view is never looked at, so a store cannot talk itself out of a double grant.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Claim, ClaimId, Clock, Key, Moment};

mod check;
#[cfg(test)]
mod tests;

pub use check::{abandoned, exclusion, fences, fifo};

/// One thing that happened to one claim.
#[derive(Clone, Debug)]
pub struct Event {
    /// When.
    pub at: Moment,
    /// To which lock.
    pub key: Key,
    /// To whom.
    pub claim: ClaimId,
    /// How much of the room it takes.
    pub weight: u32,
    /// How much the room holds.
    pub capacity: u32,
    /// How long the store keeps it without a word.
    pub ttl: Duration,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The store said that we wait.
    Waits {
        /// When it was asked.
        asked: Ask,
    },
    /// The store said that we hold.
    Granted {
        /// When it was asked.
        asked: Ask,
        /// The number that came with it: a counter of the store or a fence of a guard.
        fence: u64,
        /// Until when, by the caller's reckoning.
        valid_until: Moment,
    },
    /// A renewal was confirmed.
    Extended {
        /// Until when, by the caller's reckoning.
        valid_until: Moment,
    },
    /// We were told that we no longer hold, or stopped believing it.
    Lost,
    /// We began to leave.
    Leaves,
    /// The store confirmed that we left.
    Left,
    /// Our process died.
    Crashed,
}

/// When a question was asked: by the clock, and between which lines of the record.
///
/// A clock may stand still while much happens; the record never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The moment.
    pub at: Moment,
    /// How many events were written down before.
    pub line: usize,
}

/// A record to which many contenders write. Clones share it.
#[derive(Clone, Debug)]
pub struct History {
    clock: Clock,
    events: Arc<Mutex<Vec<Event>>>,
}

impl History {
    /// An empty record whose moments are those of `clock`.
    pub fn new(clock: Clock) -> Self {
        History { clock, events: Arc::default() }
    }

    /// The present moment and line, for a question that is about to be asked.
    pub fn ask(&self) -> Ask {
        let events = locked(&self.events);
        Ask { at: self.clock.now(), line: events.len() }
    }

    /// Write down what happened to `claim` now.
    pub fn note(&self, claim: &Claim, what: What) {
        let mut events = locked(&self.events);
        events.push(Event {
            at: self.clock.now(),
            key: claim.key.clone(),
            claim: claim.id,
            weight: claim.load.weight,
            capacity: claim.load.capacity,
            ttl: claim.ttl,
            what,
        });
    }

    /// Everything so far, in the order in which it was written down.
    pub fn events(&self) -> Vec<Event> {
        locked(&self.events).clone()
    }
}

/// Something that must never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule was broken.
    pub rule: Rule,
    /// Of which lock.
    pub key: Key,
    /// How.
    pub what: String,
}

/// The rules that the checkers know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The weight held never exceeds the capacity.
    Exclusion,
    /// A later grant has a larger number.
    Fence,
    /// First come, first served.
    Fifo,
    /// Who is gone leaves nothing behind.
    Abandoned,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} broken for {:?}: {}", self.rule, self.key, self.what)
    }
}

impl std::error::Error for Violation {}
