//! Faults on one server: dead, frozen and cut-off holders, restarts, lost answers, and administrators.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Key, LostReason};

use super::behind::in_use;
use super::child::{NAME, Other};
use super::{Behind, PATIENCE, Quorum, claim, locker, soon, take, waits};
use crate::process::{KitError, eventually};
use crate::proxy::{Direction, Rule};

const TTL: Duration = Duration::from_secs(3);
/// Long enough to outlive the restart of a server.
const LONG: Duration = Duration::from_secs(30);

/// The holder's process is killed. `test` is the full name of the test.
pub async fn a_killed_holder_is_replaced<Q: Quorum>(test: &'static str) {
    let servers = Q::start(1).await;
    let mut other = Other::start(test, &servers.url_of_all(TTL), TTL);
    let before: u64 = other.says("holds with fence").await.parse().unwrap();
    let locker = servers.locker(TTL).await;
    assert!(locker.try_lock(NAME).await.unwrap().is_none());
    other.process.kill().unwrap();
    let guard = locker.lock(NAME).await.unwrap();
    assert!(before < guard.fence().get());
    guard.release().await.unwrap();
}

/// The holder's process sleeps for longer than its ttl. `test` is the full name of the test.
pub async fn a_frozen_holder_is_replaced_and_learns_of_it_when_it_wakes<Q: Quorum>(test: &'static str) {
    let servers = Q::start(1).await;
    let mut other = Other::start(test, &servers.url_of_all(TTL), TTL);
    let before: u64 = other.says("holds with fence").await.parse().unwrap();
    let locker = servers.locker(TTL).await;
    other.process.pause().unwrap();
    let guard = locker.lock(NAME).await.unwrap();
    assert!(before < guard.fence().get());
    other.process.resume().unwrap();
    other.says("lost it").await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// The server is killed and comes back with what it has on its disk.
pub async fn a_restarted_server_still_knows_who_holds<Q: Quorum>() {
    let servers = Q::start(1).await;
    let (here, there) = (servers.locker(LONG).await, servers.locker(LONG).await);
    let guard = here.lock("job").await.unwrap();
    servers.nodes()[0].kill().unwrap();
    servers.nodes()[0].start().await.unwrap();
    // The other's connection is lost as well; a try tells that once it has tried again.
    let seen = eventually(PATIENCE, async || {
        let seen = there.try_lock("job").await.map_err(|it| KitError::new(it.to_string()))?;
        Ok(seen.is_none())
    });
    assert!(seen.await.unwrap(), "it is held");
    guard.check().unwrap();
    let fence = guard.fence();
    // The answer may be lost with the old connection; then the release is repeated in the background.
    let _ = guard.release().await;
    assert!(fence < there.lock("job").await.unwrap().fence());
}

/// The server is restarted while somebody waits.
pub async fn a_waiter_is_woken_after_its_server_was_restarted<Q: Quorum>() {
    let servers = Q::start(1).await;
    let (here, there) = (servers.locker(LONG).await, servers.locker(LONG).await);
    let guard = here.lock("job").await.unwrap();
    let fence = guard.fence();
    let waiter = tokio::spawn(async move { there.lock("job").await });
    waits(&Q::connect(&servers.url_of_all(LONG)).await, "job", 1).await;
    servers.nodes()[0].restart().await.unwrap();
    // The answer may be lost with the old connection; then the release is repeated in the background.
    let _ = guard.release().await;
    assert!(fence < soon("the wake-up", waiter).await.unwrap().unwrap().fence());
}

/// An administrator ends the holder's session; what was lost stays lost.
pub async fn a_session_ended_by_an_administrator_is_told_and_replaced<Q: Quorum>() {
    session_ended::<Q>(1).await;
}

pub(super) async fn session_ended<Q: Quorum>(nodes: usize) {
    let servers = Q::start(nodes).await;
    let (here, there) = (servers.locker(LONG).await, servers.locker(LONG).await);
    let guard = here.lock("job").await.unwrap();
    servers.end_sessions("job").await.unwrap();
    // The ttl is far from over: the store gives it away now.
    let next = soon("the next grant", there.lock("job")).await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Taken);
    assert!(guard.fence() < next.fence());
    assert!(guard.check().is_err(), "what is lost stays lost");
    let fence = next.fence();
    next.release().await.unwrap();
    let again = soon("a new session", here.lock("job")).await.unwrap();
    assert!(fence < again.fence());
    assert!(guard.check().is_err(), "a new session revives no old guard");
    again.release().await.unwrap();
}

