//! The rounds: one task on the keeper's own thread renews every tenure of the locker and tells of losses.
//!
//! It visits the queue's lines instead of keeping a list of its own, so taking and giving back a lock
//! costs it nothing. Tenures that are due within a quarter of a renewal period are renewed together,
//! so that a backend can send them as one batch.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{self, DynPlace, Renewal};
use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::LostReason;
use crate::keeper;
use crate::observe::Event;
use crate::queue::Held;
use crate::tenure::{Returned, Tenure};

#[derive(Debug)]
pub(crate) struct Rounds {
    /// When the next round begins, as far as it is planned.
    next: AtomicU64,
    /// The shortest ttl seen, which sets the pace of idle rounds.
    ttl_min: AtomicU64,
    /// Something was granted since the last round.
    busy: AtomicBool,
    started: AtomicBool,
    earlier: Arc<Notify>,
}

impl Rounds {
    pub(crate) fn new() -> Self {
        Rounds {
            next: AtomicU64::new(u64::MAX),
            ttl_min: AtomicU64::new(u64::MAX),
            busy: AtomicBool::new(false),
            started: AtomicBool::new(false),
            earlier: Arc::default(),
        }
    }

    /// A tenure began: make sure that a round comes before it must be renewed or ends.
    pub(crate) fn expect(&self, held: &Held, engine: &Arc<Engine>) {
        let tenure = &held.tenure;
        let ttl = u64::try_from(tenure.ttl.as_nanos()).unwrap_or(u64::MAX);
        if ttl < self.ttl_min.load(Ordering::Relaxed) {
            self.ttl_min.fetch_min(ttl, Ordering::Relaxed);
        }
        if !self.busy.load(Ordering::Relaxed) {
            self.busy.store(true, Ordering::Relaxed);
        }
        if !self.started.load(Ordering::Acquire) && !self.started.swap(true, Ordering::AcqRel) {
            let weak = Arc::downgrade(engine);
            engine.background.spawn_untracked(Box::pin(walk(weak)));
        }
        self.expect_at(tenure.renew_at().min(held.hold_until));
    }

    /// A deadline earlier than any renewal, such as `max_hold`.
    pub(crate) fn expect_at(&self, at: Moment) {
        if at.as_nanos() < self.next.load(Ordering::Acquire) {
            self.earlier.notify_one();
        }
    }

    /// The locker is going: let the walk notice.
    pub(crate) fn stop(&self) {
        self.earlier.notify_one();
    }

    /// A tenure was handed on: ask soon whether somebody outside has begun to wait.
    pub(crate) fn ask_early(&self, tenure: &Tenure, now: Moment, span: Duration) {
        if tenure.ask_at() == Moment::NEVER && tenure.wanted_since().is_none() {
            let at = now.after(span);
            tenure.set_ask_at(at);
            self.expect_at(at);
        }
    }
}

