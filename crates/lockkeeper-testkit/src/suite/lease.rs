//! Lines 9, 10, 12, 13 and 17: how long a grant lasts, by whose clock, and what is forgotten after it.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Lease, Place as _, Turn};

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict, unless_leased_by_claim};
use crate::chaos::{Fate, Script, Verb};

/// Nobody else is granted before a silent holder's time is over.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_grant_lasts_as_long_as_it_says<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    other.must_wait_until(holder.safe_until(), "the grant was said to last longer").await?;
    holder.leaves().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A holder that asks again is told a time that is true, too.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_repeated_grant_lasts_as_long_as_it_says<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    trial.clock.sleep(trial.ttl / 2).await;
    let granted_until = holder.safe_until();
    holder.takes().await?;
    let until = granted_until.max(holder.safe_until());
    other.must_wait_until(until, "the repeated grant was said to last longer").await?;
    holder.leaves().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A renewal is worth what it says, and no less than what was there before.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_renewal_lasts_as_long_as_it_says<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    trial.clock.sleep(trial.ttl / 2).await;
    holder.must_still_hold("half of its ttl is left").await?;
    other.must_wait_until(holder.safe_until(), "the renewal was said to last longer").await?;
    holder.leaves().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A session that falls silent keeps its locks for as long as it was told.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_silenced_session_lasts_as_long_as_it_says<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if here.profile().lease != Lease::Session {
        return Ok(Outcome::NotPromised("the profile says Lease::Claim"));
    }
    let (mut silent, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    silent.takes().await?;
    silent.must_still_hold("it was granted just now").await?;
    let safe_until = silent.safe_until();
    trial.crash(here, [silent]).await;
    other.must_wait_until(safe_until, "the session was said to last longer").await?;
    other.takes().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A grant's time begins when it is asked for, not when its claim was thought of.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_claim_made_long_ago_gets_its_whole_ttl<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    trial.clock.sleep(trial.ttl * 2).await;
    holder.takes().await?;
    other.must_wait_until(holder.safe_until(), "its time began when it was asked for").await?;
    holder.leaves().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A neighbour with a short ttl shortens nobody's time.
///
/// # Errors
/// If the store breaks the contract.
pub async fn each_claim_lives_by_its_own_ttl<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_leased_by_claim(here.profile()) {
        return Ok(outcome);
    }
    let ttl = (trial.ttl * 4).min(here.profile().ttl_max);
    let mut long = trial.contender_with(&here, trial.claim()?.ttl(ttl));
    let mut short = trial.contender(&there)?;
    long.takes().await?;
    short.must_wait_until(long.safe_until(), "the holder's ttl is longer than the waiter's").await?;
    long.leaves().await?;
    short.takes().await?;
    let mut heir = trial.contender_with(&here, trial.claim()?.ttl(ttl));
    heir.must_wait_until(short.safe_until(), "the holder's own ttl is not over").await?;
    heir.takes().await?;
    heir.leaves().await?;
    Ok(Outcome::Shown)
}

/// A holder that died is replaced.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_crashed_holder_is_replaced<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut dead, mut heir) = (trial.contender(&here)?, trial.contender(&there)?);
    dead.takes().await?;
    heir.must_wait(dead.safe_until(), "it is held").await?;
    trial.crash(here, [dead]).await;
    heir.takes().await?;
    heir.leaves().await?;
    trial.nothing_is_left(&there, "a dead holder was replaced and its heir left").await?;
    Ok(Outcome::Shown)
}

/// A waiter that died at the head of the line holds up those behind it for its ttl at most.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_crashed_waiter_does_not_block_the_line<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there, elsewhere) = (trial.connect().await, trial.connect().await, trial.connect().await);
    let (mut holder, mut dead) = (trial.contender(&here)?, trial.contender(&there)?);
    let mut next = trial.contender(&elsewhere)?;
    holder.takes().await?;
    dead.must_wait(holder.safe_until(), "it is held").await?;
    next.must_wait(holder.safe_until(), "it is held").await?;
    trial.crash(there, [dead]).await;
    holder.leaves().await?;
    next.takes().await?;
    next.leaves().await?;
    trial.nothing_is_left(&here, "the dead waiter's place was passed over").await?;
    Ok(Outcome::Shown)
}

