//! Line 7: renewing never acquires.

use lockkeeper_core::backend::{Backend, Renewal};

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict, unless_leased_by_claim};
use crate::chaos::{Fate, Script, Verb};

/// Whoever never asked has nothing to renew, and gets nothing by it.
///
/// # Errors
/// If the store breaks the contract.
pub async fn renewing_before_asking_acquires_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let mut hopeful = trial.contender(&here)?;
    hopeful.must_be_lost("nothing was ever asked for").await?;
    trial.nothing_is_left(&there, "one renewed who had never asked").await?;
    Ok(Outcome::Shown)
}

/// A waiter has nothing to renew, and the holder keeps what it has.
///
/// # Errors
/// If the store breaks the contract.
pub async fn renewing_in_line_acquires_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut holder, mut waiter) = (trial.contender(&here)?, trial.contender(&there)?);
    holder.takes().await?;
    waiter.must_wait(holder.safe_until(), "it is held").await?;
    let safe_until = holder.safe_until();
    if let Renewal::Held { .. } = waiter.renew().await?
        && trial.clock.now() < safe_until
    {
        return Err(Failure::broken("a waiter's renewal was confirmed while another holds"));
    }
    holder.must_still_hold("only a waiter renewed").await?;
    waiter.leaves().await?;
    holder.leaves().await?;
    trial.nothing_is_left(&here, "a waiter renewed and everybody left").await?;
    Ok(Outcome::Shown)
}

/// Whoever left has nothing to renew, whether or not somebody came after it.
///
/// # Errors
/// If the store breaks the contract.
pub async fn renewing_after_leaving_acquires_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let (mut first, mut second) = (trial.contender(&here)?, trial.contender(&there)?);
    first.takes().await?;
    first.leaves().await?;
    first.must_be_lost("it has left").await?;
    trial.nothing_is_left(&there, "one renewed who had left").await?;
    second.takes().await?;
    first.must_be_lost("it has left and another holds").await?;
    second.must_still_hold("only one who had left renewed").await?;
    second.leaves().await?;
    Ok(Outcome::Shown)
}

/// What has expired is gone, also if nobody else wanted it.
///
/// # Errors
/// If the store breaks the contract.
pub async fn renewing_after_expiry_acquires_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_leased_by_claim(here.profile()) {
        return Ok(outcome);
    }
    let mut late = trial.contender(&here)?;
    late.takes().await?;
    trial.clock.sleep(trial.ttl * 3).await;
    late.must_be_lost("it was silent for three ttls").await?;
    trial.nothing_is_left(&there, "an expired lock was renewed in vain").await?;
    Ok(Outcome::Shown)
}

/// What another has taken since is the other's.
///
/// # Errors
/// If the store breaks the contract.
pub async fn renewing_what_another_took_acquires_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    if let Some(outcome) = unless_leased_by_claim(here.profile()) {
        return Ok(outcome);
    }
    let (mut late, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    late.takes().await?;
    other.takes().await?;
    late.must_be_lost("another has taken it since").await?;
    other.must_still_hold("only one whose time was over renewed").await?;
    late.leaves().await?;
    other.must_still_hold("only one whose time was over left").await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}

/// A renewal under way when the time is over is outrun, not obeyed.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_renewal_that_arrives_too_late_is_lost<H: Harness>(trial: &Trial<H>) -> Verdict {
    let script = Script::default();
    let (here, there) = (trial.connect_through(&script).await, trial.connect().await);
    if let Some(outcome) = unless_leased_by_claim(there.profile()) {
        return Ok(outcome);
    }
    let (mut late, mut other) = (trial.contender(&here)?, trial.contender(&there)?);
    late.takes().await?;
    script.then(Verb::Renew, Fate::slow(trial.ttl * 3, std::time::Duration::ZERO));
    let (renewal, taken) = tokio::join!(late.renew_once(), async {
        other.takes().await?;
        other.must_still_hold("a late renewal is still under way").await?;
        Ok::<_, Failure>(())
    });
    taken?;
    if matches!(renewal?, Ok(Renewal::Held { .. })) {
        return Err(Failure::broken("a renewal that arrived after three ttls was confirmed"));
    }
    late.must_be_lost("its time was over three ttls ago").await?;
    other.leaves().await?;
    Ok(Outcome::Shown)
}
