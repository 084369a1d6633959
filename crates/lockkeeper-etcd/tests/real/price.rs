//! What waiting and holding cost: one wake-up for one release, one heartbeat for ten thousand locks.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_etcd::{Etcd, EtcdPlace};

use crate::common::{Behind, Servers, claim, soon};

const TTL: Duration = Duration::from_secs(30);

async fn take(place: &mut EtcdPlace) {
    while !matches!(place.turn().await.unwrap(), Turn::Held(_)) {
        soon("a wake-up", place.changed()).await;
    }
}

#[tokio::test]
async fn one_release_wakes_one_of_a_thousand() {
    let behind = Behind::new(Servers::one().await, TTL);
    let (one, _first) = behind.join().await;
    let (other, _second) = behind.join().await;
    let mut holder = one.enter(claim("job", TTL));
    take(&mut holder).await;
    let mut line = Vec::new();
    for at in 0..1000 {
        let mut place = [&one, &other][at % 2].enter(claim("job", TTL));
        let Turn::Wait { ahead, .. } = place.turn().await.unwrap() else { panic!("it is held") };
        assert_eq!(ahead, Some(u64::try_from(at).unwrap() + 1));
        line.push(place);
    }
    let events = |one: &Etcd, other: &Etcd| one.events() + other.events();
    assert_eq!(events(&one, &other), 0, "nobody is told of those who come");
    holder.leave().await.unwrap();
    for place in &mut line[..20] {
        take(place).await;
        place.leave().await.unwrap();
    }
    take(&mut line[20]).await;
    assert_eq!(events(&one, &other), 21, "twenty-one releases, as many wake-ups");
}

#[tokio::test]
async fn ten_thousand_held_locks_cost_one_heartbeat() {
    let behind = Behind::new(Servers::one().await, TTL);
    let (backend, proxies) = behind.join().await;
    let mut held = tokio::task::JoinSet::new();
    for part in 0..50 {
        let backend = backend.clone();
        held.spawn(async move {
            let mut places = Vec::new();
            for at in 0..200 {
                let mut place = backend.enter(claim(&format!("job/{part}/{at}"), TTL));
                take(&mut place).await;
                renews(&mut place).await;
                places.push(place);
            }
            places
        });
    }
    let mut places: Vec<EtcdPlace> = held.join_all().await.into_iter().flatten().collect();
    assert_eq!(places.len(), 10_000);
    let before = proxies[0].counters().to_server;
    for place in &mut places {
        renews(place).await;
    }
    let sent = proxies[0].counters().to_server - before;
    assert!(sent < places.len(), "renewing them all sent {sent} bytes, not one for each");
}

async fn renews(place: &mut EtcdPlace) {
    let renewal = place.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { wanted: false, .. }), "{renewal:?}");
}

#[tokio::test]
async fn a_hand_off_between_processes_costs_two_transactions() {
    let behind = Behind::new(Servers::one().await, TTL);
    let (one, _first) = behind.join().await;
    let (other, _second) = behind.join().await;
    let Servers::One(server) = &behind.servers else { unreachable!() };
    let (mut holder, mut waiter) = (one.enter(claim("job", TTL)), other.enter(claim("job", TTL)));
    take(&mut holder).await;
    assert!(matches!(waiter.turn().await.unwrap(), Turn::Wait { .. }));
    let before = transactions(server.port()).await;
    holder.leave().await.unwrap();
    soon("a wake-up", waiter.changed()).await;
    assert!(matches!(waiter.turn().await.unwrap(), Turn::Held(_)));
    // The first heartbeat comes after six seconds.
    assert_eq!(transactions(server.port()).await - before, 2, "one to give it back, one to enter");
}

/// How many transactions the server has answered.
async fn transactions(port: u16) -> u64 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    let line = |it: &&str| it.starts_with("grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\"");
    page.lines().find(line).unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}
