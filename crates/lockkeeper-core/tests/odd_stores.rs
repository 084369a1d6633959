//! Stores that refuse, promise nonsense, or answer after everybody has gone.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Grant, Place, Profile, Reach, Renewal, Result, Turn};
use lockkeeper_core::fence::COUNTER_MAX;
use lockkeeper_core::{Claim, Clock, Error, Load, Locker, Memory, Moment};
use tokio::sync::Semaphore;

const HANG: Duration = Duration::from_secs(30);

/// What the store does with a `turn`.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// It refuses everything, for good.
    Refuses,
    /// It answers at once, with a counter that no fence can hold.
    CountsTooFar,
    /// Its counters are 10, then 3, then 11.
    CountsDown,
    /// It answers at once, with a grant of which nothing is left; asked again, it grants.
    GrantsThePast,
    /// It answers when it is let, and grants; names that begin with `quick` at once.
    AnswersLate,
}

#[derive(Clone, Debug)]
struct Odd {
    manner: Manner,
    turns: Arc<AtomicU32>,
    leaves: Arc<AtomicU32>,
    /// A permit lets one `turn` answer.
    answers: Arc<Semaphore>,
    /// A permit for each `leave`.
    left: Arc<Semaphore>,
}

impl Odd {
    fn new(manner: Manner) -> Self {
        Odd {
            manner,
            turns: Arc::default(),
            leaves: Arc::default(),
            answers: Arc::new(Semaphore::new(0)),
            left: Arc::new(Semaphore::new(0)),
        }
    }

