//! Fifty reader processes behind a writer, on every store that serves in order: from the first that enters to the last, in
//! hand-offs.
//!
//! A hand-off is that of the same fifty processes in the same run: they stand in one line to write, and from one's giving back
//! to the next one's grant is a hand-off. Fifty readers who entered one after the other would need fifty of them. What a
//! machine needs to wake fifty processes at all, without any store, is measured beside it: no store can be faster.

use std::future::IntoFuture as _;
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

/// Where the writer had waited before, and where it holds for long: what wakes the readers may be another thing then.
const OTHERS: [(Store, Behind, &str); 6] = [
    (Store::Redis, Behind::Waited, "Redis: the same, behind a writer that had waited itself"),
    (Store::Postgres, Behind::Waited, "PostgreSQL: the same, behind a writer that had waited itself"),
    (Store::MariaDb, Behind::Waited, "MariaDB: the same, behind a writer that had waited itself"),
    (Store::Redis, Behind::Long, "Redis: the same, behind a writer that holds for two seconds"),
    (Store::Postgres, Behind::Long, "PostgreSQL: the same, behind a writer that holds for two seconds"),
    (Store::MariaDb, Behind::Long, "MariaDB: the same, behind a writer that holds for two seconds"),
];

/// How the time grows with the crowd.
const SLOPES: [(Store, &str); 3] = [
    (
        Store::Redis,
        "Redis: from the first of 5, 10, 25 and 50 readers to the last; each further one, beside a hand-off",
    ),
    (Store::Postgres, "PostgreSQL: the same"),
    (Store::MariaDb, "MariaDB: the same"),
];
const CROWDS: [u64; 4] = [5, 10, 25, 50];

/// The writer before the readers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// It found the lock free.
    Free,
    /// It stood in line itself.
    Waited,
    /// It found it free, and holds for a while.
    Long,
}

/// How long that is.
const LONG: Duration = Duration::from_secs(2);

/// Longer than all need to answer: until then whoever reads the answers takes no part.
const OUT_OF_THE_WAY: Duration = Duration::from_millis(500);

/// All rows, or only the first of each store.
pub(super) async fn readers(first: bool) -> Outcome {
    let mut rows = Vec::new();
    for (store, what) in STORES {
        let site = Site::start(store).await?;
        rows.push(of(what, &site.url(), Behind::Free).await?);
    }
    if first {
        return Ok(rows);
    }
    for (store, behind, what) in OTHERS {
        let site = Site::start(store).await?;
        rows.push(of(what, &site.url(), behind).await?);
    }
    for (store, what) in SLOPES {
        let site = Site::start(store).await?;
        rows.push(slope(what, &site.url()).await?);
    }
    Ok(rows)
}

struct Opened {
    locker: Locker,
    /// As another process.
    other: Locker,
    inspect: Arc<dyn DynInspect>,
}

impl Opened {
    async fn at(url: &str) -> Answer<Self> {
        let (store, other) = (lockkeeper::open(url).await?, lockkeeper::open(url).await?);
        Ok(Opened { locker: store.locker.build(), other: other.locker.build(), inspect: store.inspect })
    }
}

fn fewer(count: u64) -> usize {
    usize::try_from(scale(count)).unwrap_or(1).max(5)
}

/// What a crowd took, in milliseconds.
struct Spans {
    first: f64,
    spread: f64,
    hand_off: f64,
}

/// So many processes: one by one as writers, and together as readers.
async fn crowd(url: &str, count: usize, behind: Behind) -> Answer<Spans> {
    let store = Opened::at(url).await?;
    let mut crew = Crew::start(count, &["crowd", url])?;
    let mut hand_offs = Vec::new();
    for chain in 0..CHAINS {
        let spans = chain_of(&store, &mut crew, count, &format!("chain/{count}/{chain}")).await?;
        if 0 < chain {
            hand_offs.extend(spans);
        }
    }
    let (mut firsts, mut spreads) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("crowd/{count}/{round}");
        let (first, last) = round_of(&store, &mut crew, count, behind, &name).await?;
        if 0 < round {
            firsts.push(first);
            spreads.push(last - first);
        }
    }
    let [first, spread, hand_off] = [firsts, spreads, hand_offs].map(|mut it| median(&mut it));
    Ok(Spans { first, spread, hand_off })
}

