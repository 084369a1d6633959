//! Those who share a room: one leave lets them all in, at a bounded price, and their numbers keep to the writers' order.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Fence, Key, Load};

use super::price::heartbeats;
use super::{Quorum, claim, soon};
use crate::rooms;

/// As long as every store gives, so that heartbeats are rare.
const TTL: Duration = Duration::from_secs(60);

/// The counter of one who must be inside at the first question.
async fn inside(place: &mut impl Place) -> u64 {
    let turn = place.turn().await.unwrap();
    let Turn::Held(grant) = turn else { panic!("it fits, and is told {turn:?}") };
    grant.counter
}

async fn waits(place: &mut impl Place) {
    let turn = place.turn().await.unwrap();
    assert!(matches!(turn, Turn::Wait { .. }), "somebody is in the way: {turn:?}");
}

/// Fifty readers of four processes wait behind a writer, and another writer behind them.
pub async fn fifty_readers_enter_by_one_leave<Q: Quorum>() {
    const READERS: u64 = 50;
    let servers = Q::start(1).await;
    let url = servers.url_of_all(TTL);
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(Q::connect(&url).await);
    }
    let enter = |at: usize, load| processes[at % 4].enter(claim("job", TTL).load(load));
    let mut writer = enter(0, Load::WRITER);
    let first = inside(&mut writer).await;
    let mut readers: Vec<_> = (0..50).map(|at| enter(at, Load::READER)).collect();
    for reader in &mut readers {
        waits(reader).await;
    }
    let mut last = enter(1, Load::WRITER);
    waits(&mut last).await;
    assert_eq!(servers.events().await, 0, "nobody is told of those who come");
    let (before, clock) = (servers.requests().await, Clock::boot());
    let start = clock.now();
    writer.leave().await.unwrap();
    let mut numbers = Vec::new();
    // Nobody waits for the turn of another: the last one in line may be the first to ask.
    for reader in readers.iter_mut().rev() {
        soon("a wake-up", reader.changed()).await;
        numbers.push(inside(reader).await);
    }
    let (requests, due) = (servers.requests().await - before, heartbeats(4, clock.now() - start));
    // One to give it back, and for each what it costs to enter.
    let most = 1 + READERS * (Q::HAND_OFF_IN_A_LONG_LINE - 1) + due;
    assert!(requests <= most, "{READERS} readers: {requests} requests, and {most} are allowed");
    // All have heard. A store may tell a process once for all who watch the same in it.
    let events = servers.events().await;
    assert!((4..=READERS).contains(&events), "one leave told each of them once: {events} events");
    waits(&mut last).await;
    for reader in &mut readers {
        reader.leave().await.unwrap();
    }
    numbers.push(first);
    let after = loop {
        if let Turn::Held(grant) = last.turn().await.unwrap() {
            break grant.counter;
        }
        soon("a wake-up", last.changed()).await;
    };
    numbers.push(after);
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|it| it[0] < it[1]), "no two are alike: {numbers:?}");
    let around = (numbers.first(), numbers.last());
    assert_eq!(around, (Some(&first), Some(&after)), "the readers are between the writers");
}

/// A reader could enter and does not ask for long.
pub async fn a_reader_that_is_slow_is_waited_for<Q: Quorum>() {
    let servers = Q::start(1).await;
    let url = servers.url_of_all(TTL);
    let (one, other) = (Q::connect(&url).await, Q::connect(&url).await);
    let (mut before, mut after) = (one.enter(claim("job", TTL)), one.enter(claim("job", TTL)));
    let (mut slow, mut quick) =
        (other.enter(claim("job", TTL).load(Load::READER)), one.enter(claim("job", TTL).load(Load::READER)));
    let first = inside(&mut before).await;
    for place in [&mut quick, &mut slow] {
        waits(place).await;
    }
    waits(&mut after).await;
    before.leave().await.unwrap();
    let early = inside(&mut quick).await;
    quick.leave().await.unwrap();
    // The slow one stands in the line, so it has the room, though it does not know.
    waits(&mut after).await;
    let late = inside(&mut slow).await;
    waits(&mut after).await;
    slow.leave().await.unwrap();
    soon("a wake-up", after.changed()).await;
    let last = inside(&mut after).await;
    assert!(first < early && early < late && late < last, "{first}, {early}, {late}, {last}");
}

/// A writer goes on as a reader. An operator sees the fence that it had, and a lock that is broken then is free at once.
pub async fn a_downgrade_calls_the_readers_behind_it_and_keeps_its_fence<Q: Quorum>() {
    let servers = Q::start(1).await;
    let url = servers.url_of_all(TTL);
    let (one, other) = (Q::connect(&url).await, Q::connect(&url).await);
    rooms::readers_behind_are_called(&one, &other, TTL).await;
    rooms::a_disagreement_is_told(&one, &other, TTL).await;
    let (key, mut holder) = (Key::new("job").unwrap(), one.enter(claim("job", TTL)));
    let fence = Fence::of_grant(inside(&mut holder).await);
    assert!(holder.lower(Load::READER).await.unwrap());
    let info = other.show(&key).await.unwrap().unwrap();
    let seen: Vec<_> = info.holders.iter().map(|it| (it.fence, it.load)).collect();
    assert_eq!((seen, info.foreign), (vec![(Some(fence), Load::READER)], Vec::new()));
    assert_eq!(other.break_lock(&key).await.unwrap().len(), 1);
    assert!(!holder.lower(Load::READER).await.unwrap(), "it was taken away");
    assert!(other.show(&key).await.unwrap().is_none(), "nothing is left of it");
    let mut next = other.enter(claim("job", TTL));
    inside(&mut next).await;
    next.leave().await.unwrap();
    holder.leave().await.unwrap();
}
