//! Named servers that swallow everything, among sentinels and cluster nodes: newcomers pass them by, and those who hold
//! keep what they have.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{claim, claim_of, held, until_held, within};
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_core::observe::{Event, Observer};
use lockkeeper_core::{Clock, Guard, Locker};
use lockkeeper_redis::Redis;
use lockkeeper_testkit::proxy::{BlackHole, Proxy};
use lockkeeper_testkit::servers::{self, RedisCluster, RedisSentinel};

/// Much longer than a test lasts: whoever waits for the hole's answer fails by the test's own limit.
const PATIENT: &str = "timeout=1h&connect_timeout=1h";

async fn holes() -> [BlackHole; 2] {
    [BlackHole::silent().unwrap(), BlackHole::unreachable().await.unwrap()]
}

/// These addresses, with another one in the first, second, … place.
fn with_one_more(hosts: &[String], more: &str, at: usize) -> String {
    let mut all = hosts.to_vec();
    all.insert(at, more.to_owned());
    all.join(",")
}

async fn works(url: &str, name: &str) {
    let redis = within("connecting", Redis::connect(url)).await.unwrap();
    let mut place = redis.enter(claim(name));
    within("a lock", async {
        held(&mut place).await;
        assert!(matches!(place.renew().await.unwrap(), Renewal::Held { .. }));
        place.leave().await.unwrap();
    })
    .await;
}

/// Counts renewals by the name of the lock, and losses.
#[derive(Clone, Debug, Default)]
struct Tally(Arc<(AtomicUsize, AtomicUsize)>);

impl Observer for Tally {
    fn observe(&self, event: &Event<'_>) {
        let side = match event {
            Event::Renewed { key, .. } if key.as_str().starts_with("kept") => &self.0.0,
            Event::Lost { key, .. } if key.as_str().starts_with("kept") => &self.0.1,
            _ => return,
        };
        side.fetch_add(1, Ordering::Relaxed);
    }
}

