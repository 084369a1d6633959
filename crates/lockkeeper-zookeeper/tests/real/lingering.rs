//! A lock that is given back later: kept for those who wait and those who come, also when its process has ended; seen, broken,
//! and removed by whoever comes when its time is over.

use std::time::Duration;

use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Fence, Key, Locker};
use lockkeeper_servers::quorum::{locker, soon, waits};
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;
use zookeeper_client::Client;

const TTL: Duration = Duration::from_secs(2);
/// Longer than any session.
const KEPT: Duration = Duration::from_secs(5);
const HOUR: Duration = Duration::from_secs(3600);
const FOLDER: &str = "/lockkeeper/report";

async fn process(server: &Server) -> (ZooKeeper, Locker) {
    let store = ZooKeeper::connect(&format!("{}?session=2s&tick=100ms", server.url())).await.unwrap();
    let locker = locker(&store, TTL);
    (store, locker)
}

/// A process that took the lock, gave it back to be kept for so long, and has ended. When it took it, and with which fence.
async fn one_who_has_gone(
    server: &Server,
    span: Duration,
    waiting: impl AsyncFnOnce(),
) -> (lockkeeper_core::Moment, Fence) {
    let (store, locker) = process(server).await;
    let guard = locker.lock("report").note("nightly").hold_at_least(span).await.unwrap();
    let (held, fence) = (Clock::boot().now(), guard.fence());
    waiting().await;
    guard.release().await.unwrap();
    locker.shutdown(TTL).await.unwrap();
    drop((locker, store));
    (held, fence)
}

async fn nodes(server: &Server) -> Vec<String> {
    let client = Client::connect(&server.address()).await.unwrap();
    client.list_children(FOLDER).await.unwrap_or_default()
}

#[tokio::test]
async fn whoever_waits_and_whoever_comes_waits_for_what_is_kept() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let (store, there) = process(&server).await;
    let other = process(&server).await;
    // Two stand behind it, each with another way in: the first by the end of the node before it, the second by a look.
    let stand = async || {
        let first = tokio::spawn(there.lock("report"));
        waits(&store, "report", 1).await;
        let second = tokio::spawn(other.1.write("report"));
        waits(&store, "report", 2).await;
        (first, second)
    };
    let mut waiting = None;
    let (held, fence) = one_who_has_gone(&server, KEPT, async || waiting = Some(stand().await)).await;
    let (first, second) = waiting.unwrap();
    let first = soon("the turn of the first", first).await.unwrap().unwrap();
    assert!(held.after(KEPT) <= Clock::boot().now(), "it entered before the time was over");
    assert!(fence < first.fence() && !second.is_finished());
    let had = first.fence();
    first.release().await.unwrap();
    let second = soon("the turn of the second", second).await.unwrap().unwrap();
    assert!(had < second.fence());
    second.release().await.unwrap();

    let (held, fence) = one_who_has_gone(&server, KEPT, async || ()).await;
    assert!(had < fence);
    assert!(there.try_lock("report").await.unwrap().is_none() || held.after(KEPT) <= Clock::boot().now());
    let reader = soon("the turn of a reader", std::future::IntoFuture::into_future(there.read("report")))
        .await
        .unwrap();
    assert!(held.after(KEPT) <= Clock::boot().now(), "it entered before the time was over");
    assert!(fence.get() < reader.fence().get());
    reader.release().await.unwrap();
    assert_eq!(nodes(&server).await, [""; 0], "whoever came next removed it");
}

#[tokio::test]
async fn what_is_kept_is_seen_with_its_fence_and_can_be_broken() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let (store, there) = process(&server).await;
    let (_, fence) = one_who_has_gone(&server, HOUR, async || ()).await;
    let key = Key::new("report").unwrap();
    let seen = Inspect::show(&store, &key).await.unwrap().expect("it is kept");
    assert_eq!((seen.holders.len(), seen.waiters.len(), seen.foreign.len()), (1, 0, 0));
    let holder = &seen.holders[0];
    assert_eq!((holder.fence, holder.label.note.as_deref()), (Some(fence), Some("nightly")));
    assert!(HOUR / 2 < holder.valid_for && holder.valid_for <= HOUR + TTL, "{:?}", holder.valid_for);
    let waiting = tokio::spawn(there.lock("report"));
    waits(&store, "report", 1).await;
    assert_eq!(store.break_lock(&key).await.unwrap()[0].fence, Some(fence));
    let guard = soon("the turn of who waits", waiting).await.unwrap().unwrap();
    assert!(fence < guard.fence());
    guard.release().await.unwrap();
    assert_eq!(Inspect::show(&store, &key).await.unwrap(), None);
}

#[tokio::test]
async fn a_process_that_lives_removes_what_it_kept_and_nobody_sees_what_is_over() {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let (store, here) = process(&server).await;
    let guard = here.lock("report").hold_at_least(TTL / 4).await.unwrap();
    guard.release().await.unwrap();
    let gone = async {
        while !nodes(&server).await.is_empty() {
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    };
    soon("the end of what is kept", gone).await;
    let (held, _) = one_who_has_gone(&server, TTL / 4, async || ()).await;
    Clock::boot().sleep_until(held.after(TTL)).await;
    assert_eq!(Inspect::show(&store, &Key::new("report").unwrap()).await.unwrap(), None, "its time is over");
}
