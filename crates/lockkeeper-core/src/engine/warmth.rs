//! Which locks may stay with this process after they were given back, and which must go first.
//!
//! Only rules: it knows no store and gives nothing back itself. Whoever was asked to give a lock back that it had not taken
//! again is cold for a while, so that two processes which take turns do not wait for each other's idle locks. Many such
//! requests at once mean that somebody walks over all of them: then all are given back, and none is kept for a while.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::tenure::Tenure;
use crate::key::Key;
use crate::kit::locked;

/// A key is cold for one to two of these.
const COLD_FOR: Duration = Duration::from_secs(30);
/// So many recalls within a second are a walk.
const WALK: u32 = 32;
const SECOND: Duration = Duration::from_secs(1);
/// For how long nothing is kept after many walks in a row.
const NONE_MAX: Duration = Duration::from_secs(60);
const WORDS: usize = 16;

#[derive(Debug)]
pub(crate) struct Warmth {
    max: usize,
    /// No key is cold and nobody walks, so that whoever gives back need not look. Cleared under the state's lock before anything
    /// is refused. Relaxed: whoever misses that by a moment keeps one lock more, which is called like any other.
    calm: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What is or was idle, the one that came first at the front.
    known: VecDeque<Arc<Tenure>>,
    /// How many of these have ended.
    ended: usize,
    /// Keys that are cold: those of the present span, and those of the one before.
    cold: [Filter; 2],
    turned_at: Moment,
    recalls: u32,
    recalls_since: Moment,
    none_until: Moment,
    none_for: Duration,
}

/// A few bits of each key. It may take one key for another, which costs that one its warmth.
#[derive(Debug, Default)]
struct Filter([u64; WORDS]);

impl Filter {
    fn bits(key: &Key) -> impl Iterator<Item = (usize, u64)> {
        let hash = key.hash64();
        (0..3).map(move |nth| {
            let bit = usize::try_from((hash >> (nth * 20)) % (WORDS as u64 * 64)).unwrap_or(0);
            (bit / 64, 1 << (bit % 64))
        })
    }

    fn add(&mut self, key: &Key) {
        Filter::bits(key).for_each(|(word, bit)| self.0[word] |= bit);
    }

    fn has(&self, key: &Key) -> bool {
        Filter::bits(key).all(|(word, bit)| self.0[word] & bit != 0)
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|it| *it == 0)
    }
}

impl State {
    fn turn(&mut self, now: Moment) {
        if COLD_FOR <= now - self.turned_at {
            self.cold.swap(0, 1);
            self.cold[0] = Filter::default();
            self.turned_at = now;
        }
    }
}

impl Warmth {
    pub(crate) fn new(max: usize) -> Self {
        let never = Moment::from_nanos(0);
        let state = State {
            known: VecDeque::new(),
            ended: 0,
            cold: [Filter::default(), Filter::default()],
            turned_at: never,
            recalls: 0,
            recalls_since: never,
            none_until: never,
            none_for: SECOND,
        };
        Warmth { max, calm: AtomicBool::new(true), state: Mutex::new(state) }
    }

    /// Whether a lock of this name may stay.
    pub(crate) fn admits(&self, key: &Key, now: Moment) -> bool {
        if self.max == 0 || self.calm.load(Ordering::Relaxed) {
            return self.max != 0;
        }
        let mut state = locked(&self.state);
        state.turn(now);
        let walks = now < state.none_until;
        self.calm.store(!walks && state.cold.iter().all(Filter::is_empty), Ordering::Relaxed);
        !walks && !state.cold.iter().any(|it| it.has(key))
    }

    /// One more is idle, of which nothing was known. What comes back must be given back for it, if it is idle: that which came
    /// first and was not used since it was last looked at. What is in use at that moment becomes known again when it is idle.
    pub(crate) fn kept(&self, tenure: &Arc<Tenure>) -> Vec<Arc<Tenure>> {
        let mut state = locked(&self.state);
        // Known first, and asked for its end then: whoever ends it looks the other way round.
        if tenure.stay.list(true) {
            return Vec::new();
        }
        if tenure.has_ended() {
            tenure.stay.list(false);
            return Vec::new();
        }
        state.known.push_back(tenure.clone());
        let (mut chances, mut victims) = (self.max, Vec::new());
        while self.max < state.known.len() - state.ended
            && let Some(first) = state.known.pop_front()
        {
            if !first.stay.is_listed() {
                state.ended -= 1;
            } else if first.stay.take_touched() && 0 < chances {
                chances -= 1;
                state.known.push_back(first);
            } else {
                first.stay.list(false);
                victims.push(first);
            }
        }
        victims
    }

