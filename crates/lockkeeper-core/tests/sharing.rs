//! Readers beside each other, writers alone, permits by number: in one process and between two.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::future::IntoFuture as _;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Profile, Reach};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::{Claim, Clock, Error, Key, Locker, LostReason, Memory, Owner};
use tokio::task::yield_now;

/// Far beyond what anything here needs: only a test that hangs meets it.
const HANG: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A store that only its locker can reach, and one that others can.
fn private_and_shared() -> [(Memory, Option<Memory>); 2] {
    let shared = Memory::default();
    [(Memory::default(), None), (shared.clone(), Some(shared))]
}

async fn holders(store: &Memory, name: &str) -> usize {
    store.show(&Key::new(name).unwrap()).await.unwrap().map_or(0, |it| it.holders.len())
}

#[tokio::test]
async fn readers_of_a_process_share_one_place_at_the_store() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let mut readers = Vec::new();
    for _ in 0..10 {
        readers.push(locker.read("k").await.unwrap());
    }
    assert_eq!(holders(&store, "k").await, 1);
    let fence = readers[0].fence();
    assert!(readers.iter().all(|it| it.is_valid() && it.fence() == fence));
    while let Some(reader) = readers.pop() {
        assert_eq!(holders(&store, "k").await, 1, "{} are left", readers.len() + 1);
        reader.release().await.unwrap();
    }
    assert_eq!((holders(&store, "k").await, locker.lines()), (0, 0));
}

#[tokio::test]
async fn nobody_is_passed_by_whoever_comes_later() {
    for (store, _others) in private_and_shared() {
        let locker = Locker::new(store);
        let first = locker.read("k").await.unwrap();
        let mut writer = tokio::spawn(locker.lock("k"));
        yield_now().await;
        let mut second = tokio::spawn(locker.read("k"));
        yield_now().await;
        assert!(locker.read("k").attempt().await.unwrap().is_none(), "a writer waits");
        assert!(!writer.is_finished() && !second.is_finished());
        let before = first.fence();
        first.release().await.unwrap();
        let guard = (&mut writer).await.unwrap().unwrap();
        assert!(before.get() < guard.fence().get());
        yield_now().await;
        assert!(!second.is_finished(), "it read beside a writer");
        let written = guard.fence();
        drop(guard);
        let second = (&mut second).await.unwrap().unwrap();
        assert!(written.get() < second.fence().get());
    }
}

#[tokio::test]
async fn those_who_fit_together_enter_together() {
    for (store, _others) in private_and_shared() {
        let locker = Locker::new(store);
        let writer = locker.write("k").await.unwrap();
        let readers: Vec<_> = (0..20).map(|_| tokio::spawn(locker.read("k"))).collect();
        yield_now().await;
        drop(writer);
        let mut guards = Vec::new();
        for reader in readers {
            guards.push(tokio::time::timeout(HANG, reader).await.unwrap().unwrap().unwrap());
        }
        assert!(guards.iter().all(|it| it.fence() == guards[0].fence()), "they hold at the same time");
    }
}

#[tokio::test]
async fn permits_are_counted_and_a_big_request_is_not_passed_by_small_ones() {
    for (store, _others) in private_and_shared() {
        let locker = Locker::new(store);
        let two = locker.permits("k", 2, 5).await.unwrap();
        let again = locker.permits("k", 2, 5).await.unwrap();
        let big = tokio::spawn(locker.permits("k", 3, 5));
        yield_now().await;
        let small = tokio::spawn(locker.permits("k", 1, 5));
        yield_now().await;
        assert!(!big.is_finished() && !small.is_finished(), "four of five are out, and the big one is first");
        two.release().await.unwrap();
        let big = tokio::time::timeout(HANG, big).await.unwrap().unwrap().unwrap();
        yield_now().await;
        assert!(!small.is_finished(), "five of five are out");
        again.release().await.unwrap();
        let small = tokio::time::timeout(HANG, small).await.unwrap().unwrap().unwrap();
        assert!(big.is_valid() && small.is_valid());
        drop((big, small));
    }
}

#[tokio::test]
async fn an_owner_reads_again_but_does_not_wait_for_itself() {
    for (store, _others) in private_and_shared() {
        let (locker, owner) = (Locker::new(store), Owner::new("import"));
        let outer = locker.read("k").owner(&owner).await.unwrap();
        let writer = tokio::spawn(locker.lock("k"));
        yield_now().await;
        let inner = locker.read("k").owner(&owner).await.unwrap();
        let refused = locker.write("k").owner(&owner).await.unwrap_err();
        assert!(
            matches!(refused, Error::Invalid { .. }) && refused.to_string().contains("reads it already"),
            "{refused}"
        );
        drop(inner);
        yield_now().await;
        assert!(!writer.is_finished(), "the outer guard still reads");
        drop(outer);
        drop(tokio::time::timeout(HANG, writer).await.unwrap().unwrap().unwrap());

        let outer = locker.write("k").owner(&owner).await.unwrap();
        let inner = locker.read("k").owner(&owner).await.unwrap();
        assert_eq!(inner.fence().get(), outer.fence().get(), "who writes may also read");
        drop((inner, outer));
        assert_eq!(locker.lines(), 0);
    }
}

