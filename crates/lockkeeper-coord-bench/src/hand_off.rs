//! Two processes that hand one lock to and fro: how long from the release to the other's guard, and what it asks of the
//! server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::{Clock, Locker, Moment};
use tokio::task::JoinSet;

use crate::Outcome;

/// How often each process takes the lock.
const GUARDS_EACH: u32 = 300;

/// When the last guard was given back, and by whom.
type Last = Arc<Mutex<Option<(usize, Moment)>>>;

/// The median time of a hand-off, and how many guards there were.
pub(crate) async fn to_and_fro(processes: [Locker; 2]) -> Outcome<(Duration, u32)> {
    let (last, mut tasks) = (Last::default(), JoinSet::new());
    for (who, locker) in processes.into_iter().enumerate() {
        tasks.spawn(one_process(who, locker, last.clone()));
    }
    let mut times = Vec::new();
    while let Some(part) = tasks.join_next().await {
        times.extend(part??);
    }
    times.sort();
    let median = times.get(times.len() / 2).copied().ok_or("no lock was handed on")?;
    Ok((median, GUARDS_EACH * 2))
}

async fn one_process(who: usize, locker: Locker, last: Last) -> Outcome<Vec<Duration>> {
    let (clock, mut times) = (Clock::boot(), Vec::new());
    for _ in 0..GUARDS_EACH {
        let guard = locker.lock("hand-off").await?;
        let before = *last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, at)) = before.filter(|it| it.0 != who) {
            times.push(clock.now() - at);
        }
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some((who, clock.now()));
        guard.release().await?;
    }
    Ok(times)
}

/// A row of the table. `most` is how many requests a guard may cost, and what they are for.
pub(crate) fn row(on: &str, (median, guards): (Duration, u32), requests: u64, most: &str) {
    let requests = f64::from(u32::try_from(requests).unwrap_or(u32::MAX)) / f64::from(guards);
    println!(
        "| {on}: hand-off between two processes; requests to the server per guard | {median:.1?} | – | {requests:.2} | {most} |"
    );
}
