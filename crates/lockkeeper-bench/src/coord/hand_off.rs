//! Two processes that hand one lock to and fro: how long from the release to the other's guard, and what it asks of the
//! server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Locker, Moment};
use tokio::task::JoinSet;

use crate::Answer;
use crate::report::{Bound, Row};

/// How often each process takes the lock.
const GUARDS_EACH: u32 = 300;

/// When the last guard was given back, and by whom.
type Last = Arc<Mutex<Option<(usize, Moment)>>>;

/// The median time of a hand-off, and how many guards there were.
pub(crate) async fn to_and_fro(processes: [Locker; 2]) -> Answer<(Duration, u32)> {
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

async fn one_process(who: usize, locker: Locker, last: Last) -> Answer<Vec<Duration>> {
    let (clock, mut times) = (Clock::boot(), Vec::new());
    for _ in 0..GUARDS_EACH {
        let guard = locker.lock("hand-off").await?;
        let before = *locked(&last);
        if let Some((_, at)) = before.filter(|it| it.0 != who) {
            times.push(clock.now() - at);
        }
        *locked(&last) = Some((who, clock.now()));
        guard.release().await?;
    }
    Ok(times)
}

/// A row of the table: what a guard asks of the server, at most `most` requests, which are there `to_what_end`.
pub(crate) fn row((median, guards): (Duration, u32), requests: u64, most: f64, to_what_end: &str) -> Row {
    let requests = f64::from(u32::try_from(requests).unwrap_or(u32::MAX)) / f64::from(guards);
    let what = "hand-off between two processes, requests to the server per guard";
    let mut row = Row::of_number(what, requests, Bound::AtMost(most));
    row.note = format!("{to_what_end}; {median:.1?} from release to grant");
    row
}
