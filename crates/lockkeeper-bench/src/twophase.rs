//! Two-phase commit beside two commits that know nothing of each other, on real servers that force what they write.

mod forced;
mod latency;
mod recovery;
mod takeover;
mod traced;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::twophase::{Office, Participant, TwoPhase};
use lockkeeper_servers::{MariaDb, MariaDbOptions, Postgres, PostgresOptions};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::measure::per;
use crate::report::{Bound, Row, told};
use crate::{Answer, Outcome};

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
        let mut rows = forced::rows(&site).await?;
        rows.extend(latency::rows(&site).await?);
        rows.push(verdicts_per_flush(&site).await?);
        Ok(rows)
    })
}

/// One of our other processes, if the first word says which.
pub(crate) fn child(words: &[String]) -> Option<Answer<()>> {
    let (first, rest) = words.split_first()?;
    match first.as_str() {
        takeover::CHILD => Some(takeover::work(rest)),
        _ => None,
    }
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
        setup(&self.locks(), log, &self.orders.url(), &self.stock.url()).await
    }

    fn locks(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("locks.db").display())
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
}

async fn setup(locks: &str, log: &str, orders: &str, stock: &str) -> Answer<TwoPhase> {
    let setup = TwoPhase::open(log, &lockkeeper::connect(locks).await?).await?;
    let setup = setup.participant("orders", Participant::postgres(orders)?);
    let setup = setup.participant("stock", Participant::mysql(stock)?);
    // Witnesses are removed later: what is measured is what a caller waits for.
    Ok(setup.sweep_every(Duration::from_hours(1)))
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

/// By TCP, as ours: the driver would look for the server's socket after it has connected.
async fn conn(site: &Site) -> Answer<Conn> {
    let opts = OptsBuilder::from_opts(Opts::from_url(&site.stock.url())?).prefer_socket(false);
    Ok(Conn::new(opts).await?)
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

/// As many callers at once. How long each transaction took.
async fn crowd(office: &Arc<Office>, tag: &str) -> Answer<Vec<Duration>> {
    let begin = office.fence();
    let each = async |(): &mut (), task, n| both(office, &format!("{tag}-{begin}-{task}-{n}")).await;
    latency::many((0..CROWD).map(|_| ()).collect(), each).await
}

/// On a server that has nothing but the log. Without sharing it would be 1. How many share depends on how long a flush takes
/// beside a transaction, so it is shown and not judged.
async fn verdicts_per_flush(site: &Site) -> Answer<Row> {
    let log = Postgres::start(postgres()).await?;
    let office = site.office(&log.url()).await?;
    let before = flushes(&log).await?;
    crowd(&office, "flush").await?;
    let found = per(CROWD * EACH, flushes(&log).await? - before);
    Ok(Row::of_number("64 callers: decisions for each flush of the log", found, Bound::Shown))
}