/// A waiter of a living process that does not ask again is forgotten as a dead one is.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_silent_waiter_is_forgotten<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_leased_by_claim(here.profile()) {
        return Ok(outcome);
    }
    let (mut holder, mut silent) = (trial.contender(&here)?, trial.contender(&there)?);
    let mut next = trial.contender(&there)?;
    holder.takes().await?;
    silent.must_wait(holder.safe_until(), "it is held").await?;
    next.must_wait(holder.safe_until(), "it is held").await?;
    holder.leaves().await?;
    next.takes().await?;
    next.leaves().await?;
    trial.clock.sleep(trial.ttl * 2).await;
    trial.nothing_is_left(&here, "a waiter was silent for two ttls").await?;
    Ok(Outcome::Shown)
}

/// A grant whose answer arrives after its time is no grant: the next holder is not disturbed by it.
///
/// # Errors
/// If the store breaks the contract.
pub async fn an_answer_that_comes_too_late_harms_nobody<H: Harness>(trial: &Trial<H>) -> Verdict {
    let script = Script::default();
    let (here, there) = (trial.connect_through(&script).await, trial.connect().await);
    if let Some(outcome) = unless_leased_by_claim(there.profile()) {
        return Ok(outcome);
    }
    let (mut late, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    script.then(Verb::Turn, Fate::slow(Duration::ZERO, trial.ttl * 3));
    let answered_by = trial.clock.now().after(trial.ttl * 3 + trial.ttl / 4);
    let (answer, taken) = tokio::join!(late.ask_once(), async {
        // Let the slow one be first; it is granted as soon as it is asked for.
        trial.clock.sleep(trial.ttl / 8).await;
        other.takes().await?;
        while trial.clock.now() < answered_by {
            other.must_still_hold("the time of the one before is over").await?;
            trial.clock.sleep(trial.ttl / 8).await;
        }
        Ok::<_, Failure>(())
    });
    taken?;
    if let Ok(Turn::Held(grant)) = answer?
        && trial.clock.now() < late.safe_until()
    {
        let valid_for = grant.valid_for;
        return Err(Failure::broken(format!("a grant for {valid_for:?} was still good after three ttls")));
    }
    late.must_wait(other.safe_until(), "another has taken it since").await?;
    late.leaves().await?;
    other.must_still_hold("only one whose time was over left").await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A lock that is given back later is kept for that time, longer or shorter than its ttl, and then somebody else has it.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_lock_lingers_as_long_as_was_said<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if !here.profile().lingers {
        return Ok(Outcome::NotPromised("the store keeps no lock for a holder that is gone"));
    }
    for span in [trial.ttl * 2, trial.ttl / 2] {
        let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
        holder.takes().await?;
        waiter.must_wait(holder.safe_until(), "it is held").await?;
        let asked_at = trial.clock.now();
        holder.place().linger(span).await?;
        holder.place().linger(span).await?;
        // Of what comes now the record shall know nothing but that we believe in it no longer.
        trial.history.note(&holder.claim, crate::history::What::Lost);
        let until = asked_at.after(span);
        waiter.must_wait_until(until, "it is to be kept for a time").await?;
        waiter.takes().await?;
        // It was the other's once: now it is nobody's to keep.
        holder.place().linger(trial.ttl * 10).await?;
        waiter.must_still_hold("one who holds nothing asked to keep it").await?;
        waiter.leaves().await?;
        holder.leaves().await?;
    }
    trial.nothing_is_left(&here, "all have left").await?;
    Ok(Outcome::Shown)
}