#[tokio::test]
async fn what_can_never_be_had_is_refused_and_leaves_nothing() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    for (count, of) in [(0, 5), (6, 5), (0, 0), (1, 0)] {
        let refused = locker.permits("k", count, of).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{count} of {of}: {refused}");
    }
    assert_eq!((holders(&store, "k").await, locker.lines()), (0, 0));

    let locker = Locker::new(OneAtATime(Memory::default()));
    for refused in [locker.read("k").await.unwrap_err(), locker.permits("k", 1, 2).await.unwrap_err()] {
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    }
    assert!(locker.write("k").await.is_err() && locker.lock("k").await.is_ok());
}

/// A store that says it has no room for sharing.
#[derive(Debug)]
struct OneAtATime(Memory);

impl Backend for OneAtATime {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        Profile::new("one at a time", Reach::Process).fifo()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        self.0.enter(claim)
    }
}

#[tokio::test]
async fn a_writer_elsewhere_is_served_though_readers_here_never_cease() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let mut stream = tokio::task::JoinSet::new();
    for pause in [3, 5, 7] {
        let here = here.clone();
        stream.spawn(async move {
            // There is always a reader: others read when one has gone.
            loop {
                let reader = here.read("k").await.unwrap();
                Clock::boot().sleep(Duration::from_millis(pause)).await;
                drop(reader);
            }
        });
    }
    for _ in 0..3 {
        while holders(&store, "k").await == 0 {
            yield_now().await;
        }
        let writer = tokio::time::timeout(HANG, there.write("k")).await.expect("it starves").unwrap();
        writer.release().await.unwrap();
    }
    stream.shutdown().await;
}

/// A reader that nobody joins any more, because a writer elsewhere waited, is no reason not to join a newer one.
#[tokio::test]
async fn whoever_comes_later_joins_the_newest_readers() {
    let store = Memory::default();
    // Nobody joins once somebody waits outside; and of that nobody hears again before the next renewal.
    let here = Locker::builder(store.clone()).hand_on_count_max(0).ttl(HOUR).build();
    let there = Locker::builder(store.clone()).ttl(HOUR).build();
    let first = here.read("k").await.unwrap();
    let writer = tokio::spawn(there.write("k"));
    let mut second = loop {
        let mut second = tokio::spawn(here.read("k"));
        if let Ok(joined) = tokio::time::timeout(Duration::from_millis(20), &mut second).await {
            // It has not heard yet that somebody waits.
            let joined = joined.unwrap().unwrap();
            assert_eq!(joined.fence(), first.fence());
            joined.release().await.unwrap();
        } else {
            break second;
        }
    };
    writer.abort();
    let second =
        tokio::time::timeout(HANG, &mut second).await.expect("it stood at the store").unwrap().unwrap();
    assert_ne!(second.fence(), first.fence());
    let third = tokio::time::timeout(HANG, here.read("k")).await.unwrap().unwrap();
    assert_eq!(third.fence(), second.fence(), "there are readers whom it may join");
    assert_eq!(holders(&store, "k").await, 2);
}

/// Somebody waits at the store until so many others do.
async fn wait_until(store: &Memory, waiters: usize) {
    let stand = async {
        let name = Key::new("k").unwrap();
        while store.show(&name).await.unwrap().map_or(0, |it| it.waiters.len()) != waiters {
            yield_now().await;
        }
    };
    tokio::time::timeout(HANG, stand).await.expect("a writer does not stand at the store as it should");
}