/// Walk the rounds until the locker and its last guard are gone.
async fn walk(weak: Weak<Engine>) {
    while let Some(engine) = weak.upgrade() {
        // While the lines are visited everybody who arrives wakes us again, so that nobody is missed.
        engine.rounds.next.store(u64::MAX, Ordering::Release);
        let busy = engine.rounds.busy.swap(false, Ordering::Relaxed);
        let now = engine.clock.now();
        let mut next = visit(&engine, now);
        if busy {
            next = next.min(now.after(linger(&engine.rounds)));
        }
        engine.rounds.next.store(next.as_nanos(), Ordering::Release);
        // While it waits the walk must not keep the locker alive: hold only what it waits for.
        let (clock, earlier) = (engine.clock.clone(), engine.rounds.earlier.clone());
        drop(engine);
        let (mut earlier, mut timer) = (pin!(earlier.notified()), pin!(clock.sleep_until(next)));
        poll_fn(|cx| {
            let woken = earlier.as_mut().poll(cx).is_ready() || timer.as_mut().poll(cx).is_ready();
            if woken { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// After a grant the rounds stay awake for a while, so that quick locks need not wake the thread each time.
fn linger(rounds: &Rounds) -> Duration {
    let ttl_min = Duration::from_nanos(rounds.ttl_min.load(Ordering::Relaxed));
    (ttl_min / 4).min(Duration::from_secs(1))
}

/// Renew what is due, tell what is lost, and say when the next round must begin.
fn visit(engine: &Arc<Engine>, now: Moment) -> Moment {
    let (mut due, mut lost, mut next) = (Vec::new(), Vec::new(), Moment::NEVER);
    engine.queue.for_each_held(|held| {
        if let Some(reason) = loss(held, now) {
            lost.push((held.tenure.clone(), reason));
            return;
        }
        let tenure = &held.tenure;
        if tenure.renew_at() <= now.after(tenure.ttl / 12) || tenure.ask_at() <= now {
            due.push(tenure.clone());
            tenure.set_renew_at(now.after(tenure.ttl / 3));
            tenure.set_ask_at(Moment::NEVER);
        }
        next = next.min(tenure.renew_at()).min(tenure.ask_at()).min(held.valid_until());
    });
    for (tenure, reason) in lost {
        engine.lose(&tenure, reason);
    }
    for tenure in due {
        renew(engine, tenure);
    }
    next
}

fn loss(held: &Held, now: Moment) -> Option<LostReason> {
    if !held.tenure.is_valid(now) {
        return Some(LostReason::Expired);
    }
    (held.hold_until <= now).then_some(LostReason::MaxHold)
}

/// Begin a renewal. It is never cancelled; if the deadline passes first, the rounds tell the loss meanwhile.
fn renew(engine: &Arc<Engine>, tenure: Arc<Tenure>) {
    let Some(place) = tenure.take_to_renew() else { return };
    let asked_at = engine.clock.now();
    let mut verb = place.renew_dyn();
    // One look now: a store that answers at once costs no task, and one that batches sees all who are due.
    let first_look = verb.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let engine = engine.clone();
    match first_look {
        Poll::Ready((place, answer)) => {
            if let Returned::Ended(place) = settle(&engine, &tenure, asked_at, place, answer) {
                engine
                    .clone()
                    .background
                    .spawn(async move { keeper::see_out(&engine, &tenure, place).await });
            }
        }
        Poll::Pending => engine.clone().background.spawn(async move {
            let (place, answer) = verb.await;
            if let Returned::Ended(place) = settle(&engine, &tenure, asked_at, place, answer) {
                keeper::see_out(&engine, &tenure, place).await;
            }
        }),
    }
}

/// A renewal was answered.
fn settle(
    engine: &Arc<Engine>,
    tenure: &Arc<Tenure>,
    asked_at: Moment,
    place: Box<dyn DynPlace>,
    answer: backend::Result<Renewal>,
) -> Returned {
    match answer {
        // Confirmed too late: who looked since then was told that the lock is gone, and so it is.
        Ok(Renewal::Held { .. }) if !tenure.is_valid(engine.clock.now()) => {
            engine.lose(tenure, LostReason::Expired);
        }
        Ok(Renewal::Held { valid_for, wanted, sent_at }) => {
            let asked_at = sent_at.map_or(asked_at, |it| it.max(asked_at));
            let valid_until = engine.deadline(asked_at, valid_for);
            tenure.extend(asked_at, valid_until, wanted);
            let valid_for = valid_until - engine.clock.now();
            engine.observe(&Event::Renewed { key: &tenure.key, valid_for });
        }
        Ok(Renewal::Lost) => engine.lose(tenure, LostReason::Taken),
        Err(fault) => {
            engine.observe(&Event::Faulted { key: &tenure.key, fault: &fault });
            // Ask again soon: the deadline does not wait.
            let again = engine.clock.now().after(tenure.ttl / 20);
            tenure.set_renew_at(again);
            engine.rounds.expect_at(again);
        }
    }
    tenure.bring_back(place)
}
