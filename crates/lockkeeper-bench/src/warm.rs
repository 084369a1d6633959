//! Warm locks: what they spare, and what they cost others. Two lockers with connections and threads of their own stand for
//! two processes.

use std::time::Duration;

use lockkeeper::Locker;
use lockkeeper_core::Clock;
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::{
    Etcd, EtcdOptions, MariaDb, MariaDbOptions, Mysql, MysqlOptions, Postgres, PostgresOptions, Redis,
    RedisOptions, ZooKeeper, ZooKeeperOptions,
};

use crate::measure::{beside_requests, median, per, quantile, rate};
use crate::redis::tally;
use crate::report::{Bound, Row, told};
use crate::{Answer, Outcome};

const TTL: Duration = Duration::from_secs(30);
/// For how long something is counted.
const SPAN: Duration = Duration::from_secs(2);
/// Fewer recalls a second than a walk has.
const APART: Duration = Duration::from_millis(60);
const RECALLS: usize = 40;
/// One of them may fail: else a share of 0.999 could not be told from all.
const TRIES: usize = 1_000;
const WALK: usize = 10_000;
/// So many are recalled one by one before all are.
const FIRST: usize = 64;
const TOUCHED: usize = 100_000;
/// So often a lock is idle with one who hears nothing.
const DEAF: usize = 5;

pub(crate) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let redis = Redis::start(RedisOptions::default()).await?;
        let url = redis.url();
        let what = "Redis: lock + unlock again, warm beside cold: how often more";
        let mut rows = told(vec![retake(&url, what, 100.0).await?]);
        rows.extend(told(vec![commands(&redis, false).await?, commands(&redis, true).await?]));
        let what = "Redis: from `lock` to a guard of what is idle elsewhere, beside a hand-off";
        rows.extend(told(vec![recall(&url, what).await?]));
        rows.extend(told(turns(&url).await?));
        rows.extend(told(vec![
            tries(&url, "Redis: `try_lock` on what is idle elsewhere: share that gets it").await?,
        ]));
        rows.extend(told(vec![deaf(&redis).await?, killed(&redis).await?]));
        rows.extend(told(vec![walk(&url).await?, touched(&url).await?]));
        drop(redis);
        rows.extend(sql().await?);
        let etcd = Etcd::start(EtcdOptions::default()).await?;
        let url = format!("etcd://{}", etcd.address());
        rows.extend(told(vec![
            retake(&url, "etcd: lock + unlock again, warm beside cold: how often more", 500.0).await?,
        ]));
        let what = "etcd: from `lock` to a guard of what is idle elsewhere, beside a hand-off";
        rows.extend(told(vec![recall(&url, what).await?]));
        rows.extend(told(vec![
            tries(&url, "etcd: `try_lock` on what is idle elsewhere: share that gets it").await?,
        ]));
        drop(etcd);
        let zookeeper = ZooKeeper::start(ZooKeeperOptions::default()).await?;
        let url = format!("zookeeper://{}?session=30s", zookeeper.address());
        let what = "ZooKeeper: lock + unlock again, warm beside cold: how often more";
        rows.extend(told(vec![retake(&url, what, 500.0).await?]));
        let what = "ZooKeeper: from `lock` to a guard of what is idle elsewhere, beside a hand-off";
        rows.extend(told(vec![recall(&url, what).await?]));
        rows.extend(told(vec![
            tries(&url, "ZooKeeper: `try_lock` on what is idle elsewhere: share that gets it").await?,
        ]));
        Ok(rows)
    })
}