    fn calls(&self) -> (u32, u32) {
        (self.turns.load(Ordering::Relaxed), self.leaves.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct OddPlace {
    of: Odd,
    claim: Claim,
    asked_at_once: bool,
}

impl Backend for Odd {
    type Place = OddPlace;

    fn profile(&self) -> Profile {
        Profile::new("odd", Reach::Network).fifo().by_session()
    }

    fn enter(&self, claim: Claim) -> OddPlace {
        OddPlace { of: self.clone(), claim, asked_at_once: false }
    }
}

impl Place for OddPlace {
    async fn turn(&mut self) -> Result<Turn> {
        let turn = self.of.turns.fetch_add(1, Ordering::Relaxed);
        match self.of.manner {
            Manner::CountsDown => Ok(Turn::Held(Grant::new([10, 3, 11][turn as usize % 3], self.claim.ttl))),
            Manner::Refuses => Err(Fault::permanent("odd", "taking the lock", "you may not")),
            Manner::CountsTooFar => Ok(Turn::Held(Grant::new(COUNTER_MAX + 1, self.claim.ttl))),
            Manner::GrantsThePast => Ok(Turn::Held(Grant::new(8, self.claim.ttl))),
            Manner::AnswersLate if self.claim.key.as_str().starts_with("quick") => {
                Ok(Turn::Held(Grant::new(9, self.claim.ttl)))
            }
            Manner::AnswersLate => {
                self.of.answers.acquire().await.unwrap().forget();
                Ok(Turn::Held(Grant::new(7, self.claim.ttl)))
            }
        }
    }

    async fn changed(&mut self) {
        std::future::pending::<()>().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Ok(Renewal::held(self.claim.ttl, false))
    }

    async fn leave(&mut self) -> Result<()> {
        self.of.leaves.fetch_add(1, Ordering::Relaxed);
        self.of.left.add_permits(1);
        match self.of.manner {
            Manner::Refuses => Err(Fault::permanent("odd", "giving the lock back", "you may not")),
            _ => Ok(()),
        }
    }

    fn turn_at_once(&mut self, _now: Moment) -> Option<Turn> {
        let first = !std::mem::replace(&mut self.asked_at_once, true);
        match self.of.manner {
            Manner::CountsTooFar => Some(Turn::Held(Grant::new(COUNTER_MAX + 1, self.claim.ttl))),
            Manner::GrantsThePast if first => Some(Turn::Held(Grant::new(7, Duration::ZERO))),
            _ => None,
        }
    }
}

#[tokio::test]
async fn a_refusal_for_good_ends_the_call_and_nothing_goes_on_behind_it() {
    let store = Odd::new(Manner::Refuses);
    let locker = Locker::new(store.clone());
    for at in 0..300 {
        let refused = locker.lock(format!("k{}", at % 7)).await.unwrap_err();
        assert!(!refused.is_transient(), "{refused}");
    }
    // Shutting down waits for whatever is still being tried, so what is counted afterwards is all there ever was.
    locker.shutdown(HANG).await.unwrap();
    let (turns, leaves) = store.calls();
    assert_eq!(turns, 300);
    assert!(leaves <= turns, "each claim was given up at most once: {leaves} leaves of {turns} claims");
}

#[tokio::test]
async fn a_counter_that_no_fence_can_hold_is_refused_on_the_fast_path_too() {
    let store = Odd::new(Manner::CountsTooFar);
    let locker = Locker::new(store.clone());
    for _ in 0..2 {
        let refused = locker.lock("k").await.unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    }
    locker.shutdown(HANG).await.unwrap();
    assert_eq!(store.calls(), (0, 2), "what was granted is given back");
}

#[tokio::test]
async fn a_counter_that_went_back_is_given_to_nobody() {
    let store = Odd::new(Manner::CountsDown);
    let locker = Locker::new(store.clone());
    let first = locker.lock("k").await.unwrap();
    let fence = first.fence();
    first.release().await.unwrap();
    // Nobody holds it, and nothing of the first is kept but what it was.
    let refused = locker.lock("k").await.unwrap_err();
    assert!(!refused.is_transient() && refused.to_string().contains("10 was given before"), "{refused}");
    let third = locker.lock("k").await.unwrap();
    assert!(fence < third.fence());
    third.release().await.unwrap();
    locker.shutdown(HANG).await.unwrap();
    assert_eq!(store.calls(), (3, 3), "what was refused is given back");
}

#[tokio::test]
async fn a_grant_of_which_nothing_is_left_is_not_used_on_the_fast_path() {
    let store = Odd::new(Manner::GrantsThePast);
    let guard = Locker::new(store.clone()).lock("k").await.unwrap();
    assert_eq!((guard.fence().counter(), guard.is_valid()), (8, true));
    assert_eq!(store.calls().0, 1, "it was asked again");
}

#[tokio::test]
async fn a_turn_that_is_answered_after_its_locker_has_gone_is_given_up() {
    let store = Odd::new(Manner::AnswersLate);
    let bound = Duration::from_millis(20);
    let locker = Locker::builder(store.clone()).ttl(bound).outage_max(bound).build();
    let mut gone = Box::pin(locker.lock("k"));
    assert!(gone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(gone);
    // The background has lost patience with it when the line is free for another.
    let clock = Clock::boot();
    let hang = clock.now().after(HANG);
    while locker.lines() != 0 {
        assert!(clock.now() < hang, "the line is kept for ever");
        clock.sleep(Duration::from_millis(5)).await;
    }
    drop(locker);
    store.answers.add_permits(1);
    let left = clock.within(hang, Box::pin(store.left.acquire())).await;
    left.expect("what was granted to nobody is given back").unwrap().forget();
}

#[tokio::test]
async fn a_claim_that_can_never_fit_is_refused_by_the_memory_store() {
    let store = Memory::default();
    let key = lockkeeper_core::Key::new("k").unwrap();
    let claim = || Claim::new(key.clone(), HANG).unwrap();
    let refused = store.enter(claim().load(Load::new(2, 1))).turn().await.unwrap_err();
    assert!(!refused.is_transient() && refused.message.contains("weight of 2"), "{refused}");
    assert!(matches!(store.enter(claim()).turn().await.unwrap(), Turn::Held(_)), "it blocks nobody");
}

#[tokio::test]
async fn a_store_that_answers_others_is_not_called_silent() {
    let (store, clock) = (Odd::new(Manner::AnswersLate), Clock::virtual_from(HANG));
    let outage = Duration::from_secs(5);
    let locker = Locker::builder(store.clone()).clock(clock.clone()).outage_max(outage).build();
    let mut cx = Context::from_waker(Waker::noop());
    let mut queued = Box::pin(locker.lock("queued"));
    assert!(queued.as_mut().poll(&mut cx).is_pending());
    for served in 0..3 {
        clock.advance_by(outage * 3 / 4);
        // Somebody else asks, and is answered.
        let mut other = Box::pin(locker.lock(format!("quick/{served}")));
        assert!(other.as_mut().poll(&mut cx).is_ready(), "the store answers");
        assert!(queued.as_mut().poll(&mut cx).is_pending(), "ours may still stand in a queue");
    }
    clock.advance_by(outage * 2);
    let Poll::Ready(Err(silent)) = queued.as_mut().poll(&mut cx) else {
        panic!("nobody is answered any more")
    };
    assert!(silent.is_transient() && silent.to_string().contains("does not answer"), "{silent}");
}

#[tokio::test]
async fn what_needs_memos_is_refused_in_words_and_nothing_is_taken_where_there_are_none() {
    let store = Odd::new(Manner::AnswersLate);
    let locker = Locker::new(store.clone());
    let never = async |_: &_| -> std::result::Result<(), Error> { panic!("it ran") };
    let asked: [(&str, Option<Error>); 10] = [
        ("once", locker.once("quick", "1").run(never).await.err()),
        ("tick", locker.once("quick", "1").tick().err()),
        ("campaign", locker.campaign("quick", "here").win().await.err()),
        ("leader", locker.leader("quick").await.err()),
        ("leaders", locker.leaders("quick").err()),
        ("arrive", locker.latch("quick", 2).arrive("a").await.err()),
        ("latch", locker.latch("quick", 2).wait().await.err()),
        ("barrier", locker.barrier("quick", 2).wait("a").await.err()),
        ("enter", locker.barrier("quick", 2).enter("a").await.err()),
        ("status", locker.barrier("quick", 2).status().await.err()),
    ];
    for (what, refused) in asked {
        let refused =
            refused.unwrap_or_else(|| panic!("{what} works on a store that keeps nothing but locks"));
        assert!(matches!(refused, Error::Unsupported { .. }), "{what}: {refused}");
        let words = refused.to_string();
        assert!(words.contains("odd") && words.contains("it keeps nothing but locks"), "{what}: {words}");
    }
    let lead = locker.campaign("quick", "here").run(async |_| panic!("it leads")).await;
    assert!(matches!(lead, Err(Error::Unsupported { .. })), "{lead:?}");
    assert_eq!((store.calls(), locker.lines()), ((0, 0), 0), "nothing was asked for");
}
