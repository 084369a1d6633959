//! A primary that sentinels watch over: the switch is followed, by those who hold and those who wait.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim, claim_of, held, until_held, waits, within};
use lockkeeper_core::Clock;
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_redis::Redis;
use lockkeeper_testkit::servers::{self, RedisSentinel};

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
    let mut one = redis.enter(claim_of("k", Duration::from_mins(1), 1, 1));
    let first = held(&mut one).await;
    copied(&servers).await;
    let old = servers.primary().await.unwrap();
    servers.sentinels()[0].command(&["SENTINEL", "FAILOVER", servers.name()]).await.unwrap();
    let new = servers.wait_failover(old).await.unwrap();
    assert_ne!(new.port(), old.port());
    // Until then the old primary may still be believed, as it believes in itself.
    within("hearing of the switch", one.changed()).await;
    let mut two = redis.enter(claim_of("other", Duration::from_mins(1), 1, 1));
    until_held(&mut two).await;
    let keys = new.command(&["KEYS", "lk:*"]).await.unwrap();
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
    let mut one = redis.enter(claim_of("k", Duration::from_mins(1), 1, 1));
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
    let (clock, mut two) = (Clock::boot(), redis.enter(claim_of("other", Duration::from_mins(1), 1, 1)));
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
