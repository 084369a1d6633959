//! The socket of a caller that is alone: that it is used, and what happens when it breaks or its caller goes away.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::future::Future as _;
use std::task::{Context, Waker};

use common::{LIMIT, claim, claim_of, held, impatient, waits, within};
use lockkeeper_core::backend::{Backend, Place};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisOptions};

async fn cycle(redis: &Redis) {
    let mut place = redis.enter(claim("k"));
    held(&mut place).await;
    place.leave().await.unwrap();
}

/// The server's line about the socket: the only client that runs scripts in the second version of the protocol.
async fn socket(server: &servers::Redis) -> Option<String> {
    let clients = server.command(&["CLIENT", "LIST"]).await.unwrap().text();
    clients.lines().find(|it| it.contains("cmd=evalsha") && it.contains(" resp=2")).map(str::to_owned)
}

fn field<'a>(line: &'a str, name: &str) -> &'a str {
    line.split(' ').find_map(|it| it.strip_prefix(name)?.strip_prefix('=')).unwrap()
}

/// Take and give back until a socket other than this one is used, and tell its line.
async fn used_again(server: &servers::Redis, redis: &Redis, before: &str) -> String {
    within("the socket", async {
        loop {
            cycle(redis).await;
            match socket(server).await {
                Some(line) if field(&line, "id") != before => return line,
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

#[tokio::test]
async fn whoever_is_alone_speaks_to_the_server_itself_and_goes_on_when_that_breaks() {
    let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    cycle(&redis).await;
    assert_eq!(socket(&server).await, None, "one lock is no reason to open another connection");
    let mut id = String::new();
    for _ in 0..3 {
        id = field(&used_again(&server, &redis, &id).await, "id").to_owned();
        let killed = server.command(&["CLIENT", "KILL", "ID", &id]).await.unwrap();
        assert_eq!(format!("{killed:?}"), "1");
        // Neither the next lock nor its release fails, and none is left behind.
        cycle(&redis).await;
        let mut last = redis.enter(impatient("k"));
        held(&mut last).await;
        last.leave().await.unwrap();
    }
}

#[tokio::test]
async fn the_socket_of_a_caller_that_goes_away_is_closed_and_others_need_not_wait_for_it() {
    let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let other = Redis::connect(&server.url()).await.unwrap();
    held(&mut other.enter(claim_of("busy", LIMIT, 1, 1))).await;
    let mut id = String::new();
    // Often: whether an answer that nobody took is read before the next one comes is up to the server.
    for _ in 0..50 {
        id = field(&used_again(&server, &redis, &id).await, "id").to_owned();
        // Polled once: the command is written. Then nobody polls it.
        let mut forgotten = redis.enter(claim("forgotten"));
        let mut turn = Box::pin(forgotten.turn());
        assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        within("others", cycle(&redis)).await;
        assert_eq!(field(&socket(&server).await.unwrap(), "id"), id);
        drop(turn);
        // Whoever comes next does not read the answer that was meant for it.
        waits(&mut redis.enter(impatient("busy"))).await;
        forgotten.leave().await.unwrap();
    }
}

#[tokio::test]
async fn the_socket_has_the_same_login_and_database() {
    let server = servers::Redis::start(RedisOptions::default().password("sesame")).await.unwrap();
    let redis = Redis::connect(&format!("redis://:sesame@127.0.0.1:{}/3", server.port())).await.unwrap();
    let line = used_again(&server, &redis, "").await;
    assert_eq!((field(&line, "db"), field(&line, "user")), ("3", "default"));
}
