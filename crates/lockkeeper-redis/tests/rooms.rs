//! Rooms with more than one inside: who fits enters together, and of capacities that differ the smallest counts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{TTL, claim_of, held, until_held, waits, within};
use futures_util::future::join_all;
use lockkeeper_core::Locker;
use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_redis::{Redis, RedisPlace};
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{self as servers, RedisOptions, rooms};

/// So many may read at once, and a writer takes the room of all.
const ROOM: u32 = u32::MAX;

async fn server() -> servers::Redis {
    servers::Redis::start(RedisOptions::default()).await.unwrap()
}

/// As another process: with connections of its own.
async fn process(server: &servers::Redis) -> Redis {
    let redis = Redis::connect(&server.url()).await.unwrap();
    let mut warm_up = redis.enter(claim_of("warm-up", TTL, 1, ROOM));
    held(&mut warm_up).await;
    warm_up.leave().await.unwrap();
    redis
}

fn place(redis: &Redis, name: &str, weight: u32, capacity: u32) -> RedisPlace {
    redis.enter(claim_of(name, TTL, weight, capacity))
}

/// How often the server has run this command since its statistics were reset.
async fn calls(server: &servers::Redis, command: &str) -> usize {
    let stats = server.command(&["INFO", "commandstats"]).await.unwrap();
    let line = stats.field(&format!("cmdstat_{command}")).unwrap_or_default();
    line.split(['=', ',']).nth(1).and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// It was made holder by somebody else's call: it is told, and need not ask the server.
async fn told(place: &mut RedisPlace) -> u64 {
    within("the message", place.changed()).await;
    held(place).await.counter
}

#[tokio::test]
async fn readers_behind_a_writer_enter_together_by_its_one_call_and_each_is_told() {
    const READERS: usize = 20;
    let server = server().await;
    let mut writer = place(&process(&server).await, "k", ROOM, ROOM);
    let before = held(&mut writer).await.counter;
    let mut readers = Vec::new();
    for ahead in 1..=READERS {
        let mut reader = place(&process(&server).await, "k", 1, ROOM);
        assert_eq!(waits(&mut reader).await.1, Some(u64::try_from(ahead).unwrap()));
        readers.push(reader);
    }
    let mut next = place(&process(&server).await, "k", ROOM, ROOM);
    waits(&mut next).await;
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    writer.leave().await.unwrap();
    // Asked in reverse: nobody waits for the turn of another.
    let mut counters = Vec::new();
    for reader in readers.iter_mut().rev() {
        counters.push(told(reader).await);
    }
    assert_eq!(calls(&server, "evalsha").await, 1, "the writer's leave, and nothing else");
    assert_eq!(calls(&server, "publish").await, READERS, "one message for each");
    counters.reverse();
    assert!(before < counters[0] && counters.is_sorted_by(|one, two| one < two), "{counters:?}");
    waits(&mut next).await;
    let last = readers.split_off(READERS - 1);
    for reader in &mut readers {
        reader.leave().await.unwrap();
    }
    waits(&mut next).await;
    for mut reader in last {
        reader.leave().await.unwrap();
    }
    assert!(counters[READERS - 1] < told(&mut next).await);
    next.leave().await.unwrap();
}

#[tokio::test]
async fn a_writer_that_is_not_reached_is_passed_once_and_then_the_room_is_kept_for_it() {
    let server = server().await;
    let (hears, deaf) = (process(&server).await, process(&server).await);
    // Nobody listens any more; whoever asks for something listens again.
    let deafen = async || {
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
        let mut fresh = hears.enter(claim_of("other", TTL, 1, ROOM).impatient());
        held(&mut fresh).await;
        fresh.leave().await.unwrap();
    };
    let mut inside = place(&hears, "k", 1, ROOM);
    held(&mut inside).await;
    let mut writer = place(&deaf, "k", ROOM, ROOM);
    waits(&mut writer).await;
    let mut passed = false;
    let mut behind = place(&hears, "k", 1, ROOM);
    waits(&mut behind).await;
    // Readers without end: each time one goes, another stands behind the writer.
    for round in 0..5 {
        deafen().await;
        inside.leave().await.unwrap();
        match behind.turn().await.unwrap() {
            Turn::Wait { .. } => break,
            Turn::Held(_) => assert!(!std::mem::replace(&mut passed, true), "passed again in round {round}"),
        }
        inside = behind;
        // Its place is kept alive, as its keeper does by itself.
        waits(&mut writer).await;
        behind = place(&hears, "k", 1, ROOM);
        waits(&mut behind).await;
    }
    assert!(passed, "it was heard: the test shows nothing");
    held(&mut writer).await;
    waits(&mut behind).await;
    writer.leave().await.unwrap();
    until_held(&mut behind).await;
    behind.leave().await.unwrap();
}

#[tokio::test]
async fn the_smallest_capacity_of_those_inside_counts_for_whoever_comes() {
    let server = server().await;
    let redis = process(&server).await;
    // A rolling change from 5 to 2, and back.
    let (mut wide, mut narrow) = (place(&redis, "k", 1, 5), place(&redis, "k", 1, 2));
    held(&mut wide).await;
    held(&mut narrow).await;
    let (mut third, mut fourth) = (place(&redis, "k", 1, 5), place(&redis, "k", 2, 5));
    waits(&mut third).await;
    waits(&mut fourth).await;
    let mut passing = redis.enter(claim_of("k", TTL, 1, 5).impatient());
    waits(&mut passing).await;
    // With the narrow one its word goes, and its leave appoints all who fit now.
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    narrow.leave().await.unwrap();
    told(&mut third).await;
    told(&mut fourth).await;
    assert_eq!(calls(&server, "evalsha").await, 1);
    // Inside are 1 + 1 + 2 of 5: whoever allows only 4 does not fit, and nobody passes it.
    let (mut strict, mut behind) = (place(&redis, "k", 1, 4), place(&redis, "k", 1, 5));
    waits(&mut strict).await;
    waits(&mut behind).await;
    wide.leave().await.unwrap();
    told(&mut strict).await;
    waits(&mut behind).await;
    third.leave().await.unwrap();
    told(&mut behind).await;
    for place in [&mut fourth, &mut strict, &mut behind] {
        place.leave().await.unwrap();
    }
}

#[tokio::test]
async fn the_smallest_capacity_counts_among_those_who_are_appointed_together() {
    let server = server().await;
    let redis = process(&server).await;
    let mut writer = place(&redis, "k", 5, 5);
    held(&mut writer).await;
    let (mut one, mut two, mut three) =
        (place(&redis, "k", 1, 5), place(&redis, "k", 1, 2), place(&redis, "k", 1, 5));
    for waiter in [&mut one, &mut two, &mut three] {
        waits(waiter).await;
    }
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    writer.leave().await.unwrap();
    told(&mut one).await;
    told(&mut two).await;
    assert_eq!((calls(&server, "evalsha").await, calls(&server, "publish").await), (1, 2));
    waits(&mut three).await;
    // It is still the narrow one that counts.
    one.leave().await.unwrap();
    told(&mut three).await;
    let mut four = place(&redis, "k", 1, 5);
    waits(&mut four).await;
    two.leave().await.unwrap();
    told(&mut four).await;
    three.leave().await.unwrap();
    four.leave().await.unwrap();
}

#[tokio::test]
async fn the_smallest_capacity_goes_with_a_holder_that_dies() {
    let server = server().await;
    let redis = process(&server).await;
    let mut dies = redis.enter(claim_of("k", Duration::from_secs(2), 1, 2));
    let (mut one, mut two) = (place(&redis, "k", 1, 5), place(&redis, "k", 1, 5));
    held(&mut one).await;
    held(&mut dies).await;
    // Nobody says that it died: whoever waits finds out by asking.
    waits(&mut two).await;
    until_held(&mut two).await;
    let mut three = place(&redis, "k", 1, 5);
    held(&mut three).await;
    for place in [&mut one, &mut two, &mut three] {
        place.leave().await.unwrap();
    }
}

#[tokio::test]
async fn the_smallest_capacity_counts_for_a_crowd_that_shares_scripts() {
    const KEYS: usize = 200;
    let server = server().await;
    let redis = process(&server).await;
    let crowd = |capacity| {
        let places = (0..KEYS).map(|it| place(&redis, &format!("k{it}"), 1, capacity));
        join_all(places.map(async |mut place| {
            let turn = place.turn().await.unwrap();
            (place, matches!(turn, Turn::Held(_)))
        }))
    };
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let wide = crowd(5).await;
    assert!(wide.iter().all(|it| it.1));
    assert!(calls(&server, "evalsha").await < KEYS / 2, "the crowd did not share scripts");
    let narrow = crowd(2).await;
    assert!(narrow.iter().all(|it| it.1), "two fit into two");
    let mut waiting = crowd(5).await;
    assert!(waiting.iter().all(|it| !it.1), "a third does not fit beside one who allows two");
    // They leave together, too, and each appoints who waits for it.
    join_all(narrow.into_iter().map(async |(mut place, _)| place.leave().await.unwrap())).await;
    for (place, _) in &mut waiting {
        told(place).await;
    }
    let all = wide.into_iter().chain(waiting);
    join_all(all.map(async |(mut place, _)| place.leave().await.unwrap())).await;
    let left = server.command(&["KEYS", "lk:{*"]).await.unwrap();
    assert_eq!(left.items().len(), 0, "nothing is left of them");
}

#[tokio::test]
async fn a_downgrade_calls_readers_and_three_free_locks_are_one_trip() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let near = process(&server).await;
    let far = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let ttl = Duration::from_secs(600);
    rooms::readers_behind_are_called(&near, &far, ttl).await;
    rooms::a_disagreement_is_told(&near, &far, ttl).await;
    let locker = Locker::builder(far).ttl(ttl).build();
    rooms::taken_in_one_trip(&proxy, &locker, &near, ["a", "b", "c"]).await;
}

#[tokio::test]
async fn permits_of_one_process_are_gained_in_one_trip() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let near = process(&server).await;
    let far = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let locker = Locker::builder(far).ttl(Duration::from_secs(600)).build();
    rooms::permits_in_one_trip(&proxy, &locker, &near, "mail").await;
}
