//! What an operator does: look, break, examine, lock the door.

use std::time::Duration;

use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Clock, Error, Key};
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;

use lockkeeper_servers::quorum::{PATIENCE, locker, soon, waits};
use zookeeper_client::{Acls, Client, CreateMode};

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
    let options = ZooKeeperOptions::default().set("maxSessionTimeout", "5000");
    let server = Server::start(options).await.unwrap();
    let url = format!("{}?timeout=1s&tick=10ms", server.url());
    let backend = ZooKeeper::connect(&url).await.unwrap();
    assert_eq!(backend.session_timeout(), Duration::from_secs(5), "the longest that the server gives");
    let findings = backend.doctor().await.unwrap();
    let about = |what: &str| findings.iter().find(|it| it.what.contains(what)).map(|it| it.severity);
    assert_eq!(about("one server"), Some(Severity::Warning));
    assert_eq!(about("10s was asked for and 5s was given"), Some(Severity::Warning));
    assert_eq!(about("100ms, and 10ms is taken off"), Some(Severity::Danger), "{findings:?}");
    let version = server.version().await.unwrap();
    assert_eq!(about(&format!("version {version}")), Some(Severity::Fine), "{findings:?}");
}

#[tokio::test]
async fn the_doctor_tells_once_what_is_true_of_all_servers_and_knows_their_defect() {
    let ensemble = Server::ensemble().await.unwrap();
    let backend = ZooKeeper::connect(&ensemble.url()).await.unwrap();
    let findings = backend.doctor().await.unwrap();
    let version = ensemble.nodes()[0].version().await.unwrap();
    let about: Vec<_> =
        findings.iter().filter(|it| it.what.contains(&format!("version {version}"))).collect();
    assert_eq!(about.len(), 1, "{findings:?}");
    assert!(ensemble.nodes().iter().all(|it| about[0].what.contains(&it.address())), "{about:?}");
    let numbers: Vec<u32> = version.split('.').map(|it| it.parse().unwrap()).collect();
    // Of 3.9.3 and later no such defect is known.
    let has_ghosts = numbers < vec![3, 9, 3];
    let told =
        about[0].severity == Severity::Warning && about[0].consequence.contains("claims that are gone");
    assert_eq!(told, has_ghosts, "{about:?}");
    assert!(has_ghosts || about[0].severity == Severity::Fine, "{about:?}");
    assert!(findings.iter().all(|it| it.severity != Severity::Danger), "{findings:?}");
    // Two that were named and are not there are told at once, too.
    let more = format!("{},127.0.0.1:1,127.0.0.1:2?timeout=1s", ensemble.url());
    let findings = ZooKeeper::connect(&more).await.unwrap().doctor().await.unwrap();
    let silent = findings.iter().find(|it| it.what.contains("127.0.0.1:1, 127.0.0.1:2: no answer"));
    assert_eq!(silent.map(|it| it.severity), Some(Severity::Warning), "{findings:?}");
}