/// The stores in SQL databases and files.
async fn sql() -> Answer<Vec<Row>> {
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let what = "PostgreSQL: lock + unlock again, warm beside cold: how often more";
    let mut rows = told(vec![retake(&postgres.url(), what, 100.0).await?]);
    let what = "PostgreSQL: from `lock` to a guard of what is idle elsewhere, beside a hand-off";
    rows.extend(told(vec![recall(&postgres.url(), what).await?]));
    let what = "SQLite: lock + unlock again, warm beside cold: how often more";
    rows.extend(told(vec![retake(&url, what, 100.0).await?]));
    let what = "SQLite: from `lock` to a guard of what is idle elsewhere, in ms, beside a hand-off";
    rows.extend(told(vec![recall_in_ms(&url, what, 30.0).await?]));
    rows.extend(told(vec![
        tries(&url, "SQLite: `try_lock` on what is idle elsewhere: share that gets it").await?,
    ]));
    let what = "PostgreSQL: `try_lock` on what is idle elsewhere: share that gets it";
    rows.extend(told(vec![tries(&postgres.url(), what).await?]));
    let mariadb = MariaDb::start(MariaDbOptions::default()).await?;
    let what = "MariaDB: lock + unlock again, warm beside cold: how often more";
    rows.extend(told(vec![retake(&mariadb.url(), what, 100.0).await?]));
    let what = "MariaDB: from `lock` to a guard of what is idle elsewhere, in ms, beside a hand-off";
    rows.extend(told(vec![recall_in_ms(&mariadb.url(), what, 120.0).await?]));
    drop(mariadb);
    let mysql = Mysql::start(MysqlOptions::default()).await?;
    let what = "MySQL: lock + unlock again, warm beside cold: how often more";
    rows.extend(told(vec![retake(&mysql.url(), what, 100.0).await?]));
    let what = "MySQL: from `lock` to a guard of what is idle elsewhere, in ms, beside a hand-off";
    rows.extend(told(vec![recall_in_ms(&mysql.url(), what, 120.0).await?]));
    Ok(rows)
}

async fn locker(url: &str, warm: bool, warm_max: usize) -> Answer<Locker> {
    let builder = lockkeeper::open(url).await?.locker;
    Ok(builder.ttl(TTL).warm(warm).warm_max(warm_max).build())
}

async fn cycle(locker: &Locker, name: &str) -> Answer<()> {
    Ok(locker.lock(name).await?.release().await?)
}

async fn retake(url: &str, what: &'static str, at_least: f64) -> Answer<Row> {
    let (warm, cold) = (locker(url, true, 1024).await?, locker(url, false, 0).await?);
    cycle(&cold, "cold").await?;
    cycle(&warm, "warm").await?;
    let (ours, theirs) =
        beside_requests(async || cycle(&warm, "warm").await, async || cycle(&cold, "cold").await).await?;
    let mut row = Row::of_times(what, (ours, theirs), 0.0);
    row.ratio = theirs.as_secs_f64() / ours.as_secs_f64();
    row.bound = Bound::AtLeast(at_least);
    Ok(row)
}

/// What the server is asked while one lock is taken and given back all the time, in each third of its ttl.
async fn commands(server: &Redis, reads: bool) -> Answer<Row> {
    let ttl = Duration::from_secs(3);
    let builder = lockkeeper::open(&server.url()).await?.locker;
    let (locker, clock) = (builder.ttl(ttl).warm(true).build(), Clock::boot());
    cycle(&locker, "counted").await?;
    tally::reset(server).await?;
    let (until, mut cycles) = (clock.now().after(SPAN), 0_u64);
    while clock.now() < until {
        let guard = locker.lock("counted").await?;
        if reads {
            std::hint::black_box(guard.fence());
        }
        guard.release().await?;
        cycles += 1;
    }
    let (sent, thirds) = (tally::sent(server, "ours").await?, SPAN.as_secs_f64() / (ttl / 3).as_secs_f64());
    let mut row = if reads {
        let what = "Redis: the same if the fence of each is read, which is when they run out: scripts for 65,536 guards, and two in each third";
        Row::of_number(what, per(sent, 1) / (per(cycles, 65_536) + thirds), Bound::AtMost(2.0))
    } else {
        let what = "Redis: the same, scripts in each third of the ttl, however often it is taken";
        Row::of_number(what, per(sent, 1) / thirds, Bound::AtMost(2.0))
    };
    row.note = format!("{cycles} cycles in {SPAN:?}");
    Ok(row)
}

async fn recall(url: &str, what: &'static str) -> Answer<Row> {
    let (recall, hand_off, slow) = recalls(url).await?;
    let mut row = Row::of_times(what, (recall, hand_off), 2.5);
    row.note = format!("99 %: {slow:.1?}");
    Ok(row)
}

/// As the plan has it where nobody can be called, or only by a file: a time, not a ratio.
async fn recall_in_ms(url: &str, what: &'static str, at_most: f64) -> Answer<Row> {
    let (recall, hand_off, slow) = recalls(url).await?;
    let mut row = Row::of_times(what, (recall, hand_off), at_most);
    (row.ratio, row.note) = (recall.as_secs_f64() * 1e3, format!("99 %: {slow:.1?}"));
    Ok(row)
}

