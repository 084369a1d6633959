//! Forced writes, counted by the kernel at the servers and at the log's file: never more than the formula says.

use std::time::Duration;

use lockkeeper::twophase::Office;
use mysql_async::prelude::Queryable as _;
use tokio_postgres::Client;

use super::traced::{Forced, Traced};
use super::{Site, both, client, conn};
use crate::measure::per;
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};

/// Transactions of which forced writes are counted.
const COUNTED: u64 = 400;
/// What SQLite forces at each checkpoint beside the file itself: the log that it empties, and the head of the next log.
const CHECKPOINT: u64 = 2;
/// The files of each log. A segment of PostgreSQL's is named by its number; one that is being made is not.
const OF_POSTGRES: &str = "/pg_wal/0";
const OF_MARIADB: &str = "/ib_logfile";
const OF_FILE: &str = "/2pc.db-wal>";
const FILE: &str = "/2pc.db>";

/// What was forced at each of the three places.
struct Counts {
    orders: Forced,
    stock: Forced,
    /// Of the file's log, and how often a checkpoint was forced to the file.
    file: u64,
    checkpoints: u64,
}

impl Counts {
    /// What is forced while this is done.
    async fn of(site: &Site, work: impl AsyncFnOnce() -> Answer<()>) -> Answer<Self> {
        let trace = |name: &str| site.folder.path().join(name);
        let pid = |it: Option<u32>| it.ok_or("a server is gone");
        let orders = Traced::attach(pid(site.orders.pid())?, &trace("orders.trace"))?;
        let stock = Traced::attach(pid(site.stock.pid())?, &trace("stock.trace"))?;
        let ours = Traced::attach(std::process::id(), &trace("ours.trace"))?;
        work().await?;
        // We first: what is left to do after the last answer is nobody's to wait for.
        let ours = ours.end(OF_FILE)?;
        let checkpoints = std::fs::read_to_string(trace("ours.trace"))?;
        let begun = |it: &&str| it.contains(FILE) && it.contains("sync(");
        let checkpoints = u64::try_from(checkpoints.lines().filter(begun).count())?;
        Ok(Counts {
            orders: orders.end(OF_POSTGRES)?,
            stock: stock.end(OF_MARIADB)?,
            file: ours.served + ours.by_itself,
            checkpoints,
        })
    }

    /// What transactions forced, for each.
    fn each(&self) -> f64 {
        let of_file = self.file.saturating_sub(self.checkpoints * CHECKPOINT);
        per(self.orders.served + self.stock.served + of_file, COUNTED)
    }

    fn note(&self) -> String {
        let Counts { orders, stock, file, checkpoints } = self;
        let of_file = if *file == 0 {
            String::new()
        } else {
            format!(", the file {file}, of which {} for {checkpoints} checkpoints", checkpoints * CHECKPOINT)
        };
        let of_itself = |it: &Forced| format!("{} of its log and {} of other files", it.by_itself, it.files);
        format!(
            "PostgreSQL {}, MariaDB {}{of_file} for {COUNTED}; beside that PostgreSQL forced of itself {}, MariaDB {}",
            orders.served,
            stock.served,
            of_itself(orders),
            of_itself(stock)
        )
    }
}

/// The bound is the formula: at most so many. Less is better, and happens where a server forces several commits at once.
///
/// A transaction forces the log of a server, through whoever serves its connection. What the server forces of itself is no part
/// of the formula, and is told in the note: its log by threads and processes that serve nobody (MariaDB writes it once a second,
/// PostgreSQL at checkpoints), and files that grow or are written back. Plain commits are counted in the same way and in the
/// same run, so that the way can be judged: each must force one write.
pub(super) async fn rows(site: &Site) -> Outcome {
    let mut rows = vec![of_plain_commits(site).await?];
    for (what, log, single, wanted) in [
        ("forced writes of 2 branches, the log in an SQLite file (2n + 1)", site.file(), false, 5.0),
        ("forced writes of 2 branches, the log in a database of its own (2n + 1)", site.beside(), false, 5.0),
        ("forced writes of 2 branches, the log with a participant (2n − 1)", site.orders.url(), false, 3.0),
        ("forced writes of one writer (n)", site.beside(), true, 1.0),
    ] {
        let office = site.office(&log).await?;
        let counts = Counts::of(site, async || work_of(&office, single).await).await?;
        rows.push(row(what, &counts, wanted));
    }
    Ok(rows)
}

fn row(what: &'static str, counts: &Counts, wanted: f64) -> Row {
    let row = Row::of_number(what, counts.each(), Bound::AtMost(wanted));
    Row { theirs: format!("{wanted}"), note: counts.note(), ..row }
}

async fn work_of(office: &Office, single: bool) -> Answer<()> {
    for n in 0..COUNTED {
        let tag = format!("{}-{single}-{n}", office.fence());
        if single { one(office, &tag).await? } else { both(office, &tag).await? }
    }
    Ok(())
}

async fn one(office: &Office, tag: &str) -> Answer<()> {
    let sql = format!("INSERT INTO move VALUES ('{tag}')");
    let work = office.transaction().within(Duration::from_mins(1));
    work.on("orders", async move |db: &Client| Ok(db.batch_execute(&sql).await?)).commit().await?;
    Ok(())
}

async fn of_plain_commits(site: &Site) -> Answer<Row> {
    let (orders, mut stock) = (client(site).await?, conn(site).await?);
    let counts = Counts::of(site, async || {
        for n in 0..COUNTED {
            let sql = format!("INSERT INTO move VALUES ('plain-{n}')");
            orders.batch_execute(&sql).await?;
            stock.query_drop(&sql).await?;
        }
        Ok(())
    })
    .await?;
    stock.disconnect().await?;
    Ok(row("forced writes of 2 commits that know nothing of each other (n)", &counts, 2.0))
}
