//! SQLite locks beside the same statements issued bare, and the local queue beside none.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use lockkeeper_core::Locker;
use lockkeeper_sqlite::{Durability, Sqlite, SqliteOptions};
use rusqlite::{Connection, params};
use tokio::runtime::Runtime;

use crate::crowd::{Parties, Plan};
use crate::measure::beside;
use crate::report::{Bound, Row};
use crate::rival::Ours;
use crate::{Answer, Outcome, crowd};

const CROWD_SPAN: Duration = Duration::from_secs(2);

pub(crate) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rows = vec![
        uncontended(
            &runtime,
            Durability::Normal,
            1.2,
            "SQLite lock + unlock, uncontended, beside the bare statements",
        )?,
        uncontended(&several, Durability::Normal, 1.2, "the same on `multi_thread`")?,
        uncontended(
            &runtime,
            Durability::Full,
            1.5,
            "SQLite lock + unlock with `durability=full`, beside the bare statements",
        )?,
        queue(&runtime)?,
    ];
    rows.extend(hand_offs(&runtime)?);
    Ok(rows)
}

/// One task of each of four processes.
fn hand_offs(runtime: &Runtime) -> Outcome {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let plan = Plan { rival: "ours", url: &url, key: "crowd", ttl: crowd::TTL, processes: 4, tasks: 1 };
    let crowd =
        runtime.block_on(async { Parties::start(plan).await?.fight(CROWD_SPAN).await })?.all_served()?;
    let what = "SQLite, 4 processes × 1 task, hand-offs per second";
    let mut rate = Row::of_number(what, crowd.rate(), Bound::AtLeast(5000.0));
    rate.note = format!("Jain index {:.3}, {} overtook", crowd.jain(), crowd.overtaking());
    let what = "the same: share of the rounds that passed one which had asked ten hand-offs before";
    Ok(vec![rate, Row::of_number(what, crowd.passed_over(), Bound::AtMost(0.01))])
}

fn uncontended(runtime: &Runtime, durability: Durability, most: f64, what: &'static str) -> Answer<Row> {
    let ops = if durability == Durability::Full { 300 } else { 3000 };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db");
    let backend = Sqlite::with_blocking(SqliteOptions::new(&path).durability(durability))?;
    let locker = Locker::new(backend);
    runtime.block_on(async { locker.lock("warm").await?.release().await })?;
    let bare = Bare::open(&path, durability)?;
    let mut failed: Option<Box<dyn Error + Send + Sync>> = None;
    let times = beside(
        ops,
        || {
            let done = runtime.block_on(runtime.spawn(cycles(locker.clone(), ops)));
            failed = done.map_err(Into::into).and_then(|it| it).err().or(failed.take());
        },
        || (0..ops).for_each(|_| drop(bare.cycle("orders/43"))),
    );
    match failed {
        Some(error) => Err(error),
        None => Ok(Row::of_times(what, times, most)),
    }
}

/// As a task of the runtime, which is what a program does on either kind.
async fn cycles(locker: Locker, count: u32) -> Answer<()> {
    for _ in 0..count {
        locker.lock("orders/42").await?.release().await?;
    }
    Ok(())
}

/// The statements of a lock and an unlock on a connection of the caller's own thread.
struct Bare(Connection);

impl Bare {
    fn open(path: &Path, durability: Durability) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        let synchronous = if durability == Durability::Full { "FULL" } else { "NORMAL" };
        connection.pragma_update(None, "synchronous", synchronous)?;
        connection.busy_timeout(Duration::from_secs(30))?;
        Ok(Bare(connection))
    }

    fn cycle(&self, key: &str) -> rusqlite::Result<()> {
        let sql = |text| self.0.prepare_cached(text);
        let read = "SELECT seq, id, counter, expires, weight, capacity FROM lockkeeper_claim WHERE key = ?1 ORDER BY seq";
        sql("BEGIN IMMEDIATE")?.execute([])?;
        let _: usize = sql(read)?.query_map([key], |_| Ok(()))?.count();
        let number: i64 =
            sql("UPDATE lockkeeper_store SET counter = counter + 1 WHERE one = 1 RETURNING counter")?
                .query_row([], |row| row.get(0))?;
        sql("INSERT INTO lockkeeper_claim VALUES (?1, ?2, ?3, ?2, ?4, ?5, 1, 1, 'host', 1, NULL, NULL)")?
            .execute(params![key, number, [7_u8; 16], i64::MAX, 0])?;
        sql("COMMIT")?.execute([])?;
        sql("BEGIN IMMEDIATE")?.execute([])?;
        let _: usize = sql(read)?.query_map([key], |_| Ok(()))?.count();
        sql("DELETE FROM lockkeeper_claim WHERE key = ?1 AND seq = ?2")?.execute(params![key, number])?;
        sql("COMMIT")?.execute([])?;
        Ok(())
    }
}

/// 64 tasks on one lock: as one process with its queue, and as 64 strangers without one.
fn queue(runtime: &Runtime) -> Answer<Row> {
    const TASKS: usize = 64;
    let folder = tempfile::tempdir()?;
    let backend = Sqlite::with_blocking(SqliteOptions::new(folder.path().join("locks.db")))?;
    let rate = |rivals: Vec<Ours>, tasks| {
        Answer::Ok(runtime.block_on(crowd::here(rivals, tasks, "one", CROWD_SPAN))?.sound()?.rate())
    };
    let process = || Ours::new(&Locker::new(backend.clone()));
    let with_queue = rate(vec![process()], TASKS)?;
    let without = rate((0..TASKS).map(|_| process()).collect(), 1)?;
    let what = "SQLite, 64 tasks on one lock, guards per second, beside the same without the local queue";
    Ok(Row::of_rates(what, (with_queue, without), 20.0))
}
