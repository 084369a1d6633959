//! The lease rule of session locks, apart from any server: until when a session surely lives.
//!
//! The server ends a session that is silent for the ttl, counted from the end of its last statement. An answer proves that
//! the session lived when the question was *sent*; from then on it lives for the ttl. The answer to a wait proves less,
//! because it may have stood in a buffer for longer than that: it says what the server's clock showed when it let us in,
//! and an earlier reading of that clock says when that was by ours.

use std::sync::Mutex;
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::kit::locked;

use crate::name::span;

/// What is known about the life of one session.
#[derive(Debug)]
pub(super) struct Reckoning {
    ttl: Duration,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// The session lived at this moment.
    proof: Moment,
    reading: Reading,
}

/// What is known about the server's clock: it showed this at that moment of ours, or later.
#[derive(Clone, Copy, Debug)]
struct Reading {
    sent_at: Moment,
    server: i64,
}

impl Reckoning {
    /// A session whose first question was sent at this moment, and what the server's clock showed, in microseconds.
    pub(super) fn new(ttl: Duration, sent_at: Moment, server: i64) -> Self {
        let state = State { proof: sent_at, reading: Reading { sent_at, server } };
        Reckoning { ttl, state: Mutex::new(state) }
    }

    /// When the last question was sent that was answered, as far as is known.
    pub(super) fn proof(&self) -> Moment {
        locked(&self.state).proof
    }

    /// Until when the server surely keeps the session.
    pub(super) fn proven_until(&self) -> Moment {
        self.proof().after(self.ttl)
    }

    /// A question that was sent at this moment was answered soon.
    pub(super) fn proven(&self, sent_at: Moment) {
        let mut state = locked(&self.state);
        state.proof = sent_at.max(state.proof);
    }

    /// The same for a beat, whose answer says what the server's clock showed.
    pub(super) fn beaten(&self, sent_at: Moment, server: i64) {
        let mut state = locked(&self.state);
        state.proof = sent_at.max(state.proof);
        state.reading = Reading { sent_at, server };
    }

    /// A wait that was sent at `sent_at` is answered at `now`: the server's clock showed `server` when it let us in. Answers
    /// when that was by our clock, at the latest, and never after the answer arrived; `None` if the last reading is too old
    /// to tell, or little is left of the ttl: a beat must make sure.
    pub(super) fn let_in(&self, now: Moment, sent_at: Moment, server: i64) -> Option<Moment> {
        let mut state = locked(&self.state);
        let reading = state.reading;
        let later = server.checked_sub(reading.server).filter(|it| 0 <= *it).map(span);
        // Two clocks run apart a little: a reading is believed for no longer than a ttl.
        let known = later.filter(|it| *it <= self.ttl).map(|it| reading.sent_at.after(it).min(now));
        if now - sent_at < self.ttl / 12 {
            state.reading = Reading { sent_at, server };
        }
        let at = known.filter(|it| now < it.after(self.ttl / 2))?;
        state.proof = at.max(state.proof);
        Some(at)
    }

    /// What the server's clock shows, by the last reading of it: for operators only.
    pub(super) fn server_now(&self, now: Moment) -> i64 {
        let reading = locked(&self.state).reading;
        let since = (now - reading.sent_at).as_micros();
        reading.server.saturating_add(i64::try_from(since).unwrap_or(0))
    }
}

#[cfg(test)]
mod simulation;
