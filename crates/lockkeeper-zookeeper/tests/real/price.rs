//! What waiting and holding cost: one wake-up for one release, one pulse for ten thousand locks.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_zookeeper::ZooKeeperPlace;

use crate::common::{Behind, Servers, claim, soon};

const TTL: Duration = Duration::from_secs(30);

async fn take(place: &mut ZooKeeperPlace) {
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
    holder.leave().await.unwrap();
    for place in &mut line[..20] {
        take(place).await;
        place.leave().await.unwrap();
    }
    take(&mut line[20]).await;
    let Servers::One(server) = &behind.servers else { unreachable!() };
    let mntr = server.word("mntr").await.unwrap();
    assert_eq!(fired(&mntr, "cnt"), 21, "twenty-one releases");
    assert_eq!(fired(&mntr, "max"), 1, "and each tells one");
}

/// How many watches the server says it fired when nodes were deleted.
fn fired(mntr: &str, what: &str) -> u64 {
    let name = format!("zk_{what}_node_deleted_watch_count\t");
    mntr.lines().find_map(|it| it.strip_prefix(&name)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn ten_thousand_held_locks_cost_one_pulse() {
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
    let mut places: Vec<ZooKeeperPlace> = held.join_all().await.into_iter().flatten().collect();
    assert_eq!(places.len(), 10_000);
    let before = proxies[0].counters().to_server;
    for place in &mut places {
        renews(place).await;
    }
    let sent = proxies[0].counters().to_server - before;
    assert!(sent < places.len(), "renewing them all sent {sent} bytes, not one for each");
}

async fn renews(place: &mut ZooKeeperPlace) {
    let renewal = place.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { wanted: false, .. }), "{renewal:?}");
}

#[tokio::test]
async fn a_hand_off_between_processes_costs_two_operations() {
    let behind = Behind::new(Servers::one().await, TTL);
    let (one, _first) = behind.join().await;
    let (other, _second) = behind.join().await;
    let Servers::One(server) = &behind.servers else { unreachable!() };
    let (mut holder, mut waiter) = (one.enter(claim("job", TTL)), other.enter(claim("job", TTL)));
    take(&mut holder).await;
    assert!(matches!(waiter.turn().await.unwrap(), Turn::Wait { .. }));
    let before = received(&server.word("mntr").await.unwrap());
    holder.leave().await.unwrap();
    soon("a wake-up", waiter.changed()).await;
    assert!(matches!(waiter.turn().await.unwrap(), Turn::Held(_)));
    let after = received(&server.word("mntr").await.unwrap());
    // Asking is a request as well. The first pulse comes after three seconds.
    assert_eq!(after - before - 1, 2, "one to give it back, one to enter");
}

/// How many requests the server has received.
fn received(mntr: &str) -> u64 {
    mntr.lines().find_map(|it| it.strip_prefix("zk_packets_received\t")).unwrap().parse().unwrap()
}
