//! The faults and prices that etcd shares with others, and those of its own: compaction and late requests.

use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::quorum::{Behind, PATIENCE, Quorum, claim, locker, soon, take, waits};

use crate::common::Servers;

lockkeeper_servers::quorum!(Servers);

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_compaction_during_a_wait_loses_no_wake_up() {
    let behind = Behind::<Servers>::start(1, TTL).await;
    let server = behind.servers.first();
    let here = Etcd::connect(&behind.servers.url_of_all(TTL)).await.unwrap();
    let (there, proxies) = behind.join().await;
    let (locker_here, locker_there) = (locker(&here, TTL), locker(&there, Duration::from_secs(60)));
    let guard = locker_here.lock("job").await.unwrap();
    let waiter = tokio::spawn(async move { locker_there.lock("job").await });
    waits(&here, "job", 1).await;
    // While the waiter is cut off, the release happens and its history is compacted away.
    proxies[0].refuse().await.unwrap();
    proxies[0].cut();
    let fence = guard.fence();
    guard.release().await.unwrap();
    let answer = server.post("/v3/kv/range", r#"{"key": "eA=="}"#).await.unwrap();
    let revision = answer.split("\"revision\":\"").nth(1).unwrap().split('"').next().unwrap();
    server.post("/v3/kv/compaction", &format!(r#"{{"revision": "{revision}"}}"#)).await.unwrap();
    proxies[0].accept().await.unwrap();
    // Long before the waiter would look again by itself.
    let guard = soon("the wake-up", waiter).await.unwrap().unwrap();
    assert!(fence < guard.fence());
}

#[tokio::test]
async fn a_request_that_arrives_after_its_claim_has_left_takes_nothing() {
    let servers = Servers::start(1).await;
    let port = servers.first().port();
    // Two ways to one server: the request is stuck on the first, is repeated on the second, and its claim leaves there.
    let (one, other) = (Proxy::start(port).await.unwrap(), Proxy::start(port).await.unwrap());
    let url = format!("etcd://{},{}?timeout=300ms", one.address(), other.address());
    let backend = Etcd::connect(&url).await.unwrap();
    let mut warm = backend.enter(claim("warm", LONG));
    take(&mut warm).await;
    let used = eventually(PATIENCE, async || match (one.counters().open, other.counters().open) {
        (0, 1..) => Ok(&other),
        (1.., 0) => Ok(&one),
        it => Err(KitError::new(format!("{it:?} connections are open"))),
    });
    let slow = used.await.unwrap();
    slow.set(Direction::ToServer, Rule::Hold);
    let mut place = backend.enter(claim("job", LONG));
    let turn = place.turn().await.unwrap();
    assert!(matches!(turn, Turn::Held(_)), "its copy went the other way: {turn:?}");
    place.leave().await.unwrap();
    slow.set(Direction::ToServer, Rule::Pass);
    // The server has seen what was stuck, and the end of its connection behind it.
    slow.wait_for(|it| it.open == 0).await.unwrap();
    warm.leave().await.unwrap();
    assert_eq!(Inspect::show(&backend, &Key::new("job").unwrap()).await.unwrap(), None);
}

#[tokio::test]
async fn a_lock_that_is_taken_often_leaves_no_trail_of_names() {
    let servers = Servers::start(1).await;
    let here = servers.locker(LONG).await;
    let mut names = std::collections::HashSet::new();
    for _ in 0..20 {
        let guard = here.lock("job").await.unwrap();
        names.extend(servers.first().keys("lockkeeper/locks/job/").await.unwrap());
        guard.release().await.unwrap();
    }
    // The server keeps deleted names until it is compacted, and every look at the line passes over them.
    assert_eq!(names.len(), 1, "{names:?}");
}
