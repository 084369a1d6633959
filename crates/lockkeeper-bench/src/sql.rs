//! SQL locks beside the bare statements of a unique row, on real servers that this program starts.

mod bare;
mod compete;
mod rivals;
pub(crate) mod sessions;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Locker;
use lockkeeper_servers as servers;
use tokio::runtime::Runtime;

use crate::crowd;
use crate::measure::beside;
use crate::report::Row;
use crate::rival::Ours;
use crate::{Answer, Outcome};
use bare::{Bare, BareMysql, BarePostgres};
pub(crate) use rivals::{Advisory, Named, Sqlx};

const OPS: u32 = 300;
const ON_SEVERAL: &str = "the same on `multi_thread`";
const CROWD_SPAN: Duration = Duration::from_secs(2);

/// PostgreSQL.
pub(crate) fn postgres() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = runtime.block_on(servers::Postgres::start(servers::PostgresOptions::default()))?;
    let bare = runtime.block_on(BarePostgres::open(&server.url()))?;
    let committed = "SELECT pg_sleep(1.1), sum(xact_commit) FROM pg_stat_database WHERE datname = 'postgres'";
    let statements = || {
        // The server's counters lag behind by up to a second; asking costs a transaction itself.
        let said = runtime.block_on(server.sql(committed)).unwrap_or_default();
        said.trim_start_matches('|').parse().unwrap_or(0)
    };
    let mut rows = alone(&runtime, &server.url(), &Arc::new(bare))?;
    let several = several()?;
    let bare = several.block_on(BarePostgres::open(&server.url()))?;
    rows.insert(1, free(&several, &server.url(), &Arc::new(bare), ON_SEVERAL)?.0);
    rows.extend(compete::compete(&runtime, &server.url(), statements, 1.0)?);
    rows.push(compete::idle(&server.url(), statements)?);
    Ok(rows)
}

/// MariaDB, in the words that MySQL understands.
pub(crate) fn mysql() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = runtime.block_on(servers::MariaDb::start(servers::MariaDbOptions::default()))?;
    let bare = runtime.block_on(BareMysql::open(&server.url()))?;
    let statements = || {
        let said = runtime.block_on(server.sql("SHOW GLOBAL STATUS LIKE 'Questions'")).unwrap_or_default();
        said.split_whitespace().last().and_then(|it| it.parse().ok()).unwrap_or(0)
    };
    let mut rows = alone(&runtime, &server.url(), &Arc::new(bare))?;
    let several = several()?;
    let bare = several.block_on(BareMysql::open(&server.url()))?;
    rows.insert(1, free(&several, &server.url(), &Arc::new(bare), ON_SEVERAL)?.0);
    rows.extend(compete::compete(&runtime, &server.url(), statements, 2.0)?);
    Ok(rows)
}

fn several() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// One process: a free lock, and 64 tasks on one.
fn alone<B: Bare + Send + Sync + 'static>(runtime: &Runtime, url: &str, bare: &Arc<B>) -> Outcome {
    let what = "lock + unlock, uncontended, beside insert + delete of a unique row";
    let (free, bare_time, locker) = free(runtime, url, bare, what)?;
    let bare_rate = 1.0 / bare_time.as_secs_f64();
    let crowd = crowd::here(vec![Ours::new(&locker)], 64, "crowd of one", CROWD_SPAN);
    let rate = runtime.block_on(crowd)?.sound()?.rate();
    Ok(vec![
        free,
        Row::of_rates(
            "64 tasks of one process on one lock, guards per second, beside the bare cycle",
            (rate, bare_rate),
            20.0,
        ),
    ])
}

/// A free lock as a task of the runtime, what the bare statements take, and the locker.
fn free<B: Bare + Send + Sync + 'static>(
    runtime: &Runtime,
    url: &str,
    bare: &Arc<B>,
    what: &'static str,
) -> Answer<(Row, Duration, Locker)> {
    let locker = runtime.block_on(lockkeeper::connect(url))?;
    runtime.block_on(cycles(locker.clone(), 10))?;
    let mut failed: Option<Box<dyn Error + Send + Sync>> = None;
    let times = beside(
        OPS,
        || match runtime.block_on(runtime.spawn(cycles(locker.clone(), OPS))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed = Some(error.into()),
            Err(error) => failed = Some(error.into()),
        },
        || {
            let bare = bare.clone();
            match runtime.block_on(runtime.spawn(async move { bare.cycles(OPS).await })) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprint_error(&*error),
                Err(error) => eprint_error(&error),
            }
        },
    );
    if let Some(error) = failed {
        return Err(error);
    }
    let mut free = Row::of_times(what, times, 1.2);
    "what remains: decision 74".clone_into(&mut free.note);
    Ok((free, times.1, locker))
}

fn eprint_error(error: &dyn Error) {
    crate::report::say(&format!("the bare statements failed: {error}"));
}

async fn cycles(locker: Locker, count: u32) -> lockkeeper::Result<()> {
    for _ in 0..count {
        locker.lock("orders/42").await?.release().await?;
    }
    Ok(())
}
