//! Faults on real servers: what is cut, delayed, stopped, killed, forgotten, and changed behind our back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use common::{claim, claim_of, held, until_held, waits, within};
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::{Clock, Error};
use lockkeeper_redis::Redis;
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::{self as servers, RedisOptions, RedisSentinel};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

const LONG: Duration = Duration::from_secs(60);

async fn server() -> servers::Redis {
    servers::Redis::start(RedisOptions::default()).await.unwrap()
}

async fn behind_proxy() -> (servers::Redis, Proxy, Redis) {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let redis = Redis::connect(&format!("redis://{}?timeout=300ms", proxy.address())).await.unwrap();
    // The scripts are known to the server from here on.
    let mut warm_up = redis.enter(claim("warm-up"));
    held(&mut warm_up).await;
    assert!(matches!(warm_up.renew().await.unwrap(), Renewal::Held { .. }));
    warm_up.leave().await.unwrap();
    (server, proxy, redis)
}

#[tokio::test]
async fn a_grant_whose_answer_is_lost_is_found_again_under_the_same_counter() {
    let (server, proxy, redis) = behind_proxy().await;
    let mut place = redis.enter(claim_of("k", LONG, 1, 1));
    proxy.lose_reply(b"EVALSHA");
    let grant = until_held(&mut place).await;
    assert_eq!(proxy.counters().cut, 1);
    let again = held(&mut place).await;
    assert_eq!(grant.counter, again.counter);
    let calls = server.command(&["INFO", "commandstats"]).await.unwrap();
    let sets = calls.field("cmdstat_set").unwrap();
    assert!(!sets.starts_with("calls=1,"), "the lost call had been served: {sets}");
    place.leave().await.unwrap();
}

#[tokio::test]
async fn requests_that_are_cut_off_are_repeated_without_harm() {
    let (_server, proxy, redis) = behind_proxy().await;
    for verb in 0..3 {
        let (mut one, mut two) =
            (redis.enter(claim_of("k", LONG, 1, 1)), redis.enter(claim_of("k", LONG, 1, 1)));
        if verb == 0 {
            proxy.lose_request(b"EVALSHA");
        }
        until_held(&mut one).await;
        waits(&mut two).await;
        if verb == 1 {
            proxy.lose_reply(b"EVALSHA");
        }
        assert!(matches!(one.renew().await.unwrap(), Renewal::Held { wanted: true, .. }));
        if verb == 2 {
            proxy.lose_reply(b"EVALSHA");
        }
        one.leave().await.unwrap();
        until_held(&mut two).await;
        two.leave().await.unwrap();
    }
    assert_eq!(proxy.counters().cut, 3);
}

#[tokio::test]
async fn an_answer_delayed_past_the_time_out_is_an_unknown_outcome_and_no_refusal() {
    let (_server, proxy, redis) = behind_proxy().await;
    let mut place = redis.enter(claim_of("k", LONG, 1, 1));
    proxy.set(Direction::ToClient, Rule::Hold);
    let fault = place.turn().await.unwrap_err();
    assert!(fault.is_transient(), "{fault}");
    proxy.set(Direction::ToClient, Rule::Pass);
    let grant = until_held(&mut place).await;
    let mut other = redis.enter(claim("k"));
    waits(&mut other).await;
    assert_eq!(grant.counter, held(&mut place).await.counter);
    place.leave().await.unwrap();
    until_held(&mut other).await;
}

