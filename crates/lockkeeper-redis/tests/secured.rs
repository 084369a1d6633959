//! TLS and users with the least rights on every deployment: single, Sentinel, Cluster.

#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim, claim_of, held, until_held, waits, within};
use lockkeeper_core::Clock;
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisCluster, RedisOptions, RedisSentinel};

/// A block of the docs, by the words before it.
fn documented(words: &str) -> String {
    let docs = include_str!("../../../docs/backends/redis.md");
    let after = docs.split(words).nth(1).unwrap_or_else(|| panic!("the docs do not say {words:?}"));
    let block = after.split("```").nth(1).unwrap();
    block.lines().skip(1).collect::<Vec<_>>().join("\n")
}

/// Everything that the scripts can do.
async fn use_locks(redis: &Redis) {
    // Longer than a busy machine can take for all of this.
    let long = Duration::from_secs(60);
    let (mut one, mut two) = (redis.enter(claim_of("k", long, 1, 1)), redis.enter(claim_of("k", long, 1, 1)));
    held(&mut one).await;
    waits(&mut two).await;
    assert!(matches!(one.renew().await.unwrap(), Renewal::Held { wanted: true, .. }));
    one.leave().await.unwrap();
    within("the message", two.changed()).await;
    held(&mut two).await;
    // Who lost it is not looked at: a cluster's client may repeat the call, which then finds nobody.
    redis.break_lock(&claim("k").key).await.unwrap();
    assert_eq!(two.renew().await.unwrap(), Renewal::Lost);
    let room = || redis.enter(claim_of("room", long, 1, 2));
    let mut readers = [room(), room()];
    for reader in &mut readers {
        held(reader).await;
        assert!(matches!(reader.renew().await.unwrap(), Renewal::Held { .. }));
    }
    let mut late = room();
    waits(&mut late).await;
    assert_eq!(redis.list("room").await.unwrap().len(), 1);
    for reader in &mut readers {
        reader.leave().await.unwrap();
    }
    until_held(&mut late).await;
    late.leave().await.unwrap();
}

async fn nothing_was_refused(nodes: &[servers::Redis]) {
    for node in nodes {
        let log = node.command(&["ACL", "LOG"]).await.unwrap();
        assert!(log.items().is_empty(), "something was refused on the way: {log:?}");
    }
}

fn tls_hosts(nodes: &[servers::Redis]) -> String {
    let hosts: Vec<_> = nodes.iter().map(|it| format!("127.0.0.1:{}", it.tls_port().unwrap())).collect();
    hosts.join(",")
}

fn sentinel_url(servers: &RedisSentinel, login: &str) -> String {
    let (hosts, ca) = (tls_hosts(servers.sentinels()), &servers.nodes()[0].tls().unwrap().ca);
    format!("rediss+sentinel://{login}{hosts}/{}?ca={}", servers.name(), ca.display())
}

fn cluster_url(servers: &RedisCluster, login: &str) -> String {
    let ca = &servers.nodes()[0].tls().unwrap().ca;
    format!("rediss+cluster://{login}{}?ca={}", tls_hosts(&servers.nodes()[..3]), ca.display())
}

#[tokio::test]
async fn sentinels_and_servers_may_each_have_tls_and_a_user_of_their_own() {
    let options = RedisOptions::default()
        .tls()
        .acl(&documented("## Least rights").replace("+scan", "+scan +info"))
        .sentinel_acl(&format!("user default off\n{}", documented("A user for the sentinels")));
    let servers = RedisSentinel::start(options).await.unwrap();
    let url = sentinel_url(&servers, "locks:secret@");
    let login = "&sentinel_user=watcher&sentinel_password=watch-secret";
    let redis = Redis::connect(&format!("{url}{login}")).await.unwrap();
    use_locks(&redis).await;

    // A switch is heard of and followed.
    let mut one = redis.enter(claim_of("held", Duration::from_secs(60), 1, 1));
    held(&mut one).await;
    let old = servers.primary().await.unwrap();
    servers.sentinels()[0].command(&["SENTINEL", "FAILOVER", servers.name()]).await.unwrap();
    servers.wait_failover(old).await.unwrap();
    within("hearing of the switch", one.changed()).await;
    until_held(&mut redis.enter(claim("after"))).await;
    nothing_was_refused(servers.nodes()).await;
    nothing_was_refused(servers.sentinels()).await;

    let shown = format!("{redis:?} {:?}", redis.options());
    assert!(!shown.contains("secret@") && !shown.contains("watch-secret"), "{shown}");
    for wrong in ["", "&sentinel_user=watcher&sentinel_password=wrong-secret"] {
        let error = Redis::connect(&format!("{url}{wrong}")).await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!error.is_transient(), "{shown}");
        assert!(shown.contains("sentinel_password") && !shown.contains("wrong-secret"), "{shown}");
    }
    let error = Redis::connect(&format!("{}{login}", url.replace(":secret@", ":other@"))).await.unwrap_err();
    assert!(!error.is_transient() && !error.to_string().contains("other"), "{error}");
    let strangers = url.split("?ca=").next().unwrap();
    let error = Redis::connect(&format!("{strangers}?timeout=1s{login}")).await.unwrap_err().to_string();
    assert!(error.to_lowercase().contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_cluster_is_used_over_tls_and_its_failover_followed() {
    let servers = RedisCluster::start(RedisOptions::default().tls()).await.unwrap();
    let redis = Redis::connect(&cluster_url(&servers, "")).await.unwrap();
    use_locks(&redis).await;
    let mut one = redis.enter(claim_of("held", Duration::from_secs(60), 1, 1));
    held(&mut one).await;
    let old = servers.primary_of("x").await.unwrap();
    old.kill().unwrap();
    servers.wait_failover("x", old).await.unwrap();
    for number in 0..20 {
        let mut place = redis.enter(claim(&format!("after-{number}")));
        until_held(&mut place).await;
        within("leaving", async {
            while place.leave().await.is_err() {
                Clock::boot().sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
    let strangers = cluster_url(&servers, "");
    let strangers = strangers.split("?ca=").next().unwrap();
    assert!(Redis::connect(strangers).await.is_err(), "a stranger's certificate is not trusted");
}

#[tokio::test]
async fn a_cluster_user_needs_no_more_than_the_docs_say() {
    let options = RedisOptions::default().tls().acl(&documented("On a cluster the line is"));
    let servers = RedisCluster::start(options).await.unwrap();
    let redis = Redis::connect(&cluster_url(&servers, "locks:secret@")).await.unwrap();
    use_locks(&redis).await;
    nothing_was_refused(servers.nodes()).await;
    for login in ["locks:wrong-secret@", "nobody:wrong-secret@"] {
        let error = Redis::connect(&cluster_url(&servers, login)).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("wrong-secret"), "{error:?}");
    }
}
