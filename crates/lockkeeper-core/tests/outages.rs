//! A store that fails or stands still: who waits behind whoever represents the process is told so, too.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Grant, Place, Profile, Reach, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Clock, Error, Guard, Locker, Stage};
use tokio::sync::Notify;

const SECOND: Duration = Duration::from_secs(1);

/// What the store does with a `turn`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    StandsStill,
    Fails,
    /// Once, and stands still then.
    FailsOnce,
    /// Somebody elsewhere holds it.
    IsTaken,
}

/// A store that somebody else brings down and up again.
#[derive(Clone, Debug)]
struct Shaky(Arc<(Mutex<Manner>, Notify, AtomicU32)>);

impl Shaky {
    fn new(manner: Manner) -> Self {
        Shaky(Arc::new((Mutex::new(manner), Notify::new(), AtomicU32::new(0))))
    }

    fn now(&self) -> Manner {
        *self.0.0.lock().unwrap()
    }

    /// How often it was asked for a turn.
    fn asked(&self) -> u32 {
        self.0.2.load(Ordering::SeqCst)
    }

    fn becomes(&self, manner: Manner) {
        *self.0.0.lock().unwrap() = manner;
        self.0.1.notify_waiters();
    }
}

#[derive(Debug)]
struct ShakyPlace(Shaky, Claim);

impl Backend for Shaky {
    type Place = ShakyPlace;

    fn profile(&self) -> Profile {
        Profile::new("shaky", Reach::Network).fifo()
    }

    fn enter(&self, claim: Claim) -> ShakyPlace {
        ShakyPlace(self.clone(), claim)
    }
}

impl Place for ShakyPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.0.0.2.fetch_add(1, Ordering::SeqCst);
        if self.1.key.as_str() == "quick" {
            return Ok(Turn::Held(Grant::new(9, self.1.ttl)));
        }
        let fault = || Err(Fault::transient("shaky", "taking the lock", "it is away"));
        loop {
            let changed = self.0.0.1.notified();
            match self.0.now() {
                Manner::StandsStill => changed.await,
                Manner::Fails => return fault(),
                Manner::FailsOnce => {
                    *self.0.0.0.lock().unwrap() = Manner::StandsStill;
                    return fault();
                }
                Manner::IsTaken => return Ok(Turn::wait(Duration::from_secs(60), None)),
            }
        }
    }

    async fn changed(&mut self) {
        std::future::pending::<()>().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Ok(Renewal::held(self.1.ttl, false))
    }

    async fn leave(&mut self) -> Result<()> {
        Ok(())
    }
}

type Waiting = Pin<Box<dyn Future<Output = lockkeeper_core::Result<Guard>>>>;

/// Callers of one process, on a clock that stands still unless it is told to go.
struct Process {
    clock: Clock,
    locker: Locker,
}

impl Process {
    fn on(store: &Shaky) -> Self {
        let clock = Clock::virtual_from(60 * SECOND);
        let locker = Locker::builder(store.clone()).clock(clock.clone()).outage_max(5 * SECOND).build();
        Process { clock, locker }
    }

    fn asks(&self, wait: Duration) -> Waiting {
        let mut waiting: Waiting = Box::pin(self.locker.lock("k").wait_at_most(wait));
        assert!(poll(&mut waiting).is_pending());
        waiting
    }

    /// Time goes by, and everybody is looked after.
    fn passes(&self, span: Duration, waiting: &mut [&mut Waiting]) {
        for _ in 0..10 {
            self.clock.advance_by(span / 10);
            for it in waiting.iter_mut() {
                assert!(poll(it).is_pending(), "it may still be had in time");
            }
        }
    }
}

