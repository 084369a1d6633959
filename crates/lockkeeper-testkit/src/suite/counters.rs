//! Line 8: counters grow strictly from grant to grant of one key.

use lockkeeper_core::backend::Backend;

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict, unless_weighted};

fn must_grow(before: u64, after: u64, over: &str) -> Result<(), Failure> {
    if before < after {
        return Ok(());
    }
    Err(Failure::broken(format!("the counter went from {before} to {after} over {over}")))
}

/// Every grant has a larger counter than the one before, whichever process asks.
///
/// # Errors
/// If the store breaks the contract.
pub async fn counters_grow_from_release_to_release<H: Harness>(trial: &Trial<H>) -> Verdict {
    let backends = [trial.connect().await, trial.connect().await];
    let mut last = None;
    for turn in 0..20 {
        let mut contender = trial.contender(&backends[turn % 2])?;
        let grant = contender.takes().await?;
        contender.leaves().await?;
        if let Some(before) = last.replace(grant.counter) {
            must_grow(before, grant.counter, "a release")?;
        }
    }
    Ok(Outcome::Shown)
}

/// Whoever follows a holder that died has the larger counter.
///
/// # Errors
/// If the store breaks the contract.
pub async fn counters_grow_over_expiry<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut dead, mut heir) = (trial.contender(&here)?, trial.contender(&there)?);
    let before = dead.takes().await?;
    trial.crash(here, [dead]).await;
    let after = heir.takes().await?;
    heir.leaves().await?;
    must_grow(before.counter, after.counter, "an expiry")?;
    Ok(Outcome::Shown)
}

/// The counter survives everything else about the key: all left, all cleaned, new connections.
///
/// # Errors
/// If the store breaks the contract.
pub async fn counters_grow_when_nothing_is_left<H: Harness>(trial: &Trial<H>) -> Verdict {
    let here = trial.connect().await;
    let mut first = trial.contender(&here)?;
    let before = first.takes().await?;
    first.leaves().await?;
    drop((first, here));
    trial.clock.sleep(trial.ttl * 3).await;
    let there = trial.connect().await;
    let mut second = trial.contender(&there)?;
    let after = second.takes().await?;
    second.leaves().await?;
    must_grow(before.counter, after.counter, "a time in which nobody used the lock")?;
    Ok(Outcome::Shown)
}

/// Those who share a room have different counters, in the order of their grants.
///
/// # Errors
/// If the store breaks the contract.
pub async fn counters_grow_among_those_who_share<H: Harness>(trial: &Trial<H>) -> Verdict {
    let backends = [trial.connect().await, trial.connect().await];
    if let Some(outcome) = unless_weighted(backends[0].profile()) {
        return Ok(outcome);
    }
    let (mut inside, mut last) = (Vec::new(), None);
    for turn in 0..8 {
        let mut contender = trial.contender_with(&backends[turn % 2], trial.weighing(1, 8)?);
        let grant = contender.takes_at_once("there is still room").await?;
        inside.push(contender);
        if let Some(before) = last.replace(grant.counter) {
            must_grow(before, grant.counter, "a second grant in one room")?;
        }
    }
    for contender in &mut inside {
        contender.leaves().await?;
    }
    Ok(Outcome::Shown)
}

/// A lock taken away by an operator is lost to its holder, and the next in line has the larger counter.
///
/// # Errors
/// If the store breaks the contract.
pub async fn counters_grow_over_a_break<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let Some(inspect) = trial.inspect(&there) else {
        return Ok(Outcome::NotPromised("the harness offers no view of the store"));
    };
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
    let before = holder.takes().await?;
    waiter.must_wait(holder.safe_until(), "it is held").await?;
    // An operator ends a tenure before its time, so the record must not call what follows an overlap.
    trial.history.note(&holder.claim, crate::history::What::Lost);
    let broken = inspect.break_lock(&trial.key).await?;
    if broken.len() != 1 && trial.clock.now() < holder.safe_until() {
        return Err(Failure::broken(format!("one holder was broken, {} were named", broken.len())));
    }
    holder.must_be_lost("an operator broke the lock").await?;
    let after = waiter.takes().await?;
    holder.leaves().await?;
    waiter.must_still_hold("only the broken holder left").await?;
    waiter.leaves().await?;
    must_grow(before.counter, after.counter, "a break")?;
    trial.nothing_is_left(&there, "a lock was broken and everybody left").await?;
    Ok(Outcome::Shown)
}
