//! Lines 2 and 6: every verb may be repeated, and leaving is legal in every state.

use lockkeeper_core::backend::{Place, Turn};

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict};
use crate::history::What;

/// A holder who asks again is told the same grant again.
///
/// # Errors
/// If the store breaks the contract.
pub async fn asking_twice_gives_one_grant<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    let first = holder.takes().await?;
    other.must_wait(holder.safe_until(), "it is held").await?;
    let safe_until = holder.safe_until();
    let again = holder.takes_at_once("whoever asks has it already").await?;
    if first.counter != again.counter && trial.clock.now() < safe_until {
        let (first, again) = (first.counter, again.counter);
        return Err(Failure::broken(format!("asked twice, granted twice: {first} and {again}")));
    }
    holder.leaves().await?;
    other.takes().await?;
    other.leaves().await?;
    trial.nothing_is_left(&here, "a grant was asked for twice and left once").await?;
    Ok(Outcome::Shown)
}

/// A waiter who asks often has one place, and is gone when it leaves once.
///
/// # Errors
/// If the store breaks the contract.
pub async fn asking_twice_in_line_keeps_one_place<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    for _ in 0..4 {
        waiter.must_wait(holder.safe_until(), "it is held").await?;
    }
    holder.leaves().await?;
    waiter.takes().await?;
    waiter.leaves().await?;
    trial.nothing_is_left(&here, "a waiter asked four times and left once").await?;
    Ok(Outcome::Shown)
}

/// What the store knows is the id: a second place with the same claim finds what the first one has.
///
/// # Errors
/// If the store breaks the contract.
pub async fn another_place_with_the_same_id_is_the_same_claim<H: Harness>(trial: &Trial<H>) -> Verdict {
    let here = trial.connect().await;
    let mut first = trial.contender(&here)?;
    let mut twin = trial.contender_with(&here, first.claim.clone());
    let granted = first.takes().await?;
    let safe_until = first.safe_until();
    let found = twin.takes_at_once("the same claim has it already").await?;
    if granted.counter != found.counter && trial.clock.now() < safe_until {
        let (granted, found) = (granted.counter, found.counter);
        return Err(Failure::broken(format!("one claim, two grants: {granted} and {found}")));
    }
    twin.leaves().await?;
    first.must_be_lost("the same claim has left").await?;
    trial.nothing_is_left(&here, "a claim with two places left once").await?;
    Ok(Outcome::Shown)
}

/// Leaving again releases nothing, least of all the next holder.
///
/// # Errors
/// If the store breaks the contract.
pub async fn leaving_twice_releases_nobody_else<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut first, mut second) = (trial.contender(&here)?, trial.contender(&there)?);
    first.takes().await?;
    first.leaves().await?;
    first.leaves().await?;
    second.takes().await?;
    first.leaves().await?;
    second.must_still_hold("only the holder before it left once more").await?;
    second.leaves().await?;
    Ok(Outcome::Shown)
}

/// Whoever never asked may leave, and whoever waits may leave; the line goes on without them.
///
/// # Errors
/// If the store breaks the contract.
pub async fn leaving_is_legal_before_asking_and_in_line<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let mut stranger = trial.contender(&there)?;
    stranger.leaves().await?;
    stranger.leaves().await?;
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    waiter.must_wait(holder.safe_until(), "it is held").await?;
    waiter.leaves().await?;
    waiter.leaves().await?;
    holder.must_still_hold("only a waiter left").await?;
    holder.leaves().await?;
    trial.nothing_is_left(&here, "the waiter and the holder have left").await?;
    Ok(Outcome::Shown)
}

/// Nobody can release what another holds.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_foreign_leave_releases_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    let mut stranger = trial.contender(&there)?;
    stranger.leaves().await?;
    holder.must_still_hold("only a stranger left").await?;
    other.must_wait(holder.safe_until(), "only a stranger left").await?;
    let mut impatient = trial.contender_with(&here, trial.impatient()?);
    impatient.must_wait(holder.safe_until(), "it is held").await?;
    impatient.leaves().await?;
    holder.must_still_hold("only one who was refused left").await?;
    other.must_wait(holder.safe_until(), "only one who was refused left").await?;
    holder.leaves().await?;
    other.takes().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A store that can answer without a future gives the same answers that way.
///
/// # Errors
/// If the store breaks the contract.
pub async fn what_is_answered_at_once_is_the_same_answer<H: Harness>(trial: &Trial<H>) -> Verdict {
    let here = trial.connect().await;
    let mut holder = trial.contender(&here)?;
    let asked = trial.history.ask();
    let Some(answer) = holder.place().turn_at_once(trial.clock.now()) else {
        return Ok(Outcome::NotPromised("asking takes time in this store"));
    };
    let Turn::Held(at_once) = answer else {
        return Err(Failure::broken("a free lock was refused when asked at once"));
    };
    let valid_until = asked.at.after(at_once.valid_for);
    trial.history.note(&holder.claim, What::Granted { asked, fence: at_once.counter, valid_until });
    let granted = holder.takes_at_once("it was granted at once before").await?;
    if granted.counter != at_once.counter && trial.clock.now() < valid_until {
        let (at_once, granted) = (at_once.counter, granted.counter);
        return Err(Failure::broken(format!("{at_once} when asked at once, {granted} when asked again")));
    }
    let mut other = trial.contender_with(&here, trial.claim()?.impatient());
    if matches!(other.place().turn_at_once(trial.clock.now()), Some(Turn::Held(_)))
        && trial.clock.now() < holder.safe_until()
    {
        return Err(Failure::broken("a held lock was granted when asked at once"));
    }
    if other.place().leave_at_once() {
        holder.must_still_hold("only a stranger left at once").await?;
    }
    if !holder.place().leave_at_once() {
        holder.leaves().await?;
    }
    trial.history.note(&holder.claim, What::Left);
    trial.nothing_is_left(&here, "the holder left at once").await?;
    Ok(Outcome::Shown)
}
