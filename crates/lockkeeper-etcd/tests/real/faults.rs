//! Faults on one server: dead and frozen holders, restarts, lost answers, and administrators.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Key, LostReason};
use lockkeeper_etcd::Etcd;
use lockkeeper_testkit::process::{KitError, eventually};
use lockkeeper_testkit::servers::{Etcd as Server, EtcdOptions};

use crate::child::{Other, is_other_process};
use crate::common::{Behind, PATIENCE, Servers, claim, locker, soon};

const TTL: Duration = Duration::from_secs(3);

fn url(server: &Server) -> String {
    format!("etcd://{}", server.address())
}

#[tokio::test]
async fn a_killed_holder_is_replaced() {
    if is_other_process("job", TTL).await {
        return;
    }
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let mut other = Other::start("faults::a_killed_holder_is_replaced", &url(&server));
    let before: u64 = other.says("holds with fence").await.parse().unwrap();
    let locker = locker(&Etcd::connect(&url(&server)).await.unwrap(), TTL);
    assert!(locker.try_lock("job").await.unwrap().is_none());
    other.process.kill().unwrap();
    let guard = locker.lock("job").await.unwrap();
    assert!(before < guard.fence().get());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_frozen_holder_is_replaced_and_learns_of_it_when_it_wakes() {
    if is_other_process("job", TTL).await {
        return;
    }
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let test = "faults::a_frozen_holder_is_replaced_and_learns_of_it_when_it_wakes";
    let mut other = Other::start(test, &url(&server));
    let before: u64 = other.says("holds with fence").await.parse().unwrap();
    let locker = locker(&Etcd::connect(&url(&server)).await.unwrap(), TTL);
    other.process.pause().unwrap();
    let guard = locker.lock("job").await.unwrap();
    assert!(before < guard.fence().get());
    other.process.resume().unwrap();
    other.says("lost it").await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_restarted_server_still_knows_who_holds() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let backend = Etcd::connect(&url(&server)).await.unwrap();
    let (here, there) =
        (locker(&backend, Duration::from_secs(20)), Etcd::connect(&url(&server)).await.unwrap());
    let there = locker(&there, Duration::from_secs(20));
    let guard = here.lock("job").await.unwrap();
    server.kill().unwrap();
    server.start().await.unwrap();
    // The other's connection is lost as well; a try tells that once it has tried again.
    let seen = eventually(PATIENCE, async || {
        let seen = there.try_lock("job").await.map_err(|it| KitError::new(it.to_string()))?;
        Ok(seen.is_none())
    });
    assert!(seen.await.unwrap(), "it is held");
    guard.check().unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    assert!(fence < there.lock("job").await.unwrap().fence());
}

#[tokio::test]
async fn a_waiter_is_woken_after_its_server_was_restarted() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let ttl = Duration::from_secs(20);
    let here = locker(&Etcd::connect(&url(&server)).await.unwrap(), ttl);
    let there = locker(&Etcd::connect(&url(&server)).await.unwrap(), ttl);
    let guard = here.lock("job").await.unwrap();
    let fence = guard.fence();
    let waiter = tokio::spawn(async move { there.lock("job").await });
    waits(&Etcd::connect(&url(&server)).await.unwrap(), "job", 1).await;
    server.restart().await.unwrap();
    guard.release().await.unwrap();
    assert!(fence < soon("the wake-up", waiter).await.unwrap().unwrap().fence());
}

/// Wait until so many wait for a lock.
async fn waits(backend: &Etcd, name: &str, waiters: usize) {
    let key = Key::new(name).unwrap();
    let there = eventually(PATIENCE, async || {
        let seen = Inspect::show(backend, &key).await.ok().flatten().map_or(0, |it| it.waiters.len());
        if seen == waiters { Ok(()) } else { Err(KitError::new(format!("{seen} wait"))) }
    });
    there.await.unwrap();
}

