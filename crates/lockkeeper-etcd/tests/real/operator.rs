//! What an operator does: look, break, examine, lock the door.

use std::time::Duration;

use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Error, Key};
use lockkeeper_etcd::Etcd;
use lockkeeper_testkit::process::{KitError, eventually};
use lockkeeper_testkit::servers::{Etcd as Server, EtcdOptions};

use lockkeeper_testkit::quorum::{PATIENCE, locker};

const TTL: Duration = Duration::from_secs(5);

fn url(server: &Server) -> String {
    format!("etcd://{}", server.address())
}

#[tokio::test]
async fn an_operator_sees_who_holds_and_who_waits_and_breaks_a_lock() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let backend = Etcd::connect(&url(&server)).await.unwrap();
    let (here, there) = (locker(&backend, TTL), locker(&Etcd::connect(&url(&server)).await.unwrap(), TTL));
    let guard = here.lock("a/b").note("nightly\nbatch").await.unwrap();
    let other = here.lock("a.c").await.unwrap();
    let waiter = tokio::spawn(async move { there.lock("a/b").await });
    let key = Key::new("a/b").unwrap();
    let info = eventually(PATIENCE, async || {
        let info = Inspect::show(&backend, &key).await.ok().flatten();
        info.filter(|it| it.waiters.len() == 1).ok_or_else(|| KitError::new("nobody waits"))
    });
    let info = info.await.unwrap();
    assert_eq!(info.holders.len(), 1);
    assert_eq!(info.holders[0].fence, Some(guard.fence()));
    assert_eq!(info.holders[0].label.note.as_deref(), Some("nightly\nbatch"));
    assert!(info.holders[0].valid_for <= TTL && !info.holders[0].valid_for.is_zero());
    let names = async |prefix: &str| {
        let locks = Inspect::list(&backend, prefix).await.unwrap();
        locks.iter().map(|it| it.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("").await, ["a.c", "a/b"]);
    assert_eq!(names("a/").await, ["a/b"]);
    assert_eq!(names("b").await, [""; 0]);
    let broken = backend.break_lock(&key).await.unwrap();
    assert_eq!(broken[0].fence, Some(guard.fence()));
    let next = waiter.await.unwrap().unwrap();
    assert!(guard.fence() < next.fence());
    drop((other, next));
}

#[tokio::test]
async fn the_doctor_names_what_endangers_locks() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let backend = Etcd::connect(&format!("{},127.0.0.1:1?timeout=1s", url(&server))).await.unwrap();
    let findings = backend.doctor().await.unwrap();
    let about = |what: &str| findings.iter().find(|it| it.what.contains(what)).map(|it| it.severity);
    assert_eq!(about("one member"), Some(Severity::Warning));
    assert_eq!(about("127.0.0.1:1 does not answer"), Some(Severity::Warning));
    assert!(about("writes took").is_some());
    assert_eq!(about("3.4.23 has a known defect"), Some(Severity::Warning), "{findings:?}");
}

#[tokio::test]
async fn users_need_their_password_and_stay_known_when_their_token_is_forgotten() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let orders = [
        ("user/add", r#"{"name": "root", "password": "canary"}"#),
        ("role/add", r#"{"name": "root"}"#),
        ("user/grant", r#"{"user": "root", "role": "root"}"#),
        ("enable", "{}"),
    ];
    for (order, json) in orders {
        server.post(&format!("/v3/auth/{order}"), json).await.unwrap();
    }
    let with = |login: &str| format!("etcd://{login}{}", server.address());
    for login in ["", "root:canary-not@", "nobody:canary@"] {
        let error = Etcd::connect(&with(login)).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { transient: false, .. }), "{login}: {error:?}");
        let seen = format!("{error} {error:?}");
        assert!(!seen.contains("canary"), "{seen}");
    }
    let backend = Etcd::connect(&with("root:canary@")).await.unwrap();
    assert!(!format!("{backend:?} {:?}", backend.options()).contains("canary"));
    let locker = locker(&backend, TTL);
    let guard = locker.lock("job").await.unwrap();
    // Tokens live in the server's memory.
    server.restart().await.unwrap();
    let other = locker.lock("other").await.unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
    other.release().await.unwrap();
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_with_tls_is_trusted_by_its_authority_alone() {
    use lockkeeper_testkit::process::Launch;
    use lockkeeper_testkit::servers::{Port, Tls};

    let folder = tempfile::tempdir().unwrap();
    let tls = Tls::generate(folder.path()).unwrap();
    let (client, peer) = (Port::claim().unwrap(), Port::claim().unwrap());
    let (here, there) =
        (format!("https://127.0.0.1:{}", client.number()), format!("http://127.0.0.1:{}", peer.number()));
    let text = |it: &std::path::Path| it.to_str().unwrap().to_owned();
    let _server = Launch::new("etcd", "etcd-server", folder.path())
        .args(["--data-dir=data", "--client-cert-auth"])
        .args([format!("--listen-client-urls={here}"), format!("--advertise-client-urls={here}")])
        .args([format!("--listen-peer-urls={there}"), format!("--initial-advertise-peer-urls={there}")])
        .arg(format!("--initial-cluster=default={there}"))
        .args([
            format!("--cert-file={}", text(&tls.server_cert)),
            format!("--key-file={}", text(&tls.server_key)),
        ])
        .arg(format!("--trusted-ca-file={}", text(&tls.ca)))
        .spawn()
        .unwrap();
    let files = format!("ca={}&cert={}&key={}", text(&tls.ca), text(&tls.client_cert), text(&tls.client_key));
    let at = format!("etcds://127.0.0.1:{}", client.number());
    let backend = eventually(PATIENCE, async || {
        Etcd::connect(&format!("{at}?{files}")).await.map_err(|it| KitError::new(it.to_string()))
    });
    let backend = backend.await.unwrap();
    let locker = locker(&backend, TTL);
    locker.lock("job").await.unwrap().release().await.unwrap();
    assert!(Etcd::connect(&at).await.is_err(), "the system does not know this authority");
    let without = format!("{at}?ca={}", text(&tls.ca));
    assert!(Etcd::connect(&without).await.is_err(), "the server does not know us");
}
