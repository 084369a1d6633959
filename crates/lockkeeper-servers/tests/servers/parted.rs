//! Servers of one cluster that hear nothing of each other, while clients reach all of them.

use std::time::Duration;

use lockkeeper_servers::process::eventually;
use lockkeeper_servers::{EtcdCluster, EtcdOptions, KitError, ZooKeeperEnsemble, ZooKeeperOptions};

const SOON: Duration = Duration::from_secs(20);

/// The number of the server that says it leads, but for one.
async fn leader(leads: impl AsyncFn(usize) -> Result<bool, KitError>, but: Option<usize>) -> usize {
    let found = eventually(SOON, async || {
        for at in (0..3).filter(|it| Some(*it) != but) {
            if leads(at).await? {
                return Ok(at);
            }
        }
        Err(KitError::new("nobody leads"))
    });
    found.await.expect("one of them leads")
}

fn alone(old: usize) -> Vec<u8> {
    (0..3).map(|it| u8::from(it == old)).collect()
}

#[tokio::test]
async fn an_etcd_leader_that_is_parted_from_the_others_is_replaced_and_follows_when_they_are_joined() {
    let cluster = EtcdCluster::start(EtcdOptions::default().gated()).await.unwrap();
    let leads = async |at: usize| cluster.nodes()[at].leads().await;
    let old = leader(leads, None).await;
    cluster.part(&alone(old));
    let new = leader(leads, Some(old)).await;
    // Clients reach both sides; only one of them can write.
    let put = r#"{"key": "Zm9v", "value": "YmFy"}"#;
    cluster.nodes()[new].post("/v3/kv/put", put).await.unwrap();
    let stale = r#"{"key": "Zm9v", "serializable": true}"#;
    let seen = cluster.nodes()[old].post("/v3/kv/range", stale).await.unwrap();
    assert!(!seen.contains("YmFy"), "it heard of it all the same: {seen}");
    cluster.join();
    let follows = async || {
        let seen = cluster.nodes()[old].post("/v3/kv/range", r#"{"key": "Zm9v"}"#).await?;
        if seen.contains("YmFy") { Ok(()) } else { Err(KitError::new(seen)) }
    };
    eventually(SOON, follows).await.unwrap();
}

#[tokio::test]
async fn a_zookeeper_leader_that_is_parted_from_the_others_is_replaced_and_follows_when_they_are_joined() {
    let ensemble = ZooKeeperEnsemble::start(ZooKeeperOptions::default().gated()).await.unwrap();
    // One that looks for a leader says so in other words.
    let leads = async |at: usize| ensemble.nodes()[at].leads().await;
    let old = leader(leads, None).await;
    ensemble.part(&alone(old));
    leader(leads, Some(old)).await;
    let gives_up = async || {
        let said = ensemble.nodes()[old].word("srvr").await?;
        if said.contains("not currently serving") { Ok(()) } else { Err(KitError::new(said)) }
    };
    eventually(SOON, gives_up).await.unwrap();
    ensemble.join();
    let follows = async || {
        let said = ensemble.nodes()[old].word("srvr").await?;
        if said.contains("Mode: follower") { Ok(()) } else { Err(KitError::new(said)) }
    };
    eventually(SOON, follows).await.unwrap();
}