/// An administrator ends the sessions of holder and waiter at once.
pub async fn a_waiter_whose_session_was_ended_stands_in_line_again<Q: Quorum>() {
    let servers = Q::start(1).await;
    let (here, there) = (servers.locker(LONG).await, servers.locker(LONG).await);
    let observer = Q::connect(&servers.url_of_all(LONG)).await;
    let guard = here.lock("job").await.unwrap();
    let waiter = tokio::spawn(async move { there.lock("job").await });
    waits(&observer, "job", 1).await;
    servers.end_sessions("job").await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Taken);
    let next = soon("the grant", waiter).await.unwrap().unwrap();
    assert!(guard.fence() < next.fence());
    next.check().unwrap();
    next.release().await.unwrap();
    assert_eq!(observer.show(&Key::new("job").unwrap()).await.unwrap(), None, "nothing is left");
}

/// An administrator ends the session of one who waits, and of nobody else: its wait ends, and its next turn stands anew.
pub async fn a_waiter_whose_session_alone_was_ended_is_told_and_stands_anew<Q: Quorum>() {
    let servers = Q::start(1).await;
    let url = servers.url_of_all(LONG);
    let (here, there) = (Q::connect(&url).await, Q::connect(&url).await);
    let (mut holder, mut waiter) = (here.enter(claim("job", LONG)), there.enter(claim("job", LONG)));
    take(&mut holder).await;
    assert!(matches!(waiter.turn().await.unwrap(), Turn::Wait { .. }));
    // Its session holds another lock, too, by which it is found.
    let mut other = there.enter(claim("other", LONG));
    take(&mut other).await;
    let told = soon("the end of the wait", waiter.changed());
    let (ended, ()) = tokio::join!(servers.end_sessions("other"), told);
    ended.unwrap();
    let stands = async {
        loop {
            match waiter.turn().await {
                Ok(Turn::Wait { .. }) => return,
                Ok(Turn::Held(grant)) => panic!("two hold: {grant:?}"),
                Err(fault) => assert!(fault.is_transient(), "{fault}"),
            }
        }
    };
    soon("a new place in line", stands).await;
    waits(&here, "job", 1).await;
    let renewal = holder.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { .. }), "its session was not touched: {renewal:?}");
    holder.leave().await.unwrap();
    take(&mut waiter).await;
}

/// The holder is cut off until somebody else has the lock, and for as long as it takes until it is told.
pub async fn a_holder_cut_off_is_told_before_another_gets_it<Q: Quorum>() {
    let behind = Behind::<Q>::start(1, TTL).await;
    let (backend, proxies) = behind.join().await;
    let (other, _proxies) = behind.join().await;
    let (here, there) = (locker(&backend, TTL), locker(&other, TTL));
    let guard = here.lock("job").await.unwrap();
    proxies[0].refuse().await.unwrap();
    proxies[0].cut();
    let told = async { (guard.lost().await, Clock::boot().now()) };
    let taken = async { (there.lock("job").await.unwrap(), Clock::boot().now()) };
    let ((reason, told_at), (next, taken_at)) =
        soon("loss and grant", async { tokio::join!(told, taken) }).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(told_at < taken_at, "the loss is told before the store gives it away");
    assert!(guard.fence() < next.fence());
    proxies[0].accept().await.unwrap();
    next.release().await.unwrap();
    let again = soon("a new session", here.lock("job")).await.unwrap();
    assert!(guard.check().is_err(), "a new session revives no old guard");
    again.release().await.unwrap();
}

/// An administrator deletes the holder's claim.
pub async fn a_claim_deleted_by_hand_is_told<Q: Quorum>() {
    let servers = Q::start(1).await;
    let here = servers.locker(TTL).await;
    let guard = here.lock("job").await.unwrap();
    servers.delete_first("job").await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Taken);
    assert!(guard.fence() < here.lock("job").await.unwrap().fence());
}

/// An administrator deletes a claim that waits, with another behind it.
pub async fn a_waiting_claim_deleted_by_hand_stands_in_line_again<Q: Quorum>() {
    let servers = Q::start(1).await;
    let backend = Q::connect(&servers.url_of_all(LONG)).await;
    let mut line = [(); 3].map(|()| backend.enter(claim("job", LONG)));
    take(&mut line[0]).await;
    for place in &mut line[1..] {
        assert!(matches!(place.turn().await.unwrap(), Turn::Wait { .. }), "it is held");
    }
    // The holder goes first, so that the waiter is the first in line when it is deleted.
    line[0].leave().await.unwrap();
    servers.delete_first("job").await.unwrap();
    let [_, second, third] = &mut line;
    take(third).await;
    let waits = second.turn().await.unwrap();
    assert!(matches!(waits, Turn::Wait { ahead: Some(1), .. }), "it stands behind the other now: {waits:?}");
    third.leave().await.unwrap();
    take(second).await;
    second.leave().await.unwrap();
    assert_eq!(backend.show(&Key::new("job").unwrap()).await.unwrap(), None, "nothing is left");
}

