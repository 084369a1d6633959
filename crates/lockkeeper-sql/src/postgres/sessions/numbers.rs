//! Which number stands for a name, as a session has seen it, and for how long that is surely so.
//!
//! No cleaner removes a name that is younger than an hour, so whoever has seen how old it was need not look again for nearly
//! as long. It is known to one session and ends with it: a server that forgot its names has ended all sessions.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::kit::locked;

use super::line::NAME_FRESH;
use crate::name::{NameHash, micros_up, span};

/// A wait may last: who begins one must know the number for so much longer than now.
const LONG_WAIT: Duration = Duration::from_secs(900);

/// When a name that was too old for that is looked at again: it is made young again while it is used.
const AGAIN: Duration = Duration::from_secs(60);

/// The most names that a session knows.
const MOST: usize = 4096;

/// What is known of one name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) number: i32,
    /// The number is the name's until the server's clock shows this, in seconds.
    pub(super) sure_until: f64,
    /// The same by our clock, which nobody sets back.
    until: Moment,
    again_at: Moment,
}

impl Known {
    /// Whether that is long enough to take a lock, or to wait for it.
    pub(super) fn lasts(&self, now: Moment, wait: bool) -> bool {
        now.after(if wait { LONG_WAIT } else { Duration::ZERO }) < self.until
    }

    /// Whether somebody looked a moment ago, so that looking again brings nothing.
    pub(super) fn is_seen(&self, now: Moment) -> bool {
        now < self.again_at
    }
}

/// What a session knows.
#[derive(Debug, Default)]
pub(super) struct Numbers(Mutex<HashMap<NameHash, Known>>);

impl Numbers {
    pub(super) fn get(&self, lock: &NameHash) -> Option<Known> {
        locked(&self.0).get(lock).copied()
    }

    pub(super) fn forget(&self, lock: &NameHash) {
        locked(&self.0).remove(lock);
    }

    /// The server said so at this moment, or before, when its clock showed `server`: the name has this number since `born`.
    pub(super) fn learn(&self, lock: NameHash, number: i64, born: i64, server: i64, now: Moment) {
        let Ok(number) = i32::try_from(number) else { return };
        let until = born.saturating_add(micros_up(NAME_FRESH));
        let left = span(until.saturating_sub(server));
        #[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 fit")]
        let sure_until = until as f64 / 1e6;
        let known = Known { number, sure_until, until: now.after(left), again_at: now.after(AGAIN) };
        let mut all = locked(&self.0);
        if MOST <= all.len() {
            // Most often nobody has so many names; looking again costs little.
            all.clear();
        }
        all.insert(lock, known);
    }
}
