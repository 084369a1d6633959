//! What an operator does: look, break, examine, lock the door.

use std::time::Duration;

use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Error, Key};
use lockkeeper_testkit::process::{KitError, eventually};
use lockkeeper_testkit::servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;

use lockkeeper_testkit::quorum::{PATIENCE, locker};

const TTL: Duration = Duration::from_secs(5);

fn url(server: &Server) -> String {
    format!("{}?session=5s&tick=100ms", server.url())
}

#[tokio::test]
async fn an_operator_sees_who_holds_and_who_waits_and_breaks_a_lock() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let backend = ZooKeeper::connect(&url(&server)).await.unwrap();
    let (here, there) =
        (locker(&backend, TTL), locker(&ZooKeeper::connect(&url(&server)).await.unwrap(), TTL));
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
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let url = format!("zookeeper://{},127.0.0.1:1?session=2m&timeout=1s&tick=10ms", server.address());
    let backend = ZooKeeper::connect(&url).await.unwrap();
    assert_eq!(backend.session_timeout(), Duration::from_mins(1), "the longest that the server gives");
    let findings = backend.doctor().await.unwrap();
    let about = |what: &str| findings.iter().find(|it| it.what.contains(what)).map(|it| it.severity);
    assert_eq!(about("one server"), Some(Severity::Warning));
    assert_eq!(about("127.0.0.1:1 does not answer"), Some(Severity::Warning));
    assert_eq!(about("120s was asked for and 60s was given"), Some(Severity::Warning));
    assert_eq!(about("100ms, and 10ms is taken off deadlines"), Some(Severity::Danger), "{findings:?}");
    assert_eq!(about("is version 3.8.0"), Some(Severity::Fine), "{findings:?}");
}

#[tokio::test]
async fn a_ttl_that_cannot_be_had_is_refused_with_the_reason() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let backend = ZooKeeper::connect(&url(&server)).await.unwrap();
    let error = locker(&backend, TTL * 2).lock("job").await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("zookeeper takes 100ms to 5s"), "{error}");
}

#[tokio::test]
async fn the_nodes_of_a_user_belong_to_it_alone() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let mine = format!("zookeeper://me:canary@{}?session=5s", server.address());
    let backend = ZooKeeper::connect(&mine).await.unwrap();
    assert!(!format!("{backend:?} {:?}", backend.options()).contains("canary"));
    let guard = locker(&backend, TTL).lock("job").await.unwrap();
    let stranger = ZooKeeper::connect(&url(&server)).await.unwrap();
    let error = locker(&stranger, TTL).try_lock("job").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { transient: false, .. }), "{error:?}");
    let error = stranger.break_lock(&Key::new("job").unwrap()).await.unwrap_err();
    assert!(!error.is_transient(), "{error}");
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_with_tls_is_trusted_by_its_authority_alone() {
    use lockkeeper_testkit::servers::{Port, Tls};

    let folder = tempfile::tempdir().unwrap();
    let (tls, port) = (Tls::generate(folder.path()).unwrap(), Port::claim().unwrap());
    let options = ZooKeeperOptions::default().secure(&port, &tls).unwrap();
    let _server = Server::start(options).await.unwrap();
    let text = |it: &std::path::Path| it.to_str().unwrap().to_owned();
    let url = |host: &str, ca: &std::path::Path| {
        let files = format!("ca={}&cert={}&key={}", text(ca), text(&tls.client_cert), text(&tls.client_key));
        format!("zookeepers://{host}:{}?session=2s&tick=100ms&{files}", port.number())
    };
    for host in ["127.0.0.1", "localhost"] {
        let backend = ZooKeeper::connect(&url(host, &tls.ca)).await.unwrap();
        let locker = locker(&backend, Duration::from_secs(2));
        locker.lock("job").await.unwrap().release().await.unwrap();
        assert!(backend.doctor().await.unwrap().iter().any(|it| it.what.contains("over TLS")));
    }
    // A stranger's authority; a name that is not in the certificate; no certificate of our own.
    let other = tempfile::tempdir().unwrap();
    let other = Tls::generate(other.path()).unwrap();
    assert!(ZooKeeper::connect(&url("127.0.0.1", &other.ca)).await.is_err(), "we do not know the server");
    assert!(ZooKeeper::connect(&url("127.0.0.2", &tls.ca)).await.is_err(), "this is not its name");
    let without = format!("zookeepers://127.0.0.1:{}?session=2s&ca={}", port.number(), text(&tls.ca));
    assert!(ZooKeeper::connect(&without).await.is_err(), "the server does not know us");
    let odd = format!("zookeepers://a..b?ca={}", text(&tls.ca));
    assert!(
        ZooKeeper::connect(&odd).await.unwrap_err().to_string().contains("a..b"),
        "it is told, not panicked about"
    );
    let error = ZooKeeper::connect("zookeepers://127.0.0.1?ca=/nonexistent").await.unwrap_err();
    assert!(error.to_string().contains("/nonexistent"), "{error}");
}
