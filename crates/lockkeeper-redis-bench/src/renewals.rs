//! Ten thousand locks held by one process for a minute: what keeping them costs.

use std::time::Duration;

use futures_util::future::try_join_all;
use lockkeeper_core::{Clock, Guard, Locker};
use lockkeeper_testkit::servers::Redis;

use crate::Outcome;
use crate::rivals::TTL;
use crate::tally::{self, cpu_seconds, per};

const LOCKS: u64 = 10_000;
const SPAN: Duration = Duration::from_mins(1);

pub(crate) async fn run(server: &Redis) -> Outcome {
    println!("\n## {LOCKS} locks with a ttl of {TTL:?} held for {SPAN:?}\n");
    let locker = Locker::new(lockkeeper_redis::Redis::connect(&server.url()).await?);
    let requests = (0..LOCKS).map(|it| locker.lock(format!("held:{it}")).ttl(TTL).into_future());
    let guards: Vec<Guard> = try_join_all(requests).await?;
    tally::commands(server).await?;
    let pids = (server.pid().unwrap_or(0), std::process::id());
    let before = (cpu_seconds(pids.0), cpu_seconds(pids.1));
    Clock::boot().sleep(SPAN).await;
    let after = (cpu_seconds(pids.0), cpu_seconds(pids.1));
    let scripts = tally::calls(server, "evalsha").await? + tally::calls(server, "eval").await?;
    let lost = guards.iter().filter(|it| !it.is_valid()).count();
    let percent = |before: f64, after: f64| (after - before) / SPAN.as_secs_f64() * 100.0;
    println!(
        "lost {lost}; {:.1} commands/s; {:.1} % of a core in the server, {:.1} % in this process",
        per(scripts, SPAN.as_secs()),
        percent(before.0, after.0),
        percent(before.1, after.1)
    );
    if lost > 0 {
        return Err("locks were lost".into());
    }
    drop(guards);
    locker.shutdown(Duration::from_secs(30)).await?;
    Ok(())
}
