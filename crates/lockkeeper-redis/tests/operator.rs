//! What an operator needs: the doctor, a user with the least rights, TLS.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim, claim_of, held, until_held, waits, within};
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_core::inspect::{Finding, Inspect, Severity};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisOptions};

fn worst<'a>(findings: &'a [Finding], word: &str) -> &'a Finding {
    let about = findings.iter().filter(|it| it.what.contains(word));
    about
        .max_by_key(|it| it.severity)
        .unwrap_or_else(|| panic!("nothing is said about {word}: {findings:#?}"))
}

#[tokio::test]
async fn the_doctor_is_content_with_a_server_made_for_locks() {
    let server = servers::Redis::start(RedisOptions::default().append_only()).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let findings = redis.doctor().await.unwrap();
    for finding in &findings {
        assert_eq!(finding.severity, Severity::Fine, "{finding:#?}");
    }
    assert!(worst(&findings, "handed on by message").severity == Severity::Fine);
    assert!(redis.list("").await.unwrap().is_empty(), "the doctor leaves no lock behind");
}

#[tokio::test]
async fn the_doctor_names_what_endangers_locks() {
    let options = RedisOptions::default().set("maxmemory", "100mb").set("maxmemory-policy", "allkeys-lru");
    let server = servers::Redis::start(options).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let findings = redis.doctor().await.unwrap();
    let eviction = worst(&findings, "allkeys-lru");
    assert_eq!(eviction.severity, Severity::Danger);
    assert!(eviction.remedy.contains("noeviction"));
    assert_eq!(worst(&findings, "appendonly no").severity, Severity::Warning);
    let guarded = Redis::connect(&format!("{}?restart_guard=1s", server.url())).await.unwrap();
    let mut place = guarded.enter(claim("k"));
    until_held(&mut place).await;
    let findings = guarded.doctor().await.unwrap();
    assert_eq!(worst(&findings, "restart_guard").severity, Severity::Fine);
}

#[tokio::test]
async fn the_doctor_looks_at_replicas_and_at_every_shard() {
    let servers = servers::Redis::sentinel().await.unwrap();
    let primary = servers.primary().await.unwrap();
    let redis = Redis::connect(&primary.url()).await.unwrap();
    let findings = redis.doctor().await.unwrap();
    assert_eq!(worst(&findings, "2 replicas").severity, Severity::Warning);
    let agreeing = findings.iter().filter(|it| it.what.contains("clock of its replica"));
    assert_eq!(agreeing.count(), 2);
    let replica = servers.nodes().iter().find(|it| it.port() != primary.port()).unwrap();
    let redis = Redis::connect(&replica.url()).await.unwrap();
    let findings = redis.doctor().await.unwrap();
    assert_eq!(worst(&findings, "its role is slave").severity, Severity::Danger);
    assert_eq!(worst(&findings, "taking a lock fails").severity, Severity::Danger);

    let servers = servers::Redis::cluster().await.unwrap();
    let url = format!("redis+cluster://{}", servers.nodes()[0].address());
    let redis = Redis::connect(&url).await.unwrap();
    let findings = redis.doctor().await.unwrap();
    let primaries = findings.iter().filter(|it| it.what.contains("it is a primary"));
    assert_eq!(primaries.count(), 3);
    assert_eq!(worst(&findings, "handed on by message").severity, Severity::Fine);
}

