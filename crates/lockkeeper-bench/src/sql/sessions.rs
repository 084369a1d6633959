//! Session locks beside the server's own bare locks by the same driver, and beside durable locks.

use std::ops::Deref;
use std::process::Command;
use std::time::Duration;

use lockkeeper_core::{Clock, Moment};
use lockkeeper_servers::{self as servers, Daemon};
use tokio::runtime::Runtime;

use super::bare::{Bare as _, BarePostgres};
use super::rivals::{Advisory, Named, Sqlx};
use crate::crowd::{self, Crowd, Parties, Plan};
use crate::measure::{CONNECTIONS, beside_requests, per, quantile, quickest};
use crate::report::{Bound, Row, begins, say, told};
use crate::rival::{Ours, Rival};
use crate::{Answer, Outcome};

const SPAN: Duration = Duration::from_secs(3);
/// What a durable lock cost on PostgreSQL, beside the insert and the delete of a unique row, before its release was told
/// without waiting for the disk: the last figure of a quiet machine, from decision 34.
const DURABLE_BEFORE: f64 = 1.39;
/// 0.8 of that.
const DURABLE_MOST: f64 = 1.11;
/// The ttl of a holder that is stopped.
const STOPPED_TTL: Duration = Duration::from_secs(3);
const KILLS: usize = 20;
/// So many processes wait at once, each with two connections.
const WAITING: usize = 200;
const HELD: u64 = 10_000;

/// One server, and how to reach its locks.
struct Site {
    runtime: Runtime,
    session: String,
    durable: String,
    /// What the bare lock is called among the workers, and its address.
    bare: (&'static str, String),
}

/// PostgreSQL beside `pg_advisory_lock`.
pub(crate) fn postgres() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let options = servers::PostgresOptions::default()
        .set("max_connections", "600")
        .set("max_locks_per_transaction", "128")
        // Its statements would be counted among ours.
        .set("autovacuum_naptime", "1h");
    let server = runtime.block_on(servers::Postgres::start(options))?;
    let url = server.url();
    let site = Site {
        session: format!("{url}?mode=session"),
        durable: format!("{url}?schema=durable"),
        bare: ("advisory", url.clone()),
        runtime,
    };
    // The server counts with a delay; asking is a transaction itself.
    let count = "SELECT pg_sleep(1.1), sum(xact_commit + xact_rollback) FROM pg_stat_database";
    let mut rows = site.row("a free lock", site.free(async || Advisory::open(&url).await))?;
    rows.extend(site.row("a free lock beside sqlx", site.beside_sqlx(&url))?);
    rows.extend(site.row("a durable lock", site.durable_beside_bare(&url))?);
    rows.extend(site.crowds()?);
    rows.extend(site.ends()?);
    rows.extend(site.held(async || digits(&server.sql(count).await.unwrap_or_default()))?);
    rows.extend(site.beside_unlogged(&server)?);
    Ok(rows)
}

/// MariaDB beside `GET_LOCK`.
pub(crate) fn mariadb() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let options = servers::MariaDbOptions::default().set("max-connections", "900");
    let server = runtime.block_on(servers::MariaDb::start(options))?;
    let made = runtime.block_on(server.sql(OTHER));
    made?;
    Site::of_mysql(runtime, &server, &server.url())
        .beside_named(async || digits(&server.sql(QUESTIONS).await.unwrap_or_default()))
}

/// MySQL beside `GET_LOCK`.
pub(crate) fn mysql() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let options = servers::MysqlOptions::default().set("max-connections", "900");
    let server = runtime.block_on(servers::Mysql::start(options))?;
    let made = runtime.block_on(server.sql(OTHER));
    made?;
    Site::of_mysql(runtime, &server, &server.url())
        .beside_named(async || digits(&server.sql(QUESTIONS).await.unwrap_or_default()))
}

/// A database for session locks beside the one for durable locks.
const OTHER: &str = "CREATE DATABASE sessions; GRANT ALL ON sessions.* TO lockkeeper@'127.0.0.1'";
const QUESTIONS: &str = "SHOW GLOBAL STATUS LIKE 'Questions'";

