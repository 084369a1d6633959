//! A node of another cluster among those that the URL names: it is not used, and it is named.

use std::time::Duration;

use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::quorum::{PATIENCE, Quorum, locker, soon};

use crate::admin_of::{Alone, restart_alone};
use crate::common::Servers;

const TTL: Duration = Duration::from_secs(6);

fn nodes(servers: &Servers) -> &[lockkeeper_servers::Etcd] {
    match servers {
        Servers::Three(it) => it.nodes(),
        Servers::One(_) => panic!("three were asked for"),
    }
}

/// Wipe the first node and wait until it serves as a cluster of its own.
async fn first_alone(servers: &Servers) -> Alone {
    let first = &nodes(servers)[0];
    let alone = restart_alone(first);
    let up = eventually(PATIENCE, async || first.post("/v3/kv/range", r#"{"key": "eA=="}"#).await);
    up.await.unwrap();
    alone
}

#[tokio::test]
async fn a_member_that_became_its_own_cluster_gives_no_lock() {
    let servers = Servers::start(3).await;
    let url = servers.url_of_all(TTL);
    // Connected by way of the first node, which then changes under it.
    let here = Etcd::connect(&url).await.unwrap();
    let holder = locker(&here, TTL);
    let guard = holder.lock("job").await.unwrap();
    let _alone = first_alone(&servers).await;
    let there = Etcd::connect(&url).await.unwrap();
    let second = locker(&there, TTL);
    assert!(second.try_lock("job").await.unwrap().is_none(), "it is held in the cluster of the majority");
    // Long enough for every heartbeat to have met the stranger.
    lockkeeper_core::Clock::boot().sleep(TTL * 2).await;
    guard.check().unwrap();
    assert!(second.try_lock("job").await.unwrap().is_none());
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = soon("the grant", second.lock("job")).await.unwrap();
    assert!(fence < next.fence());
    let findings = there.doctor().await.unwrap();
    let name = nodes(&servers)[0].address();
    let named = findings.iter().find(|it| it.what.contains(&name) && it.what.contains("another cluster"));
    assert_eq!(named.map(|it| it.severity), Some(Severity::Danger), "{findings:?}");
}

#[tokio::test]
async fn a_stranger_alone_is_refused_by_name() {
    let servers = Servers::start(3).await;
    let _alone = first_alone(&servers).await;
    for node in &nodes(&servers)[1..] {
        node.pause().unwrap();
    }
    let url = format!("{}?timeout=1s", servers.url_of_all(TTL));
    let error = Etcd::connect(&url).await.unwrap_err().to_string();
    assert!(error.contains(&nodes(&servers)[0].address()), "{error}");
    for node in &nodes(&servers)[1..] {
        node.resume().unwrap();
    }
    let backend =
        eventually(PATIENCE, async || Etcd::connect(&url).await.map_err(|it| KitError::new(it.to_string())));
    let guard = locker(&backend.await.unwrap(), TTL).lock("job").await.unwrap();
    guard.release().await.unwrap();
}
