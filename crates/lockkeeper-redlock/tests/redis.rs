//! Redlock over real, independent Redis servers: the suite, and servers that are killed, stopped, restarted.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Grant, Place, Turn};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::node::{Node, RaiseCounter};
use lockkeeper_core::{Claim, Clock, Key, Locker};
use lockkeeper_redis::Redis;
use lockkeeper_redlock::{Redlock, RedlockOptions};
use lockkeeper_servers as servers;
use lockkeeper_testkit::suite::Harness;
use tokio::sync::OnceCell;

/// Long enough for a busy machine: no test below waits for it to pass.
const TTL: Duration = Duration::from_secs(20);

struct Over(Vec<String>);

fn over(urls: &[String]) -> RedlockOptions<Redis> {
    let connect = |url: &String| Redis::lazy(lockkeeper_redis::RedisOptions::parse(url).unwrap()).unwrap();
    RedlockOptions::new(urls.iter().map(connect).collect())
}

impl Harness for Over {
    type Backend = Redlock<Redis>;

    /// The servers were started a moment ago, so with the guard nobody could vote.
    async fn connect(&self) -> Redlock<Redis> {
        let options = over(&self.0).without_restart_guard().node_timeout(Duration::from_millis(50));
        Redlock::with(options).await.expect("the servers were just started")
    }

    fn inspect<'b>(&self, backend: &'b Redlock<Redis>) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }

    /// Two rounds over a real network, on a machine that other tests keep busy.
    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }
}

async fn masters(count: usize) -> Vec<String> {
    static SERVERS: OnceCell<Vec<servers::Redis>> = OnceCell::const_new();
    let servers =
        SERVERS.get_or_init(async || servers::Redis::masters(5).await.expect("redis-server starts"));
    servers.await.iter().take(count).map(servers::Redis::url).collect()
}

lockkeeper_testkit::suite!(over_three_servers, Over(masters(3).await));
lockkeeper_testkit::suite!(over_five_servers, Over(masters(5).await));

fn claim() -> Claim {
    Claim::new(Key::new("orders/42").unwrap(), TTL).unwrap()
}

/// Wait as the keeper does, and fail instead of hanging.
async fn held(place: &mut impl Place) -> Grant {
    let (clock, mut last) = (Clock::boot(), None);
    let give_up = clock.now().after(Duration::from_secs(60));
    while clock.now() < give_up {
        let answer = place.turn().await;
        if let Ok(Turn::Held(grant)) = answer {
            return grant;
        }
        last = Some(answer);
        clock.sleep(Duration::from_millis(20)).await;
    }
    panic!("not granted within a minute: {last:?}");
}

