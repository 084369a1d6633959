//! Watches for which the connection's thread need not be woken: whoever lets us in rings, and that wakes it.
//!
//! A process that waits among many is served now and then, and each thread that it wakes for that is a cold one. So as long as
//! others can ring for us, whoever begins to wait leaves its watch here, and the thread, which sleeps, finds it when it is
//! rung for, or when it wakes for something else. The ring may come before the watch: it is remembered, and the one who
//! comes with the watch looks at once. A ring that is lost is noticed when the thread wakes to see whether its bell is
//! still needed, which is within a second, and from then on watches are sent until a ring is heard again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use lockkeeper_core::ClaimId;
use lockkeeper_core::kit::locked;

use crate::wake::Watch;

/// How many rings are remembered for those who have not come yet. One that is forgotten is as one that is lost.
const EARLY_MAX: usize = 64;

/// From so many on, those that nobody waits for any more are removed before another comes.
const FEW: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Quiet(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Others can ring for us, as far as the thread knows.
    rings: bool,
    watches: Vec<Watch>,
    /// Those who were rung for before they came.
    early: VecDeque<ClaimId>,
}

impl Quiet {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }

    /// Leave a watch here, or wake it if it was rung for already. It comes back if the thread must be told.
    pub(crate) fn watch(&self, mut watch: Watch) -> Option<Watch> {
        if !watch.is_waiting() {
            return Some(watch);
        }
        let mut state = self.state();
        if let Some(at) = state.early.iter().position(|it| *it == watch.id()) {
            state.early.remove(at);
            drop(state);
            watch.wake();
            return None;
        }
        if !state.rings {
            return Some(watch);
        }
        if FEW <= state.watches.len() {
            state.watches.retain(|it| !it.is_over());
        }
        state.watches.push(watch);
        None
    }

    /// Somebody rang for this claim, of which the thread knows nothing.
    pub(crate) fn rung(&self, id: ClaimId) {
        let mut state = self.state();
        if let Some(at) = state.watches.iter().position(|it| it.id() == id) {
            let mut watch = state.watches.swap_remove(at);
            drop(state);
            watch.wake();
            return;
        }
        if EARLY_MAX <= state.early.len() {
            state.early.pop_front();
        }
        state.early.push_back(id);
    }

    /// The thread is awake and cares for all of them.
    pub(crate) fn take(&self) -> Vec<Watch> {
        std::mem::take(&mut self.state().watches)
    }

    /// Whether others can ring for us from now on. If not, those who came meanwhile are the thread's.
    pub(crate) fn expect_rings(&self, rings: bool) -> Vec<Watch> {
        let mut state = self.state();
        state.rings = rings;
        if rings { Vec::new() } else { std::mem::take(&mut state.watches) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use lockkeeper_core::{Claim, Key, Moment};
    use tokio::sync::oneshot::{self, Receiver};

    use super::*;
    use crate::line::Spot;
    use crate::wake::Mood;

    fn id(number: u8) -> ClaimId {
        ClaimId::from_bytes([number; 16])
    }

    fn watch(number: u8) -> (Watch, Receiver<()>) {
        let mut claim = Claim::new(Key::new("k").unwrap(), Duration::from_secs(1)).unwrap();
        claim.id = id(number);
        let (wake, woken) = oneshot::channel();
        let mood = Mood::Waiting { spot: Spot { id: id(number), seq: 1 }, waiting_before: 1 };
        (Watch::new(Arc::new(claim), mood, wake, Moment::from_nanos(0)), woken)
    }

    #[test]
    fn a_ring_is_heard_whether_it_comes_before_the_watch_or_after_it() {
        let quiet = Quiet::default();
        assert!(quiet.watch(watch(1).0).is_some(), "nobody can ring: the thread must look");
        assert!(quiet.expect_rings(true).is_empty());
        let (first, mut woken) = watch(2);
        assert!(quiet.watch(first).is_none());
        assert!(woken.try_recv().is_err());
        quiet.rung(id(2));
        woken.try_recv().unwrap();
        quiet.rung(id(3));
        let (second, mut woken) = watch(3);
        assert!(quiet.watch(second).is_none());
        woken.try_recv().unwrap();
        let (again, mut woken) = watch(3);
        assert!(quiet.watch(again).is_none());
        assert!(woken.try_recv().is_err(), "a ring is heard once");
    }

    #[test]
    fn when_nobody_can_ring_any_more_the_thread_gets_all_and_what_is_forgotten_is_bounded() {
        let quiet = Quiet::default();
        assert!(quiet.expect_rings(true).is_empty());
        let (stays, _woken) = watch(1);
        assert!(quiet.watch(stays).is_none());
        for _ in 0..1000 {
            assert!(quiet.watch(watch(2).0).is_none(), "its caller has gone already");
            assert!(quiet.state().watches.len() <= FEW + 1);
        }
        assert!(quiet.expect_rings(false).iter().any(|it| it.id() == id(1)));
        assert!(quiet.watch(watch(4).0).is_some());
        for number in 0..=u8::MAX {
            quiet.rung(id(number));
        }
        assert_eq!(quiet.state().early.len(), EARLY_MAX);
    }
}
