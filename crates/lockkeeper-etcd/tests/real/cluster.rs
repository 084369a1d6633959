//! Faults of a cluster of three: the leader dies or sleeps, a node is cut off, the quorum is lost.

use std::time::Duration;

use lockkeeper_core::LostReason;
use lockkeeper_etcd::Etcd;
use lockkeeper_testkit::process::{KitError, eventually};
use lockkeeper_testkit::proxy::Rule;
use lockkeeper_testkit::servers::{Etcd as Server, EtcdCluster};

use crate::common::{Behind, PATIENCE, Servers, locker, soon};

const TTL: Duration = Duration::from_secs(10);

async fn cluster() -> (EtcdCluster, String) {
    let cluster = Server::cluster().await.unwrap();
    let hosts: Vec<String> = cluster.nodes().iter().map(|it| it.address()).collect();
    (cluster, format!("etcd://{}", hosts.join(",")))
}

/// Hold through `fault`, still hold after it, and let another have it then.
async fn holds_through(url: &str, fault: impl AsyncFnOnce()) {
    let here = locker(&Etcd::connect(url).await.unwrap(), TTL);
    let there = locker(&Etcd::connect(url).await.unwrap(), TTL);
    let guard = here.lock("job").await.unwrap();
    let fence = guard.fence();
    let waiter = tokio::spawn(async move { there.lock("job").await });
    fault().await;
    guard.check().unwrap();
    assert!(!waiter.is_finished(), "it is held");
    guard.release().await.unwrap();
    let next = soon("the wake-up", waiter).await.unwrap().unwrap();
    assert!(fence < next.fence());
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_killed_leader_costs_no_lock() {
    let (cluster, url) = cluster().await;
    holds_through(&url, async || {
        cluster.leader().await.unwrap().kill().unwrap();
        cluster.leader().await.unwrap();
    })
    .await;
}

/// Wait until another node leads. The old leader sleeps, so only the others are asked.
async fn new_leader(cluster: &EtcdCluster, old: &Server) {
    let elected = eventually(PATIENCE, async || {
        for node in cluster.nodes().iter().filter(|it| it.port() != old.port()) {
            let status = node.post("/v3/maintenance/status", "{}").await?;
            let field = |name: &str| status.split(&format!("\"{name}\":\"")).nth(1)?.split('"').next();
            if field("leader").is_some() && field("leader") == field("member_id") {
                return Ok(());
            }
        }
        Err(KitError::new("nobody leads"))
    });
    elected.await.unwrap();
}

#[tokio::test]
async fn a_leader_that_sleeps_and_wakes_costs_no_lock() {
    let (cluster, url) = cluster().await;
    holds_through(&url, async || {
        let old = cluster.leader().await.unwrap();
        old.pause().unwrap();
        new_leader(&cluster, old).await;
        old.resume().unwrap();
    })
    .await;
}

#[tokio::test]
async fn all_nodes_restarted_cost_no_lock() {
    let (cluster, url) = cluster().await;
    holds_through(&url, async || {
        for node in cluster.nodes() {
            node.kill().unwrap();
        }
        let starts = cluster.nodes().iter().map(|it| it.start());
        let starts: Vec<_> = starts.map(Box::pin).collect();
        let all = async {
            let mut starts = starts;
            // All at once: none is ready without the others.
            std::future::poll_fn(|cx| {
                starts.retain_mut(|it| match it.as_mut().poll(cx) {
                    std::task::Poll::Ready(started) => {
                        started.unwrap();
                        false
                    }
                    std::task::Poll::Pending => true,
                });
                if starts.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        };
        soon("the restart", all).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_cut_off_from_its_node_goes_to_another() {
    let behind = Behind::new(Servers::three().await, TTL);
    let (backend, proxies) = behind.join().await;
    let here = locker(&backend, TTL);
    let guard = here.lock("job").await.unwrap();
    for proxy in proxies.iter().filter(|it| it.counters().open != 0) {
        proxy.set_both(Rule::Drop);
    }
    let cut = proxies.iter().filter(|it| it.counters().open != 0).count();
    assert_eq!(cut, 1, "one node is in use at a time");
    let other = soon("a lock through another node", here.lock("other")).await.unwrap();
    lockkeeper_core::Clock::boot().sleep(TTL).await;
    guard.check().unwrap();
    other.release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lost_quorum_costs_the_lock_at_its_deadline_and_no_earlier_fence_returns() {
    let (cluster, url) = cluster().await;
    let here = locker(&Etcd::connect(&url).await.unwrap(), Duration::from_secs(4));
    let guard = here.lock("job").await.unwrap();
    for node in &cluster.nodes()[..2] {
        node.kill().unwrap();
    }
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Expired);
    for node in &cluster.nodes()[..2] {
        // The first alone is no majority with itself, but with the one that never died.
        node.start().await.unwrap();
    }
    let again = soon("the lock", here.lock("job")).await.unwrap();
    assert!(guard.fence() < again.fence());
    assert!(guard.check().is_err(), "what is lost stays lost");
}
