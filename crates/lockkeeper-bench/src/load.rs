//! What a crowd costs: one lock that many processes wait for, and thousands of names that one process wants at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::Locker;
use lockkeeper_core::Clock;
use lockkeeper_servers as servers;
use tokio::runtime::Runtime;

use crate::crowd::{self, Crowd, Parties, Plan};
use crate::report::{Bound, Row, say};
use crate::{Answer, Outcome};

/// How many processes wait; the first is what the last is compared with.
const CROWDS: [usize; 3] = [10, 50, 200];
/// The processes take turns for as long as this.
const MEASURE: Duration = Duration::from_secs(8);

const NAMES: u32 = 8_000;
const NAMES_TTL: Duration = Duration::from_secs(2);

/// A store that is measured: how its rows are called, and where it is.
struct Site {
    waiting: &'static str,
    /// The bare ring beside it, if it has one: what its row is called, and its name among the rivals.
    ring: Option<(&'static str, &'static str)>,
    names: &'static str,
    url: String,
    /// Keeps the server.
    _server: Box<dyn std::any::Any>,
}

/// Many processes on one lock: cost of a hand-off must not grow with the number that wait.
pub(crate) fn waiting() -> Outcome {
    each_site(waiting_at)
}

/// Many names in one process: all are had, and none is lost meanwhile.
pub(crate) fn names() -> Outcome {
    each_site(names_at)
}

fn each_site(measure: impl Fn(&Site) -> Answer<Vec<Row>>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut rows = Vec::new();
    for open in [postgres, mariadb, mysql, sqlite, redis] {
        let site = open(&runtime)?;
        say(site.waiting);
        rows.extend(measure(&site)?);
    }
    Ok(rows)
}

fn postgres(runtime: &Runtime) -> Answer<Site> {
    let options = servers::PostgresOptions::default().set("max_connections", "1000");
    let server = runtime.block_on(servers::Postgres::start(options))?;
    Ok(Site {
        waiting: "PostgreSQL: hand-offs per second with 200 waiting processes, beside 10",
        ring: Some((
            "PostgreSQL, the bare limit: a token passed round by advisory locks, 200 processes beside 10",
            "postgres-ring",
        )),
        names: "PostgreSQL: 8,000 names at once in one process, ttl 2 s, held for 6 s: valid guards",
        url: server.url(),
        _server: Box::new(server),
    })
}

fn mariadb(runtime: &Runtime) -> Answer<Site> {
    let options = servers::MariaDbOptions::default().set("max_connections", "1000");
    let server = runtime.block_on(servers::MariaDb::start(options))?;
    Ok(Site {
        waiting: "MariaDB: hand-offs per second with 200 waiting processes, beside 10",
        ring: Some((
            "MariaDB, the bare limit: a token passed round by named locks, 200 processes beside 10",
            "mariadb-ring",
        )),
        names: "MariaDB: 8,000 names at once in one process, ttl 2 s, held for 6 s: valid guards",
        url: server.url(),
        _server: Box::new(server),
    })
}

fn mysql(runtime: &Runtime) -> Answer<Site> {
    let options = servers::MysqlOptions::default().set("max-connections", "1000");
    let server = runtime.block_on(servers::Mysql::start(options))?;
    Ok(Site {
        waiting: "MySQL: hand-offs per second with 200 waiting processes, beside 10",
        ring: None,
        names: "MySQL: 8,000 names at once in one process, ttl 2 s, held for 6 s: valid guards",
        url: server.url(),
        _server: Box::new(server),
    })
}

fn sqlite(_runtime: &Runtime) -> Answer<Site> {
    let folder = tempfile::tempdir()?;
    Ok(Site {
        waiting: "SQLite: hand-offs per second with 200 waiting processes, beside 10",
        ring: Some((
            "SQLite, the bare limit: a token passed round by a write transaction and a bell, 200 processes beside 10",
            "sqlite-ring",
        )),
        names: "SQLite: 8,000 names at once in one process, ttl 2 s, held for 6 s: valid guards",
        url: format!("sqlite:{}", folder.path().join("locks.db").display()),
        _server: Box::new(folder),
    })
}

