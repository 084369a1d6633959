//! A primary that sentinels watch over: the switch is followed, by those who hold and those who wait.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim, claim_of, held, until_held, waits, within};
use lockkeeper_core::Clock;
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisSentinel};

async fn deployment() -> (RedisSentinel, String) {
    let servers = servers::Redis::sentinel().await.unwrap();
    let hosts: Vec<_> = servers.sentinels().iter().map(|it| it.address()).collect();
    let url = format!("redis+sentinel://{}/{}", hosts.join(","), servers.name());
    (servers, url)
}

/// Until every replica has what the primary has: what was not copied is lost in a failover, by design.
async fn copied(servers: &RedisSentinel) {
    let primary = servers.primary().await.unwrap();
    let mut client = primary.client().await.unwrap();
    client.command(&["SET", "marker", "1"]).await.unwrap();
    let copies = client.command(&["WAIT", "2", "10000"]).await.unwrap();
    assert_eq!(copies.int(), Some(2));
}

#[tokio::test]
async fn a_lock_outlives_the_death_of_the_primary_and_its_line_moves_on() {
    let (servers, url) = deployment().await;
    let redis = Redis::connect(&url).await.unwrap();
    let long = Duration::from_secs(30);
    let (mut one, mut two) = (redis.enter(claim_of("k", long, 1, 1)), redis.enter(claim_of("k", long, 1, 1)));
    let first = held(&mut one).await;
    waits(&mut two).await;
    copied(&servers).await;
    let old = servers.primary().await.unwrap();
    old.kill().unwrap();
    servers.wait_failover(old).await.unwrap();
    let renewed = within("renewing at the new primary", async {
        loop {
            match one.renew().await {
                Ok(renewal) => return renewal,
                Err(fault) => assert!(fault.is_transient(), "{fault}"),
            }
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(matches!(renewed, Renewal::Held { wanted: true, .. }), "{renewed:?}");
    within("being called when the connection broke", two.changed()).await;
    let _ = two.turn().await;
    one.leave().await.unwrap();
    let second = until_held(&mut two).await;
    assert!(first.counter < second.counter);
    two.leave().await.unwrap();
}

#[tokio::test]
async fn a_switch_by_command_is_followed_and_the_demoted_server_not_believed() {
    let (servers, url) = deployment().await;
    let redis = Redis::connect(&url).await.unwrap();
    let mut one = redis.enter(claim_of("k", Duration::from_secs(60), 1, 1));
    let first = held(&mut one).await;
    copied(&servers).await;
    let old = servers.primary().await.unwrap();
    servers.sentinels()[0].command(&["SENTINEL", "FAILOVER", servers.name()]).await.unwrap();
    let new = servers.wait_failover(old).await.unwrap();
    assert_ne!(new.port(), old.port());
    // Until then the old primary may still be believed, as it believes in itself.
    within("hearing of the switch", one.changed()).await;
    let mut two = redis.enter(claim_of("other", Duration::from_secs(60), 1, 1));
    until_held(&mut two).await;
    let keys = new.command(&["KEYS", "lk:{*"]).await.unwrap();
    assert_eq!(keys.items().len(), 2, "the second lock was taken at the new primary");
    one.leave().await.unwrap();
    let mut three = redis.enter(claim("k"));
    assert!(first.counter < until_held(&mut three).await.counter);
}

#[tokio::test]
async fn a_grant_that_too_few_replicas_confirm_is_no_grant() {
    let (servers, url) = deployment().await;
    let strict = Redis::connect(&format!("{url}?replicas=2&replicas_timeout=300ms")).await.unwrap();
    let majority = Redis::connect(&format!("{url}?replicas=majority&replicas_timeout=300ms")).await.unwrap();
    for redis in [&strict, &majority] {
        let mut place = redis.enter(claim("k"));
        held(&mut place).await;
        place.leave().await.unwrap();
    }
    let primary = servers.primary().await.unwrap();
    let replica = servers.nodes().iter().find(|it| it.port() != primary.port()).unwrap();
    replica.pause().unwrap();
    let mut place = strict.enter(claim("k"));
    let fault = place.turn().await.unwrap_err();
    assert!(fault.is_transient() && fault.message.contains("1 of 2"), "{fault}");
    let mut place = majority.enter(claim("k"));
    until_held(&mut place).await;
    replica.resume().unwrap();
}

#[tokio::test]
async fn the_restart_guard_gives_nothing_after_a_switch_whichever_connection_noticed_it_first() {
    let (servers, url) = deployment().await;
    let guard = Duration::from_secs(3);
    let redis = Redis::connect(&format!("{url}?restart_guard=3s")).await.unwrap();
    let mut one = redis.enter(claim_of("k", Duration::from_secs(60), 1, 1));
    until_held(&mut one).await;
    assert!(matches!(one.renew().await.unwrap(), Renewal::Held { .. }));
    copied(&servers).await;
    let old = servers.primary().await.unwrap();
    old.kill().unwrap();
    servers.wait_failover(old).await.unwrap();
    // The connection for renewals finds the new primary before the one for commands does.
    let renewal = within("renewing at the new primary", async {
        loop {
            if let Ok(renewal) = one.renew().await {
                return renewal;
            }
        }
    });
    assert!(matches!(renewal.await, Renewal::Held { .. }), "what was copied is still held");
    let (clock, mut two) = (Clock::boot(), redis.enter(claim_of("other", Duration::from_secs(60), 1, 1)));
    let noticed = clock.now();
    until_held(&mut two).await;
    assert!(guard / 2 < clock.now() - noticed, "granted {:?} after the switch", clock.now() - noticed);
}

#[tokio::test]
async fn killed_and_stopped_replicas_cost_nothing_unless_they_must_confirm() {
    let (servers, url) = deployment().await;
    let redis = Redis::connect(&url).await.unwrap();
    let strict = Redis::connect(&format!("{url}?replicas=1&replicas_timeout=300ms")).await.unwrap();
    let primary = servers.primary().await.unwrap();
    let replicas: Vec<_> = servers.nodes().iter().filter(|it| it.port() != primary.port()).collect();
    let (mut one, mut two) = (redis.enter(claim("k")), redis.enter(claim("k")));
    held(&mut one).await;
    waits(&mut two).await;
    replicas[0].kill().unwrap();
    let mut confirmed = strict.enter(claim("confirmed"));
    held(&mut confirmed).await;
    replicas[1].pause().unwrap();
    assert!(matches!(one.renew().await.unwrap(), Renewal::Held { wanted: true, .. }));
    one.leave().await.unwrap();
    within("the message", two.changed()).await;
    held(&mut two).await;
    let fault = strict.enter(claim("unconfirmed")).turn().await.unwrap_err();
    assert!(fault.is_transient() && fault.message.contains("0 of 1"), "{fault}");
    replicas[1].resume().unwrap();
    replicas[0].start().await.unwrap();
    until_held(&mut strict.enter(claim("unconfirmed"))).await;
}

#[tokio::test]
async fn an_unknown_service_is_named_in_the_error() {
    let (servers, url) = deployment().await;
    let error = Redis::connect(&url.replace(servers.name(), "nobody")).await.unwrap_err();
    assert!(error.to_string().contains("nobody"), "{error}");
}

#[tokio::test]
async fn a_frozen_sentinel_is_not_waited_for_and_a_switch_is_heard_from_the_others() {
    let (servers, url) = deployment().await;
    for at in 0..3 {
        let frozen = &servers.sentinels()[at];
        frozen.pause().unwrap();
        let clock = Clock::boot();
        let began = clock.now();
        let redis = Redis::connect(&url).await.unwrap();
        assert!(clock.now() - began < Duration::from_secs(2), "connecting took {:?}", clock.now() - began);
        held(&mut redis.enter(claim(&format!("k-{at}")))).await;
        frozen.resume().unwrap();
    }
    // Somebody who has listened to all of them hears of it from those who still talk.
    let redis = Redis::connect(&url).await.unwrap();
    let mut one = redis.enter(claim_of("held", Duration::from_secs(60), 1, 1));
    held(&mut one).await;
    listened_to(&servers).await;
    copied(&servers).await;
    servers.sentinels()[0].pause().unwrap();
    let old = named_by(&servers, 1).await;
    servers.sentinels()[1].command(&["SENTINEL", "FAILOVER", servers.name()]).await.unwrap();
    within("hearing of the switch", one.changed()).await;
    let renewed = within("renewing at the new primary", async {
        loop {
            if let Ok(renewal) = one.renew().await {
                return renewal;
            }
        }
    });
    assert!(matches!(renewed.await, Renewal::Held { .. }));
    assert_ne!(named_by(&servers, 1).await, old);
    servers.sentinels()[0].resume().unwrap();
}

/// The port of the primary, as this sentinel believes.
async fn named_by(servers: &RedisSentinel, at: usize) -> Option<i64> {
    let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", servers.name()];
    servers.sentinels()[at].command(&ask).await.unwrap().items()[1].int()
}

/// Until every sentinel has somebody who listens for a switch.
async fn listened_to(servers: &RedisSentinel) {
    within("being listened to", async {
        for sentinel in servers.sentinels() {
            let listeners =
                async || sentinel.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.unwrap().text();
            while !listeners().await.contains(" sub=1 ") {
                Clock::boot().sleep(Duration::from_millis(10)).await;
            }
        }
    })
    .await;
}

/// Which server the sentinels name is what most of them name.
#[tokio::test]
async fn sentinels_that_disagree_are_counted_and_no_minority_is_believed() {
    let (servers, url) = deployment().await;
    let stray = servers::Redis::start(servers::RedisOptions::default()).await.unwrap();
    let astray = async |at: usize| {
        let (sentinel, port) = (&servers.sentinels()[at], stray.port().to_string());
        sentinel.command(&["SENTINEL", "REMOVE", servers.name()]).await.unwrap();
        sentinel.command(&["SENTINEL", "MONITOR", servers.name(), "127.0.0.1", &port, "2"]).await.unwrap();
    };
    astray(0).await;
    for _ in 0..5 {
        let redis = Redis::connect(&url).await.unwrap();
        let mut place = redis.enter(claim("k"));
        held(&mut place).await;
        place.leave().await.unwrap();
    }
    assert_eq!(stray.command(&["DBSIZE"]).await.unwrap().int(), Some(0), "a minority was believed");
    // One names another, one nothing at all: there is no majority for anybody.
    servers.sentinels()[1].command(&["SENTINEL", "REMOVE", servers.name()]).await.unwrap();
    let error = Redis::connect(&url).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("more than half"), "{error}");
    assert_eq!(stray.command(&["DBSIZE"]).await.unwrap().int(), Some(0));
}

/// The promoted server's clock is ahead: for it the lock has expired long ago, although every replica had confirmed it.
#[tokio::test]
async fn whoever_holds_is_renewed_as_soon_as_another_primary_is_announced() {
    let options = servers::RedisOptions::default().own_clock();
    let servers = RedisSentinel::start(options).await.unwrap();
    let hosts: Vec<_> = servers.sentinels().iter().map(|it| it.address()).collect();
    let url = format!("redis+sentinel://{}/{}?replicas=2", hosts.join(","), servers.name());
    let old = servers.primary().await.unwrap();
    let redis = Redis::connect(&url).await.unwrap();
    // Renewed only after twenty seconds, if nothing happens.
    let ttl = Duration::from_secs(60);
    let (mut lost, mut kept) =
        (redis.enter(claim_of("lost", ttl, 1, 1)), redis.enter(claim_of("kept", ttl * 60, 1, 1)));
    held(&mut lost).await;
    held(&mut kept).await;
    listened_to(&servers).await;
    for node in servers.nodes().iter().filter(|it| it.port() != old.port()) {
        node.set_clock(120_000).unwrap();
    }
    servers.sentinels()[0].command(&["SENTINEL", "FAILOVER", servers.name()]).await.unwrap();
    let new = servers.wait_failover(old).await.unwrap();
    // Nobody calls `renew`: the store does, by itself, and long before its turn.
    within("the renewal at the new primary", async {
        while new.command(&["INFO", "commandstats"]).await.unwrap().field("cmdstat_eval").is_none() {
            Clock::boot().sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(lost.renew().await.unwrap(), Renewal::Lost);
    let renewed = within("renewing at the new primary", async {
        loop {
            if let Ok(renewal) = kept.renew().await {
                return renewal;
            }
        }
    });
    assert!(matches!(renewed.await, Renewal::Held { .. }));
}
