//! Warm locks: what is given back stays while nobody else wants it, is taken again without a trip, and goes when it must.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::observe::{CooledBy, Event, Observer};
use lockkeeper_core::{Claim, Clock, Fence, Key, Locker, LockerBuilder, LostReason, Memory};

const HOUR: Duration = Duration::from_secs(3600);
const HANG: Duration = Duration::from_secs(10);

/// A shared store that counts what it is asked.
#[derive(Clone, Debug, Default)]
struct Counted {
    inner: Memory,
    asked: Arc<AtomicU32>,
    /// Whether it speaks to holders.
    mute: bool,
}

struct CountedPlace(MemoryPlace, Arc<AtomicU32>);

impl Backend for Counted {
    type Place = CountedPlace;

    fn profile(&self) -> Profile {
        let mut profile = self.inner.profile();
        profile.notifies = !self.mute;
        profile
    }

    fn enter(&self, claim: Claim) -> CountedPlace {
        CountedPlace(self.inner.enter(claim), self.asked.clone())
    }
}

impl Place for CountedPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.turn().await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.renew().await
    }

    async fn leave(&mut self) -> Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.leave().await
    }
}

impl Counted {
    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    async fn is_held(&self, name: &str) -> bool {
        self.inner.show(&Key::new(name).unwrap()).await.unwrap().is_some_and(|it| !it.holders.is_empty())
    }

