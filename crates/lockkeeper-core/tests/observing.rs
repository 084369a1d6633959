//! Observers hear what happens, once and in order.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::observe::{Event, Observer};
use lockkeeper_core::{Clock, Key, Locker, Memory, Owner};

/// The names of the events heard, with what tells them apart.
#[derive(Clone, Debug, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Observer for Heard {
    fn observe(&self, event: &Event<'_>) {
        let text = match event {
            Event::Granted { by, .. } => format!("granted by {by:?}"),
            Event::TimedOut { stage, .. } => format!("timed out in {stage:?}"),
            Event::Refused { .. } => "refused".to_owned(),
            Event::Renewed { .. } => "renewed".to_owned(),
            Event::Lost { reason, .. } => format!("lost {reason:?}"),
            Event::Released { handed_on, .. } => format!("released, handed on {handed_on}"),
            Event::Left { .. } => "left".to_owned(),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(text);
    }
}

impl Heard {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Wait until such an event was heard.
    async fn until(&self, is_it: impl Fn(&String) -> bool) {
        for _ in 0..3_000 {
            if self.0.lock().unwrap().iter().any(&is_it) {
                return;
            }
            Clock::boot().sleep(Duration::from_millis(10)).await;
        }
        panic!("not heard: {self:?}");
    }
}

/// A locker on a shared store, so that every lock goes the whole way.
fn observed(store: &Memory) -> (Locker, Heard) {
    let heard = Heard::default();
    (Locker::builder(store.clone()).waiters_max(1).observer(heard.clone()).build(), heard)
}

#[tokio::test]
async fn a_lock_and_its_release_are_heard_in_order() {
    let store = Memory::default();
    let (locker, heard) = observed(&store);
    locker.lock("k").await.unwrap().release().await.unwrap();
    assert_eq!(heard.take(), ["granted by Store", "released, handed on false", "left"]);
}

#[tokio::test]
async fn reentry_hand_on_refusal_and_time_out_are_heard() {
    let store = Memory::default();
    let (locker, heard) = observed(&store);
    let owner = Owner::new("o");
    let outer = locker.lock("k").owner(&owner).await.unwrap();
    drop(locker.lock("k").owner(&owner).await.unwrap());
    let next = tokio::spawn(locker.lock("k"));
    tokio::task::yield_now().await;
    locker.lock("k").await.unwrap_err();
    drop(outer);
    let next = next.await.unwrap().unwrap();
    locker.lock("k").wait_at_most(Duration::from_millis(5)).await.unwrap_err();
    drop(next);
    let expected = [
        "granted by Store",
        "granted by Reentry",
        "refused",
        "released, handed on true",
        "granted by HandOn",
        "timed out in Local",
        "released, handed on false",
        "left",
    ];
    assert_eq!(heard.take(), expected);
}

#[tokio::test]
async fn a_loss_is_heard_once() {
    let store = Memory::default();
    let (locker, heard) = observed(&store);
    let guard = locker.lock("k").ttl(Duration::from_secs(3)).await.unwrap();
    store.break_lock(&Key::new("k").unwrap()).await.unwrap();
    guard.lost().await;
    // The guard is told first. The observer hears of it next, on the locker's own thread.
    heard.until(|it| it.starts_with("lost")).await;
    locker.shutdown(Duration::from_secs(30)).await.unwrap();
    drop(guard);
    let heard = heard.take();
    assert_eq!(heard.iter().filter(|it| it.starts_with("lost")).count(), 1, "{heard:?}");
    assert!(heard.contains(&"lost Taken".to_owned()), "{heard:?}");
}

#[tokio::test]
async fn every_observer_hears_everything() {
    let (first, second) = (Heard::default(), Heard::default());
    let locker = Locker::builder(Memory::default()).observer(first.clone()).observer(second.clone()).build();
    locker.lock("k").await.unwrap().release().await.unwrap();
    let heard = first.take();
    assert!(!heard.is_empty());
    assert_eq!(heard, second.take());
}

/// Panics at every event.
#[derive(Debug)]
struct Panicking;

impl Observer for Panicking {
    fn observe(&self, event: &Event<'_>) {
        panic!("planted: {event:?}");
    }
}

#[tokio::test]
async fn an_observer_that_panics_hurts_neither_the_lock_nor_the_others() {
    let heard = Heard::default();
    let locker = Locker::builder(Memory::default()).observer(Panicking).observer(heard.clone()).build();
    let guard = locker.lock("k").await.unwrap();
    drop(guard);
    assert_eq!(heard.take(), ["granted by Store", "released, handed on false"]);
    assert!(locker.try_lock("k").await.unwrap().is_some(), "the drop gave it back");
}
