//! The rounds: one task on our own thread renews every tenure of the locker and tells of losses.
//!
//! It visits the queue's lines instead of keeping a list of its own, so taking and giving back a lock
//! costs it nothing. Tenures that are due within a quarter of a renewal period are renewed together,
//! so that a backend can send them as one batch. Where one session keeps all locks of a ttl, one of its signs of life does for
//! all of them: when one is due, all are renewed.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::clock::Moment;
use crate::engine::leave::{cool, lose};
use crate::engine::renewal::{self, renew};
use crate::engine::shared::Engine;
use crate::engine::tenure::Tenure;
use crate::error::LostReason;
use crate::kit::locked;
use crate::observe::CooledBy;
use crate::spi::profile::Lease;

/// A tenure began: make sure that a round comes before it must be renewed or ends, and that it hears the store.
pub(crate) fn include(engine: &Arc<Engine>, tenure: &Arc<Tenure>, until: Moment) {
    renewal::granted(engine, tenure);
    if engine.schedule.include(tenure.ttl, tenure.renew_at().min(until)) {
        engine.background.spawn_untracked(Box::pin(walk(Arc::downgrade(engine))));
    }
}

/// Walk the rounds until the locker and its last guard are gone.
async fn walk(weak: Weak<Engine>) {
    let mut alarm = weak.upgrade().and_then(|it| locked(&it.alarm).take());
    let mut alarmed = false;
    while let Some(engine) = weak.upgrade() {
        let busy = engine.schedule.begin_round();
        let now = engine.clock.now();
        let mut next = visit(&engine, now, alarmed);
        if busy {
            next = next.min(now.after(engine.schedule.linger()));
        }
        // While it waits the walk must not keep the locker alive: hold only what it waits for.
        let (clock, earlier) = (engine.clock.clone(), engine.schedule.end_round(next));
        drop(engine);
        let woken = clock.within(next, pin!(woken(&earlier, alarm.as_mut()))).await;
        alarmed = woken == Some(Woken::Alarmed);
        if woken == Some(Woken::Deaf) {
            alarm = None;
        }
    }
}

/// Why a round begins before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Earlier,
    /// The store says that something may be lost.
    Alarmed,
    /// The store will say so never more.
    Deaf,
}

async fn woken(earlier: &Notify, alarm: Option<&mut watch::Receiver<u64>>) -> Woken {
    let Some(alarm) = alarm else {
        earlier.notified().await;
        return Woken::Earlier;
    };
    tokio::select! {
        rung = alarm.changed() => if rung.is_ok() { Woken::Alarmed } else { Woken::Deaf },
        () = earlier.notified() => Woken::Earlier,
    }
}

/// Renew what is due, or everything if the store is `alarmed`, tell what is lost, and say when the next round must begin.
fn visit(engine: &Arc<Engine>, now: Moment, alarmed: bool) -> Moment {
    let (mut due, mut lost, mut next) = (Vec::new(), Vec::new(), Moment::NEVER);
    let mut cold = Vec::new();
    let kept_by_one = kept_by_one(engine, now);
    let by_session = engine.profile.lease == Lease::Session;
    engine.queue.for_each_held(|tenure, until, is_idle| {
        if is_idle {
            // What nobody has is not renewed.
            if alarmed || tenure.renew_at() <= now || !tenure.is_valid(now) {
                cold.push(tenure.clone());
            }
            next = next.min(tenure.renew_at());
            return;
        }
        if let Some(reason) = loss(tenure, until, now) {
            lost.push((tenure.clone(), reason));
            return;
        }
        let is_due = if by_session {
            kept_by_one.contains(&tenure.ttl)
        } else {
            tenure.renew_at() <= now.after(tenure.ttl / 12)
        };
        if alarmed || is_due || tenure.ask_at() <= now {
            due.push(tenure.clone());
            tenure.set_renew_at(now.after(tenure.ttl / 3));
            tenure.set_ask_at(Moment::NEVER);
        }
        next = next.min(tenure.renew_at()).min(tenure.ask_at()).min(tenure.valid_until()).min(until);
    });
    for (tenure, reason) in lost {
        lose(engine, &tenure, reason);
    }
    for tenure in cold {
        cool(engine, &tenure, if alarmed { CooledBy::Recall } else { CooledBy::Time });
    }
    for tenure in due {
        renew(engine, tenure);
    }
    next
}

/// Where a session keeps what is held: the ttls of which something is due now. Nothing else is renewed before its time there, so
/// that a sign of life comes a third of the ttl after the one before, however many locks come and go meanwhile.
fn kept_by_one(engine: &Engine, now: Moment) -> Vec<Duration> {
    let mut ttls = Vec::new();
    if engine.profile.lease == Lease::Session {
        engine.queue.for_each_held(|tenure, _, is_idle| {
            if !is_idle && tenure.renew_at() <= now && !ttls.contains(&tenure.ttl) {
                ttls.push(tenure.ttl);
            }
        });
    }
    ttls
}

fn loss(tenure: &Tenure, until: Moment, now: Moment) -> Option<LostReason> {
    if !tenure.is_valid(now) {
        return Some(LostReason::Expired);
    }
    (until <= now).then_some(LostReason::MaxHold)
}
