//! Holders that hear at once: of whoever begins to wait, and of their own end.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::{Clock, Load};
use lockkeeper_servers::quorum::{Quorum, claim, soon, take};
use lockkeeper_zookeeper::{ZooKeeper, ZooKeeperPlace};

use crate::common::Servers;

/// Nobody renews in these tests: what is heard was told by a watch.
const TTL: Duration = Duration::from_secs(60);

async fn process(servers: &Servers) -> ZooKeeper {
    ZooKeeper::connect(&servers.url_of_all(TTL)).await.unwrap()
}

async fn waiting(backend: &ZooKeeper) -> ZooKeeperPlace {
    let mut place = backend.enter(claim("job", TTL));
    let turn = place.turn().await.unwrap();
    assert!(matches!(turn, Turn::Wait { .. }), "it is held: {turn:?}");
    place
}

async fn is_wanted(holder: &mut ZooKeeperPlace) {
    let renewal = holder.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { wanted: true, .. }), "{renewal:?}");
}

/// Ask at every sign, and only then, until it is gone. An ended session is a lost connection first, of which nothing is known.
async fn is_lost(holder: &mut ZooKeeperPlace) {
    loop {
        holder.changed().await;
        match holder.renew().await {
            Ok(Renewal::Lost) => return,
            Ok(_) => {}
            Err(_) => Clock::boot().sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test]
async fn a_holder_hears_of_the_first_who_waits_and_then_of_its_end_alone() {
    let servers = Servers::start(1).await;
    let (here, there) = (process(&servers).await, process(&servers).await);
    let mut holder = here.enter(claim("job", TTL));
    take(&mut holder).await;
    let (waiter, ()) = tokio::join!(waiting(&there), soon("a sign of the waiter", holder.changed()));
    is_wanted(&mut holder).await;
    // It knows. The next who comes tells it nothing new, but its own end does.
    let ends = std::cell::Cell::new(false);
    let come_and_end = async {
        let other = waiting(&there).await;
        ends.set(true);
        servers.delete_first("job").await.unwrap();
        other
    };
    let told = async {
        soon("a sign of the end", holder.changed()).await;
        assert!(ends.get(), "it was told of another who waits");
    };
    let (other, ()) = tokio::join!(come_and_end, told);
    assert_eq!(holder.renew().await.unwrap(), Renewal::Lost);
    drop((waiter, other));
}

#[tokio::test]
async fn a_holder_that_begins_to_listen_late_hears_of_who_came_before() {
    let servers = Servers::start(1).await;
    let (here, there) = (process(&servers).await, process(&servers).await);
    let mut holder = here.enter(claim("job", TTL));
    take(&mut holder).await;
    let waiter = waiting(&there).await;
    soon("a sign", holder.changed()).await;
    is_wanted(&mut holder).await;
    drop(waiter);
}

#[tokio::test]
async fn a_holder_hears_that_its_node_is_deleted_or_its_session_ended() {
    let servers = Servers::start(1).await;
    for ended in [false, true] {
        let backend = process(&servers).await;
        let mut holder = backend.enter(claim("job", TTL));
        take(&mut holder).await;
        let end = async {
            if ended { servers.end_sessions("job").await } else { servers.delete_first("job").await }
        };
        let (done, ()) = tokio::join!(end, soon("a sign", is_lost(&mut holder)));
        done.unwrap();
    }
}

#[tokio::test]
async fn a_reader_hears_of_a_writer_who_waits() {
    let servers = Servers::start(1).await;
    let (here, there) = (process(&servers).await, process(&servers).await);
    let mut holder = here.enter(claim("job", TTL).load(Load::READER));
    take(&mut holder).await;
    let (mut beside, mut writer) = (
        there.enter(claim("job", TTL).load(Load::READER)),
        there.enter(claim("job", TTL).load(Load::WRITER)),
    );
    let come = async {
        take(&mut beside).await;
        assert!(matches!(writer.turn().await.unwrap(), Turn::Wait { .. }));
    };
    tokio::join!(come, soon("a sign", holder.changed()));
    is_wanted(&mut holder).await;
}