/// The usual recall, the usual hand-off, and a slow recall.
async fn recalls(url: &str) -> Answer<(Duration, Duration, Duration)> {
    let (here, there) = (locker(url, true, 1024).await?, locker(url, false, 0).await?);
    let clock = Clock::boot();
    cycle(&there, "first").await?;
    let (mut recalls, mut hand_offs) = (Vec::new(), Vec::new());
    for nth in 0..RECALLS {
        let name = format!("recalled/{nth}");
        // Taken again, so that it paid, and does not go cold.
        cycle(&here, &name).await?;
        cycle(&here, &name).await?;
        clock.sleep(APART).await;
        let start = clock.now();
        let guard = there.lock(&name).await?;
        recalls.push(clock.now() - start);
        guard.release().await?;
        hand_offs.push(hand_off(&here, &there, &format!("handed/{nth}")).await?);
    }
    Ok((median(&mut recalls), median(&mut hand_offs), quantile(&mut recalls, 99)))
}

/// From the release of one to the guard of another that waits.
async fn hand_off(here: &Locker, there: &Locker, name: &str) -> Answer<Duration> {
    let clock = Clock::boot();
    let guard = here.lock(name).cold().await?;
    let (other, waited_for) = (there.clone(), name.to_owned());
    let waiting = tokio::spawn(async move {
        let guard = other.lock(&waited_for).await;
        (Clock::boot().now(), guard)
    });
    clock.sleep(APART).await;
    let start = clock.now();
    guard.release().await?;
    let (had_at, guard) = waiting.await?;
    guard?.release().await?;
    Ok(had_at - start)
}

/// Two that take turns on one lock: the first second, and after it. The two sides run by turns, too, so that whatever else the
/// machine does concerns both.
async fn turns(url: &str) -> Answer<Vec<Row>> {
    let mut sides = Vec::new();
    for warm in [true, false] {
        let pair = [locker(url, warm, 1024).await?, locker(url, warm, 1024).await?];
        // What a connection does once, it has done then.
        for nth in 0..OPENED_AFTER {
            for it in &pair {
                it.lock(format!("opened/{warm}/{nth}")).cold().await?.release().await?;
            }
        }
        sides.push((pair, format!("turns/{warm}")));
    }
    let mut rows = Vec::new();
    for (what, seconds, bound) in [
        ("Redis: two processes that take turns, guards per second, warm beside cold: first second", 1, 0.9),
        ("the same in the seconds after it", 3, 0.98),
    ] {
        let mut taken = [(0_u64, Duration::ZERO); 2];
        for _ in 0..seconds * SLICES {
            for ((pair, name), (count, span)) in sides.iter().zip(&mut taken) {
                let (guards, took) = taking_turns(pair, name).await?;
                (*count, *span) = (*count + guards, *span + took);
            }
        }
        let [warm, cold] = taken.map(|(count, span)| rate(count, span));
        rows.push(Row::of_rates(what, (warm, cold), bound));
    }
    Ok(rows)
}

/// Turns are taken for a slice of a second on each side.
const SLICES: u32 = 20;
/// After so many calls a connection is as it stays.
const OPENED_AFTER: usize = 10;

async fn taking_turns(pair: &[Locker; 2], name: &str) -> Answer<(u64, Duration)> {
    let (clock, mut count) = (Clock::boot(), 0);
    let start = clock.now();
    while clock.now() - start < Duration::from_secs(1) / SLICES {
        for it in pair {
            cycle(it, name).await?;
            count += 1;
        }
    }
    Ok((count, clock.now() - start))
}

/// What is idle elsewhere, where the holder hears nothing: it gives it back by itself, when a third of its ttl is over.
async fn deaf(server: &Redis) -> Answer<Row> {
    let (ttl, clock) = (Duration::from_secs(3), Clock::boot());
    let there = locker(&server.url(), false, 0).await?;
    cycle(&there, "opened").await?;
    let mut waits = Vec::new();
    for nth in 0..DEAF {
        // Each is a process of its own, which opened its connections long before: what is cut would be opened anew, and is
        // called by that.
        let proxy = Proxy::start(server.port()).await?;
        let far = lockkeeper::open(&format!("redis://{}", proxy.address())).await?.locker;
        let here = far.ttl(ttl).warm(true).build();
        here.lock(format!("opened/{nth}")).await?.release_fully().await?;
        let (name, start) = (format!("deaf/{nth}"), clock.now());
        cycle(&here, &name).await?;
        proxy.set(Direction::ToClient, Rule::Drop);
        let guard = there.lock(&name).await?;
        // Nobody has it twice: it had gone from here before.
        if !guard.is_valid() || here.lines() != 0 {
            return Err(format!("{name} is still idle where it was, and had elsewhere").into());
        }
        guard.release().await?;
        waits.push(clock.now() - start);
    }
    let longest = waits.into_iter().max().unwrap_or_default();
    let what = "Redis: the same if every recall is lost: the longest wait since it was taken, in excess of a third of the ttl";
    let excess = longest.saturating_sub(ttl / 3);
    let mut row = Row::of_number(what, excess.as_secs_f64() * 1e3, Bound::AtMost(100.0));
    row.note = format!("in ms; {DEAF} times, {longest:.1?} at the longest with a ttl of {ttl:?}");
    Ok(row)
}

