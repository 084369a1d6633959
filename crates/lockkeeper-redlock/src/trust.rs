//! What is remembered of a node that failed: until it answers again it is asked rarely and waited for never.
//!
//! Without this a dead node would cost every caller the time that the slowest of the living ones is given. It is
//! a matter of speed alone: a node that is passed over has no vote, and is asked after all where its vote may
//! decide.

use std::sync::Mutex;
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::kit::locked;

use crate::NAME;

/// A node that failed is asked again after this long, and after twice as long each time it fails again.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What is known of one node, by all who ask it.
#[derive(Debug, Default)]
pub(crate) struct Trust(Mutex<Option<Doubt>>);

#[derive(Debug)]
struct Doubt {
    failures: u32,
    ask_at: Moment,
    fault: Fault,
}

impl Trust {
    pub(crate) fn is_doubted(&self) -> bool {
        locked(&self.0).is_some()
    }

    /// Whether to ask it now: always if it is trusted, and one of us once in a while if it is not.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        match &mut *locked(&self.0) {
            None => true,
            Some(doubt) if now < doubt.ask_at => false,
            Some(doubt) => {
                doubt.ask_at = now.after(pause(doubt.failures));
                true
            }
        }
    }

    /// It answered, or failed to.
    pub(crate) fn note<T>(&self, now: Moment, answer: &Result<T>) {
        match answer {
            Ok(_) => *locked(&self.0) = None,
            Err(fault) => self.fail(now, fault.clone()),
        }
    }

    /// It has not answered in time.
    pub(crate) fn note_silence(&self, now: Moment) {
        self.fail(now, Fault::transient(NAME, "asking a node", "no answer in time"));
    }

    fn fail(&self, now: Moment, fault: Fault) {
        let mut doubt = locked(&self.0);
        let failures = doubt.as_ref().map_or(0, |it| it.failures + 1).min(16);
        *doubt = Some(Doubt { failures, ask_at: now.after(pause(failures)), fault });
    }

    /// Why it is doubted, if it is.
    pub(crate) fn fault(&self) -> Option<Fault> {
        locked(&self.0).as_ref().map(|it| it.fault.clone())
    }
}

fn pause(failures: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << failures.min(16)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_node_is_asked_by_one_at_a_time_and_rarer_the_longer_it_fails() {
        let (trust, at) = (Trust::default(), |ms: u64| Moment::from_nanos(ms * 1_000_000));
        assert!(trust.is_due(at(0)) && trust.is_due(at(0)), "a trusted node is always asked");
        trust.note_silence(at(0));
        assert!(trust.is_doubted() && !trust.is_due(at(49)));
        assert!(trust.is_due(at(50)) && !trust.is_due(at(50)), "one of us asks");
        trust.note::<()>(at(60), &Err(Fault::transient("x", "y", "refused")));
        assert!(!trust.is_due(at(159)) && trust.is_due(at(160)));
        assert_eq!(trust.fault().unwrap().message, "refused");
        for _ in 0..100 {
            trust.note_silence(at(1000));
        }
        assert!(!trust.is_due(at(1999)) && trust.is_due(at(2000)));
        trust.note(at(2000), &Ok(()));
        assert!(!trust.is_doubted() && trust.fault().is_none());
    }
}
