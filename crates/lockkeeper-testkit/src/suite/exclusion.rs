//! Line 1: the weight held never exceeds the capacity, at any time of the store.

use lockkeeper_core::backend::{Backend, Place};

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict, unless_weighted};

/// One holds, the other waits, until the first leaves.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_mutex_has_one_holder<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut first, mut second) = (trial.contender(&here)?, trial.contender(&there)?);
    first.takes().await?;
    for _ in 0..3 {
        second.must_wait(first.safe_until(), "another process holds it").await?;
        first.must_still_hold("it was only asked for").await?;
    }
    first.leaves().await?;
    second.takes().await?;
    second.leaves().await?;
    trial.nothing_is_left(&here, "both have left").await?;
    Ok(Outcome::Shown)
}

/// Whoever renews in time keeps it, for longer than any one ttl.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_renewed_lock_is_kept_for_many_ttls<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    let enough = trial.clock.now().after(trial.ttl * 3);
    while trial.clock.now() < enough {
        holder.must_still_hold("it was renewed in time").await?;
        other.must_wait(holder.safe_until(), "it was renewed in time").await?;
        trial.clock.sleep(trial.ttl / 8).await;
    }
    holder.leaves().await?;
    other.takes().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// Locks of different names are held at the same time.
///
/// # Errors
/// If the store breaks the contract.
pub async fn different_keys_do_not_meet<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let mut one = trial.contender(&here)?;
    one.takes().await?;
    let mut claim = trial.claim()?;
    claim.key = trial.another_key()?;
    let mut other = trial.contender_with(&there, claim);
    other.takes_at_once("only a lock of another name is held").await?;
    one.must_still_hold("only a lock of another name was taken").await?;
    other.leaves().await?;
    one.must_still_hold("only a lock of another name was released").await?;
    one.leaves().await?;
    Ok(Outcome::Shown)
}

/// Claims enter as long as they fit, and not one more.
///
/// # Errors
/// If the store breaks the contract.
pub async fn weights_never_exceed_the_capacity<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_weighted(here.profile()) {
        return Ok(outcome);
    }
    let mut two = trial.contender_with(&here, trial.weighing(2, 3)?);
    let mut one = trial.contender_with(&there, trial.weighing(1, 3)?);
    let mut more = trial.contender_with(&here, trial.weighing(1, 3)?);
    two.takes().await?;
    one.takes_at_once("1 fits beside 2 in a room of 3").await?;
    more.must_wait(two.safe_until().min(one.safe_until()), "the room is full").await?;
    two.leaves().await?;
    more.takes().await?;
    one.must_still_hold("another has left").await?;
    let mut all = trial.contender_with(&there, trial.weighing(3, 3)?);
    all.must_wait(one.safe_until().min(more.safe_until()), "the room is not empty").await?;
    one.leaves().await?;
    all.must_wait(more.safe_until(), "the room is not empty yet").await?;
    more.leaves().await?;
    all.takes().await?;
    all.leaves().await?;
    trial.nothing_is_left(&here, "everybody has left").await?;
    Ok(Outcome::Shown)
}

/// A read/write lock: readers weigh 1, a writer as much as the room holds.
///
/// # Errors
/// If the store breaks the contract.
pub async fn readers_share_and_a_writer_excludes<H: Harness>(trial: &Trial<H>) -> Verdict {
    let backends = [trial.connect().await, trial.connect().await];
    if let Some(outcome) = unless_weighted(backends[0].profile()) {
        return Ok(outcome);
    }
    let mut readers = Vec::new();
    for turn in 0..4 {
        let mut reader = trial.contender_with(&backends[turn % 2], trial.weighing(1, u32::MAX)?);
        reader.takes_at_once("only readers read").await?;
        readers.push(reader);
    }
    let mut writer = trial.contender_with(&backends[0], trial.weighing(u32::MAX, u32::MAX)?);
    while let Some(mut reader) = readers.pop() {
        writer.must_wait(reader.safe_until(), "somebody still reads").await?;
        reader.leaves().await?;
    }
    writer.takes().await?;
    let mut reader = trial.contender_with(&backends[1], trial.weighing(1, u32::MAX)?);
    reader.must_wait(writer.safe_until(), "somebody writes").await?;
    writer.leaves().await?;
    reader.takes().await?;
    reader.leaves().await?;
    Ok(Outcome::Shown)
}

/// Where claims of one key disagree about the capacity, the smallest among holders and newcomer counts.
///
/// # Errors
/// If the store breaks the contract.
pub async fn the_smallest_capacity_counts<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_weighted(here.profile()) {
        return Ok(outcome);
    }
    let mut narrow = trial.contender_with(&here, trial.weighing(1, 1)?);
    let mut wide = trial.contender_with(&there, trial.weighing(1, 8)?);
    narrow.takes().await?;
    wide.must_wait(narrow.safe_until(), "the holder said that the room holds one").await?;
    narrow.leaves().await?;
    wide.takes().await?;
    let mut narrow = trial.contender_with(&here, trial.weighing(1, 1)?);
    narrow.must_wait(wide.safe_until(), "the newcomer said that the room holds one").await?;
    wide.leaves().await?;
    narrow.takes().await?;
    narrow.leaves().await?;
    Ok(Outcome::Shown)
}

/// A claim that weighs nothing, or more than the room that it asks for, is refused for good, and the line goes on.
///
/// # Errors
/// If the store breaks the contract.
pub async fn what_can_never_fit_is_refused_and_blocks_nobody<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let mut holder = trial.contender(&here)?;
    holder.takes().await?;
    for (weight, capacity) in [(2, 1), (0, 1), (u32::MAX, 3)] {
        let mut unfit = trial.contender_with(&there, trial.weighing(weight, capacity)?);
        match unfit.place().turn().await {
            Err(fault) if !fault.is_transient() => {}
            other => {
                let what = format!("{weight} of {capacity} can never be let in and was answered {other:?}");
                return Err(Failure::broken(what));
            }
        }
    }
    let mut next = trial.contender(&there)?;
    next.must_wait(holder.safe_until(), "it is held").await?;
    holder.leaves().await?;
    next.takes().await?;
    next.leaves().await?;
    trial.nothing_is_left(&here, "everybody who could hold has left").await?;
    Ok(Outcome::Shown)
}
