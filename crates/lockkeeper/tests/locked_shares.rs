//! `#[locked]` functions that share their lock, take permits, or take several locks, over a store in memory.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::spi::Memory;
use lockkeeper::{Error, Locker, MultiGuard, Owner, SharedFence, locked};
use tokio::sync::Barrier;

type Result<T, E = Error> = std::result::Result<T, E>;

const HANG: Duration = Duration::from_secs(30);

fn locker() -> Locker {
    Locker::new(Memory::default())
}

/// Nobody leaves before all have come.
#[locked("prices:{product}", shared, locker = locker)]
async fn read_together(locker: &Locker, product: u64, all: &Barrier) -> Result<u64> {
    all.wait().await;
    Ok(product)
}

#[locked("prices:{product}", shared, locker = locker, guard = lock)]
fn read_blocking(locker: &Locker, product: u64) -> Result<SharedFence> {
    Ok(lock.fence())
}

#[locked("prices:{product}", locker = locker, try)]
async fn try_write(locker: &Locker, product: u64) -> Result<()> {
    Ok(())
}

#[locked("prices:{product}", shared, try, or = Ok(false), locker = locker)]
async fn try_read(locker: &Locker, product: u64) -> Result<bool> {
    Ok(true)
}

#[locked("prices:{product}", shared, try, or = false, locker = locker)]
fn try_read_blocking(locker: &Locker, product: u64) -> bool {
    true
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, work).await.expect("it waits for ever")
}

#[tokio::test]
async fn readers_are_inside_together_and_nobody_who_writes() {
    let (locker, all) = (locker(), Arc::new(Barrier::new(9)));
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (locker, all) = (locker.clone(), all.clone());
            tokio::spawn(async move { read_together(&locker, 7, &all).await })
        })
        .collect();
    while locker.try_lock("prices:7").await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert!(matches!(try_write(&locker, 7).await, Err(Error::TimedOut { .. })));
    in_time(all.wait()).await;
    for it in readers {
        assert_eq!(in_time(it).await.unwrap().unwrap(), 7);
    }
    try_write(&locker, 7).await.unwrap();

    let writer = locker.write("prices:7").await.unwrap();
    assert!(!try_read(&locker, 7).await.unwrap() && !try_read_blocking(&locker, 7));
    let written = writer.fence();
    writer.release().await.unwrap();
    assert!(try_read(&locker, 7).await.unwrap() && try_read_blocking(&locker, 7));
    assert!(written.get() < read_blocking(&locker, 7).unwrap().get());
}

struct Mail {
    locker: Locker,
    most: u32,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
}

impl Mail {
    #[locked("mail", permits = "2/5", locker = self.locker)]
    async fn send(&self) -> Result<()> {
        self.count().await;
        Ok(())
    }

    #[locked(name = "mail", permits = (2, self.most), locker = self.locker)]
    async fn send_configured(&self) -> Result<()> {
        self.count().await;
        Ok(())
    }

    #[locked("mail", permits = "5/5", try, locker = self.locker)]
    fn all_of_it(&self) -> Result<u8> {
        Ok(1)
    }

    #[locked("mail", permits = (self.most + 1, self.most), locker = self.locker)]
    async fn too_many(&self) -> Result<()> {
        Ok(())
    }

