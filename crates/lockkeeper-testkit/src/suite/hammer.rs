//! The hammer: many tasks of several processes on one lock, judged by the record alone.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Order, Place, Turn};
use tokio::task::JoinSet;

use super::contender::Contender;
use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict, unless_weighted};
use crate::chance::Chance;
use crate::history;

const TASKS: u64 = 32;
const ROUNDS: u32 = 6;
const PROCESSES: usize = 4;

/// A mutex under the hammer.
///
/// # Errors
/// If the store breaks the contract.
pub async fn many_tasks_hammer_one_lock<H: Harness>(trial: &Trial<H>) -> Verdict {
    hammer(trial, |_| (1, 1)).await
}

/// A room of four under the hammer, with claims of one to four.
///
/// # Errors
/// If the store breaks the contract.
pub async fn many_tasks_hammer_one_room<H: Harness>(trial: &Trial<H>) -> Verdict {
    if let Some(outcome) = unless_weighted(trial.connect().await.profile()) {
        return Ok(outcome);
    }
    hammer(trial, |chance| (1 + u32::try_from(chance.below(4)).unwrap_or(0), 4)).await
}

async fn hammer<H: Harness>(trial: &Trial<H>, room: impl Fn(&mut Chance) -> (u32, u32)) -> Verdict {
    let mut backends = Vec::new();
    for _ in 0..PROCESSES {
        backends.push(trial.connect().await);
    }
    let order = backends[0].profile().order;
    let mut tasks = JoinSet::new();
    for (seed, backend) in (0..TASKS).zip(backends.iter().cycle()) {
        let mut chance = Chance::seeded(seed);
        let mut contenders = Vec::new();
        for _ in 0..ROUNDS {
            let (weight, capacity) = room(&mut chance);
            let patient = !chance.per_mille(150);
            let mut claim = trial.weighing(weight, capacity)?;
            claim.patient = patient;
            contenders.push((trial.contender_with(backend, claim), chance.fork()));
        }
        let clock = trial.clock.clone();
        tasks.spawn(async move {
            let mut held = 0;
            for (mut contender, mut chance) in contenders {
                if strike(&mut contender, &mut chance).await? {
                    clock.sleep(chance.span(Duration::from_millis(1))).await;
                    held += 1;
                }
                contender.leaves().await?;
            }
            Ok::<u32, Failure>(held)
        });
    }
    let mut held = 0;
    while let Some(done) = tasks.join_next().await {
        held += done.map_err(Failure::broken)??;
    }
    if held == 0 {
        return Err(Failure::broken("nobody ever held the lock"));
    }
    if order == Order::Fifo {
        history::fifo(&trial.history.events())?;
    }
    trial.nothing_is_left(&backends[0], "everybody has left").await?;
    Ok(Outcome::Shown)
}

/// One try: most wait for their turn, some give up when told to wait.
async fn strike<P: Place>(contender: &mut Contender<P>, chance: &mut Chance) -> Result<bool, Failure> {
    if contender.claim.patient && !chance.per_mille(100) {
        return contender.takes().await.map(|_| true);
    }
    Ok(matches!(contender.ask().await?, Turn::Held(_)))
}
