//! A latch opens when all have arrived, each counted once, and stays open.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::time::Duration;

use lockkeeper_core::{Clock, Locker, Memory};

const HANG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn everybody_who_waits_goes_on_when_the_last_has_arrived() {
    let store = Memory::default();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let latch = Locker::new(store.clone()).latch("imported", 3);
        waiting.spawn(async move { latch.wait().await.unwrap() });
    }
    let latch = Locker::new(store.clone()).latch("imported", 3);
    for (at, party) in ["a", "b"].iter().enumerate() {
        let status = latch.arrive(party).await.unwrap();
        assert_eq!((status.arrived.len(), status.is_open()), (at + 1, false));
    }
    tokio::task::yield_now().await;
    assert!(waiting.try_join_next().is_none(), "it opened too early");
    assert!(latch.arrive("c").await.unwrap().is_open());
    while let Some(status) = tokio::time::timeout(HANG, waiting.join_next()).await.unwrap() {
        assert_eq!(status.unwrap().arrived, ["a", "b", "c"]);
    }
    assert!(latch.wait().await.unwrap().is_open(), "it stays open");
}

#[tokio::test]
async fn every_arrival_may_be_sent_three_times() {
    const PARTIES: u32 = 40;
    let store = Memory::default();
    let mut arrivals = tokio::task::JoinSet::new();
    for at in 0..PARTIES * 3 {
        let latch = Locker::new(store.clone()).latch("imported", PARTIES);
        arrivals.spawn(async move { latch.arrive(format!("party {}", at % PARTIES)).await.map(drop) });
    }
    for arrival in arrivals.join_all().await {
        arrival.unwrap();
    }
    let status = Locker::new(store).latch("imported", PARTIES).status().await.unwrap();
    assert_eq!((status.arrived.len(), status.is_open()), (40, true));
}

#[tokio::test]
async fn where_nobody_has_arrived_it_is_closed_and_rounds_are_apart() {
    let locker = Locker::new(Memory::default());
    let one = locker.latch("imported", 1).round("2026-11-15");
    let two = locker.latch("imported", 1).round("2026-11-16");
    let status = one.wait_at_most(Duration::from_millis(1)).await.unwrap();
    assert!(status.arrived.is_empty() && !status.is_open());
    one.arrive("a").await.unwrap();
    assert!(one.status().await.unwrap().is_open());
    assert!(!two.status().await.unwrap().is_open());
    assert!(!locker.latch("imported", 1).status().await.unwrap().is_open());
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_in_words() {
    let locker = Locker::new(Memory::default());
    let latch = locker.latch("imported", 2);
    latch.arrive("a").await.unwrap();
    latch.arrive("b").await.unwrap();
    let text = async |latch: &lockkeeper_core::Latch, party: &str| {
        latch.arrive(party).await.unwrap_err().to_string()
    };
    assert!(text(&locker.latch("imported", 3), "c").await.contains("was begun for 2 parties, not 3"));
    assert!(text(&latch, "c").await.contains("all 2 parties"));
    assert!(text(&latch, "").await.contains("is empty"));
    assert!(text(&latch, "line\nbreak").await.contains("control character"));
    assert!(text(&locker.latch("none", 0), "a").await.contains("for no parties"));
    assert!(text(&locker.latch("", 1), "a").await.contains("is empty"));
    assert!(text(&locker.latch("x", 1).remember(Duration::ZERO), "a").await.contains("for no time"));
    assert!(text(&locker.latch("many", 32_760), "a").await.contains("at most 32759 can be written down"));
    let long = text(&locker.latch("many", 1000), &"x".repeat(65)).await;
    assert!(long.contains("has 65 bytes") && long.contains("each has at most 64"), "{long}");
    let named = locker.latch("x".repeat(500), 1).round("123");
    assert!(text(&named, "a").await.contains("has 503 bytes; at most 502 are allowed"));
    assert_eq!(latch.status().await.unwrap().arrived, ["a", "b"]);
}

#[tokio::test]
async fn as_many_as_are_accepted_open_it() {
    const PARTIES: u32 = 1000;
    let latch = Locker::new(Memory::default()).latch("imported", PARTIES);
    for party in 0..PARTIES {
        latch.arrive(format!("{party:064}")).await.unwrap();
    }
    assert!(latch.status().await.unwrap().is_open());
}

#[tokio::test]
async fn it_is_kept_as_long_as_was_said() {
    let clock = Clock::virtual_from(Duration::from_secs(100));
    let locker = Locker::builder(Memory::new(clock.clone())).clock(clock.clone()).build();
    let latch = locker.latch("imported", 1).remember(Duration::from_secs(60));
    latch.arrive("a").await.unwrap();
    clock.advance_by(Duration::from_secs(59));
    assert!(latch.status().await.unwrap().is_open());
    clock.advance_by(Duration::from_secs(2));
    assert!(!latch.status().await.unwrap().is_open());
}

#[test]
fn latches_elections_and_jobs_work_on_threads_without_a_runtime() {
    let store = Memory::default();
    let latch = || Locker::new(store.clone()).latch("imported", 2);
    let waiting = std::thread::spawn({
        let latch = latch();
        move || latch.wait_blocking().unwrap()
    });
    assert!(!latch().arrive_blocking("a").unwrap().is_open());
    assert_eq!(latch().status_blocking().unwrap().arrived, ["a"]);
    assert!(!latch().wait_at_most_blocking(Duration::from_millis(1)).unwrap().is_open());
    assert!(latch().arrive_blocking("b").unwrap().is_open());
    assert_eq!(waiting.join().unwrap().arrived, ["a", "b"]);

    let (one, other) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let first = one.campaign("role", "first").win_blocking().unwrap();
    assert_eq!(other.leader_blocking("role").unwrap().unwrap().value, "first");
    let next = std::thread::spawn(move || {
        let next = other.campaign("role", "next").win_blocking().unwrap();
        (next.term(), next.resign_blocking().unwrap())
    });
    let term = first.term();
    first.resign_blocking().unwrap();
    assert!(term < next.join().unwrap().0);

    let ran = one.campaign("role", "again").run_blocking(|it| (it.term(), it.is_valid())).unwrap();
    assert!(term < ran.0 && ran.1 && one.leader_blocking("role").unwrap().is_none());

    let tick = one.once("nightly", "yesterday").tick().unwrap();
    assert!(!tick.is_done_blocking().unwrap());
    tick.set_done_blocking().unwrap();
    assert!(tick.is_done_blocking().unwrap());
    let job = || one.once("nightly", "today").run_blocking(|guard| guard.check().map(|()| 7));
    assert_eq!(job().unwrap(), lockkeeper_core::Once::Ran(7));
    assert_eq!(job().unwrap(), lockkeeper_core::Once::Done);
}
