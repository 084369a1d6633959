//! Observers hear what happens, once and in order.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::{Future as _, IntoFuture as _};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::observe::{Event, Observer, Source};
use lockkeeper_core::{Clock, Fence, FencedError, Guard, Key, Locker, Memory, Owner};

/// The names of the events heard, with what tells them apart.
#[derive(Clone, Debug, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Observer for Heard {
    fn observe(&self, event: &Event<'_>) {
        let text = match event {
            Event::Granted { by, begins: true, .. } => format!("granted by {by:?}"),
            Event::Granted { by, .. } => format!("joined by {by:?}"),
            Event::Arrived { patient: true, .. } => "arrived".to_owned(),
            Event::Arrived { .. } => "tries".to_owned(),
            Event::Busy { .. } => "busy".to_owned(),
            Event::Withdrawn { stage, .. } => format!("withdrawn in {stage:?}"),
            Event::Asked { verb, answer, .. } => format!("asked {}: {answer:?}", verb.word()),
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
    assert_eq!(heard.take(), ["arrived", "granted by Store", "released, handed on false", "left"]);
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
        "arrived",
        "granted by Store",
        "arrived",
        "joined by Reentry",
        "arrived", // and stands in line
        "arrived",
        "refused",
        "released, handed on true",
        "granted by HandOn",
        "arrived",
        "timed out in Local",
        "released, handed on false",
        "left",
    ];
    assert_eq!(heard.take(), expected);
}

#[tokio::test]
async fn a_try_that_fails_and_a_caller_that_goes_away_are_heard() {
    let (locker, heard) = observed(&Memory::default());
    let guard = locker.lock("k").await.unwrap();
    assert!(locker.try_lock("k").await.unwrap().is_none());
    let waits = tokio::spawn(locker.lock("k"));
    tokio::task::yield_now().await;
    waits.abort();
    assert!(waits.await.is_err());
    drop(guard);
    let expected = [
        "arrived",
        "granted by Store",
        "tries",
        "busy",
        "arrived",
        "withdrawn in Local",
        "released, handed on false",
        "left",
    ];
    assert_eq!(heard.take(), expected);
}

#[tokio::test]
async fn a_lock_that_was_handed_to_a_caller_who_had_gone_was_never_held() {
    let (locker, heard) = observed(&Memory::default());
    let guard = locker.lock("k").await.unwrap();
    let mut waits = Box::pin(locker.lock("k"));
    let polled = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    drop(guard); // it is the other's now, who has not looked
    drop(waits);
    let expected =
        ["arrived", "granted by Store", "arrived", "released, handed on true", "withdrawn in Local", "left"];
    assert_eq!(heard.take(), expected);
}

