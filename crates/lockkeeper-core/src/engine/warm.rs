//! Warm locks: what is given back may stay with this process while nobody else wants it, and is taken again without a trip.
//!
//! ```text
//!  give back ─▶ wanted, deaf, cold, too many, used up? ── yes ─▶ leave the store
//!                   │ no
//!                   ▼
//!                 idle ── asked for by one of us ─▶ held, next fence
//!                   │ recalled · a third of the ttl over · too many · by hand · closed
//!                   └─▶ leave the store
//! ```
//!
//! What is idle is never renewed, so a process that dies blocks others for the rest of one lease at the most. It listens all the
//! time; a sign means that it must go.

use std::sync::{Arc, Weak};

use crate::clock::Moment;
use crate::engine::ask::Ask;
use crate::engine::hold::Hold;
use crate::engine::leave::{Leave, cool, kept, leave_in_caller};
use crate::engine::line::Arrival;
use crate::engine::renewal::listen_idle;
use crate::engine::shared::Engine;
use crate::key::Key;
use crate::observe::{CooledBy, Event};

/// Keep what this guard gives back, if it may stay. `true` if it did: the store is not told.
#[inline]
pub(crate) fn keep(engine: &Arc<Engine>, held: &Hold) -> bool {
    held.tenure.stay.is_warm() && keep_warm(engine, held, engine.clock.now())
}

/// The same for whoever has just looked at the clock.
#[inline]
pub(crate) fn keep_at(engine: &Arc<Engine>, held: &Hold, now: Moment) -> bool {
    held.tenure.stay.is_warm() && keep_warm(engine, held, now)
}

#[inline(never)]
fn keep_warm(engine: &Arc<Engine>, held: &Hold, now: Moment) -> bool {
    let tenure = &held.tenure;
    if !engine.profile.recalls() || engine.is_closed() {
        return false;
    }
    // Whoever is deaf would not hear that it must go.
    if !tenure.signs.deaf_for(tenure.ttl).is_zero() || !engine.warmth.admits(&tenure.key, now) {
        return false;
    }
    let Some(since) = engine.queue.rest(held, now) else { return false };
    kept(engine, held, since);
    engine.schedule.no_later_than(tenure.renew_at());
    listen_idle(engine, tenure);
    if !tenure.stay.is_listed() {
        engine.background.end_with_process(|| {
            let weak: Weak<Engine> = Arc::downgrade(engine);
            weak
        });
        for victim in engine.warmth.kept(tenure) {
            cool(engine, &victim, CooledBy::TooMany);
        }
    }
    true
}

/// Arrive, after what is idle and of no use to this caller has begun to leave. Whoever goes to the store then waits for the end
/// of that, lest it stands behind our own place; if nobody does, it goes on in the background.
#[inline]
pub(crate) fn arrive(
    engine: &Arc<Engine>,
    key: &Key,
    ask: &Ask,
    now: Moment,
    leaving: &mut Option<Leave>,
) -> Arrival {
    loop {
        match engine.queue.arrive(key, ask, now) {
            Arrival::Cooled(tenure) => {
                engine.observe(&Event::Cooled { key, by: CooledBy::Unfit });
                *leaving = leave_in_caller(engine, &tenure);
            }
            arrival => return arrival,
        }
    }
}
