//! Faults of three servers: the leader dies or sleeps, a node is cut off, the quorum is lost.

use std::time::Duration;

use lockkeeper_core::LostReason;

use super::behind::in_use;
use super::{Behind, PATIENCE, Quorum, locker, single, soon, waits};
use crate::Daemon;
use crate::process::{KitError, eventually};
use crate::proxy::Rule;

const TTL: Duration = Duration::from_secs(20);
/// Long enough to outlive the restart of servers.
const LONG: Duration = Duration::from_secs(30);

/// Hold through `fault`, still hold after it, and let another have it then.
async fn holds_through<Q: Quorum>(servers: &Q, ttl: Duration, fault: impl AsyncFnOnce()) {
    let (here, there) = (servers.locker(ttl).await, servers.locker(ttl).await);
    let guard = here.lock("job").await.unwrap();
    let fence = guard.fence();
    let waiter = tokio::spawn(async move { there.lock("job").await });
    waits(&Q::connect(&servers.url_of_all(ttl)).await, "job", 1).await;
    fault().await;
    guard.check().unwrap();
    assert!(!waiter.is_finished(), "it is held");
    // The answer may be lost with a connection that the fault broke; then the release is repeated.
    let _ = guard.release().await;
    let next = soon("the wake-up", waiter).await.unwrap().unwrap();
    assert!(fence < next.fence());
    let _ = next.release().await;
}

/// The number of the server that leads, waited for. Server `but` is not asked.
async fn leader<Q: Quorum>(servers: &Q, but: Option<usize>) -> usize {
    let found = eventually(PATIENCE, async || {
        for at in (0..servers.nodes().len()).filter(|it| Some(*it) != but) {
            if servers.leads(at).await.unwrap_or(false) {
                return Ok(at);
            }
        }
        Err(KitError::new("nobody leads"))
    });
    found.await.unwrap()
}

/// The leader is killed and another elected.
pub async fn a_killed_leader_costs_no_lock<Q: Quorum>() {
    let servers = Q::start(3).await;
    holds_through(&servers, TTL, async || {
        let old = leader(&servers, None).await;
        servers.nodes()[old].kill().unwrap();
        leader(&servers, Some(old)).await;
    })
    .await;
}

/// The leader sleeps until another is elected, and wakes.
pub async fn a_leader_that_sleeps_and_wakes_costs_no_lock<Q: Quorum>() {
    let servers = Q::start(3).await;
    holds_through(&servers, TTL, async || {
        let old = leader(&servers, None).await;
        servers.nodes()[old].pause().unwrap();
        leader(&servers, Some(old)).await;
        servers.nodes()[old].resume().unwrap();
    })
    .await;
}

/// Start these, all at once: none is ready without the others.
async fn start_together(nodes: &[&Daemon]) {
    let mut starts: Vec<_> = nodes.iter().map(|it| Box::pin(it.start())).collect();
    let all = std::future::poll_fn(|cx| {
        starts.retain_mut(|it| match it.as_mut().poll(cx) {
            std::task::Poll::Ready(started) => {
                started.unwrap();
                false
            }
            std::task::Poll::Pending => true,
        });
        if starts.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    });
    soon("the restart", all).await;
}

/// All servers are killed and started again.
pub async fn all_nodes_restarted_cost_no_lock<Q: Quorum>() {
    let servers = Q::start(3).await;
    holds_through(&servers, LONG, async || {
        for node in servers.nodes() {
            node.kill().unwrap();
        }
        start_together(&servers.nodes()).await;
    })
    .await;
}

/// Two of three are killed and started again, in time.
pub async fn a_quorum_that_is_back_in_time_costs_no_lock<Q: Quorum>() {
    let servers = Q::start(3).await;
    holds_through(&servers, LONG, async || {
        for node in &servers.nodes()[..2] {
            node.kill().unwrap();
        }
        start_together(&servers.nodes()[..2]).await;
    })
    .await;
}

/// Two of three are killed until the holder has lost its lock, while another waits.
pub async fn a_lost_quorum_costs_the_lock_at_its_deadline_and_no_earlier_fence_returns<Q: Quorum>() {
    let ttl = Duration::from_secs(4);
    let servers = Q::start(3).await;
    let (here, there) = (servers.locker(ttl).await, servers.locker(ttl).await);
    let guard = here.lock("job").await.unwrap();
    let waiter = tokio::spawn(async move { there.lock("job").await });
    waits(&Q::connect(&servers.url_of_all(ttl)).await, "job", 1).await;
    for node in &servers.nodes()[..2] {
        node.kill().unwrap();
    }
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Expired);
    start_together(&servers.nodes()[..2]).await;
    let next = soon("the grant of who waited", waiter).await.unwrap().unwrap();
    assert!(guard.fence() < next.fence());
    let fence = next.fence();
    let _ = next.release().await;
    let again = soon("the lock", here.lock("job")).await.unwrap();
    assert!(fence < again.fence());
    assert!(guard.check().is_err(), "what is lost stays lost");
}

/// The holder's node cannot be reached any more, but the others can.
pub async fn a_holder_cut_off_from_its_node_goes_to_another<Q: Quorum>() {
    let behind = Behind::<Q>::start(3, TTL).await;
    let (backend, proxies) = behind.join().await;
    let here = locker(&backend, TTL);
    let guard = here.lock("job").await.unwrap();
    in_use(&proxies).set_both(Rule::Drop);
    let other = soon("a lock through another node", here.lock("other")).await.unwrap();
    lockkeeper_core::Clock::boot().sleep(TTL).await;
    guard.check().unwrap();
    other.release().await.unwrap();
    guard.release().await.unwrap();
}

/// The waiter's node cannot be reached any more, but the others can; then the lock is released.
pub async fn a_waiter_cut_off_from_its_node_is_woken_through_another<Q: Quorum>() {
    let behind = Behind::<Q>::start(3, LONG).await;
    let (backend, proxies) = behind.join().await;
    let (here, there) = (behind.servers.locker(LONG).await, locker(&backend, LONG));
    let guard = here.lock("job").await.unwrap();
    let waiter = tokio::spawn(async move { there.lock("job").await });
    waits(&Q::connect(&behind.servers.url_of_all(LONG)).await, "job", 1).await;
    in_use(&proxies).set_both(Rule::Drop);
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = soon("the wake-up", waiter).await.unwrap().unwrap();
    assert!(fence < next.fence());
    next.release().await.unwrap();
}

/// An administrator ends the holder's session, by way of any server.
pub async fn a_session_ended_by_an_administrator_is_told_and_replaced<Q: Quorum>() {
    single::session_ended::<Q>(3).await;
}

/// The claim is made through one node and its answer lost; it is asked for again, perhaps at another node.
pub async fn a_place_whose_answer_was_lost_is_found_again<Q: Quorum>() {
    single::answer_lost::<Q>(3).await;
}