#[tokio::test]
async fn a_compaction_during_a_wait_loses_no_wake_up() {
    let behind = Behind::new(Servers::one().await, TTL);
    let Servers::One(server) = &behind.servers else { unreachable!() };
    let (here, (there, proxies)) = (Etcd::connect(&url(server)).await.unwrap(), behind.join().await);
    let (locker_here, locker_there) = (locker(&here, TTL), locker(&there, Duration::from_mins(1)));
    let guard = locker_here.lock("job").await.unwrap();
    let waiter = tokio::spawn(async move { locker_there.lock("job").await });
    waits(&here, "job", 1).await;
    // While the waiter is cut off, the release happens and its history is compacted away.
    proxies[0].refuse().await.unwrap();
    proxies[0].cut();
    let fence = guard.fence();
    guard.release().await.unwrap();
    let answer = server.post("/v3/kv/range", r#"{"key": "eA=="}"#).await.unwrap();
    let revision = answer.split("\"revision\":\"").nth(1).unwrap().split('"').next().unwrap();
    server.post("/v3/kv/compaction", &format!(r#"{{"revision": "{revision}"}}"#)).await.unwrap();
    proxies[0].accept().await.unwrap();
    // Long before the waiter would look again by itself.
    let guard = soon("the wake-up", waiter).await.unwrap().unwrap();
    assert!(fence < guard.fence());
}

#[tokio::test]
async fn a_lease_revoked_by_an_administrator_is_told_and_replaced() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let here = locker(&Etcd::connect(&url(&server)).await.unwrap(), TTL);
    let there = locker(&Etcd::connect(&url(&server)).await.unwrap(), TTL);
    let guard = here.lock("job").await.unwrap();
    let leases = server.post("/v3/lease/leases", "{}").await.unwrap();
    for id in leases.split("\"ID\":\"").skip(1).filter_map(|it| it.split('"').next()) {
        server.post("/v3/lease/revoke", &format!(r#"{{"ID": "{id}"}}"#)).await.unwrap();
    }
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Taken);
    let next = there.lock("job").await.unwrap();
    assert!(guard.fence() < next.fence());
    assert!(guard.check().is_err(), "what is lost stays lost");
    next.release().await.unwrap();
    let again = here.lock("job").await.unwrap();
    assert!(guard.check().is_err(), "a new lease revives no old guard");
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_key_deleted_by_hand_is_told() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let here = locker(&Etcd::connect(&url(&server)).await.unwrap(), TTL);
    let guard = here.lock("job").await.unwrap();
    // Everything from `lockkeeper/locks/` to `lockkeeper/locks0`.
    let all = r#"{"key": "bG9ja2tlZXBlci9sb2Nrcy8=", "range_end": "bG9ja2tlZXBlci9sb2NrczA="}"#;
    server.post("/v3/kv/deleterange", all).await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Taken);
    assert!(guard.fence() < here.lock("job").await.unwrap().fence());
}

#[tokio::test]
async fn a_place_whose_answer_was_lost_is_found_again() {
    let behind = Behind::new(Servers::one().await, TTL);
    let (backend, proxies) = behind.join().await;
    let mut warm = backend.enter(claim("warm", TTL));
    assert!(matches!(warm.turn().await, Ok(Turn::Held(_))), "now there is a lease");
    let wish = claim("job", TTL);
    proxies[0].lose_reply(wish.id.to_hex().as_bytes());
    let mut place = backend.enter(wish);
    // Either the call is repeated by itself, or its outcome is told as unknown and we ask again.
    let turn = match place.turn().await {
        Ok(turn) => turn,
        Err(_) => place.turn().await.unwrap(),
    };
    assert!(matches!(turn, Turn::Held(_)));
    assert_eq!(proxies[0].counters().cut, 1, "an answer was lost");
    place.leave().await.unwrap();
    assert_eq!(Inspect::show(&backend, &Key::new("job").unwrap()).await.unwrap(), None);
}

#[tokio::test]
async fn a_request_that_arrives_after_its_claim_has_left_takes_nothing() {
    use lockkeeper_testkit::proxy::{Direction, Rule};

    let behind = Behind::new(Servers::one().await, Duration::from_secs(20));
    let Servers::One(server) = &behind.servers else { unreachable!() };
    // Two ways to one server: the request is stuck on the first, and its claim leaves by the second.
    let (slow, quick) = (
        lockkeeper_testkit::proxy::Proxy::start(server.port()).await.unwrap(),
        lockkeeper_testkit::proxy::Proxy::start(server.port()).await.unwrap(),
    );
    let url = format!("etcd://{},{}?timeout=300ms", slow.address(), quick.address());
    let backend = Etcd::connect(&url).await.unwrap();
    let mut warm = backend.enter(claim("warm", Duration::from_secs(20)));
    assert!(matches!(warm.turn().await, Ok(Turn::Held(_))), "now there is a lease");
    slow.set(Direction::ToServer, Rule::Hold);
    let mut place = backend.enter(claim("job", Duration::from_secs(20)));
    assert!(place.turn().await.is_err(), "the request is stuck");
    place.leave().await.unwrap();
    let before = slow.counters().to_client;
    slow.set(Direction::ToServer, Rule::Pass);
    // The server has answered what was stuck, so it has done it, or not.
    slow.wait_for(|it| before < it.to_client).await.unwrap();
    assert_eq!(Inspect::show(&backend, &Key::new("job").unwrap()).await.unwrap(), None);
}

#[tokio::test]
async fn a_blocked_application_keeps_its_lock() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let here = locker(&Etcd::connect(&url(&server)).await.unwrap(), TTL);
    let guard = here.lock("job").await.unwrap();
    // The only thread of this runtime.
    std::thread::sleep(TTL * 2);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_outlives_the_runtime_that_took_it() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let here = locker(&Etcd::connect(&url(&server)).await.unwrap(), TTL);
    let taken = here.clone();
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Taken on a connection that dies with its runtime.
        runtime.block_on(async { taken.lock("job").await.unwrap() })
    });
    let guard = tokio::task::spawn_blocking(|| elsewhere.join().unwrap()).await.unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
    let blocking =
        tokio::task::spawn_blocking(move || here.lock("job").blocking().unwrap().release_blocking());
    blocking.await.unwrap().unwrap();
}
