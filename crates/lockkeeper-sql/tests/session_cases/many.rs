//! Many locks, many callers, many names: how many sessions and statements they cost.

use std::time::Duration;

use lockkeeper_core::backend::{Backend as _, Place as _, Turn};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::{Claim, Clock, Guard, Locker};
use lockkeeper_servers::proxy::{Direction, Rule};

use super::{LONG, PATIENCE, Sessions, TTL, by_proxy, locker, open, session_url, until, within};
use crate::turns::Turns;

pub(crate) async fn waiting_for_one_lock_holds_up_none_of_the_others<S: Sessions>() {
    let site = S::start(&[]).await;
    let (store, there) = (open::<S>(&site.url()).await, locker(open::<S>(&site.url()).await, LONG));
    let (here, clock) = (locker(store.clone(), LONG), Clock::boot());
    let (held, wanted) = (here.lock("held").await.unwrap(), there.lock("wanted").await.unwrap());
    let waiting = tokio::spawn({
        let here = here.clone();
        async move { here.lock("wanted").await.map(|it| it.fence()) }
    });
    let waited = async || {
        store.show(wanted.key()).await.unwrap().and_then(|it| it.waiters.first().and_then(|it| it.since))
    };
    until(&waited).await;
    let seen_at = clock.now();
    within(here.lock("another")).await.unwrap().release().await.unwrap();
    let since = clock.now() - seen_at;
    assert!(held.is_valid(), "a lock was lost because its process waits for another");
    // By the server's clock, which may go a little slower.
    let still = waited().await.is_some_and(|it| since <= it + Duration::from_secs(1));
    assert!(still, "a wait was given up because its process took another lock");
    let before = wanted.fence();
    wanted.release().await.unwrap();
    assert!(before < within(waiting).await.unwrap().unwrap());
    assert!(held.is_valid(), "a lock was lost because its process waited for another");
}

pub(crate) async fn callers_of_one_process_wait_by_one_connection<S: Sessions>() {
    let site = S::start(&[]).await;
    let store = open::<S>(&site.url()).await;
    let (here, there) = (locker(store.clone(), LONG), locker(open::<S>(&site.url()).await, LONG));
    for name in ["orders/42", "orders/43"] {
        let wanted = there.lock(name).await.unwrap();
        let waiting: Vec<_> = (0..10)
            .map(|_| {
                let here = here.clone();
                tokio::spawn(async move { here.lock(name).await?.release().await })
            })
            .collect();
        until(async || {
            store.show(wanted.key()).await.unwrap().is_some_and(|it| it.waiters.len() == 1).then_some(())
        })
        .await;
        // Two that are shared, and one that waits; the next name has it after the first.
        until(async || (site.open_sessions().await == 3).then_some(())).await;
        wanted.release().await.unwrap();
        for served in waiting {
            within(served).await.unwrap().unwrap();
        }
        until(async || (site.open_sessions().await == 3).then_some(())).await;
    }
}

pub(crate) async fn names_above_the_bound_of_waiting_connections_take_turns<S: Sessions>() {
    let site = S::start(&[]).await;
    let (here, told) = (locker(open::<S>(&site.url()).await, TTL), Turns::default());
    let bounded = session_url(&site.url()) + "&waiting_max=1";
    let store = S::sessions(&bounded).await.unwrap();
    let there = Locker::builder(store).ttl(TTL).wait_at_most(PATIENCE).observer(told.clone()).build();
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        held.push(here.lock(name).await.unwrap());
    }
    let waiting = ["a", "b", "c"].map(|name| {
        let there = there.clone();
        tokio::spawn(async move { there.lock(name).await?.release().await })
    });
    // One of them stands in the server's line, and the others say that they do not.
    within(told.are_told(2)).await;
    held.reverse();
    for guard in held {
        guard.release().await.unwrap();
    }
    for served in waiting {
        within(served).await.unwrap().unwrap();
    }
}

pub(crate) async fn a_free_lock_is_one_statement_and_its_release_another<S: Sessions>() {
    const CYCLES: u64 = 1000;
    let site = S::start(S::COUNTS).await;
    let store = open::<S>(&site.url()).await;
    // The sessions that made the tables are counted when they have ended.
    until(async || (site.open_sessions().await == 0).then_some(())).await;
    let before = site.statements().await;
    let here = locker(store, LONG);
    for at in 0..CYCLES {
        here.lock(format!("orders/{}", at % 7)).await.unwrap().release().await.unwrap();
    }
    within(here.shutdown(PATIENCE)).await.unwrap();
    drop(here);
    until(async || (site.open_sessions().await == 0).then_some(())).await;
    let asked = site.statements().await - before;
    // And some by which the session begins, and by which it is counted.
    assert!((CYCLES * 2..CYCLES * 2 + CYCLES / 4).contains(&asked), "{asked} statements for {CYCLES} locks");
}

