//! A server that takes no more connections: what is held is kept.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use lockkeeper_core::{Clock, Locker};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TTL: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_server_without_a_free_connection_loses_no_lock() {
    let server = servers::Redis::start(RedisOptions::default().set("maxclients", "24")).await.unwrap();
    let locker = Locker::builder(Redis::connect(&server.url()).await.unwrap()).ttl(TTL).build();
    let guard = locker.lock("crowded").await.unwrap();
    let mut crowd = Vec::new();
    loop {
        let mut other = TcpStream::connect(server.address()).await.unwrap();
        other.write_all(b"PING\r\n").await.unwrap();
        let mut answer = [0; 5];
        other.read_exact(&mut answer).await.unwrap();
        if &answer != b"+PONG" {
            assert_eq!(&answer, b"-ERR ");
            break;
        }
        crowd.push(other);
    }
    assert!(!crowd.is_empty());
    Clock::boot().sleep(TTL * 2).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    drop(crowd);
    locker.lock("crowded").await.unwrap().release().await.unwrap();
}
