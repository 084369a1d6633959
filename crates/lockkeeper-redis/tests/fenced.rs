//! Fenced writes on real servers: a stale fence is refused in the script that would have written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::process::Stdio;
use std::time::Duration;

use common::within;
use lockkeeper_core::{Fence, FencedError, Key, Locker};
use lockkeeper_redis::{Redis, RedisFences};
use lockkeeper_servers::{self as servers, RedisOptions};
use redis::RedisError;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const LOCK: &str = "orders/42";

async fn server() -> servers::Redis {
    servers::Redis::start(RedisOptions::default()).await.unwrap()
}

async fn client(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn at(fence: u64) -> Fence {
    Fence::from_u64(fence)
}

fn seen<T: std::fmt::Debug>(answer: Result<T, FencedError<RedisError>>) -> u64 {
    match answer {
        Err(FencedError::Stale { seen, .. }) => seen.get(),
        other => panic!("not refused as stale: {other:?}"),
    }
}

/// What must hold on one server and on a cluster alike.
async fn check_stale(mut shop: impl ConnectionLike + Send) {
    let (fences, stock) = (RedisFences::default(), key("stock:7"));
    // Two fences that a double cannot tell apart.
    let (old, new) = (at((1 << 60) + 1), at((1 << 60) + 2));
    fences.set(&mut shop, &stock, 40, old).await.unwrap();
    fences.set(&mut shop, &stock, 39, old).await.unwrap();
    // The new holder has only read, and the old one is already refused.
    assert_eq!(fences.get::<Option<i64>>(&mut shop, &stock, new).await.unwrap(), Some(39));
    assert_eq!(seen(fences.set(&mut shop, &stock, 0, old).await), new.get());
    assert_eq!(seen(fences.get::<i64>(&mut shop, &stock, old).await), new.get());
    assert_eq!(fences.get::<i64>(&mut shop, &stock, new).await.unwrap(), 39);
    // All of 64 bits count.
    fences.set(&mut shop, &stock, 38, at(u64::MAX)).await.unwrap();
    assert_eq!(seen(fences.get::<i64>(&mut shop, &stock, at(u64::MAX - 1)).await), u64::MAX);
    // A key that is not there is nothing, not a refusal.
    assert_eq!(fences.get::<Option<i64>>(&mut shop, &key("stock:8"), at(1)).await.unwrap(), None);

    // A script of one's own sees its keys and arguments, and is refused for any of them.
    let (from, to) = (key("{shop}:from"), key("{shop}:to"));
    let shift = fences.script(
        "redis.call('DECRBY', KEYS[1], ARGV[1]) \
         local now = redis.call('INCRBY', KEYS[2], ARGV[1]) \
         return { #KEYS, #ARGV, now }",
    );
    let moved: (i64, i64, i64) = shift.call(&mut shop, &[&from, &to], &[5], at(10)).await.unwrap();
    assert_eq!(moved, (2, 1, 5));
    fences.get::<i64>(&mut shop, &to, at(11)).await.unwrap();
    let refused = shift.call::<()>(&mut shop, &[&from, &to], &[5], at(10)).await.unwrap_err();
    assert!(matches!(&refused, FencedError::Stale { resource, .. } if *resource == to), "{refused}");
    assert_eq!(fences.get::<i64>(&mut shop, &from, at(10)).await.unwrap(), -5, "nothing was half done");
}

#[tokio::test]
async fn a_stale_fence_is_refused_and_a_read_raises_it() {
    let server = server().await;
    check_stale(client(&server.url()).await).await;
}

#[tokio::test]
async fn it_is_refused_on_a_cluster_too() {
    let servers = servers::Redis::cluster().await.unwrap();
    let nodes: Vec<_> = servers.nodes().iter().map(servers::Redis::url).collect();
    let client = redis::cluster::ClusterClient::new(nodes).unwrap();
    let mut shop = client.get_async_connection().await.unwrap();
    check_stale(shop.clone()).await;
    let fences = RedisFences::default();
    for number in 0..50 {
        let stock = key(&format!("stock:{number}"));
        fences.set(&mut shop, &stock, number, at(u64::MAX)).await.unwrap();
        assert_eq!(seen(fences.set(&mut shop, &stock, 0, at(1)).await), u64::MAX);
    }
}

/// Those who share, in two processes: the second came later, both hold, and a writer was there before them.
async fn check_shared(mut shop: impl ConnectionLike + Send, lockers: [Locker; 2]) {
    let (fences, stock) = (RedisFences::default(), key("stock:7"));
    let writer = lockers[0].lock(LOCK).await.unwrap();
    let before = writer.fence();
    fences.set(&mut shop, &stock, 40, before).await.unwrap();
    writer.release().await.unwrap();
    let (one, two) = (lockers[0].read(LOCK).await.unwrap(), lockers[1].read(LOCK).await.unwrap());
    let (older, newer) = (one.fence(), two.fence());
    assert!(before.get() < older.get() && older.get() < newer.get());
    // The newer reads first, and the older is not refused.
    for fence in [newer, older, newer] {
        assert_eq!(fences.read::<i64>(&mut shop, &stock, fence).await.unwrap(), 40);
    }
    // A write of before is, and so is one that has the number of a reader: it is from before a downgrade.
    for stale in [before, at(older.get()), at(newer.get())] {
        assert_eq!(seen(fences.set(&mut shop, &stock, 0, stale).await), newer.get());
        assert_eq!(seen(fences.get::<i64>(&mut shop, &stock, stale).await), newer.get());
    }
    one.release().await.unwrap();
    two.release().await.unwrap();
    let after = lockers[1].lock(LOCK).await.unwrap();
    fences.set(&mut shop, &stock, 39, after.fence()).await.unwrap();
    for late in [older, newer] {
        assert_eq!(seen(fences.read::<i64>(&mut shop, &stock, late).await), after.fence().get());
    }
    let count = fences.script("return { #KEYS, #ARGV, redis.call('GET', KEYS[1]) }");
    let refused = count.call_shared::<()>(&mut shop, &[&stock], &[1], newer).await;
    assert_eq!(seen(refused), after.fence().get());
    after.release().await.unwrap();
    let last = lockers[0].read(LOCK).await.unwrap();
    let counted: (i64, i64, i64) = count.call_shared(&mut shop, &[&stock], &[1], last.fence()).await.unwrap();
    assert_eq!(counted, (1, 1, 39));
    last.release().await.unwrap();
}

#[tokio::test]
async fn of_two_who_share_neither_is_refused_and_writers_of_before_are() {
    let server = server().await;
    let locker = async || Locker::new(Redis::connect(&server.url()).await.unwrap());
    check_shared(client(&server.url()).await, [locker().await, locker().await]).await;
}

#[tokio::test]
async fn those_who_share_are_told_apart_on_a_cluster_too() {
    let (servers, locks) = (servers::Redis::cluster().await.unwrap(), server().await);
    let nodes: Vec<_> = servers.nodes().iter().map(servers::Redis::url).collect();
    let shop = redis::cluster::ClusterClient::new(nodes).unwrap().get_async_connection().await.unwrap();
    let locker = async || Locker::new(Redis::connect(&locks.url()).await.unwrap());
    check_shared(shop, [locker().await, locker().await]).await;
}

#[tokio::test]
async fn a_fence_from_before_there_were_shared_ones_is_read_and_kept_in_its_form() {
    let server = server().await;
    let (mut shop, fences) = (client(&server.url()).await, RedisFences::default());
    let stored = fences.fence_key(&key("a")).unwrap();
    let locker = Locker::new(Redis::connect(&server.url()).await.unwrap());
    let old = locker.lock(LOCK).await.unwrap().fence();
    let reader = locker.read(LOCK).await.unwrap();
    let digits = |fence: u64| format!("{fence:020}");
    server.command(&["SET", &stored, &digits(old.get())]).await.unwrap();
    // Whoever holds alone leaves the form that older programs know.
    fences.set(&mut shop, &key("a"), 1, old).await.unwrap();
    assert_eq!(server.command(&["GET", &stored]).await.unwrap().text(), digits(old.get()));
    fences.read::<i64>(&mut shop, &key("a"), reader.fence()).await.unwrap();
    let both = digits(old.get()) + &digits(reader.fence().get());
    assert_eq!(server.command(&["GET", &stored]).await.unwrap().text(), both);
    reader.release().await.unwrap();
    let new = locker.lock(LOCK).await.unwrap().fence();
    fences.get::<i64>(&mut shop, &key("a"), new).await.unwrap();
    assert_eq!(server.command(&["GET", &stored]).await.unwrap().text(), digits(new.get()));
}

#[tokio::test]
async fn what_cannot_be_fenced_is_said_and_foreign_values_are_left_alone() {
    let server = server().await;
    let (mut shop, fences) = (client(&server.url()).await, RedisFences::new("f").unwrap());
    let error = fences.set(&mut shop, &key("a}b"), 1, at(1)).await.unwrap_err().to_string();
    assert!(error.contains("hash tag"), "{error}");
    let nothing = fences.script("return 1").call::<i64>(&mut shop, &[], &[""; 0], at(1)).await;
    assert!(nothing.unwrap_err().to_string().contains("keys"));
    for foreign in ["yes", "12345678901234567890x", "123456789012345678901234567890", "1234567890 123456789"]
    {
        server.command(&["SET", "f:{a}:a", foreign]).await.unwrap();
        let error = fences.set(&mut shop, &key("a"), 1, at(1)).await.unwrap_err().to_string();
        assert!(error.contains("not a fence"), "{error}");
    }
    // An error of the script itself is the script's, whatever it is called.
    let failing = fences.script("return redis.error_reply('OWN trouble')");
    let error = failing.call::<()>(&mut shop, &[&key("b")], &[""; 0], at(1)).await.unwrap_err();
    assert!(matches!(&error, FencedError::Database(it) if it.code() == Some("OWN")), "{error}");
    // A server that forgets its scripts is told them again.
    server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    fences.set(&mut shop, &key("b"), 1, at(1)).await.unwrap();
}

#[tokio::test]
async fn fences_are_kept_for_ever_or_as_long_as_told() {
    let server = server().await;
    let mut shop = client(&server.url()).await;
    let fences = RedisFences::default();
    fences.set(&mut shop, &key("a"), 1, at(1)).await.unwrap();
    let kept = fences.kept_for(Duration::from_secs(86400));
    kept.get::<()>(&mut shop, &key("b"), at(1)).await.unwrap();
    let left = async |key| server.command(&["PTTL", key]).await.unwrap().int().unwrap();
    assert_eq!(left("lk:fence:{a}:a").await, -1);
    assert!((1..=86_400_000).contains(&left("lk:fence:{b}:b").await));
}

#[tokio::test]
async fn the_rights_in_the_docs_suffice() {
    let docs = include_str!("../../../docs/backends/redis.md");
    let rule = docs.split("## Fenced writes").nth(1).unwrap().split("```").nth(1).unwrap();
    let rule = rule.lines().skip(1).collect::<Vec<_>>().join("\n");
    let server = servers::Redis::start(RedisOptions::default().acl(&rule)).await.unwrap();
    let mut shop = client(&format!("redis://shop:secret@{}", server.address())).await;
    let fences = RedisFences::default();
    fences.set(&mut shop, &key("stock:7"), 40, at(2)).await.unwrap();
    assert_eq!(fences.get::<i64>(&mut shop, &key("stock:7"), at(2)).await.unwrap(), 40);
    assert_eq!(seen(fences.set(&mut shop, &key("stock:7"), 0, at(1)).await), 2);
}

/// A fenced write: whether it was let through.
async fn write(shop: &mut MultiplexedConnection, fence: Fence) -> bool {
    match RedisFences::default().set(shop, &key("order:42"), fence.get(), fence).await {
        Ok(()) => true,
        Err(FencedError::Stale { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

async fn locker(url: &str) -> Locker {
    let redis = Redis::connect(url).await.unwrap();
    Locker::builder(redis).ttl(Duration::from_secs(1)).wait_at_most(common::LIMIT).build()
}

const ROLE: &str = "LOCKKEEPER_TEST_CHILD";

/// This same test in another process, which takes orders by line and answers by line.
struct Holder {
    child: Child,
    orders: ChildStdin,
    said: tokio::io::Lines<BufReader<ChildStdout>>,
}

impl Holder {
    fn start(test: &str, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(ROLE, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (orders, said) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Holder { child, orders, said: BufReader::new(said).lines() }
    }

    async fn order(&mut self, order: &str) -> String {
        self.orders.write_all(format!("{order}\n").as_bytes()).await.unwrap();
        within("the holder's answer", async {
            loop {
                let line = self.said.next_line().await.unwrap().expect("the holder has ended");
                if let Some(said) = line.strip_prefix("says ") {
                    return said.to_owned();
                }
            }
        })
        .await
    }

    async fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
    }
}

#[tokio::test]
async fn a_frozen_holders_late_write_is_refused() {
    if let Ok(url) = std::env::var(ROLE) {
        let guard = locker(&url).await.lock(LOCK).await.unwrap();
        let mut shop = client(&url).await;
        // It writes whenever it is told to, without looking whether the lock is still its own.
        let order = || tokio::task::spawn_blocking(|| std::io::stdin().lines().next());
        while order().await.unwrap().is_some() {
            let written = write(&mut shop, guard.fence()).await;
            println!("\nsays {}", if written { "written" } else { "refused" });
        }
        return;
    }
    let server = server().await;
    let mut holder = Holder::start("a_frozen_holders_late_write_is_refused", &server.url());
    assert_eq!(holder.order("write").await, "written");
    holder.signal("-STOP").await;
    let guard = locker(&server.url()).await.lock(LOCK).await.unwrap();
    let mut shop = client(&server.url()).await;
    assert!(write(&mut shop, guard.fence()).await);
    holder.signal("-CONT").await;
    assert_eq!(holder.order("write").await, "refused");
    let value = server.command(&["GET", "order:42"]).await.unwrap().text();
    assert_eq!(value, guard.fence().to_string());
}
