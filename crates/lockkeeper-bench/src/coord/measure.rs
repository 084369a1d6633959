//! Timing: both sides in turns, the median taken, so that drift hits both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{Clock, Locker};
use tokio::task::JoinSet;

use crate::Answer;

/// How often each side runs.
const TURNS: usize = 41;
/// Operations of one turn.
const OPS: u32 = 20;
/// How long a crowd runs.
const CROWD_SPAN: Duration = Duration::from_secs(3);
const CROWD: usize = 64;

/// The median time per operation of two sides, run in turns.
pub(crate) async fn beside(
    mut ours: impl AsyncFnMut() -> Answer<()>,
    mut theirs: impl AsyncFnMut() -> Answer<()>,
) -> Answer<(Duration, Duration)> {
    let clock = Clock::boot();
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let start = clock.now();
        for _ in 0..OPS {
            ours().await?;
        }
        one.push((clock.now() - start) / OPS);
        let start = clock.now();
        for _ in 0..OPS {
            theirs().await?;
        }
        other.push((clock.now() - start) / OPS);
    }
    one.sort();
    other.sort();
    Ok((one[TURNS / 2], other[TURNS / 2]))
}

/// Guards per second that a crowd of tasks gets out of `round`, which takes and gives back one lock.
pub(crate) async fn crowd<F>(round: impl Fn() -> F + Send + Sync + Clone + 'static) -> f64
where
    F: Future<Output = Answer<()>> + Send,
{
    let (clock, guards) = (Clock::boot(), Arc::<AtomicU64>::default());
    let (start, mut tasks) = (clock.now(), JoinSet::new());
    let end = start.after(CROWD_SPAN);
    for _ in 0..CROWD {
        let (clock, guards, round) = (clock.clone(), guards.clone(), round.clone());
        tasks.spawn(async move {
            while clock.now() < end && round().await.is_ok() {
                guards.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    let guards = u32::try_from(guards.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
    f64::from(guards) / (clock.now() - start).as_secs_f64()
}

/// The crowd's guards on one key of ours.
pub(crate) async fn our_crowd(locker: &Locker) -> f64 {
    let locker = locker.clone();
    crowd(move || {
        let locker = locker.clone();
        async move { Ok(locker.lock("crowd").await?.release().await?) }
    })
    .await
}
