//! What an operator does: look, break, examine, lock the door.

use std::time::Duration;

use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Error, Key};
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::{Etcd as Server, EtcdOptions};

use lockkeeper_servers::quorum::{PATIENCE, locker, soon, waits};

use crate::admin_of::put;

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
    // What there is to say of a version depends on the version; each is spoken of once.
    let status = server.post("/v3/maintenance/status", "{}").await.unwrap();
    let version = status.split("\"version\":\"").nth(1).and_then(|it| it.split('"').next()).unwrap();
    let of_version: Vec<_> =
        findings.iter().filter(|it| it.what.contains(&format!("etcd {version}"))).collect();
    let expected = if version.starts_with("3.4.") { Severity::Warning } else { Severity::Fine };
    assert_eq!(of_version.iter().map(|it| it.severity).collect::<Vec<_>>(), [expected], "{findings:?}");
    if version == "3.4.23" {
        assert!(of_version[0].consequence.contains("revoke leases that live"), "{findings:?}");
    }
}

#[tokio::test]
async fn the_doctor_says_once_what_three_nodes_say() {
    let cluster = Server::cluster().await.unwrap();
    let alarm = r#"{"action": "ACTIVATE", "memberID": "0", "alarm": "NOSPACE"}"#;
    cluster.nodes()[0].post("/v3/maintenance/alarm", alarm).await.unwrap();
    let hosts: Vec<_> = cluster.nodes().iter().map(|it| it.address()).collect();
    let backend = Etcd::connect(&format!("etcd://{}", hosts.join(","))).await.unwrap();
    let findings = backend.doctor().await.unwrap();
    let mut told: Vec<_> = findings.iter().map(|it| (&it.consequence, &it.remedy)).collect();
    assert!(findings.iter().any(|it| it.what.contains("NOSPACE")), "{findings:?}");
    told.sort();
    told.dedup();
    assert_eq!(told.len(), findings.len(), "{findings:?}");
}

#[tokio::test]
async fn a_key_that_is_not_ours_is_named_wherever_it_is_in_the_way() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let backend = Etcd::connect(&url(&server)).await.unwrap();
    let here = locker(&backend, TTL);
    let guard = here.lock("free").await.unwrap();
    for at in 0..12 {
        put(&server, &format!("lockkeeper/locks/job/stray{at}"), "who knows").await;
    }
    put(&server, "lockkeeper/locks/nowhere", "who knows").await;
    let key = Key::new("job").unwrap();
    let info = Inspect::show(&backend, &key).await.unwrap().unwrap();
    assert!(info.holders.is_empty() && info.waiters.is_empty());
    assert_eq!(info.foreign.len(), 12);
    assert!(info.foreign[0].contains("lockkeeper/locks/job/stray0"), "{:?}", info.foreign);
    // It keeps us out, and we are shown as who waits.
    let there = here.clone();
    let waiter = tokio::spawn(async move { there.lock("job").await });
    waits(&backend, "job", 1).await;
    let locks = Inspect::list(&backend, "").await.unwrap();
    let seen: Vec<_> = locks
        .iter()
        .map(|it| (it.key.as_str(), it.holders.len(), it.waiters.len(), it.foreign.len()))
        .collect();
    assert_eq!(seen, [("free", 1, 0, 0), ("job", 0, 1, 12)]);
    assert!(backend.break_lock(&key).await.unwrap().is_empty(), "nobody holds it");
    let findings = backend.doctor().await.unwrap();
    let about = |what: &str| findings.iter().filter(|it| it.what.contains(what)).collect::<Vec<_>>();
    assert_eq!(about("locks/job/stray").len(), 1, "{findings:?}");
    assert_eq!(about("locks/job/stray")[0].severity, Severity::Danger);
    assert!(about("locks/job/stray")[0].what.contains("7 more"), "{findings:?}");
    assert_eq!(about("locks/nowhere").len(), 1, "{findings:?}");
    // Removed as it says, the lock goes on.
    for _ in 0..12 {
        server.delete_oldest("lockkeeper/locks/job/stray").await.unwrap();
    }
    let next = soon("the grant", waiter).await.unwrap().unwrap();
    assert_eq!(Inspect::show(&backend, &key).await.unwrap().unwrap().foreign, [""; 0]);
    next.release().await.unwrap();
    guard.release().await.unwrap();
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
    // Long enough to outlive the restart of the server.
    let locker = locker(&backend, Duration::from_secs(30));
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
    use lockkeeper_servers::process::Launch;
    use lockkeeper_servers::{Port, Tls};

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