    async fn until_free(&self, name: &str) {
        tokio::time::timeout(HANG, async {
            while self.is_held(name).await {
                Clock::boot().sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .unwrap();
    }
}

fn warm(store: &Counted) -> LockerBuilder {
    Locker::builder(store.clone()).ttl(HOUR).warm(true)
}

#[derive(Clone, Debug, Default)]
struct Cooled(Arc<Mutex<Vec<(String, CooledBy)>>>);

impl Observer for Cooled {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Cooled { key, by, .. } = event {
            self.0.lock().unwrap().push((key.to_string(), *by));
        }
    }
}

async fn cycle(locker: &Locker, name: &str) -> Fence {
    let guard = locker.lock(name).await.unwrap();
    let fence = guard.fence();
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    fence
}

#[tokio::test]
async fn taking_it_again_asks_nobody_and_has_a_larger_fence() {
    let store = Counted::default();
    let locker = warm(&store).build();
    let mut last = cycle(&locker, "k").await;
    for _ in 0..1000 {
        let next = cycle(&locker, "k").await;
        assert!(last < next);
        last = next;
    }
    assert_eq!(store.asked(), 1, "one turn for all of them");
    assert!(store.is_held("k").await);
    assert_eq!(locker.lines(), 1);
}

#[tokio::test]
async fn however_often_it_is_taken_the_store_is_not_asked_for_numbers_that_nobody_reads() {
    let store = Counted::default();
    let locker = warm(&store).build();
    let mut last = cycle(&locker, "k").await;
    // More often than one grant has numbers.
    for nth in 0..200_000 {
        locker.lock("k").await.unwrap().release().await.unwrap();
        if nth % 10_000 == 0 {
            let next = cycle(&locker, "k").await;
            assert!(last < next, "whoever reads its number has a larger one");
            last = next;
        }
    }
    assert_eq!(store.asked(), 1, "one turn for all of them");
}

#[tokio::test]
async fn numbers_that_are_read_run_out_and_the_store_gives_more() {
    let store = Counted::default();
    let locker = warm(&store).build();
    let mut last = cycle(&locker, "k").await;
    for _ in 0..70_000 {
        let next = cycle(&locker, "k").await;
        assert!(last < next);
        last = next;
    }
    assert_eq!(store.asked(), 3, "a leave and a turn more");
}

#[tokio::test]
async fn whoever_awaits_its_loss_does_not_hear_of_the_next_guards() {
    let store = Counted::default();
    let locker = warm(&store).build();
    let guard = locker.lock("k").await.unwrap();
    let lost = guard.lost();
    guard.release().await.unwrap();
    let next = locker.lock("k").await.unwrap();
    let reason = tokio::time::timeout(HANG, lost).await.unwrap();
    assert_eq!(reason, LostReason::Released);
    assert!(next.is_valid());
}

#[tokio::test]
async fn it_is_off_unless_asked_for_and_a_request_decides_for_itself() {
    let store = Counted::default();
    let locker = Locker::builder(store.clone()).ttl(HOUR).build();
    cycle(&locker, "k").await;
    assert!(!store.is_held("k").await);
    locker.lock("k").warm().await.unwrap().release().await.unwrap();
    assert!(store.is_held("k").await);
    locker.lock("k").await.unwrap().release().await.unwrap();
    assert!(!store.is_held("k").await, "the last who had it wanted it given back");
    let locker = warm(&store).build();
    locker.lock("k").cold().await.unwrap().release().await.unwrap();
    assert!(!store.is_held("k").await);
    locker.lock("k").await.unwrap().release_fully().await.unwrap();
    assert!(!store.is_held("k").await);
}

#[tokio::test]
async fn whoever_wants_it_elsewhere_has_it_at_once() {
    let store = Counted::default();
    let cooled = Cooled::default();
    let here = warm(&store).observer(cooled.clone()).build();
    let there = Locker::builder(store.clone()).ttl(HOUR).build();
    let fence = cycle(&here, "k").await;
    let guard = tokio::time::timeout(HANG, there.lock("k")).await.unwrap().unwrap();
    assert!(fence < guard.fence());
    assert_eq!(*cooled.0.lock().unwrap(), [("k".to_owned(), CooledBy::Recall)]);
    assert_eq!(here.lines(), 0);
}

#[tokio::test]
async fn a_dropped_guard_leaves_it_warm_too() {
    let store = Counted::default();
    let locker = warm(&store).build();
    drop(locker.lock("k").await.unwrap());
    assert_eq!((locker.lines(), store.asked()), (1, 1));
    cycle(&locker, "k").await;
    assert_eq!(store.asked(), 1);
}

#[tokio::test]
async fn it_does_not_stay_where_somebody_waits_already() {
    let store = Counted::default();
    let (here, there) = (warm(&store).build(), warm(&store).build());
    let guard = here.lock("k").await.unwrap();
    let waiting = tokio::spawn(async move { there.lock("k").await.unwrap() });
    // Both have asked for their turn, and the holder has asked why it was called.
    tokio::time::timeout(HANG, async {
        while store.asked() < 3 {
            Clock::boot().sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    Clock::boot().sleep(Duration::from_millis(20)).await;
    guard.release().await.unwrap();
    drop(tokio::time::timeout(HANG, waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_store_that_does_not_speak_to_holders_keeps_nothing() {
    let store = Counted { mute: true, ..Counted::default() };
    let locker = warm(&store).build();
    cycle(&locker, "k").await;
    assert!(!store.is_held("k").await);
}

/// A store that cannot call anybody; which keys were looked at is known.
#[derive(Clone, Debug, Default)]
struct LookedAt(Memory, Arc<Mutex<Vec<String>>>);

struct LookingPlace(MemoryPlace, String, Arc<Mutex<Vec<String>>>);

impl Backend for LookedAt {
    type Place = LookingPlace;

    fn profile(&self) -> Profile {
        let mut profile = self.0.profile().looking();
        profile.notifies = false;
        profile
    }

    fn enter(&self, claim: Claim) -> LookingPlace {
        let name = claim.key.to_string();
        LookingPlace(self.0.enter(claim), name, self.1.clone())
    }
}

impl Place for LookingPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.0.turn().await
    }

    async fn changed(&mut self) {
        self.2.lock().unwrap().push(self.1.clone());
        self.0.changed().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }

    async fn leave(&mut self) -> Result<()> {
        self.0.leave().await
    }
}

#[tokio::test]
async fn where_holders_must_look_only_idle_ones_do_and_they_give_back_what_is_wanted() {
    let store = LookedAt::default();
    let locker = || Locker::builder(store.clone()).ttl(HOUR).warm(true).build();
    let (here, there) = (locker(), locker());
    let held = here.lock("held").await.unwrap();
    cycle(&here, "idle").await;
    // Long enough for whoever holds to begin to listen, where it would.
    Clock::boot().sleep(Duration::from_millis(50)).await;
    let guard = tokio::time::timeout(HANG, async { there.lock("idle").await.unwrap() }).await.unwrap();
    let looked_at = store.1.lock().unwrap().clone();
    assert!(looked_at.iter().any(|it| it == "idle"), "it looks while it is idle");
    assert!(
        !looked_at.iter().any(|it| it == "held"),
        "looks of a lock in use cost something and bring nothing"
    );
    assert_eq!(here.lines(), 1);
    drop((held, guard));
}

#[tokio::test]
async fn a_try_elsewhere_gets_what_is_idle_and_not_what_is_held() {
    let store = Counted::default();
    let (here, there) = (warm(&store).build(), warm(&store).build());
    cycle(&here, "k").await;
    let guard = there.try_lock("k").await.unwrap().expect("nobody works under it");
    assert!(here.try_lock("k").await.unwrap().is_none(), "somebody does now");
    guard.release().await.unwrap();
    assert_eq!(here.lines(), 0);
}

#[tokio::test]
async fn what_nobody_takes_again_goes_after_a_third_of_its_ttl_and_is_never_renewed() {
    let store = Counted::default();
    let cooled = Cooled::default();
    let ttl = Duration::from_millis(900);
    let locker = warm(&store).ttl(ttl).observer(cooled.clone()).build();
    cycle(&locker, "k").await;
    store.until_free("k").await;
    assert_eq!(*cooled.0.lock().unwrap(), [("k".to_owned(), CooledBy::Time)]);
    assert_eq!(store.asked(), 2, "a turn and a leave");
}

#[tokio::test]
async fn another_kind_of_request_gives_it_back_first() {
    let store = Counted::default();
    let locker = warm(&store).build();
    cycle(&locker, "k").await;
    let guard = tokio::time::timeout(HANG, locker.lock("k").ttl(HOUR * 2)).await.unwrap().unwrap();
    guard.release().await.unwrap();
    let reader = tokio::time::timeout(HANG, locker.read("k")).await.unwrap().unwrap();
    reader.release().await.unwrap();
    cycle(&locker, "k").await;
}

#[tokio::test]
async fn no_more_stay_than_may_and_those_in_use_last() {
    let store = Counted::default();
    let locker = warm(&store).warm_max(4).build();
    for nth in 0..100 {
        cycle(&locker, "often").await;
        cycle(&locker, &format!("once/{nth}")).await;
        assert!(locker.lines() <= 5, "{} lines", locker.lines());
    }
    assert!(store.is_held("often").await, "it was used all the time");
}

#[tokio::test]
async fn two_that_take_turns_are_not_slowed_down_for_long() {
    let store = Counted::default();
    let cooled = Cooled::default();
    let here = warm(&store).observer(cooled.clone()).build();
    let there = warm(&store).observer(cooled.clone()).build();
    for _ in 0..50 {
        cycle(&here, "k").await;
        cycle(&there, "k").await;
    }
    let cooled = cooled.0.lock().unwrap().len();
    assert!(cooled <= 2, "each of them learns from its first recall: {cooled}");
}

#[tokio::test]
async fn a_walk_over_many_idle_locks_recalls_all_of_them_together() {
    let store = Counted::default();
    let cooled = Cooled::default();
    let here = warm(&store).observer(cooled.clone()).build();
    let there = Locker::builder(store.clone()).ttl(HOUR).build();
    for nth in 0..200 {
        let name = format!("k/{nth}");
        cycle(&here, &name).await;
        cycle(&here, &name).await;
    }
    for nth in 0..40 {
        tokio::time::timeout(HANG, there.lock(format!("k/{nth}")))
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    assert_eq!(here.lines(), 0, "all were given back when it was clear what happens");
    assert_eq!(cooled.0.lock().unwrap().len(), 200);
    cycle(&here, "k/0").await;
    assert!(!store.is_held("k/0").await, "and nothing is kept for a while");
}

#[tokio::test]
async fn what_is_idle_is_given_back_by_hand_at_the_end_and_with_the_locker() {
    let store = Counted::default();
    let locker = warm(&store).build();
    cycle(&locker, "k").await;
    assert_eq!(locker.cool(), 1);
    store.until_free("k").await;
    cycle(&locker, "k").await;
    locker.shutdown(HANG).await.unwrap();
    assert!(!store.is_held("k").await);
    let locker = warm(&store).build();
    cycle(&locker, "k").await;
    drop(locker);
    store.until_free("k").await;
}

#[tokio::test]
async fn a_lock_that_is_broken_while_idle_is_forgotten_quietly() {
    let store = Counted::default();
    let locker = warm(&store).build();
    let fence = cycle(&locker, "k").await;
    store.inner.break_lock(&Key::new("k").unwrap()).await.unwrap();
    let next = tokio::time::timeout(HANG, async {
        // Until it has heard of it, its own number would be taken again; the store's next is larger in any case.
        while locker.lines() != 0 {
            Clock::boot().sleep(Duration::from_millis(1)).await;
        }
        cycle(&locker, "k").await
    });
    assert!(fence < next.await.unwrap());
}

#[tokio::test]
async fn a_recall_is_answered_while_the_application_blocks_its_runtime() {
    let store = Counted::default();
    let (here, there) = (warm(&store).build(), Locker::builder(store.clone()).ttl(HOUR).build());
    cycle(&here, "k").await;
    // This runtime has one thread, which waits for the other process and does nothing else.
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(HANG, there.lock("k")).await.map(|it| it.unwrap().fence())
        })
    });
    assert!(other.join().unwrap().is_ok(), "nobody gave it back");
    assert_eq!(here.lines(), 0);
}

#[tokio::test]
async fn an_idle_reader_stays_beside_readers_and_goes_for_a_writer() {
    let store = Counted::default();
    let (here, there) = (warm(&store).build(), Locker::builder(store.clone()).ttl(HOUR).build());
    let cooled = Cooled::default();
    let third = warm(&store).observer(cooled.clone()).build();
    for locker in [&here, &third] {
        locker.read("k").await.unwrap().release().await.unwrap();
    }
    let reader = tokio::time::timeout(HANG, there.read("k")).await.unwrap().unwrap();
    assert_eq!((here.lines(), third.lines()), (1, 1), "they are in nobody's way");
    assert!(cooled.0.lock().unwrap().is_empty());
    reader.release().await.unwrap();
    let writer = tokio::time::timeout(HANG, there.write("k")).await.unwrap().unwrap();
    assert_eq!((here.lines(), third.lines()), (0, 0), "each of them was asked to go");
    drop(writer);
}

#[tokio::test]
async fn several_locks_and_jobs_and_elections_keep_nothing() {
    let store = Counted::default();
    let locker = warm(&store).build();
    locker.lock_all(["one", "two"]).await.unwrap().release().await.unwrap();
    assert!(!store.is_held("one").await && !store.is_held("two").await);
    // With memos, and shared, so that something could stay.
    let memory = Memory::default();
    let all = Locker::builder(memory.clone()).ttl(HOUR).warm(true).build();
    let leader = tokio::time::timeout(HANG, all.campaign("leader", "me").win()).await.unwrap().unwrap();
    leader.resign().await.unwrap();
    let ran = all.once("nightly", "2026-11-15").run(async |_guard| Ok::<_, lockkeeper_core::Error>(())).await;
    assert!(ran.is_ok());
    assert_eq!((all.lines(), locker.lines()), (0, 0));
    cycle(&all, "other").await;
    assert_eq!(all.lines(), 1, "a lock of its own stays there");
    drop(memory);
}