pub(crate) async fn one_beat_keeps_a_thousand_locks<S: Sessions>() {
    let site = S::start(S::COUNTS).await;
    let (here, clock) = (locker(open::<S>(&site.url()).await, TTL), Clock::boot());
    let mut guards = Vec::new();
    for at in 0..1000 {
        guards.push(here.lock(format!("orders/{at}")).await.unwrap());
    }
    // The server may count with a delay, so begin when it has begun to count, and end when it goes on.
    let (from, begun) = (site.beats().await, clock.now());
    let beaten = until(async || {
        clock.sleep(Duration::from_millis(300)).await;
        let (beaten, lasted) = (site.beats().await - from, clock.now() - begun);
        (6 <= beaten && TTL * 2 <= lasted).then_some(beaten)
    })
    .await;
    // Six are due, and some that were counted late or asked by us. A beat for each lock would be six thousand.
    assert!(beaten < 1000, "{beaten} beats");
    assert!(guards.iter().all(Guard::is_valid));
}

pub(crate) async fn a_session_that_nobody_uses_is_closed<S: Sessions>() {
    let site = S::start(&[]).await;
    let often = session_url(&site.url()) + "&clean_every=10ms";
    let here = locker(S::sessions(&often).await.unwrap(), TTL);
    let kept = here.lock("kept").await.unwrap();
    for seconds in 1..=6 {
        let guard = here.lock("orders/42").ttl(Duration::from_secs(seconds)).await.unwrap();
        guard.release().await.unwrap();
    }
    // Only the one that holds something is left.
    until(async || (site.open_sessions().await == 1).then_some(())).await;
    assert!(kept.is_valid(), "a session was closed although it held something");
    kept.release().await.unwrap();
    until(async || (site.open_sessions().await == 0).then_some(())).await;
    within(here.lock("kept")).await.unwrap().release().await.unwrap();
}

pub(crate) async fn whoever_has_waited_leaves_room_for_those_with_another_ttl<S: Sessions>() {
    let site = S::start(&[]).await;
    let (near, told) = (open::<S>(&site.url()).await, Turns::default());
    let there = locker(near.clone(), LONG);
    let bounded = session_url(&site.url()) + "&waiting_max=1";
    let store = S::sessions(&bounded).await.unwrap();
    let here = Locker::builder(store).ttl(LONG).wait_at_most(PATIENCE).observer(told.clone()).build();
    for ttl in [LONG, LONG / 2, LONG / 4] {
        let wanted = there.lock("orders/42").await.unwrap();
        let waiting = tokio::spawn({
            let here = here.clone();
            async move { here.lock("orders/42").ttl(ttl).await?.release().await }
        });
        let stands = async || near.show(wanted.key()).await.unwrap().filter(|it| it.waiters.len() == 1);
        tokio::select! {
            () = told.are_told(1) => panic!("one that has waited keeps the only permission to wait"),
            _ = until(stands) => {}
        }
        wanted.release().await.unwrap();
        within(waiting).await.unwrap().unwrap();
    }
}

pub(crate) async fn a_long_way_to_the_server_is_not_taken_for_a_wait<S: Sessions>() {
    let site = S::start(&[]).await;
    let (network, url) = by_proxy(&site).await;
    let (here, near) = (open::<S>(&url).await, open::<S>(&site.url()).await);
    let there = locker(near.clone(), LONG);
    let wanted = there.lock("orders/42").await.unwrap();
    let key = wanted.key().clone();
    // Whether somebody was found to be there; and again without one.
    let cycle = async || {
        let mut place = here.enter(Claim::new(key.clone(), LONG).unwrap());
        let grant = loop {
            match place.turn().await.unwrap() {
                Turn::Held(grant) => break grant,
                Turn::Wait { .. } => within(place.changed()).await,
            }
        };
        place.leave().await.unwrap();
        grant.wanted
    };
    let release = async {
        until(async || near.show(&key).await.unwrap().filter(|it| it.waiters.len() == 1)).await;
        wanted.release().await.unwrap();
    };
    let (first, ()) = tokio::join!(within(cycle()), release);
    assert!(first, "it waited for another");
    network.set(Direction::ToClient, Rule::Delay(Duration::from_millis(10)));
    // The first may still go by the line, because somebody waited a moment ago.
    within(cycle()).await;
    assert!(!within(cycle()).await, "nobody else was there");
}
