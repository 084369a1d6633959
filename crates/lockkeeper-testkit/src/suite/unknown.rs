//! Line 3: `Err` means unknown. Asking again finds what the lost call did.

use lockkeeper_core::backend::Backend;

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict, unless_fifo};
use crate::chaos::{Fate, Script, Verb};

/// A request that never arrived did nothing, and asking again does all.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_lost_request_to_take_is_asked_again<H: Harness>(trial: &Trial<H>) -> Verdict {
    let script = Script::default();
    let (here, there) = (trial.connect_through(&script).await, trial.connect().await);
    let mut unlucky = trial.contender(&here)?;
    script.then(Verb::Turn, Fate::REQUEST_LOST);
    unlucky.asks_in_vain().await?;
    trial.nothing_is_left(&there, "a request was lost on its way").await?;
    unlucky.takes().await?;
    let mut other = trial.contender(&there)?;
    other.must_wait(unlucky.safe_until(), "it was granted at the second try").await?;
    unlucky.leaves().await?;
    other.takes().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A grant whose answer was lost is a grant: it keeps others out, and asking again tells of it.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_lost_grant_is_found_again<H: Harness>(trial: &Trial<H>) -> Verdict {
    let script = Script::default();
    let (here, there) = (trial.connect_through(&script).await, trial.connect().await);
    let (mut unlucky, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    script.then(Verb::Turn, Fate::REPLY_LOST);
    let asked_at = trial.clock.now();
    unlucky.asks_in_vain().await?;
    let granted_until = asked_at.after(trial.ttl / 2);
    other.must_wait(granted_until, "the lock was granted, though the answer was lost").await?;
    let found = unlucky.takes().await?;
    other.must_wait(unlucky.safe_until(), "the lost grant was found again").await?;
    unlucky.leaves().await?;
    let next = other.takes().await?;
    other.leaves().await?;
    if next.counter <= found.counter {
        return Err(Failure::broken(format!("{} was granted after {}", next.counter, found.counter)));
    }
    trial.nothing_is_left(&there, "a lost grant was found and left").await?;
    Ok(Outcome::Shown)
}

/// A place whose answer was lost is a place: who came later comes later.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_lost_place_in_line_is_found_again<H: Harness>(trial: &Trial<H>) -> Verdict {
    let script = Script::default();
    let (here, there) = (trial.connect_through(&script).await, trial.connect().await);
    if let Some(outcome) = unless_fifo(there.profile()) {
        return Ok(outcome);
    }
    let mut holder = trial.contender(&there)?;
    let (mut unlucky, mut later) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    script.then(Verb::Turn, Fate::REPLY_LOST);
    let kept_until = trial.clock.now().after(trial.ttl);
    unlucky.asks_in_vain().await?;
    later.must_wait(holder.safe_until(), "it is held").await?;
    holder.leaves().await?;
    later.must_wait(kept_until, "somebody stands before it whose answer was lost").await?;
    unlucky.takes().await?;
    unlucky.leaves().await?;
    later.takes().await?;
    later.leaves().await?;
    trial.nothing_is_left(&there, "a lost place was found and left").await?;
    Ok(Outcome::Shown)
}

/// Whoever does not know whether it holds can leave all the same, and nothing stays behind.
///
/// # Errors
/// If the store breaks the contract.
pub async fn an_unknown_take_can_be_given_up<H: Harness>(trial: &Trial<H>) -> Verdict {
    let script = Script::default();
    let (here, there) = (trial.connect_through(&script).await, trial.connect().await);
    for fate in [Fate::REPLY_LOST, Fate::REQUEST_LOST] {
        let mut unlucky = trial.contender(&here)?;
        script.then(Verb::Turn, fate);
        unlucky.asks_in_vain().await?;
        unlucky.leaves().await?;
        trial.nothing_is_left(&there, "an unknown grant was given up").await?;

        let (mut holder, mut unlucky) = (trial.contender(&there)?, trial.contender(&here)?);
        holder.takes().await?;
        script.then(Verb::Turn, fate);
        unlucky.asks_in_vain().await?;
        unlucky.leaves().await?;
        holder.must_still_hold("only an unknown place was given up").await?;
        holder.leaves().await?;
        trial.nothing_is_left(&there, "an unknown place was given up").await?;
    }
    Ok(Outcome::Shown)
}

/// A renewal of unknown outcome is asked again; the lock stays.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_lost_renewal_is_asked_again<H: Harness>(trial: &Trial<H>) -> Verdict {
    let script = Script::default();
    let (here, there) = (trial.connect_through(&script).await, trial.connect().await);
    let (mut unlucky, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    unlucky.takes().await?;
    for fate in [Fate::REQUEST_LOST, Fate::REPLY_LOST] {
        script.then(Verb::Renew, fate);
        if unlucky.renew_once().await?.is_ok() {
            return Err(Failure::broken("a renewal that chaos took away was answered"));
        }
        other.must_wait(unlucky.safe_until(), "only a renewal is unknown").await?;
        unlucky.must_still_hold("the renewal was asked again in time").await?;
    }
    unlucky.leaves().await?;
    other.takes().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A release of unknown outcome is repeated: it frees the lock, and never the next holder's.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_lost_release_is_repeated_without_harm<H: Harness>(trial: &Trial<H>) -> Verdict {
    let script = Script::default();
    let (here, there) = (trial.connect_through(&script).await, trial.connect().await);
    let (mut unlucky, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    unlucky.takes().await?;
    script.then(Verb::Leave, Fate::REQUEST_LOST).then(Verb::Leave, Fate::REPLY_LOST);
    if unlucky.leave_once().await?.is_ok() {
        return Err(Failure::broken("a release that chaos took away was answered"));
    }
    other.must_wait(unlucky.safe_until(), "the release never arrived").await?;
    if unlucky.leave_once().await?.is_ok() {
        return Err(Failure::broken("a release that chaos took away was answered"));
    }
    other.takes().await?;
    unlucky.leaves().await?;
    other.must_still_hold("only the holder before it repeated its release").await?;
    other.leaves().await?;
    trial.nothing_is_left(&there, "a release was repeated").await?;
    Ok(Outcome::Shown)
}
