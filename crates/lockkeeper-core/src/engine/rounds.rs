//! The rounds: one task on our own thread renews every tenure of the locker and tells of losses.
//!
//! It visits the queue's lines instead of keeping a list of its own, so taking and giving back a lock
//! costs it nothing. Tenures that are due within a quarter of a renewal period are renewed together,
//! so that a backend can send them as one batch.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use crate::clock::Moment;
use crate::engine::leave::{leave_with, lose, spawn_leaving};
use crate::engine::shared::Engine;
use crate::engine::tenure::{Returned, Tenure, deadline};
use crate::error::LostReason;
use crate::observe::Event;
use crate::spi::backend::{self, DynPlace, Renewal};

/// A tenure began: make sure that a round comes before it must be renewed or ends.
pub(crate) fn include(engine: &Arc<Engine>, tenure: &Tenure, until: Moment) {
    if engine.schedule.include(tenure.ttl, tenure.renew_at().min(until)) {
        engine.background.spawn_untracked(Box::pin(walk(Arc::downgrade(engine))));
    }
}

/// Walk the rounds until the locker and its last guard are gone.
async fn walk(weak: Weak<Engine>) {
    while let Some(engine) = weak.upgrade() {
        let busy = engine.schedule.begin_round();
        let now = engine.clock.now();
        let mut next = visit(&engine, now);
        if busy {
            next = next.min(now.after(engine.schedule.linger()));
        }
        // While it waits the walk must not keep the locker alive: hold only what it waits for.
        let (clock, earlier) = (engine.clock.clone(), engine.schedule.end_round(next));
        drop(engine);
        clock.within(next, pin!(earlier.notified())).await;
    }
}

/// Renew what is due, tell what is lost, and say when the next round must begin.
fn visit(engine: &Arc<Engine>, now: Moment) -> Moment {
    let (mut due, mut lost, mut next) = (Vec::new(), Vec::new(), Moment::NEVER);
    engine.queue.for_each_held(|tenure, until| {
        if let Some(reason) = loss(tenure, until, now) {
            lost.push((tenure.clone(), reason));
            return;
        }
        if tenure.renew_at() <= now.after(tenure.ttl / 12) || tenure.ask_at() <= now {
            due.push(tenure.clone());
            tenure.set_renew_at(now.after(tenure.ttl / 3));
            tenure.set_ask_at(Moment::NEVER);
        }
        next = next.min(tenure.renew_at()).min(tenure.ask_at()).min(tenure.valid_until()).min(until);
    });
    for (tenure, reason) in lost {
        lose(engine, &tenure, reason);
    }
    for tenure in due {
        renew(engine, tenure);
    }
    next
}

fn loss(tenure: &Tenure, until: Moment, now: Moment) -> Option<LostReason> {
    if !tenure.is_valid(now) {
        return Some(LostReason::Expired);
    }
    (until <= now).then_some(LostReason::MaxHold)
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
                spawn_leaving(&engine, &tenure, place);
            }
        }
        Poll::Pending => engine.clone().background.spawn(async move {
            let (place, answer) = verb.await;
            if let Returned::Ended(place) = settle(&engine, &tenure, asked_at, place, answer) {
                leave_with(&engine, &tenure, place).await;
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
            lose(engine, tenure, LostReason::Expired);
        }
        Ok(Renewal::Held { valid_for, wanted, sent_at }) => {
            let now = engine.clock.now();
            engine.heard(now);
            let valid_until = deadline(asked_at, sent_at, valid_for, now);
            tenure.extend(asked_at, valid_until, wanted);
            engine.observe(&Event::Renewed { key: &tenure.key, valid_for: valid_until - now });
        }
        Ok(Renewal::Lost) => lose(engine, tenure, LostReason::Taken),
        Err(fault) => {
            engine.observe(&Event::Faulted { key: &tenure.key, fault: &fault });
            // Ask again soon: the deadline does not wait.
            let again = engine.clock.now().after(tenure.ttl / 20);
            tenure.set_renew_at(again);
            engine.schedule.no_later_than(again);
        }
    }
    tenure.bring_back(place)
}
