//! Sessions: one for each ttl, within what the servers give, kept through silent servers and forgetful networks.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::{Clock, Error, Locker};
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::quorum::{PATIENCE, Quorum, claim, locker, soon};
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;

use crate::common::Servers;

const TTL: Duration = Duration::from_secs(4);

/// The timeouts of all sessions, by the server's own list, smallest first.
async fn time_outs(server: &Server) -> Vec<u64> {
    let list = server.word("cons").await.unwrap();
    let mut found: Vec<u64> =
        list.split(',').filter_map(|it| it.strip_prefix("to=")?.parse().ok()).filter(|it| *it != 0).collect();
    found.sort_unstable();
    found
}

#[tokio::test]
async fn a_short_ttl_has_a_short_session_and_a_dead_holder_is_replaced_by_it() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let proxy = Proxy::start(server.port()).await.unwrap();
    // The URL says nothing of sessions.
    let backend = ZooKeeper::connect(&format!("zookeeper://{}?tick=100ms", proxy.address())).await.unwrap();
    let (mut short, mut long) =
        (backend.enter(claim("short", TTL)), backend.enter(claim("long", Duration::from_secs(30))));
    for (place, ttl) in [(&mut short, TTL), (&mut long, Duration::from_secs(30))] {
        let Turn::Held(grant) = place.turn().await.unwrap() else { panic!("it is free") };
        // Its session was made after the lock was asked for.
        assert!(ttl / 2 < grant.valid_for && grant.valid_for < ttl * 2, "{ttl:?}: {grant:?}");
    }
    assert_eq!(time_outs(&server).await, [4000, 10_000, 30_000], "one for each ttl, and the first");
    let other = locker(&ZooKeeper::connect(&server.url()).await.unwrap(), TTL);
    // Dead, as the server sees it.
    proxy.set_both(Rule::Drop);
    let next = soon("the grant of the next", other.lock("short")).await.unwrap();
    assert!(other.try_lock("long").await.unwrap().is_none(), "its own ttl is not over");
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_session_in_the_url_serves_every_ttl() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let backend = ZooKeeper::connect(&format!("{}?session=4s", server.url())).await.unwrap();
    let here = Locker::builder(backend.clone()).ttl(TTL).build();
    here.lock("job").await.unwrap().release().await.unwrap();
    assert_eq!(time_outs(&server).await, [4000]);
    // The usual ttl is 10 s.
    let guard = Locker::new(backend).lock("job").await.unwrap();
    assert!(TTL < guard.remaining());
    assert_eq!(time_outs(&server).await, [4000, 10_000]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_ttl_that_the_servers_do_not_give_is_refused_in_words() {
    let options =
        ZooKeeperOptions::default().set("minSessionTimeout", "3000").set("maxSessionTimeout", "8000");
    let server = Server::start(options).await.unwrap();
    let backend = ZooKeeper::connect(&server.url()).await.unwrap();
    let refusal = async |ttl: u64| {
        let error = locker(&backend, Duration::from_secs(ttl)).lock("job").await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { transient: false, .. }), "{error:?}");
        error.to_string()
    };
    let short = refusal(2).await;
    assert!(short.contains("shorter than 3s") && short.contains("minSessionTimeout"), "{short}");
    let long = refusal(20).await;
    assert!(long.contains("longer than 8s") && long.contains("maxSessionTimeout"), "{long}");
    let within = locker(&backend, Duration::from_secs(5)).lock("job").await.unwrap();
    within.release().await.unwrap();
    let ticking = ZooKeeper::connect(&format!("{}?tick=4s", server.url())).await.unwrap();
    let error = locker(&ticking, Duration::from_secs(5)).lock("job").await.unwrap_err().to_string();
    assert!(error.contains("tick of 4s"), "{error}");
}

