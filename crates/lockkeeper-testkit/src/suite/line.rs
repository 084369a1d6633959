//! Lines 11 and 19: first come, first served, where the profile says so; those who will not wait; and what a holder hears.

use lockkeeper_core::backend::{Backend, Order};
use tokio::task::JoinSet;

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict, unless_fifo, unless_weighted};
use crate::history;

/// Many waiters of several processes are served in the order in which they came.
///
/// # Errors
/// If the store breaks the contract.
pub async fn the_line_is_served_in_order<H: Harness>(trial: &Trial<H>) -> Verdict {
    serve(trial, &[]).await
}

/// Those who leave the line do not disturb the order of the others.
///
/// # Errors
/// If the store breaks the contract.
pub async fn who_leaves_the_line_is_skipped<H: Harness>(trial: &Trial<H>) -> Verdict {
    serve(trial, &[0, 3, 4, 7]).await
}

async fn serve<H: Harness>(trial: &Trial<H>, leavers: &[usize]) -> Verdict {
    let backends = [trial.connect().await, trial.connect().await, trial.connect().await];
    if let Some(outcome) = unless_fifo(backends[0].profile()) {
        return Ok(outcome);
    }
    let mut holder = trial.contender(&backends[0])?;
    holder.takes().await?;
    let mut line = Vec::new();
    for at in 0..8 {
        let mut waiter = trial.contender(&backends[at % 3])?;
        waiter.must_wait(holder.safe_until(), "it is held").await?;
        holder.must_still_hold("others only wait").await?;
        line.push(waiter);
    }
    for (at, waiter) in line.iter_mut().enumerate() {
        if leavers.contains(&at) {
            waiter.leaves().await?;
        }
    }
    holder.leaves().await?;
    let mut waiters = JoinSet::new();
    // The last asks first, so that a store which serves whoever asks is found out.
    for (at, mut waiter) in line.into_iter().enumerate().rev() {
        if leavers.contains(&at) {
            continue;
        }
        waiters.spawn(async move {
            waiter.takes().await?;
            waiter.leaves().await
        });
    }
    while let Some(served) = waiters.join_next().await {
        served.map_err(Failure::broken)??;
    }
    history::fifo(&trial.history.events())?;
    trial.nothing_is_left(&backends[0], "the whole line was served").await?;
    Ok(Outcome::Shown)
}

/// The first time decides, not the last: asking again costs nobody its place.
///
/// # Errors
/// If the store breaks the contract.
pub async fn asking_again_keeps_the_place<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_fifo(here.profile()) {
        return Ok(outcome);
    }
    let mut holder = trial.contender(&here)?;
    let (mut first, mut second) = (trial.contender(&there)?, trial.contender(&here)?);
    holder.takes().await?;
    first.must_wait(holder.safe_until(), "it is held").await?;
    second.must_wait(holder.safe_until(), "it is held").await?;
    first.must_wait(holder.safe_until(), "it is held").await?;
    holder.leaves().await?;
    second.must_wait(first.safe_until(), "somebody came before it and asked again since").await?;
    first.takes().await?;
    first.leaves().await?;
    second.takes().await?;
    second.leaves().await?;
    Ok(Outcome::Shown)
}

/// A newcomer waits behind the head, also while the lock is free and the head has not asked yet.
///
/// # Errors
/// If the store breaks the contract.
pub async fn nobody_overtakes_the_head<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_fifo(here.profile()) {
        return Ok(outcome);
    }
    let (mut holder, mut head) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    head.must_wait(holder.safe_until(), "it is held").await?;
    holder.leaves().await?;
    let mut newcomer = trial.contender(&here)?;
    newcomer.must_wait(head.safe_until(), "somebody waits already").await?;
    head.takes().await?;
    head.leaves().await?;
    newcomer.takes().await?;
    newcomer.leaves().await?;
    Ok(Outcome::Shown)
}

/// Those who fit together enter together when whoever kept them out has gone: none waits until another was told.
///
/// # Errors
/// If the store breaks the contract.
pub async fn those_who_fit_enter_together<H: Harness>(trial: &Trial<H>) -> Verdict {
    const SHARERS: u32 = 16;
    let (here, there) = (trial.connect().await, trial.connect().await);
    let profile = here.profile();
    if let Some(outcome) = unless_fifo(profile).or_else(|| unless_weighted(profile)) {
        return Ok(outcome);
    }
    let mut alone = trial.contender_with(&here, trial.weighing(SHARERS, SHARERS)?);
    alone.takes().await?;
    let mut sharers = Vec::new();
    for at in 0..SHARERS {
        let backend = if at % 2 == 0 { &here } else { &there };
        let mut sharer = trial.contender_with(backend, trial.weighing(1, SHARERS)?);
        sharer.must_wait(alone.safe_until(), "somebody who fits beside nobody holds it").await?;
        alone.must_still_hold("others only wait").await?;
        sharers.push(sharer);
    }
    alone.leaves().await?;
    // The last asks first: it must not depend on what those before it have done since.
    for sharer in sharers.iter_mut().rev() {
        sharer.takes_at_once("all who stand before it fit beside it").await?;
    }
    for sharer in &mut sharers {
        sharer.leaves().await?;
    }
    trial.nothing_is_left(&here, "all who shared have left").await?;
    Ok(Outcome::Shown)
}

