//! Meters: what they count, that they agree with the table, and that keys make no series.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod by_table;
mod openmetrics;

use std::future::Future as _;
use std::task::{Context, Waker};
use std::time::Duration;

use by_table::ByTable;
use lockkeeper::meters::{CLASSES_MAX, METERS, TWO_PHASE_METERS};
use lockkeeper::spi::{Clock, Memory};
use lockkeeper::{Fence, FencedError, Key, Locker, Meters, Owner};
use openmetrics::read;

fn locker(meters: &Meters) -> Locker {
    Locker::builder(Memory::default()).observer(meters.clone()).build()
}

/// Wait until it is so.
async fn eventually(mut is_so: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        Clock::boot().sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came");
}

#[tokio::test]
async fn gauges_follow_who_waits_and_who_holds() {
    let meters = Meters::new();
    let locker = locker(&meters);
    let gauges = || {
        let now = read(&meters.openmetrics()).unwrap();
        (now.sum("lockkeeper_held", &[]), now.sum("lockkeeper_waiting", &[]))
    };
    assert_eq!(gauges(), (0.0, 0.0));
    let guard = locker.lock("a").await.unwrap();
    let other = locker.lock("b").await.unwrap();
    let mut waits = Box::pin(locker.lock("a"));
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(gauges(), (2.0, 1.0));
    drop(waits);
    assert_eq!(gauges(), (2.0, 0.0));
    drop((guard, other));
    assert_eq!(gauges(), (0.0, 0.0));
}

