//! How soon a holder hears that its lock was broken: from the operator's call until `lost()` resolves, beside one bare trip to the
//! same server.

use std::time::Duration;

use lockkeeper::Guard;
use lockkeeper_core::Clock;
use lockkeeper_servers::{
    Etcd, EtcdOptions, Postgres, PostgresOptions, Redis, RedisOptions, ZooKeeper, ZooKeeperOptions,
};
use tokio_postgres::NoTls;
use zookeeper_client::Client;

use crate::coord::ServerLock;
use crate::measure::{median, quantile};
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};

const TTL: Duration = Duration::from_secs(30);
const LOCKS: usize = 40;
/// Whoever holds for a moment does not listen yet.
const HELD_FOR: Duration = Duration::from_secs(1);

pub(crate) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async { Ok(vec![redis().await?, postgres().await?, etcd().await?, zookeeper().await?]) })
}

async fn redis() -> Answer<Row> {
    let server = Redis::start(RedisOptions::default()).await?;
    let client = redis::Client::open(server.url())?;
    let mut bare = client.get_multiplexed_async_connection().await?;
    let trip = async || {
        let _: String = redis::cmd("PING").query_async(&mut bare).await?;
        Ok(())
    };
    row("Redis: from a break to `lost()`, held for a second, beside `PING`", &server.url(), trip).await
}

async fn postgres() -> Answer<Row> {
    let server = Postgres::start(PostgresOptions::default()).await?;
    let (bare, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    let asked = bare.prepare("SELECT 1").await?;
    let trip = async || {
        bare.query(&asked, &[]).await?;
        Ok(())
    };
    row("PostgreSQL: the same, beside `SELECT 1`", &server.url(), trip).await
}

async fn etcd() -> Answer<Row> {
    let server = Etcd::start(EtcdOptions::default()).await?;
    let bare = ServerLock::connect(&server.address()).await?;
    let trip = async || bare.trip().await;
    row("etcd: the same, beside a read of one key", &format!("etcd://{}", server.address()), trip).await
}

async fn zookeeper() -> Answer<Row> {
    let server = ZooKeeper::start(ZooKeeperOptions::default()).await?;
    let bare = Client::connector().with_session_timeout(TTL).connect(&server.address()).await?;
    let trip = async || {
        bare.check_stat("/").await?;
        Ok(())
    };
    let url = format!("zookeeper://{}?session=30s", server.address());
    row("ZooKeeper: the same, beside a look at one node", &url, trip).await
}

/// Many are held and broken one after the other, with a trip between them.
async fn row(what: &'static str, url: &str, mut trip: impl AsyncFnMut() -> Answer<()>) -> Answer<Row> {
    let clock = Clock::boot();
    let (here, there) = (lockkeeper::open(url).await?, lockkeeper::open(url).await?);
    let locker = here.locker.ttl(TTL).build();
    let mut guards: Vec<Guard> = Vec::new();
    for nth in 0..LOCKS {
        guards.push(locker.lock(format!("broken/{nth}")).await?);
    }
    clock.sleep(HELD_FOR).await;
    // What the other's connection does once, it has done then.
    drop(there.inspect.list("broken/").await?);
    let (mut told, mut trips) = (Vec::new(), Vec::new());
    for guard in guards {
        let (key, lost) = (guard.key().clone(), guard.lost());
        let heard = tokio::spawn(async move {
            lost.await;
            Clock::boot().now()
        });
        let start = clock.now();
        there.inspect.break_lock(&key).await?;
        told.push(heard.await? - start);
        let start = clock.now();
        trip().await?;
        trips.push(clock.now() - start);
    }
    let mut row = Row::of_times(what, (median(&mut told), median(&mut trips)), 0.0);
    row.bound = Bound::Shown;
    row.note = format!("the break is at least one trip of it; 99 %: {:.1?}", quantile(&mut told, 99));
    Ok(row)
}