/// A claim that would fit waits behind one that does not, or heavy claims would starve.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_light_claim_does_not_overtake_a_heavy_head<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let profile = here.profile();
    if let Some(outcome) = unless_fifo(profile).or_else(|| unless_weighted(profile)) {
        return Ok(outcome);
    }
    let mut inside = trial.contender_with(&here, trial.weighing(1, 2)?);
    let mut heavy = trial.contender_with(&there, trial.weighing(2, 2)?);
    let mut light = trial.contender_with(&here, trial.weighing(1, 2)?);
    inside.takes().await?;
    heavy.must_wait(inside.safe_until(), "the room is half full").await?;
    light.must_wait(heavy.safe_until(), "a heavier claim stands before it").await?;
    inside.leaves().await?;
    light.must_wait(heavy.safe_until(), "a heavier claim still stands before it").await?;
    heavy.takes().await?;
    heavy.leaves().await?;
    light.takes().await?;
    light.leaves().await?;
    Ok(Outcome::Shown)
}

/// Whoever will not wait and is told to wait is gone without leaving.
///
/// # Errors
/// If the store breaks the contract.
pub async fn an_impatient_claim_leaves_nothing_behind<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let mut holder = trial.contender(&here)?;
    holder.takes().await?;
    let mut refused = Vec::new();
    for _ in 0..3 {
        let mut impatient = trial.contender_with(&there, trial.impatient()?);
        impatient.must_wait(holder.safe_until(), "it is held").await?;
        impatient.must_wait(holder.safe_until(), "it is held").await?;
        refused.push(impatient);
    }
    // "Somebody waits" is a hint, and a store of several servers may show it to the holder a moment too long;
    // but one who joined after all would be shown for a whole ttl.
    let give_up = trial.clock.now().after(trial.ttl / 2);
    while holder.must_still_hold("those who asked would not wait").await?
        && there.profile().order == Order::Fifo
    {
        if give_up < trial.clock.now() {
            return Err(Failure::broken("the holder is told that somebody waits; all who asked would not"));
        }
        trial.clock.sleep(trial.ttl / 20).await;
    }
    holder.leaves().await?;
    trial.nothing_is_left(&here, "those who would not wait were refused").await?;
    drop(refused);
    Ok(Outcome::Shown)
}

/// Whoever will not wait does not get past those who do.
///
/// # Errors
/// If the store breaks the contract.
pub async fn an_impatient_claim_does_not_overtake<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_fifo(here.profile()) {
        return Ok(outcome);
    }
    let (mut holder, mut head) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    head.must_wait(holder.safe_until(), "it is held").await?;
    holder.leaves().await?;
    let mut impatient = trial.contender_with(&here, trial.impatient()?);
    impatient.must_wait(head.safe_until(), "somebody waits already").await?;
    head.takes().await?;
    head.leaves().await?;
    trial.nothing_is_left(&here, "one who would not wait was refused").await?;
    Ok(Outcome::Shown)
}

/// A holder is told when somebody waits behind it, and when nobody does any more.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_holder_hears_that_it_is_wanted<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_fifo(here.profile()) {
        return Ok(outcome);
    }
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
    if holder.takes().await?.wanted {
        return Err(Failure::broken("the holder is told that somebody waits; nobody does"));
    }
    for waits in [true, false] {
        if !waits {
            waiter.leaves().await?;
        }
        let give_up = trial.clock.now().after(trial.patience);
        loop {
            if waits {
                waiter.must_wait(holder.safe_until(), "it is held").await?;
            }
            if holder.must_still_hold("it is renewed in time").await? == waits {
                break;
            }
            if give_up < trial.clock.now() {
                let what = if waits {
                    "somebody waits and the holder is never told"
                } else {
                    "nobody waits and the holder is still told so"
                };
                return Err(Failure::broken(what));
            }
            trial.clock.sleep(trial.ttl / 10).await;
        }
    }
    holder.leaves().await?;
    Ok(Outcome::Shown)
}

/// A holder that listens is notified when somebody begins to wait, without a renewal; also if it listens only afterwards.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_holder_is_notified_that_somebody_waits<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if !here.profile().notifies && !here.profile().looks {
        return Ok(Outcome::NotPromised("the store does not speak to holders, nor do they look"));
    }
    let why = "somebody waits";
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    let until = holder.safe_until();
    let (notified, waits) = tokio::join!(holder.is_notified(why), waiter.must_wait(until, "it is held"));
    waits?;
    notified?;
    waiter.leaves().await?;
    holder.leaves().await?;

    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    waiter.must_wait(holder.safe_until(), "it is held").await?;
    holder.is_notified(why).await?;
    waiter.leaves().await?;
    holder.leaves().await?;
    Ok(Outcome::Shown)
}

/// A holder that listens is notified when its lock was broken, without a renewal; also if it listens only afterwards.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_holder_is_notified_that_its_lock_was_broken<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if !here.profile().notifies && !here.profile().looks {
        return Ok(Outcome::NotPromised("the store does not speak to holders, nor do they look"));
    }
    let Some(inspect) = trial.inspect(&there) else {
        return Ok(Outcome::NotPromised("the harness offers no view of the store"));
    };
    let why = "its lock was broken";
    for listens_before in [true, false] {
        let mut holder = trial.contender(&here)?;
        holder.takes().await?;
        trial.history.note(&holder.claim, history::What::Lost);
        let breaks = inspect.break_lock(&trial.key);
        if listens_before {
            let (notified, broken) = tokio::join!(holder.is_notified(why), breaks);
            broken?;
            notified?;
        } else {
            breaks.await?;
            holder.is_notified(why).await?;
        }
        holder.must_be_lost(why).await?;
        holder.leaves().await?;
    }
    Ok(Outcome::Shown)
}