#[tokio::test]
async fn each_way_out_has_its_outcome() {
    let meters = Meters::new();
    let builder = Locker::builder(Memory::default()).observer(meters.clone()).waiters_max(1);
    let locker = builder.build();
    let owner = Owner::new("o");
    let guard = locker.lock("a").owner(&owner).await.unwrap();
    drop(locker.lock("a").owner(&owner).await.unwrap());
    assert!(locker.try_lock("a").await.unwrap().is_none());
    assert!(locker.lock("a").wait_at_most(Duration::from_millis(1)).await.is_err());
    let mut waits = Box::pin(locker.lock("a"));
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(locker.lock("a").await.is_err(), "the line is full");
    drop(guard);
    drop(waits.await.unwrap());
    let readers = (locker.read("r").await.unwrap(), locker.read("r").await.unwrap());
    let mut gone = Box::pin(locker.lock("r"));
    assert!(gone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(gone);
    drop(readers);
    locker.shutdown(Duration::from_secs(60)).await.unwrap();
    assert!(locker.lock("a").await.is_err());

    let now = read(&meters.openmetrics()).unwrap();
    let count = |labels: &[(&str, &str)]| now.sum("lockkeeper_acquire_duration_seconds_count", labels);
    for by in [("store", 2.0), ("reentry", 1.0), ("hand_on", 1.0), ("sharing", 1.0)] {
        assert_eq!(count(&[("outcome", "granted"), ("by", by.0)]).to_bits(), f64::to_bits(by.1), "{by:?}");
    }
    for outcome in ["busy", "timed_out", "refused", "cancelled", "failed"] {
        assert_eq!(count(&[("outcome", outcome)]).to_bits(), 1_f64.to_bits(), "{outcome}");
    }
    let held = |end| now.sum("lockkeeper_hold_duration_seconds_count", &[("end", end)]);
    assert_eq!((held("released"), held("handed_on"), held("lost")), (2.0, 1.0, 0.0));
}

#[tokio::test]
async fn a_loss_a_margin_and_a_refused_write_are_counted() {
    let meters = Meters::new();
    let clock = Clock::virtual_from(Duration::from_secs(100));
    let store = Memory::new(clock.clone());
    let builder = Locker::builder(store.clone()).clock(clock.clone()).observer(meters.clone());
    let locker = builder.ttl(Duration::from_secs(30)).build();
    let guard = locker.lock("a").await.unwrap();
    clock.advance_by(Duration::from_secs(12));
    eventually(|| meters.snapshot().sum("lockkeeper.renewal.margin", &[]) == 1).await;
    locker.shutdown(Duration::from_secs(60)).await.unwrap();
    drop(guard);
    let (resource, fence, seen) = (Key::new("a").unwrap(), Fence::from_u64(1), Fence::from_u64(2));
    let stale: Result<(), FencedError<()>> = Err(FencedError::Stale { resource, fence, seen });
    assert!(locker.observe_fenced("books", stale).is_err());

    let now = read(&meters.openmetrics()).unwrap();
    let (bucket, count) = ("lockkeeper_renewal_margin_bucket", "lockkeeper_renewal_margin_count");
    assert_eq!((now.sum(count, &[]), now.sum(bucket, &[("le", "0.5")])), (1.0, 0.0));
    assert_eq!(now.sum(bucket, &[("le", "0.6")]).to_bits(), 1_f64.to_bits(), "17.7 s of 30 s were left");
    assert_eq!(now.sum("lockkeeper_lost_total", &[("reason", "closed")]).to_bits(), 1_f64.to_bits());
    assert_eq!(now.sum("lockkeeper_renewals_total", &[("outcome", "ok")]).to_bits(), 1_f64.to_bits());
    assert_eq!(
        now.sum("lockkeeper_fences_refused_total", &[("checker", "books")]).to_bits(),
        1_f64.to_bits()
    );
    let held = now.sum("lockkeeper_hold_duration_seconds_sum", &[("end", "lost")]);
    assert_eq!(held.to_bits(), 12_f64.to_bits());
}

#[tokio::test]
async fn a_hundred_thousand_keys_make_no_series() {
    let meters = Meters::new();
    let locker = locker(&meters);
    let one = async |key: String| drop(locker.lock(key).await.unwrap());
    one("first".into()).await;
    let before = read(&meters.openmetrics()).unwrap();
    for key in 0..100_000 {
        one(format!("{key}/x")).await;
    }
    let after = read(&meters.openmetrics()).unwrap();
    assert_eq!(after.series(), before.series());
    assert_eq!(after.sum("lockkeeper_acquire_duration_seconds_count", &[]).to_bits(), 100_001_f64.to_bits());
    assert!(!meters.openmetrics().contains("/x"), "a key is never a label");
}

#[tokio::test]
async fn a_hundred_thousand_classes_are_a_hundred_and_the_others() {
    let meters = Meters::by_prefix('/');
    let locker = locker(&meters);
    for key in 0..100_000 {
        drop(locker.lock(format!("{key}/x")).await.unwrap());
    }
    let now = meters.snapshot();
    let held: Vec<_> = now.series.iter().filter(|it| it.meter.name == "lockkeeper.held").collect();
    assert_eq!(held.len(), CLASSES_MAX + 1);
    assert_eq!(now.sum("lockkeeper.hold.duration", &[]), 100_000);
    let others = 100_000 - u64::try_from(CLASSES_MAX).unwrap();
    assert_eq!(now.sum("lockkeeper.hold.duration", &[("class", "other")]), others);
    read(&now.openmetrics()).unwrap();
}

#[tokio::test]
async fn a_thousand_lockers_are_a_hundred_and_the_others() {
    let meters = Meters::new();
    for name in 0..1_000 {
        let builder = Locker::builder(Memory::default()).observer(meters.clone());
        drop(builder.name(name.to_string()).build().lock("a").await.unwrap());
    }
    let now = read(&meters.openmetrics()).unwrap();
    assert_eq!(now.0.keys().filter(|it| it.0 == "lockkeeper_held").count(), 101);
    assert_eq!(now.sum("lockkeeper_hold_duration_seconds_count", &[]).to_bits(), 1_000_f64.to_bits());
}

#[tokio::test]
async fn hostile_names_stay_values() {
    let meters = Meters::by_class(Key::as_str);
    let builder = Locker::builder(Memory::default()).observer(meters.clone());
    let locker = builder.name("a\\\"}\nlockkeeper_lost_total{x=\"").build();
    let key = "orders\\\"} 7";
    drop(locker.lock(key).await.unwrap());
    let now = read(&meters.openmetrics()).unwrap();
    assert_eq!(
        now.sum("lockkeeper_hold_duration_seconds_count", &[("class", key)]).to_bits(),
        1_f64.to_bits()
    );
}

#[tokio::test]
async fn meters_and_the_table_agree() {
    let (meters, by_table) = (Meters::new(), ByTable::default());
    let store = Memory::default();
    let builder = Locker::builder(store.clone()).observer(meters.clone()).observer(by_table.clone());
    let locker = builder.waiters_max(4).build();
    let tasks: Vec<_> = (0..8_u64)
        .map(|task| {
            let locker = locker.clone();
            tokio::spawn(async move {
                for turn in 0..200 {
                    let key = format!("k{}", (task + turn) % 3);
                    match (task * 7 + turn) % 5 {
                        0 => drop(locker.try_lock(&key).await),
                        1 => drop(locker.lock(&key).wait_at_most(Duration::from_micros(50)).await),
                        2 => drop(locker.read(&key).await),
                        _ => {
                            let guard = locker.lock(&key).await;
                            tokio::task::yield_now().await;
                            drop(guard);
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    locker.shutdown(Duration::from_secs(60)).await.unwrap();
    let (told, counted) = by_table.beside(&meters);
    assert!(told.len() > 5, "{told:?}");
    assert_eq!(told, counted);
}

#[test]
fn each_meter_stands_in_the_guide() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/monitoring.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for meter in METERS.iter().chain(TWO_PHASE_METERS) {
        let name = meter.openmetrics_name();
        assert!(guide.contains(&format!("`{name}`")), "docs/guides/monitoring.md does not tell of {name}");
    }
}
