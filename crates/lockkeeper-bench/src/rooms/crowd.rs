//! Fifty reader processes behind a writer, on every store that serves in order: from the first that enters to the last, in
//! hand-offs.
//!
//! A hand-off is that of the same fifty processes in the same run: they stand in one line to write, and from one's giving back
//! to the next one's grant is a hand-off. Fifty readers who entered one after the other would need fifty of them. What a
//! machine needs to wake fifty processes at all, without any store, is measured beside it: no store can be faster.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Locker;
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::{Clock, Key};

use super::crew::Crew;
use super::scale;
use crate::measure::{median, per};
use crate::report::{Bound, Row};
use crate::site::{Site, Store};
use crate::{Answer, Outcome};

/// Every store that serves in order.
const STORES: [(Store, &str); 7] = [
    (
        Store::Redis,
        "Redis: 50 reader processes behind a writer, from the first inside to the last, beside one hand-off",
    ),
    (Store::Sqlite, "SQLite: the same"),
    (Store::Postgres, "PostgreSQL: the same"),
    (Store::MariaDb, "MariaDB: the same"),
    (Store::Mysql, "MySQL: the same"),
    (Store::Etcd, "etcd: the same"),
    (Store::ZooKeeper, "ZooKeeper: the same"),
];

/// How often the readers are let in, and how often the writers pass through; the first time is not counted.
const ROUNDS: usize = 6;
const CHAINS: usize = 3;

pub(super) async fn readers() -> Outcome {
    let mut rows = Vec::new();
    for (store, what) in STORES {
        let site = Site::start(store).await?;
        rows.push(of(what, &site.url()).await?);
    }
    Ok(rows)
}

struct Opened {
    locker: Locker,
    inspect: Arc<dyn DynInspect>,
}

fn count() -> usize {
    usize::try_from(scale(50)).unwrap_or(1).max(5)
}

async fn of(what: &'static str, url: &str) -> Answer<Row> {
    let bare = woken()?;
    let store = lockkeeper::open(url).await?;
    let store = Opened { locker: store.locker.build(), inspect: store.inspect };
    let mut crew = Crew::start(count(), &["crowd", url])?;
    let mut hand_offs = Vec::new();
    for chain in 0..CHAINS {
        let spans = chain_of(&store, &mut crew, &format!("chain/{chain}")).await?;
        if 0 < chain {
            hand_offs.extend(spans);
        }
    }
    let (mut firsts, mut spreads) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (first, last) = round_of(&store, &mut crew, &format!("crowd/{round}")).await?;
        if 0 < round {
            firsts.push(first);
            spreads.push(last - first);
        }
    }
    let (spread, hand_off) = (median(&mut spreads), median(&mut hand_offs));
    Ok(Row {
        what,
        ours: format!("{spread:.2} ms"),
        theirs: format!("{hand_off:.2} ms"),
        ratio: spread / hand_off,
        bound: Bound::AtMost(3.0),
        note: format!(
            "the first after {:.2} ms; {} processes woken by a pipe alone: {bare:.2} ms from first to last",
            median(&mut firsts),
            count()
        ),
    })
}

/// Wait until all of them stand in line.
async fn all_wait(store: &Opened, name: &str) -> Answer<()> {
    let (clock, key) = (Clock::boot(), Key::new(name)?);
    while store.inspect.show(&key).await?.is_none_or(|it| it.waiters.len() < count()) {
        clock.sleep(Duration::from_millis(20)).await;
    }
    // And that they have told their own machine so.
    clock.sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// All pass through one by one: how long each hand-off took, in milliseconds.
async fn chain_of(store: &Opened, crew: &mut Crew, name: &str) -> Answer<Vec<f64>> {
    let writer = store.locker.write(name).await?;
    crew.tell(&format!("write {name}"))?;
    all_wait(store, name).await?;
    let mut gave = Clock::boot().now().as_nanos();
    writer.release().await?;
    let had = crew.numbers()?;
    crew.tell("end")?;
    let mut turns: Vec<(u64, u64)> = had.into_iter().zip(crew.numbers()?).collect();
    turns.sort_unstable();
    let hand_off = |(had, gives): (u64, u64)| {
        let span = per(had.saturating_sub(gave), 1_000_000);
        gave = gives;
        span
    };
    Ok(turns.into_iter().map(hand_off).collect())
}

/// All enter together: when the first did and when the last, in milliseconds after the writer began to leave.
async fn round_of(store: &Opened, crew: &mut Crew, name: &str) -> Answer<(f64, f64)> {
    let writer = store.locker.write(name).await?;
    crew.tell(&format!("read {name}"))?;
    all_wait(store, name).await?;
    let released = Clock::boot().now().as_nanos();
    writer.release().await?;
    let mut had = crew.numbers()?;
    crew.tell("end")?;
    crew.numbers()?;
    had.sort_unstable();
    let after = |it: &u64| per(it.saturating_sub(released), 1_000_000);
    let (first, last) = (had.first().map_or(0.0, after), had.last().map_or(0.0, after));
    Ok((first, last))
}

/// As many processes, each woken by a line on its pipe: from the first to the last, in milliseconds.
fn woken() -> Answer<f64> {
    let mut crew = Crew::start(count(), &["bare", "-"])?;
    let mut spreads = Vec::new();
    for round in 0..ROUNDS {
        crew.go()?;
        let mut woken = crew.numbers()?;
        woken.sort_unstable();
        if let (true, [first, .., last]) = (0 < round, woken.as_slice()) {
            spreads.push(per(last - first, 1_000_000));
        }
    }
    Ok(median(&mut spreads))
}
