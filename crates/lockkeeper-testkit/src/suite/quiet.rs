//! Lines 4 and 5: entering does no I/O, and a wake-up is only ever a hint.

use lockkeeper_core::backend::{Backend, Place};

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict};
use crate::chaos::{Chaos, Fate, Verb};

/// Whoever entered and never asked is unknown to the store.
///
/// # Errors
/// If the store breaks the contract.
pub async fn entering_leaves_no_trace<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let entered: Vec<_> =
        (0..50).map(|_| trial.claim().map(|it| here.enter(it))).collect::<Result<_, _>>()?;
    trial.nothing_is_left(&there, "fifty have entered and not asked").await?;
    drop(entered);
    trial.nothing_is_left(&there, "fifty have entered and gone away").await?;
    if let Some(inspect) = trial.inspect(&there) {
        let found = inspect.show(&trial.key).await?;
        if let Some(found) = found {
            return Err(Failure::broken(format!("entering left something in the store: {found:?}")));
        }
    }
    Ok(Outcome::Shown)
}

/// Entering, and going away again, works on a thread that knows no runtime.
///
/// # Errors
/// If the store breaks the contract.
pub async fn entering_needs_no_runtime<H: Harness>(trial: &Trial<H>) -> Verdict {
    let here = trial.connect().await;
    let claim = trial.claim()?;
    let entered = std::thread::scope(|scope| scope.spawn(|| drop(here.enter(claim))).join());
    if entered.is_err() {
        return Err(Failure::broken("entering panicked on a thread without a runtime"));
    }
    trial.nothing_is_left(&here, "one has entered and gone away").await?;
    Ok(Outcome::Shown)
}

/// A waiter may stop listening half-way, as often as it likes, and still has its turn.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_dropped_wake_up_loses_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    for _ in 0..3 {
        waiter.must_wait(holder.safe_until(), "it is held").await?;
        waiter.listens_briefly().await;
        waiter.listens_briefly().await;
    }
    holder.leaves().await?;
    waiter.listens_briefly().await;
    waiter.takes().await?;
    waiter.leaves().await?;
    trial.nothing_is_left(&here, "a waiter stopped listening half-way").await?;
    Ok(Outcome::Shown)
}

/// A waiter that is never called asks again by itself when the recheck is due.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_silent_store_is_asked_again<H: Harness>(trial: &Trial<H>) -> Verdict {
    let here = trial.connect().await;
    let deaf = Chaos::new(trial.connect().await, trial.clock.clone(), |verb, _| match verb {
        Verb::Changed => Fate::NEVER,
        _ => Fate::OK,
    });
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&deaf)?);
    holder.takes().await?;
    waiter.must_wait(holder.safe_until(), "it is held").await?;
    holder.leaves().await?;
    waiter.takes().await?;
    waiter.leaves().await?;
    Ok(Outcome::Shown)
}

/// A wake-up is no grant: who is called without a reason asks and is told to wait.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_wake_up_without_reason_grants_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    let here = trial.connect().await;
    let nervous = Chaos::new(trial.connect().await, trial.clock.clone(), |verb, _| match verb {
        Verb::Changed => Fate::REQUEST_LOST,
        _ => Fate::OK,
    });
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&nervous)?);
    holder.takes().await?;
    for _ in 0..5 {
        waiter.place().changed().await;
        waiter.must_wait(holder.safe_until(), "it is held").await?;
    }
    holder.must_still_hold("it was only asked for").await?;
    holder.leaves().await?;
    waiter.takes().await?;
    waiter.leaves().await?;
    Ok(Outcome::Shown)
}

/// A holder may listen for those who want its lock, and stop, without losing it.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_holder_may_stop_listening<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    for _ in 0..3 {
        holder.listens_briefly().await;
        other.must_wait(holder.safe_until(), "it is held").await?;
        holder.listens_briefly().await;
        holder.must_still_hold("it only listened").await?;
    }
    holder.leaves().await?;
    other.takes().await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}