/// The least rights, as `docs/backends/redis.md` tells them.
fn documented_rule(heading: &str) -> String {
    let docs = include_str!("../../../docs/backends/redis.md");
    let after = docs.split(heading).nth(1).unwrap();
    let block = after.split("```").nth(1).unwrap();
    block.lines().skip(1).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_least_rights_in_the_docs_suffice_and_no_right_is_too_many() {
    let rule = documented_rule("## Least rights");
    let server = servers::Redis::start(RedisOptions::default().acl(&rule)).await.unwrap();
    let url = format!("redis://locks:secret@{}", server.address());
    let redis = Redis::connect(&url).await.unwrap();
    // Everything that the scripts can do: mutex, room, line, hand-off, renewal, break, show.
    let (mut one, mut two) = (redis.enter(claim("k")), redis.enter(claim("k")));
    held(&mut one).await;
    waits(&mut two).await;
    waits(&mut two).await;
    assert!(matches!(one.renew().await.unwrap(), Renewal::Held { wanted: true, .. }));
    one.leave().await.unwrap();
    within("the message", two.changed()).await;
    held(&mut two).await;
    assert_eq!(redis.break_lock(&claim("k").key).await.unwrap().len(), 1);
    let mut readers: Vec<_> =
        (0..3).map(|_| redis.enter(claim_of("room", Duration::from_secs(5), 1, 3))).collect();
    for reader in &mut readers {
        held(reader).await;
        assert!(matches!(reader.renew().await.unwrap(), Renewal::Held { .. }));
    }
    let mut late = redis.enter(claim_of("room", Duration::from_secs(5), 2, 3));
    waits(&mut late).await;
    for reader in &mut readers {
        reader.leave().await.unwrap();
    }
    until_held(&mut late).await;
    let mut alone = redis.enter(claim("alone"));
    held(&mut alone).await;
    alone.leave().await.unwrap();
    let mut crowd: Vec<_> = (0..50).map(|it| redis.enter(claim(&format!("crowd-{it}")))).collect();
    for turn in futures_util::future::join_all(crowd.iter_mut().map(Place::turn)).await {
        turn.unwrap();
    }
    for left in futures_util::future::join_all(crowd.iter_mut().map(Place::leave)).await {
        left.unwrap();
    }
    assert!(redis.show(&claim("room").key).await.unwrap().is_some());
    assert_eq!(redis.list("room").await.unwrap().len(), 1);

    // What it may not do.
    let log = server.command(&["ACL", "LOG"]).await.unwrap();
    assert!(log.items().is_empty(), "something was refused on the way: {log:?}");
    let mut client = server.client().await.unwrap();
    client.command(&["AUTH", "locks", "secret"]).await.unwrap();
    for refused in [
        vec!["GET", "other"],
        vec!["FLUSHALL"],
        vec!["KEYS", "*"],
        vec!["CONFIG", "GET", "*"],
        vec!["PUBLISH", "other", "x"],
        vec!["EVAL", "return redis.call('GET', 'other')", "0"],
    ] {
        let error = client.command(&refused).await.unwrap_err().to_string();
        let words = ["NOPERM", "permissions", "can't access"];
        assert!(words.iter().any(|it| error.contains(it)), "{refused:?}: {error}");
    }
}

#[tokio::test]
async fn a_user_without_rights_is_told_where_to_read() {
    let rule = "user locks on >secret resetchannels &lk:* ~lk:* -@all +hello +subscribe +client";
    let server = servers::Redis::start(RedisOptions::default().acl(rule)).await.unwrap();
    let url = format!("redis://locks:secret@{}", server.address());
    let redis = Redis::connect(&url).await.unwrap();
    let fault = redis.enter(claim("k")).turn().await.unwrap_err();
    assert!(!fault.is_transient() && fault.message.contains("docs/backends/redis.md"), "{fault}");
}

#[tokio::test]
async fn a_right_that_only_a_script_needs_is_named_too() {
    let rule = documented_rule("## Least rights").replace(" +time", "");
    let server = servers::Redis::start(RedisOptions::default().acl(&rule)).await.unwrap();
    let url = format!("redis://locks:secret@{}", server.address());
    let redis = Redis::connect(&url).await.unwrap();
    let fault = redis.enter(claim("k")).turn().await.unwrap_err();
    assert!(!fault.is_transient() && fault.message.contains("least rights"), "{fault}");
}

#[cfg(feature = "tls")]
mod tls {
    use super::*;

    #[tokio::test]
    async fn a_lock_is_had_over_tls_and_a_stranger_server_is_not_trusted() {
        let server = servers::Redis::start(RedisOptions::default().tls().password("p@ss")).await.unwrap();
        let (url, ca) = (server.tls_url().unwrap(), server.tls().unwrap().ca.display().to_string());
        let redis = Redis::connect(&format!("{url}?ca={ca}")).await.unwrap();
        let (mut one, mut two) = (redis.enter(claim("k")), redis.enter(claim("k")));
        held(&mut one).await;
        waits(&mut two).await;
        assert!(matches!(one.renew().await.unwrap(), Renewal::Held { .. }));
        one.leave().await.unwrap();
        within("the message", two.changed()).await;
        held(&mut two).await;

        let error = Redis::connect(&url).await.unwrap_err().to_string();
        assert!(error.to_lowercase().contains("certificate"), "{error}");
        assert!(!error.contains("p@ss") && !error.contains("p%40ss"));
        let missing = Redis::connect(&format!("{url}?ca=/nowhere.pem")).await.unwrap_err();
        assert!(missing.to_string().contains("/nowhere.pem"), "{missing}");
        let plain = Redis::connect(&url.replace("rediss", "redis")).await;
        assert!(plain.is_err(), "plain words on a TLS port");
    }
}

#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn without_the_feature_tls_is_refused_with_a_reason() {
    let error = Redis::connect("rediss://localhost").await.unwrap_err().to_string();
    assert!(error.contains("feature `tls`"), "{error}");
}