/// Otherwise it would wait for the longest read of its own process, and only then begin to wait for those of others.
#[tokio::test]
async fn a_writer_stands_at_the_store_also_while_its_own_process_reads() {
    for brief in [None, Some(HANG)] {
        let store = Memory::default();
        let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
        let (mine, theirs) = (here.read("k").await.unwrap(), there.read("k").await.unwrap());
        let asked = here.write("k").wait_at_most(brief.unwrap_or(HOUR));
        let writer = tokio::spawn(asked.into_future());
        wait_until(&store, 1).await;
        let elsewhere = tokio::spawn(Locker::new(store.clone()).read("k"));
        wait_until(&store, 2).await;
        // In its own process nobody passes it either: neither a try, nor one that waits, nor when the first readers have gone.
        assert!(here.read("k").attempt().await.unwrap().is_none(), "a writer waits");
        let behind = tokio::spawn(here.read("k"));
        yield_now().await;
        mine.release().await.unwrap();
        yield_now().await;
        assert!(!writer.is_finished() && !behind.is_finished() && !elsewhere.is_finished());
        theirs.release().await.unwrap();
        let guard = tokio::time::timeout(HANG, writer).await.unwrap().unwrap().unwrap();
        assert!(!behind.is_finished() && !elsewhere.is_finished(), "they read beside a writer");
        guard.release().await.unwrap();
        for reader in [elsewhere, behind] {
            tokio::time::timeout(HANG, reader).await.unwrap().unwrap().unwrap().release().await.unwrap();
        }
        assert_eq!((holders(&store, "k").await, here.lines()), (0, 0));
    }
}

/// It stood at the store, and its readers go on as before: they join without a word to the store.
#[tokio::test]
async fn a_writer_that_gives_up_behind_its_own_readers_leaves_nothing() {
    let store = Memory::default();
    let here = Locker::builder(store.clone()).hand_on_span_max(HOUR).build();
    let first = here.read("k").await.unwrap();
    for round in 0..3 {
        let writer = tokio::spawn(here.write("k"));
        wait_until(&store, 1).await;
        // Somebody else of us who wants it alone goes on from its place.
        let next = (round == 1).then(|| tokio::spawn(here.write("k")));
        yield_now().await;
        writer.abort();
        if let Some(next) = next {
            yield_now().await;
            wait_until(&store, 1).await;
            next.abort();
        }
        wait_until(&store, 0).await;
        let second = tokio::time::timeout(HANG, here.read("k")).await.unwrap().unwrap();
        assert_eq!((second.fence(), holders(&store, "k").await), (first.fence(), 1));
        // Of a try the store hears nothing: it is known here that it is read.
        assert!(here.try_lock("k").await.unwrap().is_none());
    }
    drop(first);
    assert_eq!((holders(&store, "k").await, here.lines()), (0, 0));
}

#[tokio::test]
async fn readers_of_two_processes_read_beside_each_other() {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let one = here.read("k").await.unwrap();
    let other = there.read("k").await.unwrap();
    assert_eq!(holders(&store, "k").await, 2);
    assert!(one.is_valid() && other.is_valid());
    assert!(there.try_lock("k").await.unwrap().is_none());
}

#[tokio::test]
async fn the_loss_of_a_shared_place_is_told_to_all_who_share_it() {
    let store = Memory::default();
    let locker = Locker::builder(store.clone()).ttl(Duration::from_millis(300)).build();
    let (one, other) = (locker.read("k").await.unwrap(), locker.read("k").await.unwrap());
    let (one_lost, other_lost) = (one.lost(), other.lost());
    store.break_lock(one.key()).await.unwrap();
    assert_eq!(tokio::time::timeout(HANG, one_lost).await.unwrap(), LostReason::Taken);
    assert_eq!(tokio::time::timeout(HANG, other_lost).await.unwrap(), LostReason::Taken);
    assert!(!one.is_valid() && !other.is_valid());
    let fresh = locker.read("k").await.unwrap();
    assert!(fresh.is_valid(), "who comes after the loss goes to the store anew");
}

#[tokio::test]
async fn a_writer_that_goes_away_lets_the_readers_behind_it_join() {
    for (store, _others) in private_and_shared() {
        // However long it stood at the store.
        let locker = Locker::builder(store).hand_on_span_max(HOUR).build();
        let first = locker.read("k").await.unwrap();
        let writer = tokio::spawn(locker.write("k"));
        yield_now().await;
        let second = tokio::spawn(locker.read("k"));
        yield_now().await;
        assert!(!second.is_finished());
        writer.abort();
        let second = tokio::time::timeout(HANG, second).await.unwrap().unwrap().unwrap();
        assert_eq!(second.fence(), first.fence());
        drop((first, second));
        assert_eq!(locker.lines(), 0);
    }
}

#[tokio::test]
async fn a_reader_whose_hold_has_an_end_ends_alone() {
    for (store, _others) in private_and_shared() {
        let locker = Locker::new(store);
        let lasting = locker.read("k").await.unwrap();
        let brief = locker.read("k").max_hold(Duration::from_millis(50)).await.unwrap();
        assert_eq!(tokio::time::timeout(HANG, brief.lost()).await.unwrap(), LostReason::MaxHold);
        assert!(lasting.is_valid() && !brief.is_valid());
    }
}