#[tokio::test]
async fn a_hold_and_a_margin_are_measured_by_the_clock() {
    /// What was measured.
    #[derive(Clone, Debug, Default)]
    struct Measured(Arc<Mutex<Vec<(&'static str, Duration)>>>);

    impl Observer for Measured {
        fn observe(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push(match event {
                Event::Renewed { left, .. } => ("left", *left),
                Event::Released { held, .. } => ("held", *held),
                _ => return,
            });
        }
    }

    let clock = Clock::virtual_from(Duration::from_secs(100));
    let (store, measured) = (Memory::new(clock.clone()), Measured::default());
    let builder = Locker::builder(store.clone()).clock(clock.clone()).observer(measured.clone());
    let locker = builder.ttl(Duration::from_secs(30)).build();
    let guard = locker.lock("k").await.unwrap();
    // The rounds renew after a third of the ttl, on a thread of their own. The clock stands still while they do.
    let passed = Duration::from_millis(10_500);
    clock.advance_by(passed);
    let renewed = || measured.0.lock().unwrap().iter().any(|it| it.0 == "left");
    for _ in 0..6_000 {
        if renewed() {
            break;
        }
        Clock::boot().sleep(Duration::from_millis(10)).await;
    }
    drop(guard);
    // A deadline ends a hundredth and a millisecond before the ttl does.
    let left = Duration::from_millis(30_000 - 301).saturating_sub(passed);
    assert_eq!(*measured.0.lock().unwrap(), [("left", left), ("held", passed)]);
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
async fn a_late_write_that_was_refused_is_heard_and_its_answer_handed_on() {
    let (locker, heard) = observed(&Memory::default());
    let (resource, fence, seen) = (Key::new("k").unwrap(), Fence::from_u64(7), Fence::from_u64(9));
    let stale: Result<(), FencedError<()>> = Err(FencedError::Stale { resource, fence, seen });
    assert!(matches!(locker.observe_fenced("orders", stale), Err(FencedError::Stale { .. })));
    assert!(heard.take()[0].starts_with("FenceRefused"));
    assert!(locker.observe_fenced::<u8, ()>("orders", Ok(5)).is_ok());
    assert!(heard.take().is_empty(), "what was written is no news");
}

/// Remembers where it is.
#[derive(Clone, Debug, Default)]
struct Placed(Arc<Mutex<Vec<String>>>, String);

impl Observer for Placed {
    fn observe(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(format!("{} {}", self.1, event.key()));
    }

    fn for_locker(&self, source: &Source<'_>) -> Option<Arc<dyn Observer>> {
        Some(Arc::new(Placed(self.0.clone(), format!("{} {}", source.store, source.locker))))
    }
}

#[tokio::test]
async fn one_observer_tells_stores_and_lockers_apart() {
    let placed = Placed::default();
    let one = Locker::builder(Memory::default()).observer(placed.clone()).name("one").build();
    let two = Locker::builder(Memory::default()).observer(placed.clone()).build();
    let _held = (one.lock("a").await.unwrap(), two.lock("b").await.unwrap());
    let heard = placed.0.lock().unwrap().clone();
    assert_eq!(heard, ["memory one a", "memory one a", "memory  b", "memory  b"]);
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
    assert_eq!(heard.take(), ["arrived", "granted by Store", "released, handed on false"]);
    assert!(locker.try_lock("k").await.unwrap().is_some(), "the drop gave it back");
}

#[tokio::test]
async fn opposite_orders_are_told_before_anybody_waits_and_only_where_they_can_deadlock() {
    let heard = Heard::default();
    let locker = Locker::builder(Memory::default()).observer(heard.clone()).check_order(true).build();
    let crossed = || heard.take().into_iter().filter(|it| it.starts_with("OutOfOrder")).count();
    let owners = [Owner::new("one"), Owner::new("other")];
    // One order, several at once in any order, and a try: none of them can stop for ever.
    let outer = locker.lock("a").owner(&owners[0]).await.unwrap();
    drop(locker.lock("b").owner(&owners[0]).await.unwrap());
    drop(outer);
    drop(locker.lock_all(["b", "a"]).owner(&owners[1]).await.unwrap());
    let outer = locker.lock("b").owner(&owners[1]).await.unwrap();
    drop(locker.lock("a").owner(&owners[1]).attempt().await.unwrap());
    assert_eq!(crossed(), 0);
    // Told although it is held by the other and never had.
    let held = locker.lock("a").owner(&owners[0]).await.unwrap();
    let waiting = locker.lock("a").owner(&owners[1]).wait_at_most(Duration::from_millis(1)).await;
    assert!(waiting.is_err());
    assert_eq!(crossed(), 1);
    drop((outer, held));
    // What was given back is not nested.
    drop(locker.lock("b").owner(&owners[1]).await.unwrap());
    drop(locker.lock("a").owner(&owners[1]).await.unwrap());
    assert_eq!(crossed(), 0);
}

#[tokio::test]
async fn whoever_waits_for_permits_is_told_once_that_others_count_otherwise() {
    let store = Memory::default();
    let (locker, heard) = observed(&store);
    let other = Locker::new(store.clone());
    let told = || heard.take().into_iter().filter(|it| it.starts_with("Disagreement")).collect::<Vec<_>>();
    let careful = other.permits("mail", 2, 3).await.unwrap();
    let patience = Duration::from_millis(1);
    // Who agrees, and who counts nothing, is told nothing.
    assert!(locker.permits("mail", 2, 3).wait_at_most(patience).await.is_err());
    assert!(locker.write("mail").wait_at_most(patience).await.is_err());
    assert_eq!(told(), [""; 0]);
    // Four would fit into a room of eight, and do not: others say three.
    let mut waiting = locker.permits("mail", 2, 8).into_future();
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(std::pin::Pin::new(&mut waiting).poll(&mut cx).is_pending());
    }
    careful.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    let told = told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("ours: 8") && told[0].contains("theirs: 3"), "{told:?}");
}

/// Whoever hears of a loss lets go in that moment, before anybody else hears of it.
struct LetsGo(Mutex<Option<Guard>>, mpsc::Sender<()>);

impl Wake for LetsGo {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.send(()).unwrap();
    }
}

#[tokio::test]
async fn a_holder_that_lets_go_at_once_has_lost_its_lock_all_the_same() {
    let (clock, heard) = (Clock::virtual_from(Duration::from_secs(1)), Heard::default());
    let builder = Locker::builder(Memory::new(clock.clone())).clock(clock.clone());
    let locker = builder.observer(heard.clone()).build();
    let guard = locker.lock("k").max_hold(Duration::from_secs(3)).await.unwrap();
    let (mut lost, (sender, has_let_go)) = (Box::pin(guard.lost()), mpsc::channel());
    let waker = Waker::from(Arc::new(LetsGo(Mutex::new(Some(guard)), sender)));
    assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    clock.advance_by(Duration::from_secs(3));
    has_let_go.recv_timeout(Duration::from_secs(60)).unwrap();
    locker.shutdown(Duration::from_secs(60)).await.unwrap();
    let ends: Vec<_> =
        heard.take().into_iter().filter(|it| it.starts_with("lost") || it.starts_with("released")).collect();
    assert_eq!(ends, ["lost MaxHold"]);
}
