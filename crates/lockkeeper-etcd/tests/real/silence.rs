//! Silence: nodes that do not answer, ways that swallow, networks that are slow, leaders that sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::{Clock, Error, Locker};
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::process::{KitError, eventually};
use lockkeeper_servers::proxy::Rule;
use lockkeeper_servers::quorum::{Behind, PATIENCE, Quorum, claim, locker, silence, soon};
use lockkeeper_servers::{Etcd as Server, EtcdCluster};

use crate::common::Servers;

lockkeeper_servers::quorum_minority!(Servers);

#[tokio::test]
async fn a_forgotten_connection_costs_no_lock() {
    silence::a_forgotten_connection_costs_no_lock::<Servers>(Duration::from_secs(4)).await;
}

#[tokio::test]
async fn a_forgotten_connection_costs_no_call() {
    silence::a_forgotten_connection_costs_no_call::<Servers>(Duration::from_secs(30)).await;
}

#[tokio::test]
async fn a_wake_up_comes_although_the_stream_was_forgotten() {
    let ttl = Duration::from_secs(6);
    let behind = Behind::<Servers>::start(1, ttl).await;
    let (there, proxies) = behind.join().await;
    let here = Etcd::connect(&behind.servers.url_of_all(ttl)).await.unwrap();
    let mut holder = here.enter(claim("job", ttl));
    assert!(matches!(holder.turn().await.unwrap(), Turn::Held(_)));
    let mut waiter = there.enter(claim("job", ttl));
    assert!(matches!(waiter.turn().await.unwrap(), Turn::Wait { .. }));
    let before = proxies[0].counters().dropped;
    proxies[0].set_both(Rule::Drop);
    proxies[0].wait_for(|it| before < it.dropped).await.unwrap();
    holder.leave().await.unwrap();
    proxies[0].set_both(Rule::Pass);
    // Nobody looks by himself here: without a sign this would hang.
    soon("the wake-up", waiter.changed()).await;
    assert!(matches!(waiter.turn().await.unwrap(), Turn::Held(_)));
}

#[tokio::test]
async fn a_frozen_node_costs_a_new_client_less_than_one_time_out() {
    let (ttl, clock) = (Duration::from_secs(60), Clock::boot());
    let servers = Servers::start(3).await;
    // So long that nothing but a wait for the whole of it could take as long.
    let time_out = Duration::from_secs(30);
    let url = format!("{}?timeout={}s", servers.url_of_all(ttl), time_out.as_secs());
    for node in servers.nodes() {
        node.pause().unwrap();
        let asked_at = clock.now();
        let locker = locker(&Etcd::connect(&url).await.unwrap(), ttl);
        locker.lock("job").await.unwrap().release().await.unwrap();
        assert!(clock.now() - asked_at < time_out);
        node.resume().unwrap();
        node.wait_ready().await.unwrap();
    }
}

/// The longest time for which this machine let nobody run, measured on a thread of its own until it is dropped.
///
/// Where a case depends on time it is judged only if the machine kept pace: a network that is slow is not the same as
/// a machine that stands still.
struct Standstill(Arc<(AtomicU64, AtomicBool)>);

impl Standstill {
    fn watched() -> Self {
        let (shared, clock) = (Arc::<(AtomicU64, AtomicBool)>::default(), Clock::boot());
        let own = shared.clone();
        std::thread::spawn(move || {
            while !own.1.load(Ordering::Relaxed) {
                let (asleep_at, nap) = (clock.now(), Duration::from_millis(20));
                std::thread::sleep(nap);
                let late = (clock.now() - asleep_at).saturating_sub(nap);
                own.0.fetch_max(u64::try_from(late.as_millis()).unwrap(), Ordering::Relaxed);
            }
        });
        Standstill(shared)
    }

    /// Whether nobody stood still for longer than that.
    fn kept_within(&self, most: Duration) -> bool {
        u128::from(self.0.0.load(Ordering::Relaxed)) <= most.as_millis()
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        self.0.1.store(true, Ordering::Relaxed);
    }
}

