//! Being told: hand-offs by a watch that stands, holders that hear at once, and not more told than must be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_core::Load;
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_etcd::{Etcd, EtcdPlace};
use lockkeeper_servers::quorum::{Quorum, claim, soon, take};
use tokio::task::JoinHandle;

use crate::admin_of::put;
use crate::common::Servers;

/// So long that no heartbeat comes within a test: what is heard was told by a watch.
const TTL: Duration = Duration::from_secs(3600);

async fn process(servers: &Servers) -> Etcd {
    Etcd::connect(&servers.url_of_all(TTL)).await.unwrap()
}

async fn waiting(backend: &Etcd) -> EtcdPlace {
    let mut place = backend.enter(claim("job", TTL));
    let turn = place.turn().await.unwrap();
    assert!(matches!(turn, Turn::Wait { .. }), "it is held: {turn:?}");
    place
}

/// Somebody else who writes all the time, elsewhere in the store.
struct Scribe {
    stop: Arc<AtomicBool>,
    writes: JoinHandle<u64>,
}

impl Scribe {
    fn start(servers: &Arc<Servers>) -> Self {
        let (stop, servers) = (Arc::<AtomicBool>::default(), servers.clone());
        let stopped = stop.clone();
        let writes = tokio::spawn(async move {
            let mut writes = 0;
            while !stopped.load(Ordering::Relaxed) {
                put(servers.first(), "elsewhere", "some value").await;
                writes += 1;
            }
            writes
        });
        Scribe { stop, writes }
    }

    async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.writes.await.unwrap()
    }
}

/// Requests to set or to end a watch, by the server's own count.
async fn orders(servers: &Servers) -> u64 {
    servers.first().figure("grpc_server_msg_received_total{grpc_method=\"Watch\"").await.unwrap()
}

#[tokio::test]
async fn a_chain_of_hand_offs_needs_one_watch_of_each_process() {
    const HAND_OFFS: usize = 60;
    let servers = Arc::new(Servers::start(1).await);
    let processes = [process(&servers).await, process(&servers).await, process(&servers).await];
    let scribe = Scribe::start(&servers);
    let mut holder = processes[0].enter(claim("job", TTL));
    take(&mut holder).await;
    let mut line = vec![waiting(&processes[1]).await, waiting(&processes[2]).await];
    let before = orders(&servers).await;
    for at in 0..HAND_OFFS {
        holder.leave().await.unwrap();
        let mut next = line.remove(0);
        take(&mut next).await;
        line.push(waiting(&processes[at % 3]).await);
        holder = next;
    }
    assert!(0 < scribe.stop().await, "others wrote meanwhile");
    // One of the first process, and a few if this machine stood still for so long that one was given up.
    let orders = orders(&servers).await - before;
    assert!(orders < 10, "{HAND_OFFS} hand-offs set and ended {orders} watches: each of these may be late");
}

#[tokio::test]
async fn a_holder_hears_of_the_first_who_waits_without_asking() {
    let servers = Servers::start(1).await;
    let (here, there) = (process(&servers).await, process(&servers).await);
    let mut holder = here.enter(claim("job", TTL));
    take(&mut holder).await;
    let (waiter, ()) = tokio::join!(waiting(&there), soon("a sign of the waiter", holder.changed()));
    let renewal = holder.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { wanted: true, .. }), "{renewal:?}");
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
    let renewal = holder.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { wanted: true, .. }), "{renewal:?}");
    drop(waiter);
}

#[tokio::test]
async fn a_holder_hears_that_its_key_is_deleted_or_its_lease_revoked() {
    let servers = Servers::start(1).await;
    for revoked in [false, true] {
        let backend = process(&servers).await;
        let mut holder = backend.enter(claim("job", TTL));
        take(&mut holder).await;
        let (ended, ()) = tokio::join!(
            async {
                if revoked { servers.end_sessions("job").await } else { servers.delete_first("job").await }
            },
            soon("a sign", holder.changed()),
        );
        ended.unwrap();
        assert_eq!(holder.renew().await.unwrap(), Renewal::Lost, "revoked: {revoked}");
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
    let renewal = holder.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { wanted: true, .. }), "{renewal:?}");
}

/// Watches that begin in the past, which the server serves ten times a second.
async fn late(servers: &Servers) -> u64 {
    servers.first().figure("etcd_debugging_mvcc_slow_watcher_total ").await.unwrap()
}

#[tokio::test]
async fn however_many_readers_wait_behind_a_writer_they_do_not_watch_from_the_past() {
    const READERS: usize = 24;
    let servers = Arc::new(Servers::start(1).await);
    let mut writer = process(&servers).await.enter(claim("job", TTL).load(Load::WRITER));
    take(&mut writer).await;
    let scribe = Scribe::start(&servers);
    let (mut readers, mut past) = (Vec::new(), 0);
    for _ in 0..READERS {
        let mut reader = process(&servers).await.enter(claim("job", TTL).load(Load::READER));
        let before = orders(&servers).await;
        assert!(matches!(reader.turn().await.unwrap(), Turn::Wait { .. }));
        let set = async { while orders(&servers).await == before {} };
        soon("its watch", set).await;
        past += late(&servers).await;
        readers.push(reader);
    }
    // The server itself turns *now* into a revision, and somebody may write before it has. That is seldom.
    assert!(
        past < 6,
        "of {READERS} readers {past} watch from the past, and may hear late of the writer's end"
    );
    writer.leave().await.unwrap();
    for reader in &mut readers {
        take(reader).await;
    }
    assert!(0 < scribe.stop().await, "others wrote meanwhile");
}

#[tokio::test]
async fn of_many_waiting_processes_only_the_first_few_are_told_of_a_release() {
    const PROCESSES: u64 = 24;
    /// Those near the head, and whoever watches the one that left, twice.
    const TOLD_MAX: u64 = 8 + 2;
    let servers = Servers::start(1).await;
    let mut holder = process(&servers).await.enter(claim("job", TTL));
    take(&mut holder).await;
    let mut line = Vec::new();
    for _ in 0..PROCESSES {
        line.push(waiting(&process(&servers).await).await);
    }
    assert_eq!(servers.events().await, 0, "nobody is told of those who come");
    for mut next in line {
        holder.leave().await.unwrap();
        take(&mut next).await;
        holder = next;
    }
    let told = servers.events().await;
    assert!(told <= PROCESSES * TOLD_MAX, "{PROCESSES} releases were told {told} times");
}
