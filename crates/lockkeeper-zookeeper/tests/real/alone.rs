//! A server of the ensemble that was wiped and started alone: it is not believed, and it is named.

use std::fs;
use std::time::Duration;

use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_servers::ZooKeeper as Server;
use lockkeeper_servers::ZooKeeperEnsemble;
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::quorum::{PATIENCE, locker, soon};
use lockkeeper_zookeeper::ZooKeeper;

const TTL: Duration = Duration::from_secs(6);

fn url(ensemble: &ZooKeeperEnsemble) -> String {
    format!("{}?session=6s&tick=100ms&timeout=2s", ensemble.url())
}

/// A server that does not lead, so that the others go on.
async fn follower(ensemble: &ZooKeeperEnsemble) -> &Server {
    let leader = ensemble.leader().await.unwrap().address();
    ensemble.nodes().iter().find(|it| it.address() != leader).unwrap()
}

/// Stop a server, take the others out of its settings, and start it; with its data, or without.
async fn start_alone(server: &Server, wiped: bool) {
    server.stop().await.unwrap();
    let file = server.folder().join("zoo.cfg");
    let settings = fs::read_to_string(&file).unwrap();
    let own: Vec<&str> = settings.lines().filter(|it| !it.starts_with("server.")).collect();
    fs::write(&file, own.join("\n") + "\n").unwrap();
    if wiped {
        fs::remove_dir_all(server.folder().join("data/version-2")).unwrap();
    }
    server.start().await.unwrap();
}

async fn gives_no_lock(wiped: bool) {
    let ensemble = Server::ensemble().await.unwrap();
    let url = url(&ensemble);
    let holder = locker(&ZooKeeper::connect(&url).await.unwrap(), TTL);
    let guard = holder.lock("job").await.unwrap();
    let alone = follower(&ensemble).await;
    start_alone(alone, wiped).await;
    // The servers are tried in random order.
    for _ in 0..8 {
        let backend = ZooKeeper::connect(&url).await.unwrap();
        let held = locker(&backend, TTL).try_lock("job").await.unwrap();
        assert!(held.is_none(), "it was given by a server that stands alone");
    }
    guard.check().unwrap();
    let findings = ZooKeeper::connect(&url).await.unwrap().doctor().await.unwrap();
    let named =
        findings.iter().find(|it| it.what.contains(&alone.address()) && it.what.contains("stands alone"));
    assert_eq!(named.map(|it| it.severity), Some(Severity::Danger), "{findings:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_member_that_was_wiped_and_stands_alone_gives_no_lock() {
    gives_no_lock(true).await;
}

#[tokio::test]
async fn a_member_that_stands_alone_with_its_data_gives_no_lock() {
    gives_no_lock(false).await;
}

#[tokio::test]
async fn one_that_stands_alone_is_refused_by_name() {
    let ensemble = Server::ensemble().await.unwrap();
    let alone = follower(&ensemble).await;
    start_alone(alone, true).await;
    let others = || ensemble.nodes().iter().filter(|it| it.address() != alone.address());
    for node in others() {
        node.pause().unwrap();
    }
    let url = url(&ensemble);
    let error = soon("the refusal", ZooKeeper::connect(&url)).await.unwrap_err().to_string();
    assert!(error.contains(&alone.address()) && error.contains("stands alone"), "{error}");
    for node in others() {
        node.resume().unwrap();
    }
    let opened = eventually(PATIENCE, async || {
        ZooKeeper::connect(&url).await.map_err(|it| KitError::new(it.to_string()))
    });
    let backend = opened.await.unwrap();
    locker(&backend, TTL).lock("job").await.unwrap().release().await.unwrap();
}