/// A row of what was measured on several connections of each side.
fn of_connections(what: &'static str, all: &[(Duration, Duration)], at_most: f64) -> Row {
    let mut row = Row::of_times(what, quickest(all), at_most);
    let slowest =
        |side: fn(&(Duration, Duration)) -> Duration| all.iter().map(side).max().unwrap_or_default();
    let (ours, theirs) = (slowest(|it| it.0), slowest(|it| it.1));
    row.note = format!(
        "the quickest of {CONNECTIONS} connections of each, because the system's choice of a core for a connection decides \
         more than what is asked on it; the slowest {ours:.1?} and {theirs:.1?}"
    );
    row
}

/// The last number in what a client printed.
fn digits(said: &str) -> u64 {
    said.split(|it: char| !it.is_ascii_digit())
        .rfind(|it| !it.is_empty())
        .and_then(|it| it.parse().ok())
        .unwrap_or(0)
}

impl Site {
    fn of_mysql(runtime: Runtime, server: &impl Deref<Target = Daemon>, url: &str) -> Self {
        let session = format!("mysql://lockkeeper@{}/sessions?mode=session", server.address());
        Site { runtime, session, durable: url.to_owned(), bare: ("named", url.to_owned()) }
    }

    /// All rows of a server with named locks.
    fn beside_named(&self, statements: impl AsyncFn() -> u64) -> Outcome {
        let mut rows = self.row("a free lock", self.free(async || Named::open(&self.bare.1).await))?;
        rows.extend(self.crowds()?);
        rows.extend(self.ends()?);
        rows.extend(self.held(statements)?);
        Ok(rows)
    }

    /// A row, told as soon as it is known.
    fn row(&self, doing: &str, work: impl Future<Output = Answer<Row>>) -> Outcome {
        if !begins(doing) {
            return Ok(Vec::new());
        }
        Ok(told(vec![self.runtime.block_on(work)?]))
    }

    /// Many who want one lock.
    fn crowds(&self) -> Outcome {
        let mut rows = Vec::new();
        if begins("hand-offs of 4 x 1") {
            rows.extend(self.hand_offs()?);
        }
        if begins("guards beside durable locks") {
            rows.extend(self.beside_durable()?);
        }
        if begins("200 waiting") {
            rows.extend(self.many_waiting()?);
        }
        Ok(rows)
    }

    /// Holders that end.
    fn ends(&self) -> Outcome {
        let mut rows = self.row("killed holders", self.take_over_after_kill())?;
        rows.extend(self.row("a stopped holder", self.take_over_after_stop())?);
        Ok(rows)
    }

    async fn free<R: Rival>(&self, bare: impl AsyncFn() -> Answer<R>) -> Answer<Row> {
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS {
            let (locker, mut bare) = (lockkeeper::connect(&self.session).await?, bare().await?);
            locker.lock("orders/42").await?.release().await?;
            let times = beside_requests(
                async || Ok(locker.lock("orders/42").await?.release().await?),
                async || {
                    let taken = bare.take("orders/42").await?;
                    bare.give_back(taken).await
                },
            );
            all.push(times.await?);
            locker.shutdown(Duration::from_secs(5)).await?;
        }
        let what = "lock + unlock, uncontended, beside the server's bare lock and unlock";
        Ok(of_connections(what, &all, 1.5))
    }

    /// The durable table without its log, as a third choice would have it: worth having only if it were quicker than
    /// session locks, whose guard after a restart it would need.
    fn beside_unlogged(&self, server: &servers::Postgres) -> Outcome {
        if !begins("unlogged tables") {
            return Ok(Vec::new());
        }
        let url = self.durable.replace("durable", "unlogged");
        let table = self.runtime.block_on(lockkeeper::connect(&url))?;
        for name in ["lock", "claim"] {
            let unlog = format!("ALTER TABLE unlogged.lockkeeper_{name} SET UNLOGGED");
            self.runtime.block_on(server.sql(&unlog))?;
        }
        let free = self.runtime.block_on(async {
            let session = lockkeeper::connect(&self.session).await?;
            beside_requests(
                async || Ok(session.lock("orders/42").await?.release().await?),
                async || Ok(table.lock("orders/42").await?.release().await?),
            )
            .await
        })?;
        let (ours, theirs) = (self.fight("ours", &self.session, 4, 1)?, self.fight("ours", &url, 4, 1)?);
        Ok(told(vec![
            Row::of_times("lock + unlock, uncontended, beside durable locks in unlogged tables", free, 1.0),
            Row::of_rates(
                "4 processes × 1 task, hand-offs per second, beside durable locks in unlogged tables",
                (ours.rate(), theirs.rate()),
                1.0,
            ),
        ]))
    }

