//! The faults and prices that ZooKeeper shares with others, and those of its own: foreign nodes and empty lines.

use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::quorum::{Behind, PATIENCE, Quorum, claim, locker, take};
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;
use zookeeper_client::{Acls, CreateMode};

use crate::common::Servers;

lockkeeper_servers::quorum!(Servers);

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_node_of_another_session_is_not_taken_for_the_one_whose_answer_was_lost() {
    let behind = Behind::<Servers>::start(1, LONG).await;
    let (backend, proxies) = behind.join().await;
    let mut warm = backend.enter(claim("job", LONG));
    take(&mut warm).await;
    warm.leave().await.unwrap();
    let wish = claim("job", LONG);
    let name = wish.id.to_hex();
    proxies[0].lose_request(name.as_bytes());
    let mut place = backend.enter(wish);
    assert!(place.turn().await.is_err(), "its outcome is unknown");
    // What an older session of ours would have left behind: the same claim, another owner.
    let stranger = behind.servers.client().await;
    let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = stranger.create(&format!("/lockkeeper/job/{name}-1-1-"), b"", &mode).await.unwrap();
    let turn = place.turn().await.unwrap();
    assert!(matches!(turn, Turn::Wait { ahead: Some(1), .. }), "it stands behind the other: {turn:?}");
    stranger.delete(&format!("/lockkeeper/job/{name}-1-1-{number}"), None).await.unwrap();
    take(&mut place).await;
    place.leave().await.unwrap();
    assert_eq!(Inspect::show(&backend, &Key::new("job").unwrap()).await.unwrap(), None);
}

#[tokio::test]
async fn an_empty_line_is_removed_by_the_store_and_counters_go_on() {
    let options = ZooKeeperOptions::default().java_flag("-Dznode.container.checkIntervalMs=300");
    let server = Server::start(options).await.unwrap();
    let backend = ZooKeeper::connect(&Servers::url(&[server.address()], LONG)).await.unwrap();
    let here = locker(&backend, LONG);
    let guard = here.lock("job").await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    let operator = zookeeper_client::Client::connect(&server.address()).await.unwrap();
    let removed = eventually(PATIENCE, async || match operator.check_stat("/lockkeeper/job").await {
        Ok(None) => Ok(()),
        it => Err(KitError::new(format!("{it:?}"))),
    });
    removed.await.unwrap();
    // The line's own numbers begin anew.
    assert!(fence < here.lock("job").await.unwrap().fence());
}
