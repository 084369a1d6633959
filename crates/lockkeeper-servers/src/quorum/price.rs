//! What waiting and holding cost, by the server's own count: one wake-up for a release, one heartbeat for all locks.

use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_testkit::warm;
use tokio::task::JoinSet;

use super::{Quorum, claim, soon, take};

/// As long as every store gives, so that heartbeats are rare.
const TTL: Duration = Duration::from_secs(60);

/// How many requests the heartbeats of `processes` cost in `span`, at most: ten beats in a ttl, two requests each.
pub(super) fn heartbeats(processes: u64, span: Duration) -> u64 {
    let beats = span.as_millis() / (TTL / 10).as_millis() + 1;
    u64::try_from(beats).unwrap() * 2 * processes
}

/// A thousand wait in two processes, and twenty are served. A store may tell each process, but not each who waits.
pub async fn one_release_wakes_one_of_a_thousand<Q: Quorum>() {
    let servers = Q::start(1).await;
    let url = servers.url_of_all(TTL);
    let (one, other) = (Q::connect(&url).await, Q::connect(&url).await);
    let mut holder = one.enter(claim("job", TTL));
    take(&mut holder).await;
    let mut line = Vec::new();
    for at in 0..1000 {
        let mut place = [&one, &other][at % 2].enter(claim("job", TTL));
        let Turn::Wait { ahead, .. } = place.turn().await.unwrap() else { panic!("it is held") };
        assert_eq!(ahead, Some(u64::try_from(at).unwrap() + 1));
        line.push(place);
    }
    assert_eq!(servers.events().await, 0, "nobody is told of those who come");
    holder.leave().await.unwrap();
    for place in &mut line[..20] {
        take(place).await;
        place.leave().await.unwrap();
    }
    take(&mut line[20]).await;
    let (events, most) = (servers.events().await, 21 * Q::TOLD_OF_A_RELEASE);
    assert!(
        (21..=most).contains(&events),
        "twenty-one releases were told {events} times, and {most} are allowed"
    );
}

/// Ten thousand locks are renewed.
pub async fn ten_thousand_held_locks_cost_one_heartbeat<Q: Quorum>() {
    let servers = Q::start(1).await;
    let backend = Q::connect(&servers.url_of_all(TTL)).await;
    let mut held = JoinSet::new();
    for part in 0..50 {
        let backend = backend.clone();
        held.spawn(async move {
            let mut places = Vec::new();
            for at in 0..200 {
                let mut place = backend.enter(claim(&format!("job/{part}/{at}"), TTL));
                take(&mut place).await;
                renews(&mut place).await;
                places.push(place);
            }
            places
        });
    }
    let mut places: Vec<_> = held.join_all().await.into_iter().flatten().collect();
    assert_eq!(places.len(), 10_000);
    let (before, clock) = (servers.requests().await, Clock::boot());
    let start = clock.now();
    for place in &mut places {
        renews(place).await;
    }
    let requests = servers.requests().await - before;
    let due = heartbeats(1, clock.now() - start);
    assert!(requests <= due, "renewing them all cost {requests} requests; the heartbeat alone {due} at most");
}

/// An idle lock is taken again and again.
pub async fn a_warm_lock_that_is_taken_again_costs_the_heartbeat<Q: Quorum>() {
    // It begins to listen a moment after it became idle.
    const WATCHED: u64 = 6;
    let servers = Q::start(1).await;
    let backend = Q::connect(&servers.url_of_all(TTL)).await;
    // Where this machine stands still for a third of the ttl, it is given back and taken anew.
    let anew = |span: Duration| u64::try_from(span.as_millis() / (TTL / 3).as_millis()).unwrap() * 8;
    let allowed = |span| heartbeats(1, span) + anew(span) + WATCHED;
    warm::taken_again_without_a_word(&backend, TTL, async || servers.requests().await, allowed).await;
}

async fn renews(place: &mut impl Place) {
    let renewal = place.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { wanted: false, .. }), "{renewal:?}");
}

/// Two processes hand a lock to and fro.
pub async fn a_hand_off_between_processes_costs_two_requests<Q: Quorum>() {
    const GUARDS: u64 = 10;
    let servers = Q::start(1).await;
    let url = servers.url_of_all(TTL);
    let processes = [Q::connect(&url).await, Q::connect(&url).await];
    let mut holder = processes[0].enter(claim("job", TTL));
    take(&mut holder).await;
    let (mut requests, mut due, clock) = (0, 0, Clock::boot());
    for at in 0..GUARDS {
        let mut next = processes[usize::from(at % 2 == 0)].enter(claim("job", TTL));
        assert!(matches!(next.turn().await.unwrap(), Turn::Wait { .. }));
        let (before, start) = (servers.requests().await, clock.now());
        hand_on(&mut holder, &mut next).await;
        requests += servers.requests().await - before;
        due += heartbeats(2, clock.now() - start);
        holder = next;
    }
    // One to give it back, one to enter.
    assert!(
        2 * GUARDS <= requests && requests <= 2 * GUARDS + due,
        "{GUARDS} hand-offs: {requests} requests"
    );
}

/// Twenty claims of two processes stand in one line.
pub async fn a_hand_off_in_a_long_line_costs_what_the_store_says<Q: Quorum>() {
    const GUARDS: u64 = 20;
    let servers = Q::start(1).await;
    let url = servers.url_of_all(TTL);
    let processes = [Q::connect(&url).await, Q::connect(&url).await];
    let mut holder = processes[0].enter(claim("job", TTL));
    take(&mut holder).await;
    let mut line = Vec::new();
    for at in 0..GUARDS {
        let mut place = processes[usize::from(at % 2 == 0)].enter(claim("job", TTL));
        assert!(matches!(place.turn().await.unwrap(), Turn::Wait { .. }));
        line.push(place);
    }
    let (before, clock) = (servers.requests().await, Clock::boot());
    let start = clock.now();
    for mut next in line {
        hand_on(&mut holder, &mut next).await;
        holder = next;
    }
    let requests = servers.requests().await - before;
    let most = Q::HAND_OFF_IN_A_LONG_LINE * GUARDS + heartbeats(2, clock.now() - start);
    assert!(requests <= most, "{GUARDS} hand-offs: {requests} requests");
}

async fn hand_on<P: Place>(holder: &mut P, next: &mut P) {
    holder.leave().await.unwrap();
    soon("a wake-up", next.changed()).await;
    assert!(matches!(next.turn().await.unwrap(), Turn::Held(_)), "it is the next in line");
}