    async fn beside_sqlx(&self, url: &str) -> Answer<Row> {
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS {
            let (locker, rival) =
                (lockkeeper::connect(&self.session).await?, Sqlx::open(url, "orders/42").await?);
            locker.lock("orders/42").await?.release().await?;
            let ours = async || Ok(locker.lock("orders/42").await?.release().await?);
            all.push(beside_requests(ours, async || rival.cycle().await).await?);
            locker.shutdown(Duration::from_secs(5)).await?;
        }
        let what = "the same beside sqlx's `PgAdvisoryLock`, which has no lease and no fence";
        Ok(of_connections(what, &all, 1.0))
    }

    /// What a durable lock costs, and what it cost before a release was told without waiting for the disk. Times of
    /// another day say nothing, so both are shares of what two bare durable statements cost at the same moment.
    async fn durable_beside_bare(&self, url: &str) -> Answer<Row> {
        let (locker, bare) = (lockkeeper::connect(&self.durable).await?, BarePostgres::open(url).await?);
        locker.lock("orders/42").await?.release().await?;
        let ours = async || Ok(locker.lock("orders/42").await?.release().await?);
        let times = beside_requests(ours, async || bare.cycles(1).await).await?;
        let what = "a durable lock + unlock, uncontended, beside insert + delete of a unique row";
        let mut row = Row::of_times(what, times, DURABLE_MOST);
        row.note = format!(
            "0.8 × what it was when a release was flushed: {DURABLE_BEFORE} (decision 34, a quiet machine); now {:.2} of that",
            row.ratio / DURABLE_BEFORE
        );
        Ok(row)
    }

    fn fight(&self, rival: &str, url: &str, processes: usize, tasks: usize) -> Answer<Crowd> {
        self.crowd(rival, url, processes, tasks)?.all_served()
    }

    /// The same, also if somebody is refused.
    fn crowd(&self, rival: &str, url: &str, processes: usize, tasks: usize) -> Answer<Crowd> {
        say(&format!("{processes} × {tasks}, {rival} at {url}"));
        let plan = Plan { rival, url, key: "crowd", ttl: crowd::TTL, processes, tasks };
        self.runtime.block_on(async { Parties::start(plan).await?.fight(SPAN).await })
    }

    fn hand_offs(&self) -> Outcome {
        let ours = self.fight("ours", &self.session, 4, 1)?;
        let bare = self.fight(self.bare.0, &self.bare.1, 4, 1)?;
        let what = "4 processes × 1 task, hand-offs per second, beside the bare lock";
        let mut rate = Row::of_rates(what, (ours.rate(), bare.rate()), 0.6);
        rate.note = fairness(&ours);
        let what = "the same: share of the rounds that passed one which had asked ten hand-offs before";
        let mut order = Row::of_number(what, ours.passed_over(), Bound::AtMost(0.01));
        order.theirs = format!("{:.3}", bare.passed_over());
        Ok(told(vec![rate, order]))
    }

    fn beside_durable(&self) -> Outcome {
        let mut rows = Vec::new();
        for (processes, tasks, what) in [
            (4, 16, "4 processes × 16 tasks, guards per second, beside durable locks"),
            (1, 64, "1 process × 64 tasks, guards per second, beside durable locks"),
        ] {
            let ours = self.fight("ours", &self.session, processes, tasks)?;
            let table = self.fight("ours", &self.durable, processes, tasks)?;
            let mut row = Row::of_rates(what, (ours.rate(), table.rate()), 1.0);
            row.note = fairness(&ours);
            rows.extend(told(vec![row]));
        }
        Ok(rows)
    }

    fn many_waiting(&self) -> Outcome {
        let few = self.fight("ours", &self.session, 10, 1)?;
        let many = self.crowd("ours", &self.session, WAITING, 1)?;
        // What the server's own lock loses by a crowd is no fault of ours, and is told.
        let [bare_few, bare_many] = [10, WAITING].map(|it| self.crowd(self.bare.0, &self.bare.1, it, 1));
        let bare = (bare_few?.rate(), bare_many?.rate());
        let what = "200 waiting processes, hand-offs per second, beside the same with 10";
        let mut rate = Row::of_rates(what, (many.rate(), few.rate()), 0.5);
        rate.note = format!(
            "{}; {} refused; the bare lock {:.0}/s beside {:.0}/s, which is {:.2}",
            fairness(&many),
            many.refused(),
            bare.1,
            bare.0,
            bare.1 / bare.0
        );
        if many.refused() != 0 {
            rate.ratio = 0.0;
        }
        let what = "the same: how evenly they are served (Jain index, 1 = even)";
        Ok(told(vec![rate, Row::of_number(what, many.jain(), Bound::AtLeast(0.99))]))
    }