async fn of(what: &'static str, url: &str, behind: Behind) -> Answer<Row> {
    let (count, bare) = (fewer(50), woken(fewer(50)).await?);
    let Spans { first, spread, hand_off } = crowd(url, count, behind).await?;
    Ok(Row {
        what,
        ours: format!("{spread:.2} ms"),
        theirs: format!("{hand_off:.2} ms"),
        ratio: spread / hand_off,
        bound: Bound::AtMost(3.0),
        note: format!(
            "the first after {first:.2} ms; {count} processes woken by a pipe alone: {bare:.2} ms from first to last, which is one \
             thread of each, and a reader is two"
        ),
    })
}

/// What each further reader costs: one hand-off, if they came in one after the other.
async fn slope(what: &'static str, url: &str) -> Answer<Row> {
    let mut seen = Vec::new();
    for count in CROWDS {
        seen.push((count, crowd(url, fewer(count), Behind::Free).await?));
    }
    let (Some((few, least)), Some((many, most))) = (seen.first(), seen.last()) else {
        return Err("no crowd was measured".into());
    };
    let each = (most.spread - least.spread) / per(many - few, 1);
    let shown: Vec<String> = seen.iter().map(|(count, it)| format!("{count}: {:.2} ms", it.spread)).collect();
    Ok(Row {
        what,
        ours: format!("{each:.3} ms"),
        theirs: format!("{:.2} ms", most.hand_off),
        ratio: each / most.hand_off,
        bound: Bound::Shown,
        note: shown.join(", "),
    })
}

/// Wait until all of them stand in line.
async fn all_wait(store: &Opened, count: usize, name: &str) -> Answer<()> {
    let (clock, key) = (Clock::boot(), Key::new(name)?);
    while store.inspect.show(&key).await?.is_none_or(|it| it.waiters.len() < count) {
        clock.sleep(Duration::from_millis(20)).await;
    }
    // And that they have told their own machine so.
    clock.sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// All pass through one by one: how long each hand-off took, in milliseconds.
async fn chain_of(store: &Opened, crew: &mut Crew, count: usize, name: &str) -> Answer<Vec<f64>> {
    let writer = store.locker.write(name).await?;
    crew.tell(&format!("write {name}"))?;
    all_wait(store, count, name).await?;
    let mut gave = Clock::boot().now().as_nanos();
    writer.release().await?;
    Clock::boot().sleep(OUT_OF_THE_WAY).await;
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
async fn round_of(
    store: &Opened,
    crew: &mut Crew,
    count: usize,
    behind: Behind,
    name: &str,
) -> Answer<(f64, f64)> {
    let clock = Clock::boot();
    let writer = if behind == Behind::Waited {
        let before = store.other.write(name).await?;
        let waiting = tokio::spawn(store.locker.write(name).into_future());
        all_wait(store, 1, name).await?;
        before.release().await?;
        waiting.await??
    } else {
        store.locker.write(name).await?
    };
    crew.tell(&format!("read {name}"))?;
    all_wait(store, count, name).await?;
    if behind == Behind::Long {
        clock.sleep(LONG).await;
    }
    let released = clock.now().as_nanos();
    writer.release().await?;
    clock.sleep(OUT_OF_THE_WAY).await;
    let mut had = crew.numbers()?;
    crew.tell("end")?;
    crew.numbers()?;
    had.sort_unstable();
    let after = |it: &u64| per(it.saturating_sub(released), 1_000_000);
    let (first, last) = (had.first().map_or(0.0, after), had.last().map_or(0.0, after));
    Ok((first, last))
}

/// As many processes, each woken by a line on its pipe: from the first to the last, in milliseconds.
async fn woken(count: usize) -> Answer<f64> {
    let mut crew = Crew::start(count, &["bare", "-"])?;
    let mut spreads = Vec::new();
    for round in 0..ROUNDS {
        crew.go()?;
        Clock::boot().sleep(OUT_OF_THE_WAY).await;
        let mut woken = crew.numbers()?;
        woken.sort_unstable();
        if let (true, [first, .., last]) = (0 < round, woken.as_slice()) {
            spreads.push(per(last - first, 1_000_000));
        }
    }
    Ok(median(&mut spreads))
}