fn redis(runtime: &Runtime) -> Answer<Site> {
    let server = runtime.block_on(servers::Redis::start(servers::RedisOptions::default()))?;
    Ok(Site {
        waiting: "Redis: hand-offs per second with 200 waiting processes, beside 10",
        ring: Some((
            "Redis, the bare limit: a token passed round by `RPUSH` and `BLPOP`, 200 processes beside 10",
            "redis-ring",
        )),
        names: "Redis: 8,000 names at once in one process, ttl 2 s, held for 6 s: valid guards",
        url: server.url(),
        _server: Box::new(server),
    })
}

fn waiting_at(site: &Site) -> Answer<Vec<Row>> {
    let mut seen = Vec::new();
    for processes in CROWDS {
        seen.push(turns(site, "ours", processes)?);
    }
    let [few, some, many] = &seen[..] else { return Err("a crowd is missing".into()) };
    let ratio = if many.refused() == 0 { many.rate() / few.rate() } else { 0.0 };
    let mut rows = vec![Row {
        what: site.waiting,
        ours: format!("{:.0}/s", many.rate()),
        theirs: format!("{:.0}/s", few.rate()),
        ratio,
        bound: Bound::AtLeast(0.8),
        note: format!(
            "{:.0}/s with 50; refused {}; Jain index {:.2}, {:.2} and {:.2}; what remains: decision 74",
            some.rate(),
            many.refused(),
            few.jain(),
            some.jain(),
            many.jain()
        ),
    }];
    if let Some((what, ring)) = site.ring {
        rows.push(ring_at(site, what, ring, ratio)?);
    }
    Ok(rows)
}

/// The processes take turns, as this rival does it.
fn turns(site: &Site, rival: &str, processes: usize) -> Answer<Crowd> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let key = format!("crowd-{processes}");
    let plan = Plan { rival, url: &site.url, key: &key, ttl: crowd::TTL, processes, tasks: 1 };
    runtime.block_on(async { Parties::start(plan).await?.fight(MEASURE).await })
}

/// What so many processes cost the machine, whatever is passed on: the same numbers of them in a ring.
fn ring_at(site: &Site, what: &'static str, ring: &str, ours: f64) -> Answer<Row> {
    let [few, .., many] = CROWDS;
    let (few, many) = (turns(site, ring, few)?.sound()?, turns(site, ring, many)?.sound()?);
    let ratio = many.rate() / few.rate();
    Ok(Row {
        what,
        ours: format!("{:.0}/s", many.rate()),
        theirs: format!("{:.0}/s", few.rate()),
        ratio,
        bound: Bound::Shown,
        note: format!("the lock keeps {ours:.2}, which is {:.2} of what the ring keeps", ours / ratio),
    })
}

fn names_at(site: &Site) -> Answer<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let clock = Clock::boot();
    let (held, took) = runtime.block_on(async {
        let locker = lockkeeper::connect(&site.url).await?;
        let before = locker.lock("held before").ttl(NAMES_TTL).await?;
        let began = clock.now();
        let guards = all_names(&locker).await;
        let took = clock.now() - began;
        clock.sleep(NAMES_TTL * 3).await;
        let valid = guards.iter().filter(|it| it.is_valid()).count();
        let valid = u32::try_from(valid).unwrap_or(0) * u32::from(before.is_valid());
        drop(guards);
        locker.shutdown(Duration::from_mins(2)).await?;
        Answer::Ok((valid, took))
    })?;
    Ok(vec![Row {
        what: site.names,
        ours: held.to_string(),
        theirs: NAMES.to_string(),
        ratio: f64::from(held) / f64::from(NAMES),
        bound: Bound::AtLeast(1.0),
        note: format!("taken in {took:.1?}; a lock held before the burst is counted in"),
    }])
}

async fn all_names(locker: &Locker) -> Vec<lockkeeper::Guard> {
    let failed = Arc::new(AtomicU32::new(0));
    let asked: Vec<_> = (0..NAMES)
        .map(|at| {
            let (locker, failed) = (locker.clone(), failed.clone());
            tokio::spawn(async move {
                let taken = locker.lock(format!("burst/{at}")).ttl(NAMES_TTL).await;
                if taken.is_err() {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
                taken.ok()
            })
        })
        .collect();
    let mut guards = Vec::new();
    for task in asked {
        guards.extend(task.await.ok().flatten());
    }
    if failed.load(Ordering::Relaxed) != 0 {
        say(&format!("{failed:?} of {NAMES} names were refused"));
    }
    guards
}
