//! What a holder says to the store and hears from it: one renewal, and the signs that lead to one before its time.
//!
//! ```text
//!  granted ─▶ held for a moment? ── no ─▶ (nothing)
//!                 │ yes
//!                 ▼
//!             the place listens ── sign: wanted, or gone ─▶ renew ─▶ the answer counts ─▶ listens again, or lost
//! ```
//!
//! A sign is a hint and never believed. Most locks are given back before listening would be of any use to them, so it
//! begins a moment after the grant, and costs a quick lock an entry in a list. Where all are quick the moment grows, up to a
//! third of a second.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use crate::clock::Moment;
use crate::engine::leave::{cool, lose, spawn_leaving};
use crate::engine::shared::Engine;
use crate::engine::spot::Heard;
use crate::engine::tenure::{Returned, Tenure, deadline};
use crate::error::LostReason;
use crate::observe::{Answer, CooledBy, Event, Verb};
use crate::spi::backend::{self, Renewal};
use crate::spi::erased::DynPlace;

/// Why a renewal is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Due,
    Sign,
}

/// A tenure began: let it listen if it is held for more than a moment, where the store speaks to holders.
pub(crate) fn granted(engine: &Arc<Engine>, tenure: &Arc<Tenure>) {
    if !engine.profile.notifies || tenure.is_private {
        return;
    }
    if engine.fresh.add(tenure) {
        let (weak, clock, mut pause) = (Arc::downgrade(engine), engine.clock.clone(), engine.fresh.pause());
        engine.background.spawn_untracked(Box::pin(async move {
            loop {
                clock.sleep(pause).await;
                let Some(engine) = weak.upgrade() else { return };
                let (held, goes_on) = engine.fresh.take();
                for tenure in &held {
                    listen(&engine, tenure);
                }
                if !goes_on {
                    return;
                }
                pause = engine.fresh.pause();
            }
        }));
    }
}

/// Let a tenure that is held listen, where the store speaks to holders. Twice is harmless.
pub(crate) fn listen(engine: &Arc<Engine>, tenure: &Arc<Tenure>) {
    if engine.profile.notifies && !tenure.is_private {
        begin_to_listen(engine, tenure);
    }
}

/// The same for one that became idle, also where it must look by itself.
pub(crate) fn listen_idle(engine: &Arc<Engine>, tenure: &Arc<Tenure>) {
    if engine.profile.recalls() && !tenure.is_private {
        begin_to_listen(engine, tenure);
    }
}

fn begin_to_listen(engine: &Arc<Engine>, tenure: &Arc<Tenure>) {
    let deaf_for = tenure.signs.deaf_for(tenure.ttl);
    if deaf_for.is_zero() && !tenure.listen() {
        return;
    }
    let (weak, clock, tenure) = (Arc::downgrade(engine), engine.clock.clone(), tenure.clone());
    engine.background.spawn_untracked(Box::pin(async move {
        if !deaf_for.is_zero() {
            clock.sleep(deaf_for).await;
            if !tenure.listen() {
                return;
            }
        }
        hear(weak, tenure).await;
    }));
}

/// Wait for a sign of the store, and ask it then what there is.
async fn hear(weak: Weak<Engine>, tenure: Arc<Tenure>) {
    if let Heard::Sign { called } = poll_fn(|cx| tenure.poll_heard(cx)).await
        && let Some(engine) = weak.upgrade()
    {
        if !cool(&engine, &tenure, CooledBy::Recall) {
            send(&engine, tenure, Cause::Sign);
        } else if called {
            recalled(&engine, &tenure);
        }
    }
}

/// An idle lock was wanted by somebody else. Whoever walks over many of them gets all at once.
fn recalled(engine: &Arc<Engine>, tenure: &Tenure) {
    if engine.warmth.recalled(&tenure.key, tenure.stay.was_retaken(), engine.clock.now()) {
        for tenure in engine.queue.idle() {
            cool(engine, &tenure, CooledBy::Recall);
        }
    }
}

/// Begin a renewal that is due. It is never cancelled; if the deadline passes first, the rounds tell the loss meanwhile.
pub(crate) fn renew(engine: &Arc<Engine>, tenure: Arc<Tenure>) {
    send(engine, tenure, Cause::Due);
}

fn send(engine: &Arc<Engine>, tenure: Arc<Tenure>, cause: Cause) {
    let Some(place) = tenure.take_to_renew() else { return };
    let asked_at = engine.clock.now();
    let mut verb = place.renew_dyn();
    // One look now: a store that answers at once costs no task, and one that batches sees all who are due.
    let first_look = verb.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let engine = engine.clone();
    match first_look {
        Poll::Ready((place, answer)) => {
            if let Returned::Ended(place) = settle(&engine, &tenure, asked_at, cause, place, answer) {
                spawn_leaving(&engine, &tenure, place);
            }
        }
        Poll::Pending => engine.clone().background.spawn(async move {
            let (place, answer) = verb.await;
            // A task of its own: here it would make each of a million renewals larger by what few of them do.
            if let Returned::Ended(place) = settle(&engine, &tenure, asked_at, cause, place, answer) {
                spawn_leaving(&engine, &tenure, place);
            }
        }),
    }
}

/// A renewal was answered.
fn settle(
    engine: &Arc<Engine>,
    tenure: &Arc<Tenure>,
    asked_at: Moment,
    cause: Cause,
    place: Box<dyn DynPlace>,
    answer: backend::Result<Renewal>,
) -> Returned {
    engine.answered(&tenure.key, Verb::Renew, asked_at, Answer::to_renew(&answer));
    let must_go = !matches!(answer, Ok(Renewal::Held { wanted: false, .. }));
    match answer {
        // Confirmed too late: who looked since then was told that the lock is gone, and so it is.
        Ok(Renewal::Held { .. }) if !tenure.is_valid(engine.clock.now()) => {
            lose(engine, tenure, LostReason::Expired);
        }
        Ok(Renewal::Held { valid_for, wanted, sent_at }) => {
            let now = engine.clock.now();
            engine.heard(now);
            let valid_until = deadline(asked_at, sent_at, valid_for, now);
            let (left, valid_for) = (tenure.valid_until() - now, valid_until - now);
            tenure.signs.count(cause == Cause::Due || (wanted && tenure.wanted_since().is_none()));
            tenure.extend(asked_at, valid_until, wanted);
            let Tenure { key, ttl, .. } = &**tenure;
            engine.observe(&Event::Renewed { key, fence: tenure.fence(), ttl: *ttl, left, valid_for });
        }
        Ok(Renewal::Lost) => lose(engine, tenure, LostReason::Taken),
        Err(fault) => {
            engine.observe(&Event::Faulted { key: &tenure.key, verb: Verb::Renew, fault: &fault });
            // Ask again soon: the deadline does not wait.
            let again = engine.clock.now().after(tenure.ttl / 20);
            tenure.set_renew_at(again);
            engine.schedule.no_later_than(again);
            tenure.signs.count(false);
        }
    }
    // It may have become idle while the answer was on its way.
    if must_go {
        cool(engine, tenure, CooledBy::Recall);
    }
    let returned = tenure.bring_back(place);
    if let Returned::Resting = returned {
        // What became idle meanwhile looks, too, where it must look by itself. Whoever gives it back later finds the place here.
        let looks = engine.profile.looks && engine.queue.is_idle(tenure);
        if looks { listen_idle(engine, tenure) } else { listen(engine, tenure) }
    }
    returned
}
