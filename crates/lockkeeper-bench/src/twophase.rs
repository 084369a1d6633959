//! Two-phase commit beside two commits that know nothing of each other, on real servers that force what they write.

mod recovery;
mod takeover;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::twophase::{Office, Participant, TwoPhase};
use lockkeeper_core::Clock;
use lockkeeper_servers::{MariaDb, MariaDbOptions, Postgres, PostgresOptions};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::measure::{median, per};
use crate::report::{Bound, Row, told};
use crate::{Answer, Outcome};

pub(crate) use takeover::{CHILD, work};

/// Transactions of which forced writes are counted.
const COUNTED: u64 = 400;
/// Without sharing it would be 1.
const SHARED_MIN: f64 = 4.0;
/// Turns of one caller, and transactions of each turn.
const TURNS: usize = 15;
const OPS: u32 = 10;
/// Callers at once, and transactions of each.
const CROWD: u64 = 64;
const EACH: u64 = 10;

/// The servers, and a folder for files.
struct Site {
    orders: Postgres,
    stock: MariaDb,
    folder: TempDir,
}

pub(crate) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let site = Site::start().await?;
        let mut rows = forced_writes(&site).await?;
        rows.extend(latencies(&site).await?);
        rows.push(verdicts_per_flush(&site).await?);
        Ok(rows)
    })
}

/// What the dead left, and how soon it is finished.
pub(crate) fn recovered() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let site = Site::start().await?;
        let mut rows = told(recovery::rows(&site).await?);
        rows.extend(told(vec![takeover::row(&site).await?]));
        Ok(rows)
    })
}

impl Site {
    async fn start() -> Answer<Self> {
        let orders = Postgres::start(postgres()).await?;
        let stock = MariaDb::start(MariaDbOptions::default().set("max-connections", "1500")).await?;
        orders.sql("CREATE DATABASE log").await?;
        let table = "CREATE TABLE move (id varchar(40) PRIMARY KEY)";
        orders.sql(table).await?;
        stock.sql(table).await?;
        Ok(Site { orders, stock, folder: tempfile::tempdir()? })
    }

    async fn setup(&self, log: &str) -> Answer<TwoPhase> {
        let locks = format!("sqlite:{}", self.folder.path().join("locks.db").display());
        let setup = TwoPhase::open(log, &lockkeeper::connect(&locks).await?).await?;
        let setup = setup.participant("orders", Participant::postgres(&self.orders.url())?);
        let setup = setup.participant("stock", Participant::mysql(&self.stock.url())?);
        // Witnesses are removed later: what is measured is what a caller waits for.
        Ok(setup.sweep_every(Duration::from_hours(1)))
    }

    async fn office(&self, log: &str) -> Answer<Arc<Office>> {
        Ok(Arc::new(self.setup(log).await?.start().await?))
    }

    fn file(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("2pc.db").display())
    }

    /// A database for the log alone.
    fn beside(&self) -> String {
        format!("postgres://postgres@{}/log", self.orders.address())
    }

    /// Two commits that know nothing of each other, on connections as new as ours: branches are never pooled.
    async fn apart(&self, n: u64) -> Answer<()> {
        let (orders, connection) = tokio_postgres::connect(&self.orders.url(), NoTls).await?;
        tokio::spawn(connection);
        let mut stock = Conn::new(Opts::from_url(&self.stock.url())?).await?;
        orders.batch_execute(&format!("BEGIN; INSERT INTO move VALUES ('apart-{n}')")).await?;
        stock.query_drop("START TRANSACTION").await?;
        stock.query_drop(format!("INSERT INTO move VALUES ('apart-{n}')")).await?;
        let (here, there) = tokio::join!(orders.batch_execute("COMMIT"), stock.query_drop("COMMIT"));
        here?;
        there?;
        Ok(stock.disconnect().await?)
    }

    /// Forced writes so far.
    async fn forced(&self) -> Answer<Forced> {
        let orders = flushes(&self.orders).await?;
        let there = self.stock.sql("SHOW GLOBAL STATUS LIKE 'Innodb_data_fsyncs'").await?;
        Ok(Forced { orders, stock: there.split_whitespace().last().unwrap_or_default().parse()? })
    }
}

/// Forced writes at each server.
#[derive(Clone, Copy)]
struct Forced {
    orders: u64,
    stock: u64,
}

impl Forced {
    fn since(self, before: Self) -> Self {
        Forced { orders: self.orders - before.orders, stock: self.stock - before.stock }
    }

    /// As much as this in a span that is so many times as long.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a few hundred writes"
    )]
    fn over(self, times: f64) -> Self {
        let more = |it: u64| (it as f64 * times).round() as u64;
        Forced { orders: more(self.orders), stock: more(self.stock) }
    }

    fn all(self) -> u64 {
        self.orders + self.stock
    }
}

/// What nobody waits for is written seldom, so that it is not counted among what somebody waits for.
fn postgres() -> PostgresOptions {
    let options = PostgresOptions::default().set("wal_writer_delay", "10s");
    options.set("max_prepared_transactions", "2500").set("max_connections", "300")
}

/// A session tells what it has forced when it ends, and an idle one within ten seconds. The look must not stand in one statement
/// with the pause, which would look first.
async fn flushes(server: &Postgres) -> Answer<u64> {
    server.sql("SELECT pg_sleep(11)").await?;
    Ok(server.sql("SELECT wal_sync FROM pg_stat_wal").await?.trim().parse()?)
}