/// The claim is made and its answer lost.
pub async fn a_place_whose_answer_was_lost_is_found_again<Q: Quorum>() {
    answer_lost::<Q>(1).await;
}

pub(super) async fn answer_lost<Q: Quorum>(nodes: usize) {
    let behind = Behind::<Q>::start(nodes, LONG).await;
    let (backend, proxies) = behind.join().await;
    take(&mut backend.enter(claim("warm", LONG))).await;
    let proxy = in_use(&proxies);
    // What every request for this line names.
    proxy.lose_reply(b"/job/");
    let mut place = backend.enter(claim("job", LONG));
    let turn = ask(&mut place).await;
    assert!(matches!(turn, Turn::Held(_)));
    assert_eq!(proxy.counters().cut, 1, "an answer was lost");
    place.leave().await.unwrap();
    assert_eq!(backend.show(&Key::new("job").unwrap()).await.unwrap(), None, "there was one place only");
}

/// Ask until there is an answer. A lost one is either asked for again by the backend, or told as unknown.
async fn ask(place: &mut impl Place) -> Turn {
    let answer = async {
        loop {
            match place.turn().await {
                Ok(turn) => return turn,
                // As a keeper does between two tries.
                Err(_) => Clock::boot().sleep(Duration::from_millis(20)).await,
            }
        }
    };
    soon("an answer", answer).await
}

/// The claim is made, its answer lost, and its session ended before anybody asks again: what it left goes, or is
/// gone, and does not count.
pub async fn a_place_whose_answer_and_session_were_lost_begins_anew<Q: Quorum>() {
    let behind = Behind::<Q>::start(1, LONG).await;
    let (backend, proxies) = behind.join().await;
    // Now there is a session, and the line has been there.
    let mut warm = backend.enter(claim("job", LONG));
    take(&mut warm).await;
    warm.leave().await.unwrap();
    let observer = Q::connect(&behind.servers.url_of_all(LONG)).await;
    let key = Key::new("job").unwrap();
    let mut place = backend.enter(claim("job", LONG));
    // Requests arrive and no answer comes back, until the administrator is done.
    proxies[0].set(Direction::ToClient, Rule::Hold);
    let (first, ()) = tokio::join!(place.turn(), async {
        let arrived = eventually(PATIENCE, async || match observer.show(&key).await {
            Ok(Some(_)) => Ok(()),
            it => Err(KitError::new(format!("{it:?}"))),
        });
        arrived.await.unwrap();
        proxies[0].refuse().await.unwrap();
        proxies[0].cut();
        behind.servers.end_sessions("job").await.unwrap();
        assert_eq!(observer.show(&key).await.unwrap(), None, "its session has ended");
        proxies[0].set(Direction::ToClient, Rule::Pass);
        proxies[0].accept().await.unwrap();
    });
    let turn = match first {
        Ok(turn) => turn,
        Err(_) => ask(&mut place).await,
    };
    assert!(matches!(turn, Turn::Held(_)));
    let shown = observer.show(&key).await.unwrap().unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 0));
    place.leave().await.unwrap();
    assert_eq!(observer.show(&key).await.unwrap(), None);
}

/// The application blocks the only thread of its runtime.
pub async fn a_blocked_application_keeps_its_lock<Q: Quorum>() {
    let servers = Q::start(1).await;
    let here = servers.locker(TTL).await;
    let guard = here.lock("job").await.unwrap();
    std::thread::sleep(TTL * 2);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// The runtime in which a lock was taken ends before the lock is given back.
pub async fn a_lock_outlives_the_runtime_that_took_it<Q: Quorum>() {
    let servers = Q::start(1).await;
    let here = servers.locker(TTL).await;
    let taken = here.clone();
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Taken on a connection that dies with its runtime.
        runtime.block_on(async { taken.lock("job").await.unwrap() })
    });
    let guard = tokio::task::spawn_blocking(|| elsewhere.join().unwrap()).await.unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
    let blocking =
        tokio::task::spawn_blocking(move || here.lock("job").blocking().unwrap().release_blocking());
    blocking.await.unwrap().unwrap();
}
