//! Places that nobody says goodbye for: what a process drops half-way does not stay behind while it lives.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Key, Load};
use lockkeeper_etcd::{Etcd, EtcdPlace};
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

#[tokio::test]
async fn what_lingers_outlives_its_process_and_keeps_its_place() {
    let servers = Servers::start(1).await;
    let (backend, other) = (
        Etcd::connect(&servers.url_of_all(TTL)).await.unwrap(),
        Etcd::connect(&servers.url_of_all(TTL)).await.unwrap(),
    );
    let (mut held, mut waits) = (backend.enter(claim("job", TTL)), other.enter(claim("job", TTL)));
    assert!(matches!(held.turn().await.unwrap(), Turn::Held(_)));
    assert!(matches!(waits.turn().await.unwrap(), Turn::Wait { .. }));
    held.linger(TTL * 60).await.unwrap();
    held.linger(TTL * 60).await.unwrap();
    held.leave().await.unwrap();
    // As a process that ends: its sessions end with it.
    drop((held, backend));
    let key = Key::new("job").unwrap();
    let info = Inspect::show(&other, &key).await.unwrap().unwrap();
    let [holder] = &info.holders[..] else { panic!("it goes too early: {info:?}") };
    assert!(TTL * 30 < holder.valid_for, "it goes too early: in {:?}", holder.valid_for);
    assert!(matches!(waits.turn().await.unwrap(), Turn::Wait { ahead: Some(1), .. }));
    // An operator can end it, as any other.
    assert_eq!(Inspect::break_lock(&other, &key).await.unwrap().len(), 1);
    until_held(&mut waits).await;
    waits.leave().await.unwrap();
}

#[tokio::test]
async fn its_own_process_waits_for_what_lingers_as_any_other_and_no_longer_than_was_said() {
    let servers = Servers::start(1).await;
    let backend = Etcd::connect(&servers.url_of_all(TTL)).await.unwrap();
    let (mut held, mut again) = (backend.enter(claim("job", TTL)), backend.enter(claim("job", TTL)));
    assert!(matches!(held.turn().await.unwrap(), Turn::Held(_)));
    // Far less than the shortest lease of a server, and than any look of its own.
    held.linger(Duration::from_millis(300)).await.unwrap();
    until_held(&mut again).await;
    again.leave().await.unwrap();
    is_free(&backend).await;
}

#[tokio::test]
async fn what_is_said_once_more_after_its_release_is_not_taken_for_ours() {
    let servers = Servers::start(1).await;
    let proxy = Proxy::start(servers.first().port()).await.unwrap();
    let backend = Etcd::connect(&format!("etcd://{}", proxy.address())).await.unwrap();
    let other = Etcd::connect(&servers.url_of_all(TTL)).await.unwrap();
    let some = |weight| claim("job", TTL).load(Load::new(weight, 3));
    // The lease is there before: what makes it would void the rest if it were said once more.
    let mut first = backend.enter(claim("first", TTL));
    until_held(&mut first).await;
    proxy.record(Some(1 << 20));
    proxy.cut();
    // Whoever finds the connection broken is unsure, and leaves so that nothing can come after it.
    let mut second = backend.enter(claim("second", TTL));
    until_held(&mut second).await;
    let mut one = backend.enter(some(1));
    until_held(&mut one).await;
    one.leave().await.unwrap();
    assert_ne!(proxy.repeat().await, 0);
    assert_eq!(
        servers.first().keys("lockkeeper/locks/job/").await.unwrap().len(),
        1,
        "it is there once more"
    );

    // The next of this process has its name, and weighs more.
    let mut all = backend.enter(some(3));
    until_held(&mut all).await;
    let mut beside = other.enter(some(1));
    assert!(matches!(beside.turn().await.unwrap(), Turn::Wait { .. }), "two are inside, and only one fits");
    all.leave().await.unwrap();
    until_held(&mut beside).await;
    beside.leave().await.unwrap();
    first.leave().await.unwrap();
    second.leave().await.unwrap();
    is_free(&other).await;
}

async fn until_held(place: &mut EtcdPlace) {
    let held = async {
        loop {
            match place.turn().await {
                Ok(Turn::Held(_)) => return,
                Err(fault) if !fault.is_transient() => panic!("{fault}"),
                Ok(_) => place.changed().await,
                Err(_) => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, held).await.unwrap();
}
