//! Which number stands for a name, as a session has seen it, and for how long that is surely so.
//!
//! No cleaner removes a name that is younger than an hour, so whoever has seen how old it was need not look again for nearly
//! as long. It is known to one session and ends with it: a server that forgot its names has ended all sessions. Age is told
//! by the server's clock; where that was set, all that was known is forgotten with the next beat.

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

/// By so much two clocks may run apart between two beats. More was set by somebody.
const APART: u64 = 30_000_000;

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
pub(super) struct Numbers {
    known: Mutex<HashMap<NameHash, Known>>,
    /// By how many microseconds the server's clock was ahead of ours.
    ahead: Mutex<Option<i64>>,
}

impl Numbers {
    pub(super) fn get(&self, lock: &NameHash) -> Option<Known> {
        locked(&self.known).get(lock).copied()
    }

    pub(super) fn forget(&self, lock: &NameHash) {
        locked(&self.known).remove(lock);
    }

    /// The server's clock showed this when it was asked at that moment.
    pub(super) fn look_at_the_clock(&self, server: i64, sent_at: Moment) {
        let ahead = server.saturating_sub(i64::try_from(sent_at.as_nanos() / 1000).unwrap_or(i64::MAX));
        let before = locked(&self.ahead).replace(ahead);
        if before.is_some_and(|it| APART < it.abs_diff(ahead)) {
            locked(&self.known).clear();
        }
    }

    /// The server said so at this moment, or before, when its clock showed `server`: the name has this number since `born`.
    pub(super) fn learn(&self, lock: NameHash, number: i64, born: i64, server: i64, now: Moment) {
        let Ok(number) = i32::try_from(number) else { return };
        let until = born.saturating_add(micros_up(NAME_FRESH));
        let left = span(until.saturating_sub(server));
        #[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 fit")]
        let sure_until = until as f64 / 1e6;
        let known = Known { number, sure_until, until: now.after(left), again_at: now.after(AGAIN) };
        let mut all = locked(&self.known);
        if MOST <= all.len() {
            // Most often nobody has so many names; looking again costs little.
            all.clear();
        }
        all.insert(lock, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: NameHash = [7; 32];
    const HOUR: i64 = 3_600_000_000;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_number_is_believed_until_the_name_is_nearly_an_hour_old() {
        let numbers = Numbers::default();
        assert!(numbers.get(&LOCK).is_none());
        // Nine minutes old when we are ten.
        numbers.learn(LOCK, 5, 60_000_000, 600_000_000, at(600));
        let known = numbers.get(&LOCK).unwrap();
        assert_eq!((known.number, format!("{}", known.sure_until)), (5, "3600".to_owned()));
        assert!(known.lasts(at(3599), false) && !known.lasts(at(3600), false));
        assert!(known.lasts(at(2699), true) && !known.lasts(at(2700), true), "a wait may be long");
        assert!(known.is_seen(at(659)) && !known.is_seen(at(660)));
        numbers.forget(&LOCK);
        assert!(numbers.get(&LOCK).is_none());
        numbers.learn(LOCK, 5, 0, HOUR, at(1));
        assert!(!numbers.get(&LOCK).unwrap().lasts(at(1), false), "it is too old already");
    }

    #[test]
    fn what_was_known_before_a_clock_was_set_is_forgotten() {
        for (server, kept) in
            [(HOUR + 60_000_000, true), (HOUR + 80_000_000, true), (3 * HOUR, false), (0, false)]
        {
            let numbers = Numbers::default();
            numbers.look_at_the_clock(HOUR, at(10));
            numbers.learn(LOCK, 5, HOUR, HOUR, at(20));
            numbers.look_at_the_clock(server, at(70));
            assert_eq!(numbers.get(&LOCK).is_some(), kept, "{server}");
        }
    }

    #[test]
    fn a_session_knows_so_many_names() {
        let numbers = Numbers::default();
        for at_number in 0..=MOST {
            let mut lock = LOCK;
            lock[..8].copy_from_slice(&at_number.to_be_bytes());
            numbers.learn(lock, 5, 0, 0, at(1));
        }
        assert_eq!(locked(&numbers.known).len(), 1);
    }
}
