//! A thousand transactions in doubt, half of them decided: recovery beside the bare statements on as many connections.

use std::time::Duration;

use lockkeeper_core::Clock;
use mysql_async::prelude::Queryable as _;
use rusqlite::params;
use tokio::task::JoinSet;

use super::{Site, both, client, conn};
use crate::report::Row;
use crate::{Answer, Outcome};

const MANY: u32 = 1000;
const FORMAT: u32 = 1_279_996_496;

/// Over one connection to each server, and over eight.
pub(super) async fn rows(site: &Site) -> Outcome {
    let one = "1,000 in doubt, half of them decided: recovery beside the bare statements, one connection to each server";
    let eight = "the same over eight connections to each server";
    Ok(vec![row(site, one, 1).await?, row(site, eight, 8).await?])
}

async fn row(site: &Site, what: &'static str, connections: usize) -> Answer<Row> {
    let path = site.folder.path().join(format!("recovery-{connections}.db"));
    let file = format!("sqlite:{}", path.display());
    let office = site.setup(&file).await?.start().await?;
    both(&office, &format!("first-{connections}")).await?;
    // Names as this office would draw them: they differ in their last eight digits.
    let (seat, fence) = (office.seat(), office.fence());
    let log = rusqlite::Connection::open(&path)?;
    let known = first_name(&log)?;
    let known = &known[..known.len() - 8];
    office.close().await?;
    let names: Vec<String> = (0..MANY).map(|it| format!("{known}{:08}", it * 2)).collect();
    prepare(site, &names, &format!("ours-{connections}"), true).await?;
    decide(log, &names, seat, fence)?;
    let clock = Clock::boot();
    let begun = clock.now();
    let (left, busy) = site.setup(&file).await?.connections(connections).recover().await?;
    let ours = clock.now() - begun;
    if !(left.is_empty() && busy.is_empty()) {
        return Err(format!("{} are left by recovery, seats {busy:?}", left.len()).into());
    }
    let names: Vec<String> = (0..MANY).map(|it| format!("bare-{connections}-{it}")).collect();
    prepare(site, &names, &format!("bare-{connections}"), false).await?;
    let theirs = bare(site, &names, connections).await?;
    Ok(Row::of_times(what, (ours, theirs), 1.3))
}

fn first_name(log: &rusqlite::Connection) -> Answer<String> {
    Ok(log.query_one("SELECT id FROM lockkeeper_2pc_verdict", [], |it| it.get(0))?)
}

fn xid(name: &str) -> String {
    format!("'{name}','1.stock',{FORMAT}")
}

/// A branch of each at both servers, with the row that tells of a commit if they are ours.
async fn prepare(site: &Site, names: &[String], tag: &str, witness: bool) -> Answer<()> {
    let orders = client(site).await?;
    for (n, name) in names.iter().enumerate() {
        let row = format!("INSERT INTO lockkeeper_2pc_witness VALUES ('{name}', 0, 'orders');");
        let row = if witness { row.as_str() } else { "" };
        let sql = format!(
            "BEGIN; INSERT INTO move VALUES ('{tag}-{n}'); {row} PREPARE TRANSACTION '{name}:0.orders'"
        );
        orders.batch_execute(&sql).await?;
        let mut stock = conn(site).await?;
        stock.query_drop(format!("XA START {}", xid(name))).await?;
        stock.query_drop(format!("INSERT INTO move VALUES ('{tag}-{n}')")).await?;
        if witness {
            let row = format!("INSERT INTO lockkeeper_2pc_witness VALUES ('{name}', 1, 'stock')");
            stock.query_drop(row).await?;
        }
        stock.query_drop(format!("XA END {}; XA PREPARE {}", xid(name), xid(name))).await?;
        stock.disconnect().await?;
    }
    Ok(())
}

/// Commit, for the first half.
fn decide(mut log: rusqlite::Connection, names: &[String], seat: u32, fence: u64) -> Answer<()> {
    let writing = log.transaction()?;
    for name in &names[..names.len() / 2] {
        writing.execute(
            "INSERT INTO lockkeeper_2pc_verdict VALUES (?1, ?2, ?3, 'commit', '', '0.orders 1.stock', 0, 0)",
            params![name, seat, fence.cast_signed()],
        )?;
    }
    Ok(writing.commit()?)
}

/// As many connections as ours has at each server, all at once, and open before the clock starts. Ours opens its own.
async fn bare(site: &Site, names: &[String], connections: usize) -> Answer<Duration> {
    let numbered: Vec<(usize, String)> = names.iter().cloned().enumerate().collect();
    let mut links = Vec::new();
    for _ in 0..connections {
        links.push((client(site).await?, conn(site).await?));
    }
    let clock = Clock::boot();
    let begun = clock.now();
    let mut tasks = JoinSet::new();
    for (some, (orders, mut stock)) in numbered.chunks(names.len().div_ceil(connections)).zip(links) {
        let half = names.len() / 2;
        let word = move |n: usize| if n < half { "COMMIT" } else { "ROLLBACK" };
        let some = some.to_vec();
        let same = some.clone();
        tasks.spawn(async move {
            for (n, name) in some {
                orders.batch_execute(&format!("{} PREPARED '{name}:0.orders'", word(n))).await?;
            }
            Answer::Ok(())
        });
        tasks.spawn(async move {
            for (n, name) in same {
                stock.query_drop(format!("XA {} {}", word(n), xid(&name))).await?;
            }
            Answer::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(clock.now() - begun)
}