async fn client(site: &Site) -> Answer<Client> {
    let (client, connection) = tokio_postgres::connect(&site.orders.url(), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn conn(site: &Site) -> Answer<Conn> {
    Ok(Conn::new(Opts::from_url(&site.stock.url())?).await?)
}

async fn both(office: &Office, tag: &str) -> Answer<()> {
    let sql = format!("INSERT INTO move VALUES ('{tag}')");
    let (first, second) = (sql.clone(), sql);
    let work = office.transaction().within(Duration::from_mins(1));
    let work = work.on("orders", async move |db: &Client| Ok(db.batch_execute(&first).await?));
    let work = work.on("stock", async move |db: &mut Conn| Ok(db.query_drop(second).await?));
    work.commit().await?;
    Ok(())
}

async fn one(office: &Office, tag: &str) -> Answer<()> {
    let sql = format!("INSERT INTO move VALUES ('{tag}')");
    let work = office.transaction().within(Duration::from_mins(1));
    work.on("orders", async move |db: &Client| Ok(db.batch_execute(&sql).await?)).commit().await?;
    Ok(())
}

/// Counted at the servers, over transactions one after the other.
///
/// The bound is the formula: at most so many. Less is better, and happens where a server forces several commits at once.
///
/// Servers force of themselves, too: checkpoints, cleaning. What each forces in an idle span of a known length before the work is
/// taken off in proportion to the span of the work and of the look that follows it. Both figures stand in the note for each
/// server, so that the cause of what is over can be seen.
async fn forced_writes(site: &Site) -> Outcome {
    let mut rows = Vec::new();
    for (what, log, single, wanted) in [
        ("forced writes of 2 branches, the log in a database of its own (2n + 1)", site.beside(), false, 5.0),
        ("forced writes of 2 branches, the log with a participant (2n − 1)", site.orders.url(), false, 3.0),
        ("forced writes of one writer (n)", site.beside(), true, 1.0),
    ] {
        let office = site.office(&log).await?;
        let clock = Clock::boot();
        let first = site.forced().await?;
        let begun = clock.now();
        let before = site.forced().await?;
        let span = clock.now() - begun;
        let begun = clock.now();
        for n in 0..COUNTED {
            let tag = format!("{}-{single}-{n}", office.fence());
            if single { one(&office, &tag).await? } else { both(&office, &tag).await? }
        }
        let (idle, all) = (before.since(first), site.forced().await?.since(before));
        let busy = clock.now() - begun;
        let off = idle.over(busy.as_secs_f64() / span.as_secs_f64());
        let found = per(all.all().saturating_sub(off.all()), COUNTED);
        let row = Row::of_number(what, found, Bound::AtMost(wanted));
        let note = format!(
            "PostgreSQL {}, MariaDB {} for {COUNTED} transactions in {busy:.0?}; taken off {} and {}, because without any they \
             forced {} and {} in {span:.0?}",
            all.orders, all.stock, off.orders, off.stock, idle.orders, idle.stock
        );
        rows.push(Row { theirs: format!("{wanted}"), note, ..row });
        drop(office);
    }
    Ok(rows)
}

async fn latencies(site: &Site) -> Outcome {
    let mut rows = Vec::new();
    for (alone, crowd, log, bound) in [
        (
            "one caller: two-phase commit with its own SQLite log, beside two commits apart",
            "64 callers: the same, time for each",
            site.file(),
            2.7,
        ),
        (
            "one caller: the log with a participant, beside two commits apart",
            "64 callers: the same, time for each",
            site.orders.url(),
            1.6,
        ),
    ] {
        let office = site.office(&log).await?;
        let mut count = 0;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            ours.push(
                turn(OPS, async |n| both(&office, &format!("{}-{n}", office.fence())).await, &mut count)
                    .await?,
            );
            theirs.push(turn(OPS, async |n| site.apart(n + office.fence()).await, &mut count).await?);
        }
        rows.push(Row::of_times(alone, (median(&mut ours), median(&mut theirs)), bound));
        rows.push(Row::of_times(crowd, at_once(site, &office).await?, bound));
    }
    Ok(rows)
}

async fn turn(ops: u32, mut work: impl AsyncFnMut(u64) -> Answer<()>, count: &mut u64) -> Answer<Duration> {
    let clock = Clock::boot();
    let begun = clock.now();
    for _ in 0..ops {
        *count += 1;
        work(*count).await?;
    }
    Ok((clock.now() - begun) / ops)
}

/// The time for each of ours and of theirs, while as many callers are at it.
async fn at_once(site: &Site, office: &Arc<Office>) -> Answer<(Duration, Duration)> {
    let clock = Clock::boot();
    let begun = clock.now();
    crowd(office, "crowd").await?;
    let ours = clock.now() - begun;
    let begun = clock.now();
    let tasks = (0..CROWD).map(|task| async move {
        for n in 0..EACH {
            site.apart(office.fence() + 1_000_000 + task * EACH + n).await?;
        }
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    });
    for done in futures_util::future::join_all(tasks).await {
        done?;
    }
    let each = u32::try_from(CROWD * EACH)?;
    Ok((ours / each, (clock.now() - begun) / each))
}

async fn crowd(office: &Arc<Office>, tag: &str) -> Answer<()> {
    let tasks = (0..CROWD).map(|task| async move {
        for n in 0..EACH {
            both(office, &format!("{tag}-{}-{task}-{n}", office.fence())).await?;
        }
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    });
    for done in futures_util::future::join_all(tasks).await {
        done?;
    }
    Ok(())
}

/// On a server that has nothing but the log.
async fn verdicts_per_flush(site: &Site) -> Answer<Row> {
    let log = Postgres::start(postgres()).await?;
    let office = site.office(&log.url()).await?;
    let before = flushes(&log).await?;
    crowd(&office, "flush").await?;
    let found = per(CROWD * EACH, flushes(&log).await? - before);
    Ok(Row::of_number("64 callers: decisions for each flush of the log", found, Bound::AtLeast(SHARED_MIN)))
}
