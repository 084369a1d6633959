//! Faults on one server: dead and frozen holders, restarts, lost answers, and administrators.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Key, LostReason};
use lockkeeper_testkit::process::{KitError, eventually};
use lockkeeper_testkit::servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;

use crate::child::{Other, is_other_process};
use crate::common::{Behind, PATIENCE, Servers, claim, locker, soon};

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(20);

fn url(server: &Server, session: Duration) -> String {
    format!("{}?session={}ms&tick=100ms", server.url(), session.as_millis())
}

#[tokio::test]
async fn a_killed_holder_is_replaced() {
    if is_other_process("job", TTL).await {
        return;
    }
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let mut other = Other::start("faults::a_killed_holder_is_replaced", &url(&server, TTL));
    let before: u64 = other.says("holds with fence").await.parse().unwrap();
    let locker = locker(&ZooKeeper::connect(&url(&server, TTL)).await.unwrap(), TTL);
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
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let test = "faults::a_frozen_holder_is_replaced_and_learns_of_it_when_it_wakes";
    let mut other = Other::start(test, &url(&server, TTL));
    let before: u64 = other.says("holds with fence").await.parse().unwrap();
    let locker = locker(&ZooKeeper::connect(&url(&server, TTL)).await.unwrap(), TTL);
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
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let backend = ZooKeeper::connect(&url(&server, LONG)).await.unwrap();
    let (here, there) = (locker(&backend, LONG), ZooKeeper::connect(&url(&server, LONG)).await.unwrap());
    let there = locker(&there, LONG);
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
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let here = locker(&ZooKeeper::connect(&url(&server, LONG)).await.unwrap(), LONG);
    let there = locker(&ZooKeeper::connect(&url(&server, LONG)).await.unwrap(), LONG);
    let guard = here.lock("job").await.unwrap();
    let fence = guard.fence();
    let waiter = tokio::spawn(async move { there.lock("job").await });
    waits(&ZooKeeper::connect(&url(&server, LONG)).await.unwrap(), "job", 1).await;
    server.restart().await.unwrap();
    // The answer may be lost with the old connection; then the release is repeated in the background.
    let _ = guard.release().await;
    assert!(fence < soon("the wake-up", waiter).await.unwrap().unwrap().fence());
}

/// Wait until so many wait for a lock.
async fn waits(backend: &ZooKeeper, name: &str, waiters: usize) {
    let key = Key::new(name).unwrap();
    let there = eventually(PATIENCE, async || {
        let seen = Inspect::show(backend, &key).await.ok().flatten().map_or(0, |it| it.waiters.len());
        if seen == waiters { Ok(()) } else { Err(KitError::new(format!("{seen} wait"))) }
    });
    there.await.unwrap();
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
    assert!(place.turn().await.is_err(), "the answer was lost");
    assert!(matches!(place.turn().await, Ok(Turn::Held(_))));
    place.leave().await.unwrap();
    assert_eq!(Inspect::show(&backend, &Key::new("job").unwrap()).await.unwrap(), None);
}

#[tokio::test]
async fn a_blocked_application_keeps_its_lock() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let here = locker(&ZooKeeper::connect(&url(&server, TTL)).await.unwrap(), TTL);
    let guard = here.lock("job").await.unwrap();
    // The only thread of this runtime.
    std::thread::sleep(TTL * 2);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_session_that_the_ensemble_ended_is_told_and_replaced() {
    let behind = Behind::new(Servers::one().await, TTL);
    let (backend, proxies) = behind.join().await;
    let (other, _proxies) = behind.join().await;
    let (here, there) = (locker(&backend, TTL), locker(&other, TTL));
    let guard = here.lock("job").await.unwrap();
    // Cut off until somebody else has it, and for as long as it takes until we are told.
    proxies[0].refuse().await.unwrap();
    proxies[0].cut();
    let told = async { (guard.lost().await, lockkeeper_core::Clock::boot().now()) };
    let taken = async { (there.lock("job").await.unwrap(), lockkeeper_core::Clock::boot().now()) };
    let ((reason, told_at), (next, taken_at)) =
        soon("loss and grant", async { tokio::join!(told, taken) }).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(told_at < taken_at, "the loss is told before the ensemble gives it away");
    assert!(guard.fence() < next.fence());
    proxies[0].accept().await.unwrap();
    next.release().await.unwrap();
    let again = soon("a new session", here.lock("job")).await.unwrap();
    assert!(guard.check().is_err(), "a new session revives no old guard");
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_node_deleted_by_hand_is_told() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let here = locker(&ZooKeeper::connect(&url(&server, TTL)).await.unwrap(), TTL);
    let guard = here.lock("job").await.unwrap();
    let operator = zookeeper_client::Client::connect(&server.address()).await.unwrap();
    for name in operator.list_children("/lockkeeper/job").await.unwrap() {
        operator.delete(&format!("/lockkeeper/job/{name}"), None).await.unwrap();
    }
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Taken);
    assert!(guard.fence() < here.lock("job").await.unwrap().fence());
}

#[tokio::test]
async fn an_empty_line_is_removed_by_the_store_and_counters_go_on() {
    let options = ZooKeeperOptions::default().java_flag("-Dznode.container.checkIntervalMs=300");
    let server = Server::start(options).await.unwrap();
    let here = locker(&ZooKeeper::connect(&url(&server, TTL)).await.unwrap(), TTL);
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

#[tokio::test]
async fn a_lock_outlives_the_runtime_that_took_it() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let here = locker(&ZooKeeper::connect(&url(&server, TTL)).await.unwrap(), TTL);
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