/// What is given back by a process that is gone the next moment: idle it is held for the rest of its ttl, cold it is free.
async fn killed(server: &Redis) -> Answer<Row> {
    let (ttl, clock) = (Duration::from_secs(3), Clock::boot());
    let there = locker(&server.url(), false, 0).await?;
    cycle(&there, "opened").await?;
    let mut waits = [Duration::ZERO; 2];
    for (warm, wait) in [true, false].into_iter().zip(&mut waits) {
        let proxy = Proxy::start(server.port()).await?;
        let far = lockkeeper::open(&format!("redis://{}", proxy.address())).await?.locker;
        let (here, name) = (far.ttl(ttl).warm(warm).build(), format!("killed/{warm}"));
        cycle(&here, &name).await?;
        proxy.vanish().await?;
        let start = clock.now();
        there.lock(&name).await?.release().await?;
        *wait = clock.now() - start;
    }
    let what = "Redis: what a process gave back that is killed right then, until another has it, beside cold; ratio: to the ttl";
    let mut row = Row::of_times(what, (waits[0], waits[1]), 1.05);
    row.ratio = waits[0].as_secs_f64() / ttl.as_secs_f64();
    Ok(row)
}

async fn tries(url: &str, what: &'static str) -> Answer<Row> {
    let (here, there) = (locker(url, true, 1024).await?, locker(url, true, 1024).await?);
    let (clock, mut had) = (Clock::boot(), 0_u64);
    for nth in 0..TRIES {
        let name = format!("tried/{nth}");
        cycle(&here, &name).await?;
        cycle(&here, &name).await?;
        clock.sleep(APART).await;
        if let Some(guard) = there.try_lock(&name).await? {
            had += 1;
            guard.release_fully().await?;
        }
    }
    Ok(Row::of_number(what, per(had, TRIES as u64), Bound::AtLeast(0.999)))
}

/// Another walks over all that is idle here.
async fn walk(url: &str) -> Answer<Row> {
    let clock = Clock::boot();
    let mut spans = Vec::new();
    for warm in [true, false] {
        let (here, there) = (locker(url, warm, 2 * WALK).await?, locker(url, false, 0).await?);
        for nth in 0..WALK {
            cycle(&here, &format!("walk/{warm}/{nth}")).await?;
        }
        let mut start = clock.now();
        for nth in 0..WALK {
            if nth == FIRST {
                start = clock.now();
            }
            cycle(&there, &format!("walk/{warm}/{nth}")).await?;
        }
        spans.push((clock.now() - start) / u32::try_from(WALK - FIRST)?);
    }
    let what = "Redis: a walk over 10,000 locks that are idle elsewhere, after the first 64, beside one over free ones";
    Ok(Row::of_times(what, (spans[0], spans[1]), 1.2))
}

/// Many names, each once: what stays here, and what stays there.
async fn touched(url: &str) -> Answer<Row> {
    let (ttl, clock) = (Duration::from_secs(3), Clock::boot());
    let builder = lockkeeper::open(url).await?.locker;
    let locker = builder.ttl(ttl).warm(true).build();
    let mut most = 0;
    for nth in 0..TOUCHED {
        cycle(&locker, &format!("touched/{nth}")).await?;
        most = most.max(locker.lines());
    }
    clock.sleep(ttl / 3 + Duration::from_secs(1)).await;
    let store = lockkeeper::open(url).await?;
    let left = store.inspect.list("touched/").await?.len();
    let what = "Redis: 100,000 names taken once: idle at the most, by `warm_max`";
    let mut row = Row::of_number(what, per(most as u64, 1024), Bound::AtMost(1.01));
    row.note = format!("{most} lines; {left} in the store after a third of the ttl and a second");
    if left != 0 {
        row.ratio = f64::INFINITY;
    }
    Ok(row)
}
