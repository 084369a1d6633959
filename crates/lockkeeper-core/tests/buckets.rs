//! One resource over several locks.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::buckets::{BUCKETS_MAX, Buckets, Start};
use lockkeeper_core::{Error, Locker, Memory};

fn buckets(count: usize) -> (Locker, Buckets) {
    let locker = Locker::new(Memory::default());
    let buckets = Buckets::new(&locker, "stock", count).unwrap();
    (locker, buckets)
}

#[tokio::test]
async fn the_next_bucket_is_taken_when_one_is_not_free_until_all_are_taken() {
    let (_, buckets) = buckets(3);
    let mut held = Vec::new();
    for expected in [2, 0, 1] {
        let bucket = buckets.try_lock(Start::At(2)).await.unwrap().unwrap();
        assert_eq!((bucket.index(), bucket.guard().is_valid()), (expected, true));
        held.push(bucket);
    }
    assert!(buckets.try_lock(Start::At(2)).await.unwrap().is_none());
    let mut sweep = buckets.sweep(Start::Random);
    assert!(sweep.next_free().await.unwrap().is_none());
    assert_eq!(sweep.taken(), 3);
    held.remove(1).release().await.unwrap();
    assert_eq!(buckets.try_lock(Start::Random).await.unwrap().unwrap().index(), 0);
}

#[tokio::test]
async fn a_sweep_sees_every_free_bucket_once() {
    let (locker, buckets) = buckets(8);
    let _taken = locker.lock("stock#5").await.unwrap();
    let (mut sweep, mut seen) = (buckets.sweep(Start::Random), BTreeSet::new());
    while let Some(bucket) = sweep.next_free().await.unwrap() {
        assert!(seen.insert(bucket.index()));
        bucket.release().await.unwrap();
    }
    assert_eq!(seen, BTreeSet::from([0, 1, 2, 3, 4, 6, 7]));
    assert_eq!(sweep.taken(), 1);
}

#[tokio::test]
async fn a_wait_stands_at_the_first_bucket() {
    let (_, buckets) = buckets(2);
    let (zero, _one) = (
        buckets.try_lock(Start::At(0)).await.unwrap().unwrap(),
        buckets.try_lock(Start::At(1)).await.unwrap().unwrap(),
    );
    let error = buckets.lock(Start::At(0), Duration::from_millis(5)).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let waiting = tokio::spawn({
        let buckets = buckets.clone();
        async move { buckets.lock(Start::At(0), Duration::MAX).await.unwrap().index() }
    });
    tokio::task::yield_now().await;
    zero.release().await.unwrap();
    assert_eq!(waiting.await.unwrap(), 0);
}

#[tokio::test]
async fn things_are_spread_and_always_begin_at_the_same_bucket() {
    let (_, buckets) = buckets(16);
    let mut firsts = BTreeSet::new();
    for account in 0..200_u64 {
        let start = Start::by(account.to_be_bytes());
        let first = || async { buckets.try_lock(start).await.unwrap().unwrap().index() };
        assert_eq!(first().await, first().await);
        firsts.insert(first().await);
    }
    assert_eq!(firsts.len(), 16);
}

/// These numbers are a promise to programs of other versions: if this test fails, mend the code and not the numbers.
#[test]
fn a_thing_begins_at_the_same_bucket_in_every_version() {
    for (thing, at) in [
        (&b""[..], 4_023_394_144),
        (b"a", 2_191_698_264),
        (b"account 7", 487_410_422),
        (b"account 8", 2_047_612_897),
        ("заказ".as_bytes(), 1_272_658_052),
        (&42_u64.to_be_bytes(), 1_679_683_044),
    ] {
        assert_eq!(Start::by(thing), Start::At(at));
    }
    assert_eq!(Start::by("account 7"), Start::by(b"account 7"), "text is its bytes");
    assert_eq!(Start::by(String::from("account 7")), Start::by("account 7"));
}

#[test]
fn a_count_that_makes_no_sense_is_refused() {
    let locker = Locker::new(Memory::default());
    for (name, count) in [("x", 0), ("x", BUCKETS_MAX + 1), ("a\nb", 2), (&"x".repeat(511), 2)] {
        assert!(matches!(Buckets::new(&locker, name, count), Err(Error::Invalid { .. })), "{count}");
    }
}