fn url_of(servers: &[servers::Redis]) -> Vec<String> {
    servers.iter().map(servers::Redis::url).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_minority_may_be_killed_or_stopped() {
    let servers = servers::Redis::masters(3).await.unwrap();
    let options = over(&url_of(&servers)).without_restart_guard().node_timeout(Duration::from_millis(300));
    let redlock = Redlock::with(options).await.unwrap();
    let mut last = 0;
    for gone in &servers {
        for kill in [false, true] {
            if kill {
                gone.kill().unwrap();
            } else {
                gone.pause().unwrap();
            }
            let mut place = redlock.enter(claim());
            let grant = held(&mut place).await;
            assert!(last < grant.counter, "{last} before {}", grant.counter);
            last = grant.counter;
            place.renew().await.unwrap();
            place.leave().await.unwrap();
            if kill { gone.start().await.unwrap() } else { gone.resume().unwrap() }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_is_gone_is_told_and_back_again_serves() {
    let servers = servers::Redis::masters(3).await.unwrap();
    let options = over(&url_of(&servers)).without_restart_guard().node_timeout(Duration::from_millis(300));
    let locker = Locker::new(Redlock::with(options).await.unwrap());
    servers[0].kill().unwrap();
    servers[2].pause().unwrap();
    let error = locker.lock("orders/42").ttl(TTL).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains("2 of 3 nodes are needed"), "{error}");
    servers[0].start().await.unwrap();
    servers[2].resume().unwrap();
    let guard = locker.lock("orders/42").ttl(TTL).wait_at_most(Duration::from_secs(60)).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn two_addresses_of_one_server_are_found_out() {
    let servers = servers::Redis::masters(2).await.unwrap();
    let mut urls = url_of(&servers);
    urls.push(urls[0].replace("127.0.0.1", "localhost"));
    assert_ne!(urls[0], urls[2]);
    let error = Redlock::with(over(&urls)).await.unwrap_err();
    assert!(error.to_string().contains("nodes 1 and 3 are the same server"), "{error}");
}

#[tokio::test]
async fn a_replica_of_another_node_is_refused_and_has_no_vote_writable_or_not() {
    let servers = servers::Redis::masters(3).await.unwrap();
    let urls = url_of(&servers);
    let options = || over(&urls).without_restart_guard();
    let running = Redlock::with(options()).await.unwrap();
    let (follow, port) = (&servers[1], servers[0].port().to_string());
    for read_only in ["yes", "no"] {
        follow.command(&["CONFIG", "SET", "replica-read-only", read_only]).await.unwrap();
        follow.command(&["REPLICAOF", "127.0.0.1", &port]).await.unwrap();
        let error = Redlock::with(options()).await.unwrap_err();
        let told = error.to_string();
        assert!(!error.is_transient() && told.contains("node 2") && told.contains("replica of"), "{told}");
        // Whoever connected before does not count its vote either: with another node gone there is no majority.
        let clock = Clock::boot();
        let limit = clock.now().after(Duration::from_secs(30));
        loop {
            let mut place = running.enter(claim());
            let turn = place.turn().await;
            place.leave().await.unwrap();
            if servers[2].pid().is_some() {
                assert!(turn.is_ok(), "two of three are primaries of their own: {turn:?}");
                servers[2].kill().unwrap();
                // Until what was known of the second is asked for anew.
                clock.sleep(Duration::from_secs(1)).await;
                continue;
            }
            match turn {
                // A read-only one says so itself, when it is written to.
                Err(fault) if fault.message.contains("replica") => break,
                other => assert!(clock.now() < limit, "{other:?}"),
            }
        }
        servers[2].start().await.unwrap();
        follow.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
        Redlock::with(options()).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_was_restarted_empty_has_no_vote() {
    let servers = servers::Redis::masters(3).await.unwrap();
    let patient = || over(&url_of(&servers)).node_timeout(Duration::from_secs(1));
    let (open, guarded) = (patient().without_restart_guard(), patient().restart_guard(TTL));
    let holder = Redlock::with(open).await.unwrap();
    let other = Redlock::with(guarded).await.unwrap();
    let mut place = holder.enter(claim());
    held(&mut place).await;
    servers[1].restart_empty().await.unwrap();
    servers[2].restart_empty().await.unwrap();
    // All three are younger than the guard, so all are named; the two empty ones would give the lock away.
    let fault = other.enter(claim()).turn().await.unwrap_err();
    assert!(fault.message.contains("node 2: it lost its memory"), "{fault}");
    assert!(fault.message.contains("node 3: it lost its memory"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_restart_empty_one_after_the_other_are_taken_back_and_no_lock_is_lost() {
    let (servers, clock) = (servers::Redis::masters(3).await.unwrap(), Clock::boot());
    let ttl = Duration::from_secs(2);
    let options = over(&url_of(&servers)).restart_guard(ttl).node_timeout(Duration::from_millis(300));
    let locker = Locker::new(Redlock::with(options).await.unwrap());
    // Until the servers are old enough to vote there is no majority.
    let limit = clock.now().after(Duration::from_secs(60));
    let guard = loop {
        match locker.lock("orders/42").ttl(ttl).await {
            Ok(guard) => break guard,
            Err(error) => assert!(error.is_transient() && clock.now() < limit, "{error}"),
        }
        clock.sleep(Duration::from_millis(50)).await;
    };
    for server in &servers {
        server.restart_empty().await.unwrap();
        let limit = clock.now().after(Duration::from_secs(60));
        while server.command(&["KEYS", "lk:{??}:*"]).await.unwrap().items().is_empty() {
            assert!(clock.now() < limit, "it was not taken back");
            clock.sleep(Duration::from_millis(50)).await;
        }
        guard.check().unwrap();
    }
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = locker.lock("orders/42").ttl(ttl).wait_at_most(Duration::from_secs(60)).await.unwrap();
    assert!(fence < next.fence());
}

#[tokio::test]
async fn a_node_tells_who_it_is_and_how_long_it_remembers() {
    let server = servers::Redis::masters(1).await.unwrap().remove(0);
    let node = Redis::connect(&server.url()).await.unwrap();
    let before = node.standing().await.unwrap();
    assert_eq!(before.identity, node.standing().await.unwrap().identity);
    let clock = Clock::boot();
    let started = clock.now();
    server.restart_empty().await.unwrap();
    let after = loop {
        match node.standing().await {
            Ok(it) if it.identity != before.identity => break it,
            _ => clock.sleep(Duration::from_millis(20)).await,
        }
        assert!(clock.now() < started.after(Duration::from_secs(30)), "the restart is not noticed");
    };
    assert!(after.remembers.unwrap() <= clock.now() - started, "{after:?}");
}

#[tokio::test]
async fn a_raised_counter_outlives_the_lock_for_whoever_comes_next() {
    let server = servers::Redis::masters(1).await.unwrap().remove(0);
    let node = Redis::connect(&server.url()).await.unwrap();
    let stranger = Redis::connect(&server.url()).await.unwrap();
    let (mut one, mut other) = (node.enter(claim()), stranger.enter(claim()));
    assert_eq!(one.raise(7).await.unwrap(), None, "nothing is held");
    let given = held(&mut one).await.counter;
    assert_eq!(one.raise(7).await.unwrap(), Some(given));
    let ahead = given + 100_000_000;
    assert_eq!(one.raise(ahead).await.unwrap(), Some(ahead));
    assert_eq!(one.raise(given).await.unwrap(), Some(ahead));
    assert_eq!(held(&mut one).await.counter, ahead);
    assert_eq!(other.raise(ahead).await.unwrap(), None, "another holds");
    one.leave().await.unwrap();
    let given = held(&mut other).await.counter;
    assert_eq!(given, ahead + 1);
    assert_eq!(other.raise(given).await.unwrap(), Some(given));
    assert_eq!(other.raise(ahead).await.unwrap(), Some(given));
    other.leave().await.unwrap();
    assert_eq!(one.raise(ahead).await.unwrap(), None, "it has left");
}
