//! Places that nobody says goodbye for: what a process drops half-way does not stay behind while it lives.

use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::quorum::{PATIENCE, Quorum, claim};

use crate::common::Servers;

const TTL: Duration = Duration::from_secs(60);

async fn is_free(backend: &Etcd) {
    let key = Key::new("job").unwrap();
    let free = eventually(PATIENCE / 2, async || match Inspect::show(backend, &key).await {
        Ok(None) => Ok(()),
        it => Err(KitError::new(format!("{it:?}"))),
    });
    free.await.unwrap();
}

#[tokio::test]
async fn a_place_that_is_dropped_leaves_by_itself() {
    let servers = Servers::start(1).await;
    let backend = Etcd::connect(&servers.url_of_all(TTL)).await.unwrap();
    let mut held = backend.enter(claim("job", TTL));
    assert!(matches!(held.turn().await.unwrap(), Turn::Held(_)));
    let mut waits = backend.enter(claim("job", TTL));
    assert!(matches!(waits.turn().await.unwrap(), Turn::Wait { .. }));
    drop((held, waits));
    // The process and its lease live on.
    is_free(&backend).await;
}

#[tokio::test]
async fn a_place_that_is_dropped_in_the_middle_of_its_request_leaves_by_itself() {
    let servers = Servers::start(1).await;
    let proxy = Proxy::start(servers.first().port()).await.unwrap();
    let backend = Etcd::connect(&format!("etcd://{}", proxy.address())).await.unwrap();
    let observer = Etcd::connect(&servers.url_of_all(TTL)).await.unwrap();
    let mut warm = backend.enter(claim("warm", TTL));
    assert!(matches!(warm.turn().await.unwrap(), Turn::Held(_)));
    let mut place = backend.enter(claim("job", TTL));
    let before = proxy.counters().to_server;
    // The request arrives, and its answer is not awaited.
    proxy.set(Direction::ToClient, Rule::Hold);
    tokio::select! {
        _ = place.turn() => panic!("its answer is held back"),
        seen = proxy.wait_for(|it| before < it.to_server) => { seen.unwrap(); }
    }
    drop(place);
    proxy.set(Direction::ToClient, Rule::Pass);
    is_free(&observer).await;
    warm.leave().await.unwrap();
}
