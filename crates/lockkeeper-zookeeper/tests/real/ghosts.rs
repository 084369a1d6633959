//! Ghosts: claims that a follower shows and the leader no longer has.

use std::time::Duration;

use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::quorum::{PATIENCE, locker, soon};
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperEnsemble};
use lockkeeper_zookeeper::ZooKeeper;
use zookeeper_client::Client;

use crate::history::{self, Created};
use crate::numbers::last_zxid;

const TTL: Duration = Duration::from_secs(2);

async fn follower(ensemble: &ZooKeeperEnsemble) -> &Server {
    let leader = ensemble.leader().await.unwrap().port();
    ensemble.nodes().iter().find(|it| it.port() != leader).unwrap()
}

/// Let one follower believe in a claim of which the others know nothing. Its history has one transaction that differs.
async fn haunt(ensemble: &ZooKeeperEnsemble, claims: &[String]) -> u16 {
    let haunted = follower(ensemble).await;
    let others: Vec<&Server> = ensemble.nodes().iter().filter(|it| it.port() != haunted.port()).collect();
    // Nothing is written any more, so that all have the same history.
    let last = eventually(PATIENCE, async || {
        let (here, there) = (last_zxid(haunted).await, last_zxid(others[0]).await);
        if here == there { Ok(here) } else { Err(KitError::new(format!("{here:x} and {there:x}"))) }
    });
    let last = last.await.unwrap();
    haunted.kill().unwrap();
    // The others write at least as much: a session is made and closed.
    for _ in 0..claims.len() {
        Client::connect(&others[0].address()).await.unwrap();
    }
    let caught_up = eventually(PATIENCE, async || {
        let there = last_zxid(others[0]).await;
        let enough = last + i64::try_from(claims.len() * 2).unwrap();
        if enough <= there { Ok(()) } else { Err(KitError::new(format!("{there:x}"))) }
    });
    caught_up.await.unwrap();
    let ghosts: Vec<Vec<u8>> =
        claims.iter().map(|it| Created { path: it, owner: 0x1234, number: 1 }.bytes()).collect();
    history::append(haunted.folder(), last + 1, &ghosts);
    haunted.start().await.unwrap();
    haunted.port()
}

#[tokio::test]
async fn a_claim_that_only_our_server_shows_keeps_nobody_out() {
    let ensemble = Server::ensemble().await.unwrap();
    let everywhere = ZooKeeper::connect(&format!("{}?tick=100ms", ensemble.url())).await.unwrap();
    let before = locker(&everywhere, TTL).lock("job").await.unwrap();
    let fence = before.fence();
    before.release().await.unwrap();
    drop(everywhere);
    let ghosts = ["a", "b"].map(|it| format!("/lockkeeper/job/{}-1-1-0000000000", it.repeat(32)));
    let port = haunt(&ensemble, &ghosts).await;
    let here = Client::connect(&format!("127.0.0.1:{port}")).await.unwrap();
    assert_eq!(here.list_children("/lockkeeper/job").await.unwrap().len(), 2, "it shows them");
    let backend = ZooKeeper::connect(&format!("zookeeper://127.0.0.1:{port}?tick=100ms")).await.unwrap();
    let guard = soon("the lock", locker(&backend, TTL).lock("job")).await.unwrap();
    assert!(fence < guard.fence());
    guard.check().unwrap();
    guard.release().await.unwrap();
}