/// How long it took until somebody could write while the leader sleeps.
async fn freeze_leader(cluster: &EtcdCluster, span: Duration) -> Duration {
    let clock = Clock::boot();
    let leader = cluster.leader().await.unwrap();
    leader.pause().unwrap();
    let frozen_at = clock.now();
    let others: Vec<_> = cluster.nodes().iter().filter(|it| it.port() != leader.port()).collect();
    let write = eventually(PATIENCE, async || {
        let put = others[0].post("/v3/kv/put", r#"{"key": "d2l0bmVzcw==", "value": "eA=="}"#);
        put.await.map_err(|it| KitError::new(it.to_string()))
    });
    write.await.unwrap();
    let took = clock.now() - frozen_at;
    clock.sleep(span.saturating_sub(took)).await;
    leader.resume().unwrap();
    took
}

#[tokio::test]
async fn a_leader_that_sleeps_for_less_than_the_ttl_costs_no_lock() {
    let ttl = Duration::from_secs(5);
    let cluster = Server::cluster().await.unwrap();
    let hosts: Vec<_> = cluster.nodes().iter().map(|it| it.address()).collect();
    let url = Servers::url(&hosts, ttl);
    let mut judged = 0;
    for round in 0..12 {
        let mut guards = Vec::new();
        for at in 0..20 {
            let locker = locker(&Etcd::connect(&url).await.unwrap(), ttl);
            guards.push(soon("a lock", locker.lock(format!("{round}/{at}"))).await.unwrap());
        }
        let pace = Standstill::watched();
        let took = freeze_leader(&cluster, Duration::from_secs(4)).await;
        let lost = guards.iter().filter(|it| it.check().is_err()).count();
        // Where nobody could write until the last moment, nobody could have kept a lock.
        if took <= Duration::from_secs(3) && pace.kept_within(Duration::from_millis(100)) {
            assert_eq!(lost, 0, "others could write after {took:?}");
            judged += 1;
        }
        for guard in guards {
            let _ = guard.release().await;
        }
        if judged == 2 {
            return;
        }
    }
    assert!(0 < judged, "no election was quick enough to judge by");
}

async fn slow(ttl: Duration, one_way: Duration) -> (Behind<Servers>, Locker, impl Sized) {
    let behind = Behind::<Servers>::start(1, ttl).await;
    let (backend, proxies) = behind.join().await;
    proxies[0].set_both(Rule::Delay(one_way));
    let locker = Locker::builder(backend).ttl(ttl).wait_at_most(PATIENCE).outage_max(PATIENCE).build();
    (behind, locker, proxies)
}

#[tokio::test]
async fn a_lock_is_kept_over_a_slow_network() {
    // A round trip is more than a sixth of the ttl.
    let ttl = Duration::from_secs(10);
    let (_behind, locker, _proxies) = slow(ttl, Duration::from_millis(850)).await;
    for _ in 0..6 {
        let pace = Standstill::watched();
        let guard = soon("a lock", locker.lock("job")).await.unwrap();
        Clock::boot().sleep(ttl * 2).await;
        let kept = guard.check();
        let _ = guard.release().await;
        if pace.kept_within(Duration::from_millis(200)) {
            return kept.unwrap();
        }
    }
    panic!("this machine is too busy to judge");
}

#[tokio::test]
async fn a_ttl_too_short_for_the_network_is_refused_in_words() {
    let (_behind, locker, _proxies) = slow(Duration::from_secs(2), Duration::from_millis(600)).await;
    let error = soon("an answer", locker.lock("job")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { transient: false, .. }), "{error:?}");
    assert!(error.to_string().contains("too short"), "{error}");
    let patient = locker.lock("job").ttl(Duration::from_secs(20));
    let guard = soon("a longer lock", patient).await.unwrap();
    // If it is not answered in time it goes on in the background.
    let _ = guard.release().await;
}

#[tokio::test]
async fn a_renewal_never_waits_beyond_what_is_left() {
    let ttl = Duration::from_secs(4);
    let behind = Behind::<Servers>::start(1, ttl).await;
    let (backend, proxies) = behind.join().await;
    let mut place = backend.enter(claim("job", ttl));
    assert!(matches!(place.turn().await.unwrap(), Turn::Held(_)));
    let before = proxies[0].counters().dropped;
    proxies[0].set_both(Rule::Drop);
    // The first look of a renewal is swallowed, and answered on a new connection.
    let (renewed, ()) = tokio::join!(place.renew(), async {
        proxies[0].wait_for(|it| before < it.dropped).await.unwrap();
        proxies[0].set_both(Rule::Pass);
    });
    assert!(matches!(renewed.unwrap(), Renewal::Held { .. }));
}
