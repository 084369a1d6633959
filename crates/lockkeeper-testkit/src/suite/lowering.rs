//! Line 18: what is held is made to weigh less where it stands, where the profile says so.

use lockkeeper_core::Load;
use lockkeeper_core::backend::{Backend, Place};

use super::contender::Contender;
use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict, unless_fifo, unless_weighted};

fn unless_lowering(backend: &impl Backend) -> Option<Outcome> {
    let profile = backend.profile();
    let cannot =
        (!profile.lowers).then_some(Outcome::NotPromised("the store cannot make what is held weigh less"));
    cannot.or_else(|| unless_weighted(profile)).or_else(|| unless_fifo(profile))
}

/// Lower until there is an answer. A store may fail for a moment, also a healthy one.
async fn lower<H: Harness, P: Place>(
    trial: &Trial<H>,
    holder: &mut Contender<P>,
    load: Load,
) -> Result<bool, Failure> {
    let give_up = trial.clock.now().after(trial.patience);
    loop {
        match holder.place().lower(load).await {
            Ok(held) => return Ok(held),
            Err(fault) if fault.is_transient() && trial.clock.now() < give_up => {
                trial.clock.sleep(trial.ttl / 20).await;
            }
            Err(fault) => return Err(fault.into()),
        }
    }
}

/// Who wrote and goes on as a reader stays inside. Readers who stood right behind it enter without asking it for anything
/// more; the writer behind them does not, nor does whoever stands behind that one.
///
/// # Errors
/// If the store breaks the contract.
pub async fn who_lowers_its_weight_lets_in_those_who_fit_and_nobody_in_between<H: Harness>(
    trial: &Trial<H>,
) -> Verdict {
    lowered_from(trial, Load::WRITER).await
}

/// The same for a plain lock, whose room holds one: its word about the capacity goes with its weight.
///
/// # Errors
/// If the store breaks the contract.
pub async fn who_held_alone_in_a_small_room_lets_readers_in<H: Harness>(trial: &Trial<H>) -> Verdict {
    lowered_from(trial, Load::MUTEX).await
}

async fn lowered_from<H: Harness>(trial: &Trial<H>, alone: Load) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_lowering(&here) {
        return Ok(outcome);
    }
    let with = |backend, load: Load| {
        let claim = trial.weighing(load.weight, load.capacity)?;
        Ok::<_, Failure>(trial.contender_with(backend, claim))
    };
    let mut holder = with(&here, alone)?;
    let (mut reader, mut beside) = (with(&there, Load::READER)?, with(&here, Load::READER)?);
    let (mut writer, mut last) = (with(&there, Load::WRITER)?, with(&here, Load::READER)?);
    holder.takes().await?;
    for waiter in [&mut reader, &mut beside, &mut writer, &mut last] {
        waiter.must_wait(holder.safe_until(), "somebody who fits beside nobody holds it").await?;
        holder.must_still_hold("others only wait").await?;
    }
    // For the record: from here on it may stand beside others.
    holder.claim.load = Load::READER;
    trial.history.note(&holder.claim, crate::history::What::Lost);
    for _ in 0..2 {
        if !lower(trial, &mut holder, Load::READER).await? {
            return Err(Failure::broken("what is held was said to be lost when it was made to weigh less"));
        }
    }
    writer.must_wait(holder.safe_until(), "one who wrote before reads now").await?;
    beside.takes_at_once("whoever is before it reads").await?;
    reader.takes_at_once("whoever is before it reads").await?;
    last.must_wait(writer.safe_until(), "a writer stands before it").await?;
    holder.must_still_hold("it only weighs less").await?;
    reader.leaves().await?;
    beside.leaves().await?;
    writer.must_wait(holder.safe_until(), "one who wrote before still reads").await?;
    holder.leaves().await?;
    writer.takes().await?;
    writer.leaves().await?;
    last.takes().await?;
    last.leaves().await?;
    trial.nothing_is_left(&here, "all have left").await?;
    Ok(Outcome::Shown)
}

/// Whoever holds nothing, or waits, or has left, gets nothing by wanting less of it.
///
/// # Errors
/// If the store breaks the contract.
pub async fn lowering_what_is_not_held_acquires_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_lowering(&here) {
        return Ok(outcome);
    }
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    waiter.must_wait(holder.safe_until(), "it is held").await?;
    let gone = "it was confirmed that less is held of what is not held";
    if lower(trial, &mut waiter, Load::READER).await? && trial.clock.now() < holder.safe_until() {
        return Err(Failure::broken(gone));
    }
    waiter.must_wait(holder.safe_until(), "it is held").await?;
    waiter.leaves().await?;
    holder.leaves().await?;
    let mut stranger = trial.contender(&here)?;
    for nobody in [&mut holder, &mut stranger] {
        if lower(trial, nobody, Load::READER).await? {
            return Err(Failure::broken(gone));
        }
    }
    trial.nothing_is_left(&here, "only those who hold nothing asked for less").await?;
    Ok(Outcome::Shown)
}