#[tokio::test]
async fn a_session_that_nobody_uses_is_closed() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let url = format!("{}?session=5s&idle_timeout=500ms", server.url());
    let backend = ZooKeeper::connect(&url).await.unwrap();
    let mut held = Vec::new();
    for ttl in [2, 3, 4, 5, 30] {
        let locker = locker(&backend, Duration::from_secs(ttl));
        held.push(locker.lock(format!("job/{ttl}").as_str()).await.unwrap());
    }
    assert_eq!(time_outs(&server).await, [2000, 3000, 4000, 5000, 30_000], "those in use are kept");
    let kept = held.pop().unwrap();
    for guard in held {
        guard.release().await.unwrap();
    }
    let closed = eventually(PATIENCE, async || match time_outs(&server).await.as_slice() {
        [30_000] => Ok(()),
        it => Err(KitError::new(format!("{it:?}"))),
    });
    closed.await.unwrap();
    kept.check().unwrap();
    kept.release().await.unwrap();
    // And a new one is opened for the next.
    locker(&backend, Duration::from_secs(2)).lock("job").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_session_is_waited_for_no_longer_than_was_asked_for() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let url = format!("zookeeper://{}?session=30s", proxy.address());
    // Slow, but within what a server may take that is not left for another.
    proxy.set(Direction::ToClient, Rule::Delay(Duration::from_millis(500)));
    let patient = eventually(PATIENCE, async || {
        ZooKeeper::connect(&url).await.map_err(|it| KitError::new(it.to_string()))
    });
    drop(patient.await.unwrap());
    let error = ZooKeeper::connect(&format!("{url}&connect_timeout=50ms")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { transient: true, .. }), "{error:?}");
}

/// Connect through proxies of which one answers nothing, take a lock, and give it back.
async fn works_without(silent: usize, fault: impl AsyncFn(&Servers, &[Proxy], usize)) {
    let servers = Servers::start(3).await;
    let mut proxies = Vec::new();
    for node in servers.nodes() {
        proxies.push(Proxy::start(node.port()).await.unwrap());
    }
    let hosts: Vec<String> = proxies.iter().map(Proxy::address).collect();
    let url = format!("zookeeper://{}?tick=100ms", hosts.join(","));
    let running = locker(&ZooKeeper::connect(&url).await.unwrap(), Duration::from_secs(20));
    let guard = running.lock("held").await.unwrap();
    fault(&servers, &proxies, silent).await;
    // The order of servers is random: some of these begin with the silent one.
    for _ in 0..4 {
        let newcomer = soon("a connection", ZooKeeper::connect(&url)).await.unwrap();
        // With the patience that everybody has.
        Locker::new(newcomer).lock("job").await.unwrap().release().await.unwrap();
    }
    let other = running.lock("other").await.unwrap();
    other.release().await.unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_frozen_server_costs_neither_newcomers_nor_holders_anything() {
    for silent in 0..3 {
        works_without(silent, async |servers, _, at| servers.nodes()[at].pause().unwrap()).await;
    }
}

#[tokio::test]
async fn a_dead_server_costs_neither_newcomers_nor_holders_anything() {
    works_without(0, async |servers, _, at| servers.nodes()[at].kill().unwrap()).await;
}

#[tokio::test]
async fn a_server_that_is_a_black_hole_costs_neither_newcomers_nor_holders_anything() {
    works_without(2, async |_, proxies, at| proxies[at].vanish().await.unwrap()).await;
}

#[tokio::test]
async fn no_connection_is_idle_for_so_long_that_a_firewall_forgets_it() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let backend = ZooKeeper::connect(&format!("zookeeper://{}?tick=100ms", proxy.address())).await.unwrap();
    let mut held = Vec::new();
    for ttl in [5, 10, 40] {
        let locker = Locker::builder(backend.clone()).ttl(Duration::from_secs(ttl)).build();
        held.push(locker.lock(format!("held/{ttl}").as_str()).await.unwrap());
    }
    proxy.forget_idle(Some(Duration::from_secs(2)));
    // Longer than the shortest ttl, and several times as long as a connection may be idle.
    Clock::boot().sleep(Duration::from_secs(8)).await;
    assert_eq!(proxy.counters().forgotten, 0, "every connection said something in time");
    for guard in held {
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_connection_that_was_forgotten_costs_no_lock_and_no_call() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let url = format!("zookeeper://{}?session=40s&tick=100ms", proxy.address());
    // With the patience that everybody has: 5 s.
    let locker =
        Locker::builder(ZooKeeper::connect(&url).await.unwrap()).ttl(Duration::from_secs(40)).build();
    let guard = locker.lock("held").await.unwrap();
    proxy.forget_idle(Some(Duration::from_millis(100)));
    soon("the end of the flow", proxy.wait_for(|it| it.forgotten != 0)).await.unwrap();
    proxy.forget_idle(None);
    locker.lock("other").await.unwrap().release().await.unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_swallows_everything_costs_neither_newcomers_nor_holders_anything() {
    works_without(1, async |_, proxies, at| proxies[at].set_both(Rule::Drop)).await;
}