    /// It has ended: it does not count any more.
    #[inline]
    pub(crate) fn ended(&self, tenure: &Tenure) {
        if tenure.stay.is_listed() {
            self.forget(tenure);
        }
    }

    #[inline(never)]
    fn forget(&self, tenure: &Tenure) {
        let mut state = locked(&self.state);
        state.ended += usize::from(tenure.stay.list(false));
        // Half of them at the most are kept for nothing.
        if state.known.len() < state.ended * 2 {
            state.known.retain(|it| it.stay.is_listed());
            state.ended = 0;
        }
    }

    /// Somebody outside wanted an idle lock; `paid` if it had been taken again before. `true` if all are to be given back.
    pub(crate) fn recalled(&self, key: &Key, paid: bool, now: Moment) -> bool {
        let mut state = locked(&self.state);
        state.turn(now);
        if !paid {
            state.cold[0].add(key);
            self.calm.store(false, Ordering::Relaxed);
        }
        if SECOND < now - state.recalls_since {
            (state.recalls, state.recalls_since) = (0, now);
        }
        state.recalls += 1;
        if state.recalls < WALK {
            return false;
        }
        // Soon after the last walk the next pause is longer.
        let again = state.none_until != Moment::from_nanos(0) && now < state.none_until.after(NONE_MAX);
        state.none_for = if again { (state.none_for * 2).min(NONE_MAX) } else { SECOND };
        (state.none_until, state.recalls) = (now.after(state.none_for), 0);
        self.calm.store(false, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap_or_else(|error| panic!("{error}"))
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_secs(1000 + seconds))
    }

    #[test]
    fn a_lock_that_did_not_pay_is_cold_for_a_while() {
        let warmth = Warmth::new(8);
        assert!(warmth.admits(&key("a"), at(0)));
        assert!(!warmth.recalled(&key("a"), false, at(0)));
        assert!(!warmth.recalled(&key("b"), true, at(0)));
        assert!(!warmth.admits(&key("a"), at(1)), "it was recalled before it was taken again");
        assert!(warmth.admits(&key("b"), at(1)), "it paid");
        assert!(!warmth.admits(&key("a"), at(29)));
        assert!(warmth.admits(&key("b"), at(31)));
        assert!(warmth.admits(&key("a"), at(62)), "for two spans at the most");
    }

    #[test]
    fn a_walk_over_all_idle_locks_ends_them_for_longer_each_time() {
        let warmth = Warmth::new(8);
        let walk = |second| (0..WALK).filter(|_| warmth.recalled(&key("a"), true, at(second))).count();
        assert_eq!(walk(0), 1, "the last of them says so");
        assert!(!warmth.admits(&key("b"), at(0)));
        assert!(warmth.admits(&key("b"), at(1)));
        assert_eq!(walk(2), 1);
        assert!(!warmth.admits(&key("b"), at(3)));
        assert!(warmth.admits(&key("b"), at(4)));
        assert!((0..60).all(|second| !warmth.recalled(&key("a"), true, at(200 + second))), "one in a second");
    }

    #[test]
    fn walks_in_a_row_end_all_warmth_for_a_minute_at_the_most() {
        let (warmth, mut second) = (Warmth::new(8), 0);
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!((0..WALK).filter(|_| warmth.recalled(&key("a"), true, at(second))).count(), 1);
            assert!(!warmth.admits(&key("b"), at(second + pause - 1)), "{pause}");
            assert!(warmth.admits(&key("b"), at(second + pause)), "{pause}");
            second += pause + 1;
        }
    }

    #[test]
    fn what_was_refused_once_is_looked_at_until_nothing_is_cold() {
        let warmth = Warmth::new(8);
        let is_calm = || warmth.calm.load(Ordering::Relaxed);
        assert!(is_calm() && warmth.admits(&key("a"), at(0)));
        warmth.recalled(&key("a"), true, at(0));
        assert!(is_calm(), "it paid, and nobody walks");
        warmth.recalled(&key("a"), false, at(0));
        assert!(!is_calm() && warmth.admits(&key("b"), at(1)) && !is_calm(), "another is cold");
        assert!(warmth.admits(&key("b"), at(31)) && !is_calm(), "it still is");
        assert!(warmth.admits(&key("b"), at(62)) && is_calm());
        for _ in 0..WALK {
            warmth.recalled(&key("a"), true, at(70));
        }
        assert!(!is_calm() && !warmth.admits(&key("b"), at(70)) && !is_calm(), "somebody walks");
        assert!(warmth.admits(&key("b"), at(72)) && is_calm());
    }

    #[test]
    fn nothing_is_kept_where_nothing_may_be() {
        assert!(!Warmth::new(0).admits(&key("a"), at(0)));
    }
}
