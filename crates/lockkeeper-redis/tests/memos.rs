//! Jobs that run once, elections and latches on a real server, over lockers of several processes' kind.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::within;
use lockkeeper_core::{Error, Locker, Once};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisOptions};

async fn server() -> servers::Redis {
    servers::Redis::start(RedisOptions::default()).await.unwrap()
}

async fn locker(server: &servers::Redis) -> Locker {
    Locker::new(Redis::connect(&server.url()).await.unwrap())
}

#[tokio::test]
async fn many_instances_run_a_tick_once() {
    let server = server().await;
    let mut instances = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let locker = locker(&server).await;
        instances.spawn(async move {
            locker.once("nightly", "2026-11-15").run(async |_| Ok::<_, Error>(())).await.unwrap()
        });
    }
    let outcomes = within("all instances", instances.join_all()).await;
    assert_eq!(outcomes.iter().filter(|it| **it == Once::Ran(())).count(), 1);
    assert_eq!(outcomes.iter().filter(|it| **it == Once::Done).count(), 9);
}

#[tokio::test]
async fn one_leads_and_observers_see_each_change_and_the_vacancy() {
    let server = server().await;
    let (here, there) = (locker(&server).await, locker(&server).await);
    let mut leaders = there.leaders("role").unwrap();
    assert_eq!(leaders.next().await.unwrap(), None);
    let mut term = 0;
    for value in ["one", "two"] {
        let leads = within("the role", here.campaign("role", value).win()).await.unwrap();
        assert!(term < leads.term().get());
        term = leads.term().get();
        let seen = within("the news", leaders.next()).await.unwrap().expect("somebody leads");
        assert_eq!((seen.value.as_str(), seen.term), (value, leads.term()));
        leads.resign().await.unwrap();
        assert_eq!(within("the vacancy", leaders.next()).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_leader_whose_lock_was_removed_stops_and_is_not_seen_any_more() {
    let server = server().await;
    let (here, there) = (locker(&server).await, locker(&server).await);
    let campaign = here.campaign("role", "value").ttl(Duration::from_millis(600));
    let leads = campaign.win().await.unwrap();
    server.command(&["FLUSHALL"]).await.unwrap();
    assert!(matches!(
        within("the loss", leads.run(std::future::pending::<()>())).await,
        Err(Error::Lost { .. })
    ));
    let mut leaders = there.leaders("role").unwrap();
    while within("the vacancy", leaders.next()).await.unwrap().is_some() {}
}

#[tokio::test]
async fn a_latch_counts_each_party_once() {
    let server = server().await;
    let mut arrivals = tokio::task::JoinSet::new();
    for at in 0..24 {
        let latch = locker(&server).await.latch("imported", 8);
        arrivals.spawn(async move { latch.arrive(format!("party {}", at % 8)).await.map(drop) });
    }
    for arrival in within("all arrivals", arrivals.join_all()).await {
        arrival.unwrap();
    }
    let status = within("the latch", locker(&server).await.latch("imported", 8).wait()).await.unwrap();
    assert_eq!(status.arrived.len(), 8);
}
