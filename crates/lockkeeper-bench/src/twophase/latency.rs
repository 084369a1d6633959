//! How long two-phase commit takes beside two commits that know nothing of each other: on connections as new as ours, and on
//! connections that are kept.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::twophase::Office;
use lockkeeper_core::{Clock, Moment};
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use tokio_postgres::{Client, NoTls};

use super::{CROWD, EACH, Site, both, client, conn, crowd};
use crate::measure::median;
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};

/// Turns of one caller, and transactions of each turn.
const TURNS: usize = 15;
const OPS: u32 = 10;

/// What the rows of one place of the log are called: one caller and many, on new connections and on kept ones.
struct Names {
    alone: [&'static str; 2],
    crowd: [&'static str; 2],
}

const OF_FILE: Names = Names {
    alone: [
        "one caller: two-phase commit with its own SQLite log, beside two commits apart",
        "the same beside two commits apart on connections that are kept",
    ],
    crowd: [
        "64 callers: the same, time for each",
        "64 callers: the same beside connections that are kept, time for each",
    ],
};

const WITH_A_PARTICIPANT: Names = Names {
    alone: [
        "one caller: the log with a participant, beside two commits apart",
        "the same beside two commits apart on connections that are kept",
    ],
    crowd: [
        "64 callers: the same, time for each",
        "64 callers: the same beside connections that are kept, time for each",
    ],
};

pub(super) async fn rows(site: &Site) -> Outcome {
    let mut rows = Vec::new();
    for (names, log, bound) in [(OF_FILE, site.file(), 2.7), (WITH_A_PARTICIPANT, site.orders.url(), 1.6)] {
        let office = site.office(&log).await?;
        rows.extend(alone(site, &office, &names, bound).await?);
        rows.extend(at_once(site, &office, &names, bound).await?);
    }
    Ok(rows)
}

/// Beside whom there is a bound; beside whom the row is only shown, because ours never keeps a connection.
fn pair(names: &[&'static str; 2], ours: Duration, [new, kept]: [Duration; 2], bound: f64) -> [Row; 2] {
    let shown = Row { bound: Bound::Shown, ..Row::of_times(names[1], (ours, kept), bound) };
    [Row::of_times(names[0], (ours, new), bound), shown]
}

async fn alone(site: &Site, office: &Office, names: &Names, bound: f64) -> Answer<[Row; 2]> {
    let (mut count, mut ours, mut new, mut kept) = (0, Vec::new(), Vec::new(), Vec::new());
    let mut links = (client(site).await?, conn(site).await?);
    let tag = office.fence();
    for _ in 0..TURNS {
        ours.push(turn(async |n| both(office, &format!("{tag}-{n}")).await, &mut count).await?);
        new.push(turn(async |n| apart(site, &format!("new-{tag}-{n}")).await, &mut count).await?);
        kept.push(turn(async |n| commit(&mut links, &format!("kept-{tag}-{n}")).await, &mut count).await?);
    }
    links.1.disconnect().await?;
    Ok(pair(&names.alone, median(&mut ours), [median(&mut new), median(&mut kept)], bound))
}

async fn turn(mut work: impl AsyncFnMut(u64) -> Answer<()>, count: &mut u64) -> Answer<Duration> {
    let clock = Clock::boot();
    let begun = clock.now();
    for _ in 0..OPS {
        *count += 1;
        work(*count).await?;
    }
    Ok((clock.now() - begun) / OPS)
}

/// Two commits that know nothing of each other, on connections as new as ours: branches are never pooled.
async fn apart(site: &Site, tag: &str) -> Answer<()> {
    let (orders, connection) = tokio_postgres::connect(&site.orders.url(), NoTls).await?;
    tokio::spawn(connection);
    let mut links = (orders, conn(site).await?);
    commit(&mut links, tag).await?;
    Ok(links.1.disconnect().await?)
}

async fn commit((orders, stock): &mut (Client, Conn), tag: &str) -> Answer<()> {
    let sql = format!("INSERT INTO move VALUES ('{tag}')");
    orders.batch_execute(&format!("BEGIN; {sql}")).await?;
    stock.query_drop("START TRANSACTION").await?;
    stock.query_drop(sql).await?;
    let (here, there) = tokio::join!(orders.batch_execute("COMMIT"), stock.query_drop("COMMIT"));
    here?;
    Ok(there?)
}

/// What many callers took: for each, and the slowest one of a hundred.
struct Took {
    each: Duration,
    p99: Duration,
}

impl Took {
    fn of(mut all: Vec<Duration>, begun: Moment) -> Answer<Self> {
        let each = (Clock::boot().now() - begun) / u32::try_from(all.len())?;
        all.sort();
        let p99 = all.get(all.len() * 99 / 100).copied().unwrap_or_default();
        Ok(Took { each, p99 })
    }
}

/// The time for each of ours and of theirs, while as many callers are at it.
async fn at_once(site: &Site, office: &Arc<Office>, names: &Names, bound: f64) -> Answer<[Row; 2]> {
    let clock = Clock::boot();
    let begun = clock.now();
    let ours = Took::of(crowd(office, "crowd").await?, begun)?;
    let tag = office.fence();
    let begun = clock.now();
    let each = async |(): &mut (), task, n| apart(site, &format!("many-{tag}-{task}-{n}")).await;
    let new = Took::of(many((0..CROWD).map(|_| ()).collect(), each).await?, begun)?;
    let mut links = Vec::new();
    for _ in 0..CROWD {
        links.push((client(site).await?, conn(site).await?));
    }
    let begun = clock.now();
    let each = async |it: &mut (Client, Conn), task, n| commit(it, &format!("ready-{tag}-{task}-{n}")).await;
    let kept = Took::of(many(links, each).await?, begun)?;
    let rows = pair(&names.crowd, ours.each, [new.each, kept.each], bound);
    let note = |theirs: Duration| format!("of a hundred the slowest: {:.0?}, theirs {theirs:.0?}", ours.p99);
    let [first, second] = rows;
    Ok([Row { note: note(new.p99), ..first }, Row { note: note(kept.p99), ..second }])
}

/// So many callers at once, each with what is its own. How long each commit took.
pub(super) async fn many<T>(
    callers: Vec<T>,
    work: impl AsyncFn(&mut T, u64, u64) -> Answer<()>,
) -> Answer<Vec<Duration>> {
    let clock = &Clock::boot();
    let work = &work;
    let tasks = (0..).zip(callers).map(|(task, mut own)| async move {
        let mut took = Vec::new();
        for n in 0..EACH {
            let begun = clock.now();
            work(&mut own, task, n).await?;
            took.push(clock.now() - begun);
        }
        Answer::Ok(took)
    });
    let mut all = Vec::new();
    for done in futures_util::future::join_all(tasks).await {
        all.extend(done?);
    }
    Ok(all)
}
