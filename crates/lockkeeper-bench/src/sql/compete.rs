//! Several processes on one lock: the right sum, everybody served, few statements; and waiters that cost nothing.

use std::time::Duration;

use tokio::runtime::Runtime;

use crate::crowd::{self, Crowd, Parties, Plan};
use crate::measure::per;
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};

/// How long the crowd works. Long enough for many turns of each process.
const WORK_FOR: Duration = Duration::from_secs(3);
/// How long the waiters are watched.
const IDLE_FOR: Duration = Duration::from_secs(20);
const IDLE_TTL: Duration = Duration::from_secs(30);

/// Many tasks of several processes add to a number in a plain file.
pub(crate) fn compete(runtime: &Runtime, url: &str, statements: impl Fn() -> u64, per_guard: f64) -> Outcome {
    let plan = Plan { rival: "ours", url, key: "crowd", ttl: crowd::TTL, processes: 4, tasks: 16 };
    let before = statements();
    let crowd =
        runtime.block_on(async { Parties::start(plan).await?.fight(WORK_FOR).await })?.all_served()?;
    let (used, guards) = (statements().saturating_sub(before), crowd.total());
    Ok(vec![
        Row {
            what: "4 processes × 16 tasks for 3 s, each read, add, write on a plain file: the sum",
            ours: crowd.sum().to_string(),
            theirs: guards.to_string(),
            ratio: per(crowd.sum(), guards),
            bound: Bound::AtLeast(1.0),
            note: format!("{:.0} guards/s", crowd.rate()),
        },
        Row {
            what: "the same: statements per guard, as the server counts them",
            ours: used.to_string(),
            theirs: guards.to_string(),
            ratio: per(used, guards),
            bound: Bound::AtMost(per_guard),
            note: String::new(),
        },
        served(&crowd),
    ])
}

/// How many processes were served, and how evenly.
fn served(crowd: &Crowd) -> Row {
    let guards = crowd.guards();
    let served = guards.iter().filter(|it| 0 < **it).count() as u64;
    let each: Vec<String> = guards.iter().map(u64::to_string).collect();
    Row {
        what: "the same: processes that are served while all compete",
        ours: served.to_string(),
        theirs: guards.len().to_string(),
        ratio: per(served, guards.len() as u64),
        bound: Bound::AtLeast(1.0),
        note: format!(
            "guards of each: {}, Jain index {:.3}; the last had its first after {:.0?}",
            each.join(", "),
            crowd.jain(),
            crowd.last_served_after()
        ),
    }
}

/// Waiters that are called cost no statements while somebody else holds.
pub(crate) fn idle(url: &str, statements: impl Fn() -> u64) -> Answer<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let locker = runtime.block_on(lockkeeper::connect(url))?;
    let guard = runtime.block_on(async { locker.lock("idle").await })?;
    let plan = Plan { rival: "ours", url, key: "idle", ttl: IDLE_TTL, processes: 10, tasks: 100 };
    let mut waiters = runtime.block_on(Parties::start(plan))?;
    runtime.block_on(waiters.stand_in_line())?;
    // The server's counters lag behind by up to ten seconds for connections that have become quiet.
    std::thread::sleep(Duration::from_secs(12));
    let before = statements();
    std::thread::sleep(IDLE_FOR);
    let used = statements().saturating_sub(before);
    runtime.block_on(waiters.dismiss())?;
    runtime.block_on(guard.release())?;
    Ok(Row {
        what: "1,000 waiters in 10 processes while the lock is held: statements per second at the server",
        ours: format!("{used} in {} s", IDLE_FOR.as_secs()),
        theirs: "0".to_owned(),
        ratio: per(used, IDLE_FOR.as_secs()),
        // Each process keeps its place by one statement in ten seconds; counting them costs some as well.
        bound: Bound::AtMost(2.0),
        note: "ttl 30 s".to_owned(),
    })
}
