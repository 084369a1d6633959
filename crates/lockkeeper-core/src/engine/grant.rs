//! From grant to hold: the one way by which a lock becomes ours, for every store and every caller.

use std::sync::Arc;

use crate::clock::Moment;
use crate::engine::ask::Ask;
use crate::engine::hold::Hold;
use crate::engine::keeper::Keeper;
use crate::engine::leave::leave_in_background;
use crate::engine::rounds;
use crate::engine::shared::Engine;
use crate::engine::tenure::{Tenure, deadline};
use crate::error::{Error, Result};
use crate::fence::COUNTER_MAX;
use crate::key::Key;
use crate::spi::backend::{Fault, Grant};

/// Why a grant is of no use.
pub(crate) enum Useless {
    /// No time is left of it: ask again, from the same place.
    Late(Keeper),
    /// No fence can hold its counter, or another's fence was larger.
    Unfit(Keeper, Error),
}

/// The store granted the keeper's claim, asked at `asked_at` and answered by `now`: a tenure, if it can still be used.
pub(crate) fn tenure_of(
    engine: &Engine,
    key: &Key,
    keeper: Keeper,
    (asked_at, now): (Moment, Moment),
    grant: &Grant,
) -> Result<Arc<Tenure>, Useless> {
    if let Err(error) = check_counter(engine, grant.counter) {
        return Err(Useless::Unfit(keeper, error));
    }
    let valid_until = deadline(asked_at, grant.sent_at, grant.valid_for, now);
    if valid_until <= now {
        return Err(Useless::Late(keeper));
    }
    if let Some(larger) = engine.seen.larger(key, keeper.claim.load, grant.counter, (asked_at, now)) {
        return Err(Useless::Unfit(keeper, went_back(engine, grant.counter, larger)));
    }
    let Keeper { place, claim, .. } = keeper;
    Ok(Arc::new(Tenure::new(key.clone(), claim.ttl, claim.load, place, grant, asked_at, valid_until)))
}

/// Seat the caller who represented us. [`Error::Closed`] if the locker was closed meanwhile.
pub(crate) fn seat(engine: &Arc<Engine>, ask: &Ask, tenure: Arc<Tenure>, now: Moment) -> Result<Hold> {
    let held = Hold::new(tenure, now, ask);
    let Some(calls) = engine.queue.seat(&held) else {
        leave_in_background(engine, &held.tenure);
        return Err(Error::Closed);
    };
    rounds::include(engine, &held.tenure, held.until);
    engine.tell(calls);
    Ok(held)
}

/// Refuse a counter that no fence can hold, rather than let fences go back.
fn check_counter(engine: &Engine, counter: u64) -> Result<()> {
    if counter <= COUNTER_MAX {
        return Ok(());
    }
    let what = format!("its counter {counter} is larger than the {COUNTER_MAX} a fence can hold");
    Err(Error::Unsupported { backend: engine.profile.name, what })
}

/// What a store does that was restored from a copy, for example. It has nothing to do with the one who asks.
fn went_back(engine: &Engine, counter: u64, larger: u64) -> Error {
    let what = format!("its counter {counter} went back: {larger} was given before, and fences must grow");
    Fault::permanent(engine.profile.name, "taking the lock", what).into()
}