#[tokio::test]
async fn an_unknown_take_that_was_given_up_does_not_come_back_to_life() {
    let (server, proxy, redis) = behind_proxy().await;
    let mut place = redis.enter(claim_of("k", LONG, 1, 1));
    proxy.set(Direction::ToClient, Rule::Hold);
    place.turn().await.unwrap_err();
    proxy.set(Direction::ToClient, Rule::Pass);
    within("leaving", async {
        while place.leave().await.is_err() {
            Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let direct = Redis::connect(&server.url()).await.unwrap();
    held(&mut direct.enter(claim("k"))).await;
}

#[tokio::test]
async fn a_lost_message_costs_time_but_no_waiter_hangs() {
    let (server, proxy, redis) = behind_proxy().await;
    let direct = Redis::connect(&server.url()).await.unwrap();
    let mut one = direct.enter(claim_of("k", LONG, 1, 1));
    let mut two = redis.enter(claim_of("k", Duration::from_secs(3), 1, 1));
    held(&mut one).await;
    waits(&mut two).await;
    proxy.set(Direction::ToClient, Rule::Drop);
    one.leave().await.unwrap();
    let message_lost = async {
        while proxy.counters().dropped == 0 {
            Clock::boot().sleep(Duration::from_millis(5)).await;
        }
    };
    within("the message to be lost", message_lost).await;
    proxy.set(Direction::ToClient, Rule::Pass);
    // The appointment stands: nobody else gets in between.
    let mut third = direct.enter(common::impatient("k"));
    waits(&mut third).await;
    until_held(&mut two).await;
}

#[tokio::test]
async fn a_stopped_server_is_waited_for_and_what_it_still_did_is_found() {
    let server = server().await;
    let redis = Redis::connect(&format!("{}?timeout=200ms", server.url())).await.unwrap();
    let mut place = redis.enter(claim_of("k", LONG, 1, 1));
    held(&mut redis.enter(claim("warm-up"))).await;
    server.pause().unwrap();
    for _ in 0..2 {
        let fault = place.turn().await.unwrap_err();
        assert!(fault.is_transient(), "{fault}");
    }
    server.resume().unwrap();
    let grant = until_held(&mut place).await;
    assert_eq!(held(&mut place).await.counter, grant.counter);
}

#[tokio::test]
async fn a_server_killed_and_restarted_without_memory_has_lost_the_lock_and_says_so() {
    let server = server().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let (mut one, mut two) = (redis.enter(claim_of("k", LONG, 1, 1)), redis.enter(claim_of("k", LONG, 1, 1)));
    let first = held(&mut one).await;
    waits(&mut two).await;
    server.kill().unwrap();
    assert!(one.renew().await.unwrap_err().is_transient());
    server.start().await.unwrap();
    let renewal = within("an answer", async {
        loop {
            if let Ok(renewal) = one.renew().await {
                return renewal;
            }
        }
    });
    assert_eq!(renewal.await, Renewal::Lost);
    // Waiters were called when the connection broke, and the fence still grows.
    within("the call", two.changed()).await;
    assert!(first.counter < until_held(&mut two).await.counter);
}

#[tokio::test]
async fn an_append_only_file_keeps_the_lock_over_a_kill() {
    let server = servers::Redis::start(RedisOptions::default().append_only()).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let mut one = redis.enter(claim_of("k", LONG, 1, 1));
    let first = held(&mut one).await;
    server.kill().unwrap();
    server.start().await.unwrap();
    assert_eq!(until_held(&mut one).await.counter, first.counter);
    waits(&mut redis.enter(common::impatient("k"))).await;
}

#[tokio::test]
async fn the_restart_guard_gives_no_grants_from_a_young_memory() {
    let server = server().await;
    let url = format!("{}?restart_guard=3s", server.url());
    let redis = Redis::connect(&url).await.unwrap();
    let clock = Clock::boot();
    let started = clock.now();
    let mut one = redis.enter(claim_of("k", Duration::from_secs(2), 1, 1));
    waits(&mut one).await;
    until_held(&mut one).await;
    assert!(Duration::from_millis(1500) < clock.now() - started);
    server.kill().unwrap();
    server.start().await.unwrap();
    let restarted = clock.now();
    let mut two = redis.enter(claim_of("k", Duration::from_secs(2), 1, 1));
    until_held(&mut two).await;
    assert!(Duration::from_millis(1900) < clock.now() - restarted);
}

#[tokio::test]
async fn flushall_is_noticed_by_the_holder_and_serves_those_who_wait() {
    let server = server().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let (mut one, mut two) =
        (redis.enter(claim_of("k", LONG, 1, 1)), redis.enter(claim_of("k", Duration::from_secs(1), 1, 1)));
    let first = held(&mut one).await;
    waits(&mut two).await;
    server.command(&["FLUSHALL"]).await.unwrap();
    assert_eq!(one.renew().await.unwrap(), Renewal::Lost);
    assert!(first.counter < until_held(&mut two).await.counter);
    one.leave().await.unwrap();
    assert!(matches!(two.renew().await.unwrap(), Renewal::Held { .. }));
}

#[tokio::test]
async fn an_evicted_lock_is_reported_lost() {
    let options = RedisOptions::default().set("maxmemory-policy", "allkeys-random");
    let server = servers::Redis::start(options).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let mut one = redis.enter(claim_of("k", LONG, 1, 1));
    held(&mut one).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]).await.unwrap();
    let renewal = within("the eviction to be noticed", async {
        loop {
            // Writing is what evicts; it is refused when nothing is left to evict.
            let _ = server.command(&["SET", "other", "x"]).await;
            match one.renew().await {
                Ok(Renewal::Held { .. }) => {}
                other => return other,
            }
        }
    })
    .await;
    if let Ok(renewal) = renewal {
        assert_eq!(renewal, Renewal::Lost);
    }
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    assert_eq!(one.renew().await.unwrap(), Renewal::Lost);
}

#[tokio::test]
async fn a_server_that_forgets_the_scripts_is_told_them_again() {
    let server = server().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    for _ in 0..2 {
        let mut place = redis.enter(claim("k"));
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        held(&mut place).await;
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        assert!(matches!(place.renew().await.unwrap(), Renewal::Held { .. }));
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        place.leave().await.unwrap();
    }
}

#[tokio::test]
async fn a_changed_password_is_a_permanent_fault_that_does_not_show_it() {
    let server = servers::Redis::start(RedisOptions::default().password("old-secret")).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let mut place = redis.enter(claim_of("k", LONG, 1, 1));
    held(&mut place).await;
    let mut control = server.client().await.unwrap();
    control.command(&["CONFIG", "SET", "requirepass", "new-secret"]).await.unwrap();
    control.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await.unwrap();
    control.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    let fault = within("the fault", async {
        loop {
            match place.turn().await {
                Err(fault) if !fault.is_transient() => return fault,
                _ => Clock::boot().sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    let shown = format!("{fault} {fault:?} {redis:?}");
    assert!(fault.message.contains("password") && !shown.contains("old-secret"), "{shown}");
    control.command(&["CONFIG", "SET", "requirepass", "old-secret"]).await.unwrap();
    until_held(&mut place).await;
    let error = Redis::connect(&format!("redis://:wrong-secret@{}", server.address())).await;
    let error = error.unwrap_err();
    assert!(matches!(&error, Error::Unavailable { transient: false, .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("wrong-secret"));
}

#[tokio::test]
async fn a_stopped_primary_is_replaced_and_not_waited_for() {
    let servers: RedisSentinel = servers::Redis::sentinel().await.unwrap();
    let hosts: Vec<_> = servers.sentinels().iter().map(|it| it.address()).collect();
    let url = format!("redis+sentinel://{}/{}?timeout=500ms", hosts.join(","), servers.name());
    let redis = Redis::connect(&url).await.unwrap();
    let mut one = redis.enter(claim_of("k", LONG, 1, 1));
    held(&mut one).await;
    let old = servers.primary().await.unwrap();
    old.pause().unwrap();
    servers.wait_failover(old).await.unwrap();
    let mut two = redis.enter(claim_of("other", LONG, 1, 1));
    until_held(&mut two).await;
    old.resume().unwrap();
}

/// A holder in a process of its own.
struct Holder {
    child: Child,
    says: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Holder {
    async fn start(url: &str, name: &str, ttl: Duration) -> Holder {
        let mut child = Command::new(example("hold"))
            .args([url, name, &ttl.as_millis().to_string()])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut holder = Holder { child, says };
        assert!(holder.line().await.starts_with("held "));
        holder
    }

    async fn line(&mut self) -> String {
        within("a word from the holder", self.says.next_line()).await.unwrap().unwrap_or_default()
    }

    async fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().await.unwrap();
        assert!(status.success());
    }
}

/// The example of this name. With the features of the whole workspace: what it is made of was built with them already.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap();
    let path = folder.join("examples").join(name);
    if !path.exists() {
        let built = std::process::Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--workspace", "--all-features", "--example", name])
            .arg("--target-dir")
            .arg(folder.parent().unwrap())
            .status();
        assert!(built.unwrap().success(), "the example {name} cannot be built");
    }
    path
}

#[tokio::test]
async fn a_killed_holder_is_replaced_after_its_ttl() {
    let server = server().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let mut holder = Holder::start(&server.url(), "k", Duration::from_secs(1)).await;
    let mut next = redis.enter(claim_of("k", LONG, 1, 1));
    waits(&mut next).await;
    holder.child.kill().await.unwrap();
    until_held(&mut next).await;
}

#[tokio::test]
async fn a_holder_stopped_for_longer_than_its_ttl_loses_the_lock_and_knows_it_on_waking() {
    let server = server().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let mut holder = Holder::start(&server.url(), "k", Duration::from_secs(1)).await;
    let mut next = redis.enter(claim_of("k", LONG, 1, 1));
    holder.signal("-STOP").await;
    until_held(&mut next).await;
    holder.signal("-CONT").await;
    assert_eq!(holder.line().await, "lost");
    assert!(matches!(next.turn().await.unwrap(), Turn::Held(_)));
}
