//! A store that dies and comes back: clients are told, and go on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Server, until};
use lockkeeper_serve::Serve;
use lockkeeper_servers::{Redis, RedisOptions};
use serde_json::Value;

#[tokio::test]
async fn a_store_that_dies_and_comes_back() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let outage = |it: lockkeeper::LockerBuilder| it.outage_max(Duration::from_millis(300));
    let url = format!("{}?timeout=300ms", redis.url());
    let server = Server::with(&url, outage, Serve::allow_locks).await;
    let (mut held, _) = server.lock("x?ttl=3s").await;
    redis.kill().unwrap();
    let lost = held.event_of("lost").await;
    assert_eq!(lost["reason"], "expired", "it is told before anybody else can have it");
    for (method, path) in [("POST", "/v1/locks/y"), ("GET", "/v1/locks"), ("GET", "/health?store=true")] {
        let (status, refused) = server.ask(method, path).await;
        assert_eq!((status, &refused["error"]), (503, &"unavailable".into()), "{method} {path}: {refused}");
    }
    assert_eq!(server.ask("GET", "/health").await.0, 200, "the server itself is well");
    redis.start().await.unwrap();
    until("locks can be had again", || async { server.begin("POST", "/v1/locks/y").await.status == 200 })
        .await;
    // What it said before is told for a while.
    until("it is well", || async { server.ask("GET", "/health?store=true").await.0 == 200 }).await;
    server.ends().await;
}

/// A store that is away is no lock that is taken, also for those who wait in this server's own line; nor is one that stands
/// still.
#[tokio::test]
async fn everybody_in_line_is_told_that_the_store_is_away() {
    for stands_still in [false, true] {
        let redis = Redis::start(RedisOptions::default()).await.unwrap();
        let server = Server::with(&redis.url(), |it| it.outage_max(common::HANG), Serve::allow_locks).await;
        let (held, _) = server.lock("warm-up?ttl=60s").await;
        if stands_still {
            redis.pause().unwrap();
        } else {
            redis.kill().unwrap();
        }
        let ask = || server.ask("POST", "/v1/locks/x?wait=3s");
        let told: [(u16, Value); 3] = tokio::join!(ask(), ask(), ask()).into();
        for (status, refused) in told {
            assert_eq!(
                (status, &refused["error"]),
                (503, &"unavailable".into()),
                "{stands_still}: {refused}"
            );
        }
        if stands_still {
            redis.resume().unwrap();
        } else {
            redis.start().await.unwrap();
        }
        drop(held);
        server.ends().await;
    }
}
