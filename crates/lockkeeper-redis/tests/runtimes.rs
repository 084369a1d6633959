//! Runtimes that end, stand still, or are not there: whoever runs gets its locks all the same.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::{Clock, Key, Locker};
use lockkeeper_redis::Redis;
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::{self as servers, RedisOptions};
use tokio::runtime::{Builder, Runtime};

/// Well below the five seconds that a caller bears by default.
const SOON: Duration = Duration::from_secs(3);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime on which servers and proxies live.
fn stage() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn soon<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (clock, began) = (Clock::boot(), Clock::boot().now());
    let done = work();
    let took = clock.now() - began;
    assert!(took < SOON, "{what} took {took:?}");
    done
}

#[test]
fn a_runtime_that_was_used_to_connect_and_then_stands_still_holds_nobody_up() {
    let (stage, still) = (stage(), runtime());
    let server = stage.block_on(servers::Redis::start(RedisOptions::default())).unwrap();
    let locker = Locker::new(still.block_on(Redis::connect(&server.url())).unwrap());
    for round in 0..3 {
        let guard = soon("a blocking lock", || locker.lock("k").blocking()).unwrap();
        soon("a blocking release", || guard.release_blocking()).unwrap();
        // It runs for a moment, opens a connection of its own, and stands still again.
        if round == 1 {
            still.block_on(async { locker.lock("k").await.unwrap().release().await.unwrap() });
        }
    }
    let guard =
        soon("a lock of another runtime", || stage.block_on(async { locker.lock("k").await })).unwrap();
    drop(still);
    assert!(guard.is_valid());
    soon("a release", || stage.block_on(guard.release())).unwrap();
}

#[test]
fn a_task_that_is_dialling_on_a_runtime_that_stands_still_holds_nobody_up() {
    let (stage, still) = (stage(), runtime());
    let (server, proxy) = stage.block_on(async {
        let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
        let proxy = Proxy::start(server.port()).await.unwrap();
        (server, proxy)
    });
    let options = lockkeeper_redis::RedisOptions::parse(&format!("redis://{}", proxy.address())).unwrap();
    let locker = Locker::new(Redis::lazy(options).unwrap());
    // It begins to dial, and its runtime stops in the middle of it.
    proxy.set(Direction::ToClient, Rule::Hold);
    let mut stuck = Box::pin(async { locker.lock("other").await });
    still.block_on(poll_fn(|cx| {
        assert!(stuck.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    }));
    stage.block_on(proxy.wait_for(|it| 0 < it.accepted)).unwrap();
    proxy.set(Direction::ToClient, Rule::Pass);
    let guard = soon("a blocking lock", || locker.lock("k").blocking()).unwrap();
    soon("a blocking release", || guard.release_blocking()).unwrap();
    soon("a lock of another runtime", || {
        stage.block_on(async { locker.lock("k").await.unwrap().release().await.unwrap() });
    });
    drop(still.block_on(stuck).unwrap());
    drop(server);
}

#[test]
fn a_waiter_is_woken_though_the_runtime_that_connected_stands_still() {
    let (stage, still) = (stage(), runtime());
    let server = stage.block_on(servers::Redis::start(RedisOptions::default())).unwrap();
    let locker = Locker::builder(still.block_on(Redis::connect(&server.url())).unwrap())
        .ttl(Duration::from_secs(60))
        .build();
    let other = stage.block_on(Redis::connect(&server.url())).unwrap();
    let rival = Locker::new(other.clone());
    let guard = stage.block_on(async { rival.lock("k").await }).unwrap();
    let (told, tell) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        told.send(()).unwrap();
        let guard = locker.lock("k").blocking().unwrap();
        (guard, Clock::boot().now())
    });
    tell.recv().unwrap();
    stage.block_on(async {
        while other.show(&Key::new("k").unwrap()).await.unwrap().is_none_or(|it| it.waiters.is_empty()) {
            Clock::boot().sleep(Duration::from_millis(5)).await;
        }
    });
    let released = Clock::boot().now();
    stage.block_on(guard.release()).unwrap();
    let (guard, woken) = waiter.join().unwrap();
    // Not by asking again: that would have been after a third of its ttl.
    assert!(woken - released < SOON, "{:?}", woken - released);
    guard.release_blocking().unwrap();
}

/// Polled by hand, without any runtime.
fn without_runtime<T>(future: impl Future<Output = T>) -> T {
    assert!(tokio::runtime::Handle::try_current().is_err());
    let mut future = pin!(future);
    let (thread, clock) = (std::thread::current(), Clock::boot());
    let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(thread)));
    let began = clock.now();
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            return done;
        }
        assert!(clock.now() - began < common::LIMIT, "it never ends");
        std::thread::park_timeout(Duration::from_secs(1));
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn a_program_without_a_runtime_connects_and_locks() {
    let stage = stage();
    let server = stage.block_on(servers::Redis::start(RedisOptions::default())).unwrap();
    let redis = without_runtime(Redis::connect(&server.url())).unwrap();
    let locker = Locker::new(redis);
    let guard = locker.lock("k").blocking().unwrap();
    guard.release_blocking().unwrap();
    let guard = without_runtime(async { locker.lock("k").await }).unwrap();
    without_runtime(guard.release()).unwrap();
    let refused = without_runtime(Redis::connect("redis://127.0.0.1:1")).unwrap_err();
    assert!(refused.is_transient(), "{refused}");
}

#[test]
fn a_place_without_a_runtime_says_so() {
    use lockkeeper_core::backend::{Backend as _, Place as _};
    let redis = Redis::lazy(lockkeeper_redis::RedisOptions::parse("redis://127.0.0.1:1").unwrap()).unwrap();
    let mut place = redis.enter(common::claim("k"));
    let fault = without_runtime(place.turn()).unwrap_err();
    assert!(!fault.is_transient() && fault.message.contains("runtime"), "{fault}");
}