    /// A process that holds the lock, and when it was sent the signal while we waited.
    async fn replaced(&self, signal: &str, ttl: Duration, key: &str) -> Answer<Duration> {
        let plan = Plan { rival: "ours", url: &self.session, key, ttl, processes: 1, tasks: 1 };
        let mut holder = Parties::start(plan).await?;
        let worker = holder.workers().first_mut().ok_or("no worker")?;
        worker.tell("hold").await?;
        worker.answer().await?;
        let pid = worker.pid()?;
        let (mut next, key, clock) =
            (Ours::connect(&self.session).await?.ttl(ttl), key.to_owned(), Clock::boot());
        let waiting = tokio::spawn(async move {
            let guard = next.take(&key).await?;
            let had_at: Moment = Clock::boot().now();
            next.give_back(guard).await?;
            Answer::Ok(had_at)
        });
        // It stands in the server's line by then.
        clock.sleep(Duration::from_millis(300)).await;
        let sent_at = clock.now();
        Command::new("kill").args([signal, &pid.to_string()]).status()?;
        Ok(waiting.await?? - sent_at)
    }

    async fn take_over_after_kill(&self) -> Answer<Row> {
        let mut spans = Vec::new();
        for at in 0..KILLS {
            spans.push(
                self.replaced("-KILL", crowd::TTL, &format!("killed/{at}")).await?.as_secs_f64() * 1000.0,
            );
        }
        let what = "take-over after SIGKILL of the holder, p99 in ms";
        Ok(Row::of_number(what, quantile(&mut spans, 99), Bound::AtMost(50.0)))
    }

    async fn take_over_after_stop(&self) -> Answer<Row> {
        let span = self.replaced("-STOP", STOPPED_TTL, "stopped").await?;
        let what = "take-over after SIGSTOP of the holder, ttl 3 s, in s";
        Ok(Row::of_number(what, span.as_secs_f64(), Bound::AtMost(STOPPED_TTL.as_secs_f64() + 1.0)))
    }

    /// Many locks of one process: what it costs to keep them.
    fn held(&self, statements: impl AsyncFn() -> u64) -> Outcome {
        if !begins("many locks of one process") {
            return Ok(Vec::new());
        }
        Ok(told(self.runtime.block_on(self.keep_many(statements))?))
    }

    async fn keep_many(&self, statements: impl AsyncFn() -> u64) -> Outcome {
        let (clock, locker) = (Clock::boot(), lockkeeper::connect(&self.session).await?);
        let (mut guards, before) = (Vec::new(), resident()?);
        for at in 0..HELD {
            guards.push(locker.lock(format!("held/{at}")).ttl(crowd::TTL).await?);
        }
        let each = per(resident()?.saturating_sub(before), HELD);
        clock.sleep(crowd::TTL).await;
        let (asked, counted) = (statements().await, statements().await);
        // What it costs to count.
        let price = counted.saturating_sub(asked);
        clock.sleep(crowd::TTL * 2).await;
        let used = statements().await.saturating_sub(counted).saturating_sub(price);
        let valid = guards.iter().filter(|it| it.is_valid()).count();
        if counted == 0 || valid as u64 != HELD {
            return Err(format!("{valid} of {HELD} are valid, {counted} statements were counted").into());
        }
        let what = "10,000 locks held by one process: statements per ttl";
        let mut kept = Row::of_number(what, per(used, 2), Bound::AtMost(3.0));
        kept.note = format!("all are valid after three ttls; counting costs {price}, which are taken off");
        let what = "the same: bytes of this process for each lock";
        Ok(vec![kept, Row::of_number(what, each, Bound::AtMost(4096.0))])
    }
}

/// The memory of this process, in bytes.
fn resident() -> Answer<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

fn fairness(crowd: &Crowd) -> String {
    format!(
        "Jain index {:.3}, longest wait {:.1?}, {} overtook",
        crowd.jain(),
        crowd.longest_wait(),
        crowd.overtaking()
    )
}