    async fn count(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_inside.fetch_max(inside, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn permits_let_in_as_many_as_there_is_room_for() {
    let (inside, most_inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mail = Arc::new(Mail { locker: locker(), most: 5, inside, most_inside });
    let all: Vec<_> = (0..32)
        .map(|at| {
            let mail = mail.clone();
            tokio::spawn(
                async move { if at % 2 == 0 { mail.send().await } else { mail.send_configured().await } },
            )
        })
        .collect();
    for it in all {
        in_time(it).await.unwrap().unwrap();
    }
    assert_eq!(mail.most_inside.load(Ordering::SeqCst), 2, "two of two permits each, of five");
    let one = mail.locker.permits("mail", 1, 5).await.unwrap();
    assert!(matches!(mail.all_of_it(), Err(Error::TimedOut { .. })));
    one.release().await.unwrap();
    assert_eq!(mail.all_of_it().unwrap(), 1);
    let error = mail.too_many().await.unwrap_err();
    assert!(
        matches!(error, Error::Invalid { .. }) && error.to_string().contains("can never be granted"),
        "{error}"
    );
}

#[locked("r", shared, locker = locker, wait = "20s")]
async fn read_in_read(locker: &Locker, depth: u8) -> Result<u8> {
    if depth == 0 { read_inside(locker) } else { Box::pin(read_in_read(locker, depth - 1)).await }
}

#[locked("r", shared, locker = locker, wait = "20s")]
fn read_inside(locker: &Locker) -> Result<u8> {
    Ok(9)
}

#[locked("r", shared, locker = locker)]
async fn write_in_read(locker: &Locker) -> Result<u8> {
    write_alone(locker).await
}

#[locked("r", locker = locker)]
async fn write_alone(locker: &Locker) -> Result<u8> {
    read_in_read(locker, 1).await
}

#[locked("r", shared, locker = locker)]
async fn read_while_one_waits(locker: &Locker) -> Result<u8> {
    let writer = tokio::spawn(locker.write("r").owner(&Owner::new("other")));
    // Nobody else may read as soon as it stands in line.
    let stranger = Owner::new("stranger");
    while locker.read("r").owner(&stranger).max_hold(HANG).attempt().await?.is_some() {
        tokio::task::yield_now().await;
    }
    let read = read_in_read(locker, 2).await;
    drop(writer);
    read
}

#[tokio::test]
async fn one_owner_may_read_again_and_read_while_it_writes_but_not_write_while_it_reads() {
    let locker = locker();
    assert_eq!(in_time(read_in_read(&locker, 3)).await.unwrap(), 9);
    assert_eq!(in_time(write_alone(&locker)).await.unwrap(), 9, "who writes may read");
    assert_eq!(
        in_time(read_while_one_waits(&locker)).await.unwrap(),
        9,
        "also while somebody waits to write"
    );
    let error = in_time(write_in_read(&locker)).await.unwrap_err();
    assert!(error.to_string().contains("reads it already and would wait for itself"), "{error}");
    assert!(in_time(locker.lock("r")).await.is_ok(), "nothing is left behind");
}

#[locked("account:{from}", "account:{to}", locker = locker, guard = both)]
async fn transfer(locker: &Locker, from: u64, to: u64, sum: &AtomicUsize) -> Result<Vec<String>> {
    let before = sum.load(Ordering::SeqCst);
    tokio::task::yield_now().await;
    sum.store(before + 1, Ordering::SeqCst);
    Ok(names(both))
}

fn names(guard: &MultiGuard) -> Vec<String> {
    guard.keys().map(ToString::to_string).collect()
}

struct Pair {
    one: u64,
    other: u64,
}

#[locked("a:{}", pair.one, "b:{}/{}", pair.other, pair.one, locker = locker, guard = all, system = "bank")]
fn with_arguments(locker: &Locker, pair: &Pair) -> Result<Vec<String>> {
    Ok(names(all))
}

#[locked("x", "y", "x", locker = locker, try, or = Vec::new(), guard = all)]
async fn try_all(locker: &Locker) -> Vec<String> {
    names(all)
}

#[locked("x", "y", locker = locker, try, or = 0)]
fn try_all_blocking(locker: &Locker) -> u8 {
    1
}

#[locked("name:{it}", "x", locker = locker, or_else = |it| it.to_string())]
async fn named(locker: &Locker, it: &str) -> String {
    String::new()
}

#[tokio::test]
async fn several_locks_are_held_together_in_whatever_order_they_are_named() {
    let (locker, sum) = (locker(), Arc::new(AtomicUsize::new(0)));
    let all: Vec<_> = (0..32_u64)
        .map(|at| {
            let (locker, sum) = (locker.clone(), sum.clone());
            let (from, to) = if at % 2 == 0 { (1, 2) } else { (2, 1) };
            tokio::spawn(async move { transfer(&locker, from, to, &sum).await })
        })
        .collect();
    for it in all {
        assert_eq!(in_time(it).await.unwrap().unwrap(), ["account:1", "account:2"]);
    }
    assert_eq!(sum.load(Ordering::SeqCst), 32, "nobody was beside another");
    assert_eq!(transfer(&locker, 5, 5, &sum).await.unwrap(), ["account:5"], "the same name twice is once");
    assert_eq!(with_arguments(&locker, &Pair { one: 1, other: 2 }).unwrap(), ["bank:a:1", "bank:b:2/1"]);
}

#[tokio::test]
async fn if_one_of_several_is_taken_none_is_held() {
    let locker = locker();
    assert_eq!(try_all(&locker).await, ["x", "y"]);
    assert_eq!(try_all_blocking(&locker), 1);
    let taken = locker.lock("y").await.unwrap();
    assert_eq!((try_all(&locker).await, try_all_blocking(&locker)), (Vec::new(), 0));
    in_time(locker.lock("x")).await.unwrap().release().await.unwrap();
    drop(taken);
    assert!(named(&locker, "a\nb").await.contains("control character"));
    assert!(named(&locker, "fine").await.is_empty());
}

#[locked("held", shared, locker = locker, max_hold = "30ms")]
async fn reads_too_long(locker: &Locker) -> Result<()> {
    std::future::pending().await
}

#[locked("held", "other", locker = locker, max_hold = "1ms", guard = lock)]
fn holds_too_long(locker: &Locker) -> Result<()> {
    while lock.is_valid() {
        std::thread::yield_now();
    }
    Ok(())
}

#[tokio::test]
async fn a_lost_share_stops_the_body_as_a_lost_lock_does() {
    let locker = locker();
    assert!(matches!(in_time(reads_too_long(&locker)).await, Err(Error::Lost { .. })));
    assert!(matches!(holds_too_long(&locker), Err(Error::Lost { .. })));
}