impl Tally {
    /// Until there were so many more renewals. Nothing was lost.
    async fn renewals(&self, more: usize) {
        let enough = self.0.0.load(Ordering::Relaxed) + more;
        within("renewals", async {
            while self.0.0.load(Ordering::Relaxed) < enough {
                Clock::boot().sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(self.0.1.load(Ordering::Relaxed), 0, "a lock is lost");
    }
}

fn locker(redis: Redis, tally: &Tally) -> Locker {
    Locker::builder(redis).ttl(Duration::from_secs(6)).observer(tally.clone()).build()
}

#[tokio::test]
async fn a_sentinel_that_swallows_everything_is_not_waited_for_by_newcomers() {
    let servers = servers::Redis::sentinel().await.unwrap();
    // A majority of the named ones must answer: two of three.
    let hosts: Vec<_> = servers.sentinels()[..2].iter().map(|it| it.address()).collect();
    for hole in holes().await {
        for at in [0, 2] {
            let hosts = with_one_more(&hosts, &hole.address(), at);
            works(&format!("redis+sentinel://{hosts}/{}?{PATIENT}", servers.name()), "k").await;
        }
    }
}

async fn sentinels_behind_proxies(servers: &RedisSentinel) -> (Vec<Proxy>, String) {
    let mut proxies = Vec::new();
    for sentinel in servers.sentinels() {
        proxies.push(Proxy::start(sentinel.port()).await.unwrap());
    }
    let hosts: Vec<_> = proxies.iter().map(Proxy::address).collect();
    let url = format!("redis+sentinel://{}/{}", hosts.join(","), servers.name());
    (proxies, url)
}

#[tokio::test]
async fn a_sentinel_that_vanishes_costs_no_lock_and_a_switch_is_heard_from_the_others() {
    let servers = servers::Redis::sentinel().await.unwrap();
    let (proxies, url) = sentinels_behind_proxies(&servers).await;
    let (tally, redis) = (Tally::default(), Redis::connect(&url).await.unwrap());
    let mut listener = redis.enter(claim_of("long", Duration::from_secs(600), 1, 1));
    held(&mut listener).await;
    let locker = locker(redis, &tally);
    let guard = locker.lock("kept").await.unwrap();
    for proxy in &proxies {
        proxy.vanish().await.unwrap();
        tally.renewals(1).await;
        within("another lock", async { locker.lock("other").await.unwrap().release().await.unwrap() }).await;
        works(&format!("{url}?{PATIENT}"), "newcomer").await;
        proxy.appear().await.unwrap();
    }
    proxies[0].vanish().await.unwrap();
    let old = servers.primary().await.unwrap();
    copied(old).await;
    servers.sentinels()[1].command(&["SENTINEL", "FAILOVER", servers.name()]).await.unwrap();
    within("hearing of the switch", listener.changed()).await;
    servers.wait_failover(old).await.unwrap();
    tally.renewals(1).await;
    assert!(guard.is_valid());
}

/// Until both replicas have what the primary has: what was not copied is lost in a failover, by design.
async fn copied(primary: &servers::Redis) {
    let mut client = primary.client().await.unwrap();
    client.command(&["SET", "marker", "1"]).await.unwrap();
    assert_eq!(client.command(&["WAIT", "2", "10000"]).await.unwrap().int(), Some(2));
}

#[tokio::test]
async fn a_cluster_node_that_swallows_everything_is_not_waited_for_by_newcomers() {
    let servers = servers::Redis::cluster().await.unwrap();
    let hosts: Vec<_> = servers.nodes()[..2].iter().map(|it| it.address()).collect();
    for hole in holes().await {
        for at in [0, 2] {
            let hosts = with_one_more(&hosts, &hole.address(), at);
            works(&format!("redis+cluster://{hosts}?{PATIENT}"), "k").await;
        }
    }
}

/// A proxy before each primary, under whose address the cluster knows it.
async fn cluster_behind_proxies(servers: &RedisCluster) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for node in &servers.nodes()[..3] {
        let proxy = Proxy::start(node.port()).await.unwrap();
        let (bus, port) = ((node.port() + 10_000).to_string(), proxy.port().to_string());
        node.command(&["CONFIG", "SET", "cluster-announce-bus-port", &bus]).await.unwrap();
        node.command(&["CONFIG", "SET", "cluster-announce-port", &port]).await.unwrap();
        proxies.push(proxy);
    }
    within("all servers to know the proxies", async {
        for node in servers.nodes() {
            for proxy in &proxies {
                let known = format!("127.0.0.1:{}@", proxy.port());
                while !node.command(&["CLUSTER", "NODES"]).await.unwrap().text().contains(&known) {
                    Clock::boot().sleep(Duration::from_millis(20)).await;
                }
            }
        }
    })
    .await;
    proxies
}

/// A lock whose name begins with `prefix`, kept by one of the nodes that are not `without`.
async fn lock_elsewhere(locker: &Locker, prefix: &str, without: &servers::Redis) -> Guard {
    for number in 0.. {
        let name = format!("{prefix}-{number}");
        let guard = locker.lock(&name).await.unwrap();
        if without.command(&["KEYS", &format!("*{name}")]).await.unwrap().items().is_empty() {
            return guard;
        }
        guard.release().await.unwrap();
    }
    unreachable!("numbers do not end");
}

/// To its clients a primary is gone, to its cluster it is not: nothing takes over. What it keeps cannot be renewed; all
/// other locks go on as if nothing were.
#[tokio::test]
async fn a_cluster_node_that_vanishes_costs_no_lock_of_the_others() {
    let servers = servers::Redis::cluster().await.unwrap();
    let proxies = cluster_behind_proxies(&servers).await;
    let hosts: Vec<_> = proxies.iter().map(Proxy::address).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let (tally, redis) = (Tally::default(), Redis::connect(&url).await.unwrap());
    let locker = locker(redis, &tally);
    for at in 0..3 {
        let node = &servers.nodes()[at];
        let kept = lock_elsewhere(&locker, &format!("kept-{at}"), node).await;
        let other = lock_elsewhere(&locker, &format!("other-{at}"), node).await;
        let name = other.key().as_str().to_owned();
        other.release().await.unwrap();
        proxies[at].vanish().await.unwrap();
        tally.renewals(3).await;
        within("another lock", async { locker.lock(&name).await.unwrap().release().await.unwrap() }).await;
        let newcomer = within("connecting", Redis::connect(&format!("{url}?{PATIENT}"))).await.unwrap();
        until_held(&mut newcomer.enter(claim(&name))).await;
        assert!(kept.is_valid());
        proxies[at].appear().await.unwrap();
        kept.release().await.unwrap();
    }
}
