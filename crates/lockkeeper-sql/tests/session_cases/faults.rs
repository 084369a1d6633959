//! Holders, connections and servers that end.

use std::time::Duration;

use lockkeeper_core::backend::{Backend as _, Place as _, Renewal, Turn};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::{Claim, Clock, Fence, Key};
use lockkeeper_servers::Daemon;
use lockkeeper_servers::proxy::{Direction, Rule};
use rustix::process::Signal;

use super::{LONG, Sessions, TTL, by_proxy, locker, open, session_url, until, within};
use crate::child::{self, Other};
use crate::faults::this_test;

/// The other process of a test: it takes the lock, says so, and says when it has lost it.
async fn hold_until_lost<S: Sessions>(ttl: Duration) -> bool {
    let Some(url) = child::told() else { return false };
    let guard = locker(open::<S>(&url).await, ttl).lock("orders/42").await.unwrap();
    child::tell(&format!("held {}", guard.fence().get()));
    guard.lost().await;
    child::tell(&format!("lost {}", guard.is_valid()));
    true
}

async fn may_write<S: Sessions>(site: &S, fence: Fence) -> bool {
    S::write(&site.url(), fence.get()).await
}

pub(crate) async fn a_killed_holder_is_replaced_long_before_its_ttl<S: Sessions>() {
    if hold_until_lost::<S>(LONG).await {
        return;
    }
    let site = S::start(&[]).await;
    let other = Other::start(&this_test(), &site.url());
    let before: u64 = other.expect("held ").parse().unwrap();
    let here = locker(open::<S>(&site.url()).await, LONG);
    let waiting = tokio::spawn(async move { here.lock("orders/42").await.map(|it| it.fence()) });
    other.signal(Signal::KILL);
    let fence = within(waiting).await.unwrap().unwrap();
    assert!(before < fence.get());
}

pub(crate) async fn a_stopped_holder_is_replaced_after_its_ttl_and_learns_it<S: Sessions>() {
    if hold_until_lost::<S>(TTL).await {
        return;
    }
    let site = S::start(&[]).await;
    let other = Other::start(&this_test(), &site.url());
    let before: u64 = other.expect("held ").parse().unwrap();
    let here = locker(open::<S>(&site.url()).await, TTL);
    assert!(here.try_lock("orders/42").await.unwrap().is_none());
    other.signal(Signal::STOP);
    let guard = within(here.lock("orders/42")).await.unwrap();
    assert!(before < guard.fence().get());
    assert!(may_write(&site, guard.fence()).await);
    assert!(!may_write(&site, Fence::from_u64(before)).await, "a holder that was stopped writes no more");
    other.signal(Signal::CONT);
    assert_eq!(other.expect("lost "), "false");
    guard.release().await.unwrap();
}

