//! Users: what is refused is given up for good, and a token that is too old costs nobody a wake-up.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Error};
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::quorum::{claim, locker, soon, take};
use lockkeeper_servers::{Etcd as Server, EtcdOptions};

use crate::admin_of::enable_users;

const TTL: Duration = Duration::from_secs(60);

fn url(server: &Server, user: &str) -> String {
    format!("etcd://{user}:canary@{}", server.address())
}

async fn refused(rights: &[&str]) {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    enable_users(&server, rights).await;
    let backend = Etcd::connect(&url(&server, "clerk")).await.unwrap();
    let locker = locker(&backend, TTL);
    for at in 0..30 {
        let error = locker.lock(format!("job/{at}")).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { transient: false, .. }), "{error:?}");
        assert!(error.to_string().contains("grant it read and write"), "{error}");
    }
    // Everything that was begun has come to its end.
    let before = server.figure("grpc_server_handled_total{").await.unwrap();
    Clock::boot().sleep(Duration::from_secs(3)).await;
    let after = server.figure("grpc_server_handled_total{").await.unwrap();
    assert!(after - before <= 4, "{} requests after 30 refusals", after - before);
    soon("the end", locker.shutdown(Duration::from_secs(5))).await.unwrap();
}

#[tokio::test]
async fn a_claim_that_may_not_be_made_is_given_up() {
    refused(&["lockkeeper/sessions/", "lockkeeper/fences"]).await;
}

#[tokio::test]
async fn a_lease_that_may_not_be_marked_is_given_up() {
    refused(&["lockkeeper/fences"]).await;
}

#[tokio::test]
async fn the_doctor_needs_no_more_rights_than_the_locks() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    enable_users(&server, &["lockkeeper/"]).await;
    let backend = Etcd::connect(&url(&server, "clerk")).await.unwrap();
    let findings = backend.doctor().await.unwrap();
    assert!(findings.iter().any(|it| it.what.contains("writes took")), "{findings:?}");
    assert!(!findings.iter().any(|it| it.what.contains("does not answer")), "{findings:?}");
}

#[tokio::test]
async fn wake_ups_come_also_after_the_token_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret of the server").unwrap();
    let life = Duration::from_secs(2);
    let token = format!("jwt,priv-key={},sign-method=HS256,ttl={}s", secret.display(), life.as_secs());
    let server = Server::start(EtcdOptions::default().set("auth-token", &token)).await.unwrap();
    enable_users(&server, &["lockkeeper/"]).await;
    let (here, there) = (
        Etcd::connect(&url(&server, "clerk")).await.unwrap(),
        Etcd::connect(&url(&server, "clerk")).await.unwrap(),
    );
    let mut holders = Vec::new();
    for name in ["first", "second", "third"] {
        let mut holder = here.enter(claim(name, TTL));
        take(&mut holder).await;
        holders.push(holder);
    }
    // The stream for wake-ups is opened with a token, and stays open.
    let mut first = there.enter(claim("first", TTL));
    assert!(matches!(first.turn().await.unwrap(), Turn::Wait { .. }));
    for (at, name) in [(1, "second"), (2, "third")] {
        Clock::boot().sleep(life + Duration::from_secs(1)).await;
        let mut waiter = there.enter(claim(name, TTL));
        assert!(matches!(waiter.turn().await.unwrap(), Turn::Wait { .. }));
        holders[at].leave().await.unwrap();
        // Nobody looks by himself here: without a sign this would hang.
        soon("the wake-up", waiter.changed()).await;
        assert!(matches!(waiter.turn().await.unwrap(), Turn::Held(_)));
    }
    holders[0].leave().await.unwrap();
    soon("the first wake-up", first.changed()).await;
    assert!(matches!(first.turn().await.unwrap(), Turn::Held(_)));
}