fn poll(waiting: &mut Waiting) -> Poll<lockkeeper_core::Result<Guard>> {
    waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn error(waiting: &mut Waiting) -> Error {
    match poll(waiting) {
        Poll::Ready(answer) => answer.unwrap_err(),
        Poll::Pending => panic!("it waits for longer than it wanted"),
    }
}

fn is_away(error: &Error) -> bool {
    matches!(error, Error::Unavailable { transient: true, .. })
}

#[tokio::test]
async fn who_stands_behind_an_outage_is_told_of_it() {
    let store = Shaky::new(Manner::Fails);
    let process = Process::on(&store);
    let (mut first, mut second) = (process.asks(4 * SECOND), process.asks(2 * SECOND));
    process.passes(SECOND, &mut [&mut first, &mut second]);
    process.clock.advance_by(SECOND);
    assert!(poll(&mut first).is_pending());
    let told = error(&mut second);
    assert!(is_away(&told) && told.to_string().contains("it is away"), "{told}");
    process.clock.advance_by(2 * SECOND);
    let told = error(&mut first);
    assert!(is_away(&told), "{told}");
}

/// Whoever represented us is out of time, and the next one has a moment left in which the store says nothing.
#[tokio::test]
async fn who_takes_over_in_an_outage_knows_of_it() {
    let store = Shaky::new(Manner::Fails);
    let process = Process::on(&store);
    let mut first = process.asks(3 * SECOND);
    let mut second = process.asks(3 * SECOND + SECOND / 100);
    process.passes(2 * SECOND, &mut [&mut first, &mut second]);
    process.clock.advance_by(SECOND);
    let told = error(&mut first);
    assert!(is_away(&told), "{told}");
    store.becomes(Manner::StandsStill);
    let asked = store.asked();
    assert!(poll(&mut second).is_pending());
    assert_eq!(store.asked(), asked + 1, "it represents us now");
    process.clock.advance_by(SECOND / 100);
    let told = error(&mut second);
    assert!(is_away(&told) && told.to_string().contains("it is away"), "{told}");
}

/// The same where whoever represented us went away before its question was answered, and the answer was a fault.
#[tokio::test]
async fn who_takes_over_from_a_caller_that_went_away_knows_of_an_outage() {
    let store = Shaky::new(Manner::StandsStill);
    let process = Process::on(&store);
    let (first, mut second) = (process.asks(4 * SECOND), process.asks(SECOND));
    process.clock.advance_by(SECOND * 9 / 10);
    drop(first);
    store.becomes(Manner::FailsOnce);
    while store.asked() < 2 {
        assert!(poll(&mut second).is_pending(), "it is called as soon as the background has its answer");
        tokio::task::yield_now().await;
    }
    process.clock.advance_by(SECOND / 10);
    let told = error(&mut second);
    assert!(is_away(&told) && told.to_string().contains("it is away"), "{told}");
}

/// But an answer is one: who was told to wait, and heard nothing worse since, is out of time.
#[tokio::test]
async fn who_takes_over_in_an_outage_and_is_answered_is_out_of_time() {
    let store = Shaky::new(Manner::Fails);
    let process = Process::on(&store);
    let (mut first, mut second) = (process.asks(3 * SECOND), process.asks(4 * SECOND));
    process.passes(2 * SECOND, &mut [&mut first, &mut second]);
    store.becomes(Manner::IsTaken);
    process.clock.advance_by(SECOND);
    drop(first);
    process.passes(SECOND / 2, &mut [&mut second]);
    process.clock.advance_by(SECOND / 2);
    let told = error(&mut second);
    assert!(matches!(told, Error::TimedOut { stage: Stage::Remote, .. }), "{told}");
}

#[tokio::test]
async fn who_stands_behind_a_store_that_answers_again_is_out_of_time() {
    for down in [Manner::Fails, Manner::StandsStill] {
        let store = Shaky::new(down);
        let process = Process::on(&store);
        let (mut first, mut second) = (process.asks(9 * SECOND), process.asks(4 * SECOND));
        process.passes(2 * SECOND, &mut [&mut first, &mut second]);
        store.becomes(Manner::IsTaken);
        process.passes(SECOND, &mut [&mut first, &mut second]);
        process.clock.advance_by(SECOND);
        let told = error(&mut second);
        assert!(matches!(told, Error::TimedOut { stage: Stage::Local, .. }), "{down:?}: {told}");
        process.clock.advance_by(5 * SECOND);
        let told = error(&mut first);
        assert!(matches!(told, Error::TimedOut { stage: Stage::Remote, .. }), "{down:?}: {told}");
    }
}

#[tokio::test]
async fn a_store_that_stands_still_is_no_lock_that_is_taken() {
    let store = Shaky::new(Manner::StandsStill);
    let process = Process::on(&store);
    let (mut first, mut second) = (process.asks(3 * SECOND), process.asks(3 * SECOND));
    let mut third = process.asks(4 * SECOND);
    process.passes(2 * SECOND, &mut [&mut first, &mut second, &mut third]);
    process.clock.advance_by(SECOND);
    for (who, waiting) in [("represents", &mut first), ("waits behind", &mut second)] {
        let told = error(waiting);
        assert!(is_away(&told) && told.to_string().contains("does not answer"), "{who}: {told}");
    }
    // The one that represented us is gone, and what it asked is still not answered.
    drop((first, second));
    process.passes(SECOND / 2, &mut [&mut third]);
    process.clock.advance_by(SECOND / 2);
    let told = error(&mut third);
    assert!(is_away(&told), "{told}");
}

#[tokio::test]
async fn whoever_waits_for_an_instant_is_out_of_time_and_a_store_that_serves_others_does_not_stand_still() {
    let store = Shaky::new(Manner::StandsStill);
    let process = Process::on(&store);
    let mut hasty = process.asks(SECOND / 2);
    process.clock.advance_by(SECOND / 2);
    let told = error(&mut hasty);
    assert!(matches!(told, Error::TimedOut { stage: Stage::Remote, .. }), "{told}");
    drop(hasty);
    let process = Process::on(&store);
    let (mut first, mut second) = (process.asks(4 * SECOND), process.asks(3 * SECOND));
    for _ in 0..3 {
        process.passes(SECOND / 2, &mut [&mut first, &mut second]);
        let mut other: Waiting = Box::pin(process.locker.lock("quick"));
        assert!(poll(&mut other).is_ready());
        process.passes(Duration::from_millis(490), &mut [&mut first, &mut second]);
    }
    process.clock.advance_by(SECOND);
    let told = error(&mut second);
    assert!(matches!(told, Error::TimedOut { stage: Stage::Local, .. }), "{told}");
}