#[tokio::test]
async fn what_is_not_ours_in_a_line_is_named_and_the_rest_is_listed() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let backend = ZooKeeper::connect(&url(&server)).await.unwrap();
    let here = locker(&backend, TTL);
    here.lock("job").await.unwrap().release().await.unwrap();
    let held = here.lock("other").await.unwrap();
    let operator = Client::connect(&server.address()).await.unwrap();
    let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
    // One is the copy of a claim, but goes with no session; the other is something else.
    let claim = operator.list_children("/lockkeeper/other").await.unwrap().remove(0);
    let (copied, _) = operator.get_data(&format!("/lockkeeper/other/{claim}")).await.unwrap();
    let like_ours = format!("/lockkeeper/job/{}-1-1-0000000000", "a".repeat(32));
    for (path, data) in [(like_ours.as_str(), &copied[..]), ("/lockkeeper/job/note", b"hello")] {
        operator.create(path, data, &mode).await.unwrap();
    }
    assert!(here.try_lock("job").await.unwrap().is_none(), "it stands in line");
    let key = Key::new("job").unwrap();
    let shown = Inspect::show(&backend, &key).await.unwrap().expect("it is not free");
    assert_eq!((shown.holders.len(), shown.waiters.len()), (0, 0));
    assert_eq!(shown.foreign.len(), 2, "{shown:?}");
    assert!(shown.foreign.iter().any(|it| it.contains(&like_ours) && it.contains("by hand")), "{shown:?}");
    let listed = Inspect::list(&backend, "").await.unwrap();
    assert_eq!(listed.iter().map(|it| it.key.as_str()).collect::<Vec<_>>(), ["job", "other"]);
    assert_eq!((listed[0].foreign.len(), listed[1].foreign.len()), (2, 0));
    let findings = backend.doctor().await.unwrap();
    let named: Vec<_> = findings.iter().filter(|it| it.what.contains("not ours")).collect();
    assert!(named.len() == 1 && named[0].what.contains(&like_ours), "{findings:?}");
    // Who waits gets the lock when it is gone.
    let waiter = tokio::spawn(async move { here.lock("job").await });
    waits(&backend, "job", 1).await;
    operator.delete(&like_ours, None).await.unwrap();
    soon("the grant", waiter).await.unwrap().unwrap().release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_line_of_another_user_does_not_hide_the_others() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let mine = format!("zookeeper://me:canary@{}", server.address());
    let owner = locker(&ZooKeeper::connect(&mine).await.unwrap(), TTL);
    let theirs = owner.lock("a/secret").await.unwrap();
    let backend = ZooKeeper::connect(&url(&server)).await.unwrap();
    let ours = locker(&backend, TTL).lock("b").await.unwrap();
    let listed = Inspect::list(&backend, "").await.unwrap();
    assert_eq!(listed.iter().map(|it| it.key.as_str()).collect::<Vec<_>>(), ["a/secret", "b"]);
    assert!(listed[0].foreign[0].contains("another user"), "{listed:?}");
    assert_eq!(listed[1].holders.len(), 1);
    let shown = Inspect::show(&backend, &Key::new("a/secret").unwrap()).await.unwrap().unwrap();
    assert_eq!(shown.foreign.len(), 1);
    theirs.release().await.unwrap();
    ours.release().await.unwrap();
}

#[tokio::test]
async fn what_is_refused_for_lack_of_rights_leaves_nothing_to_do() {
    const CALLS: usize = 30;
    // Long, so that pulses are rare.
    let ttl = Duration::from_secs(40);
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let mine = format!("zookeeper://me:canary@{}?session=40s", server.address());
    let owner = locker(&ZooKeeper::connect(&mine).await.unwrap(), ttl);
    let guard = owner.lock("job").await.unwrap();
    let stranger = ZooKeeper::connect(&format!("{}?session=40s", server.url())).await.unwrap();
    let stranger = locker(&stranger, ttl);
    for at in 0..CALLS {
        let refused = match at % 2 {
            0 => stranger.lock("job").await.map(drop),
            _ => stranger.try_lock("job").await.map(drop),
        };
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Unavailable { transient: false, .. }), "{error:?}");
        assert!(error.to_string().contains("may not do this"), "{error}");
    }
    let packets = async || server.figure("zk_packets_received").await.unwrap();
    let (before, clock) = (packets().await, Clock::boot());
    clock.sleep(Duration::from_secs(3)).await;
    // Two sessions ping and pulse, about once a second each; one packet is the question.
    let spent = packets().await - before;
    assert!(spent <= 20, "{CALLS} refused calls cost {spent} requests in 3 s afterwards");
    stranger.shutdown(PATIENCE).await.unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
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
    use lockkeeper_servers::{Port, Tls};

    let folder = tempfile::tempdir().unwrap();
    let (tls, port) = (Tls::generate(folder.path()).unwrap(), Port::claim().unwrap());
    let options = ZooKeeperOptions::default().secure(&port, &tls).unwrap();
    let _server = Server::start(options).await.unwrap();
    let text = |it: &std::path::Path| it.to_str().unwrap().to_owned();
    // A server that has just begun takes its time for the first handshakes; a short session gives it little.
    let url = |host: &str, ca: &std::path::Path| {
        let files = format!("ca={}&cert={}&key={}", text(ca), text(&tls.client_cert), text(&tls.client_key));
        format!("zookeepers://{host}:{}?session=20s&tick=100ms&{files}", port.number())
    };
    for host in ["127.0.0.1", "localhost"] {
        let backend = ZooKeeper::connect(&url(host, &tls.ca)).await.unwrap();
        let locker = locker(&backend, Duration::from_secs(20));
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
