//! Ten thousand locks held by one process for a minute: what keeping them costs.

use std::time::Duration;

use futures_util::future::try_join_all;
use lockkeeper_core::{Clock, Guard, Locker};
use lockkeeper_servers::Redis;

use super::rivals::TTL;
use super::tally::{self, cpu_seconds};
use crate::Answer;
use crate::measure::per;
use crate::report::{Bound, Row};

const LOCKS: u64 = 10_000;
const SPAN: Duration = Duration::from_mins(1);

pub(crate) async fn run(server: &Redis) -> Answer<Row> {
    let locker = Locker::new(lockkeeper_redis::Redis::connect(&server.url()).await?);
    let requests = (0..LOCKS).map(|it| locker.lock(format!("held:{it}")).ttl(TTL).into_future());
    let guards: Vec<Guard> = try_join_all(requests).await?;
    tally::reset(server).await?;
    let cpu = || (cpu_seconds(server.pid().unwrap_or(0)), cpu_seconds(std::process::id()));
    let before = cpu();
    Clock::boot().sleep(SPAN).await;
    let after = cpu();
    let commands = tally::sent(server, "ours").await?;
    let valid = guards.iter().filter(|it| it.is_valid()).count();
    drop(guards);
    locker.shutdown(Duration::from_secs(30)).await?;
    let percent = |before: f64, after: f64| (after - before) / SPAN.as_secs_f64() * 100.0;
    let valid = u64::try_from(valid)?;
    Ok(Row {
        what: "10,000 locks with a ttl of 10 s held by one process for a minute: those still valid",
        ours: valid.to_string(),
        theirs: LOCKS.to_string(),
        ratio: per(valid, LOCKS),
        bound: Bound::AtLeast(1.0),
        note: format!(
            "{:.1} commands/s; {:.1} % of a core in the server, {:.1} % in the process",
            per(commands, SPAN.as_secs()),
            percent(before.0, after.0),
            percent(before.1, after.1)
        ),
    })
}