pub(crate) async fn a_broken_connection_is_told_and_the_next_has_the_lock<S: Sessions>() {
    let site = S::start(&[]).await;
    let (network, url) = by_proxy(&site).await;
    let (here, there) = (locker(open::<S>(&url).await, LONG), locker(open::<S>(&site.url()).await, LONG));
    let guard = here.lock("orders/42").await.unwrap();
    network.cut();
    // Long before a beat is due: a third of the ttl is five minutes.
    within(guard.lost()).await;
    let next = within(there.lock("orders/42")).await.unwrap();
    assert!(guard.fence() < next.fence());
    drop(next);
    // Its process goes on with another session.
    within(here.lock("orders/42")).await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_session_cut_on_the_servers_side_only_has_two_holders_and_one_who_may_write<
    S: Sessions,
>() {
    let site = S::start(&[]).await;
    let (network, url) = by_proxy(&site).await;
    let (here, there) = (locker(open::<S>(&url).await, LONG), locker(open::<S>(&site.url()).await, TTL));
    let guard = here.lock("orders/42").await.unwrap();
    assert!(may_write(&site, guard.fence()).await);
    // The server ends the session, and the word of it is lost.
    network.set(Direction::ToClient, Rule::Drop);
    site.kill_connections().await;
    let next = within(there.lock("orders/42")).await.unwrap();
    assert!(guard.is_valid(), "this is what a session lock cannot promise");
    assert!(may_write(&site, next.fence()).await);
    assert!(!may_write(&site, guard.fence()).await, "and this is the answer");
    network.cut();
    within(guard.lost()).await;
}

pub(crate) async fn a_waiter_whose_session_ended_without_a_word_stands_in_line_again<S: Sessions>() {
    let site = S::start(&[]).await;
    let (network, url) = by_proxy(&site).await;
    let (here, near) = (locker(open::<S>(&url).await, TTL), open::<S>(&site.url()).await);
    let (there, key) = (locker(near.clone(), TTL), Key::new("orders/42").unwrap());
    let first = there.lock("orders/42").await.unwrap();
    let waiting = tokio::spawn(async move { here.lock("orders/42").await.map(|it| it.fence()) });
    let stands = async || near.show(&key).await.ok().flatten().filter(|it| it.waiters.len() == 1);
    until(async || stands().await).await;
    // The server ends all sessions, and the word of it is lost on the way to the one that waits.
    network.set(Direction::ToClient, Rule::Drop);
    site.kill_connections().await;
    within(first.lost()).await;
    let second = within(there.lock("orders/42")).await.unwrap();
    let fence = second.fence();
    network.set(Direction::ToClient, Rule::Pass);
    second.release().await.unwrap();
    assert!(fence < within(waiting).await.unwrap().unwrap());
}

pub(crate) async fn after_a_restart_nobody_is_let_in_before_the_longest_ttl_is_over<S: Sessions>() {
    if hold_until_lost::<S>(TTL).await {
        return;
    }
    let site = S::start(&[]).await;
    let other = Other::start(&this_test(), &site.url());
    let before: u64 = other.expect("held ").parse().unwrap();
    other.signal(Signal::STOP);
    let clock = Clock::boot();
    site.kill().unwrap();
    let killed_at = clock.now();
    Daemon::start(&site).await.unwrap();
    // One with a short ttl waits for those with longer ones.
    let here = locker(open::<S>(&site.url()).await, TTL / 2);
    let tried = here.try_lock("orders/42").await.unwrap().is_some();
    let too_early = tried && clock.now() - killed_at < TTL;
    assert!(!too_early, "let in although a holder before the restart may still believe in its lock");
    let guard = within(here.lock("orders/42")).await.unwrap();
    let waited = clock.now() - killed_at;
    assert!(TTL <= waited, "let in {waited:?} after the crash although a holder had {TTL:?}");
    assert!(before < guard.fence().get(), "fences grow over a crash");
    other.signal(Signal::CONT);
    assert_eq!(other.expect("lost "), "false");
}

pub(crate) async fn a_promoted_replica_with_a_slow_clock_lets_nobody_in_too_early_and_its_fences_grow<
    S: Sessions,
>() {
    let (leader, follower) = S::followed().await;
    let (first, clock) = (locker(open::<S>(&leader.url()).await, TTL), Clock::boot());
    let _held = first.lock("first").await.unwrap();
    // Whatever the clock of the follower shows, it is behind these fences by days.
    leader.sql(S::FENCES_AHEAD).await;
    let guard = locker(open::<S>(&leader.url()).await, TTL).lock("orders/42").await.unwrap();
    until(async || follower.knows(&leader).await.then_some(())).await;
    leader.kill().unwrap();
    let killed_at = clock.now();
    follower.promote().await;
    let there = locker(open::<S>(&follower.url()).await, TTL);
    let next = within(there.lock("orders/42")).await.unwrap();
    assert!(TTL <= clock.now() - killed_at, "the replica let somebody in too early");
    assert!(guard.fence() < next.fence());
    within(guard.lost()).await;
}

pub(crate) async fn a_server_without_a_connection_left_says_so_and_loses_no_lock<S: Sessions>() {
    let (_site, url) = S::narrow().await;
    let (store, held) = (open::<S>(&url).await, locker(open::<S>(&url).await, TTL));
    let guard = held.lock("held").await.unwrap();
    let mut others = Vec::new();
    let refused = loop {
        let another = match S::sessions(&session_url(&url)).await {
            Ok(another) => another,
            Err(error) => break error.to_string(),
        };
        let key = Key::new(&format!("other/{}", others.len())).unwrap();
        let mut place = another.enter(Claim::new(key, LONG).unwrap());
        match within(place.turn()).await {
            Ok(turn) => assert!(matches!(turn, Turn::Held(_)), "nobody else is there"),
            Err(fault) => break fault.to_string(),
        }
        others.push((another, place));
    };
    assert!(refused.contains("max_connections"), "{refused}");
    assert!(guard.is_valid(), "what is held stays");
    for (_, place) in &mut others {
        assert!(matches!(place.renew().await.unwrap(), Renewal::Held { .. }), "what is held stays");
    }
    drop((others, store));
    within(held.lock("another")).await.unwrap().release().await.unwrap();
}
