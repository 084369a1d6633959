//! A barrier opens when all have arrived; a round has one verdict, and all who took part in it hear the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Profile, Result as Answer};
use lockkeeper_core::barrier::{Breach, Entry, Meeting, Verdict};
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::memos::{DynMemos, Memo, Memos, Swap};
use lockkeeper_core::{Barrier, Claim, Clock, Error, Key, Locker, Memory, Spawn, Task};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;

const HANG: Duration = Duration::from_secs(120);

fn barrier(store: &Memory, parties: u32) -> Barrier {
    Locker::new(store.clone()).barrier("step", parties)
}

/// Wait until so many have arrived.
async fn until_arrived(barrier: &Barrier, count: usize) {
    while barrier.status().await.unwrap().arrived.len() != count {
        Clock::boot().sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn nobody_goes_on_before_the_last_has_arrived_round_after_round() {
    let store = Memory::default();
    for round in 1..=50 {
        let mut waiting = JoinSet::new();
        for party in 0..4 {
            let barrier = barrier(&store, 5);
            waiting.spawn(async move { barrier.wait(format!("party {party}")).await.unwrap() });
        }
        let last = barrier(&store, 5);
        until_arrived(&last, 4).await;
        assert!(waiting.try_join_next().is_none(), "it opened too early");
        let last = last.wait("last").await.unwrap();
        assert_eq!((last.round, last.verdict), (round, Verdict::Open));
        while let Some(meeting) = tokio::time::timeout(HANG, waiting.join_next()).await.unwrap() {
            assert_eq!(meeting.unwrap(), last);
        }
    }
}

#[tokio::test]
async fn who_waits_no_longer_breaks_the_round_for_all_and_the_next_begins_anew() {
    let store = Memory::default();
    let patient = barrier(&store, 3);
    let patient = tokio::spawn(async move { patient.wait("patient").await.unwrap() });
    until_arrived(&barrier(&store, 3), 1).await;
    let hasty = barrier(&store, 3).wait_at_most("hasty", Duration::from_millis(1)).await.unwrap();
    assert_eq!((hasty.round, hasty.verdict), (1, Verdict::Broken(Breach::TimedOut)));
    assert_eq!(patient.await.unwrap(), hasty);
    let status = barrier(&store, 3).status().await.unwrap();
    assert_eq!((status.round, status.arrived.len()), (2, 0));
}

#[tokio::test]
async fn who_goes_away_breaks_the_round() {
    let store = Memory::default();
    let patient = barrier(&store, 3);
    let patient = tokio::spawn(async move { patient.wait("patient").await.unwrap() });
    let gone = barrier(&store, 3);
    let gone = tokio::spawn(async move { gone.wait("gone").await });
    until_arrived(&barrier(&store, 3), 2).await;
    gone.abort();
    let meeting = tokio::time::timeout(HANG, patient).await.unwrap().unwrap();
    assert_eq!(meeting.verdict, Verdict::Broken(Breach::Withdrawn));
}

/// A process that can die: nothing that it began goes on, not even to say so.
struct Mortal {
    runtime: Runtime,
    locker: Locker,
}

#[derive(Debug)]
struct OnRuntime(Handle);

impl Spawn for OnRuntime {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

impl Mortal {
    fn new(store: &Memory) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let spawner = Arc::new(OnRuntime(runtime.handle().clone()));
        let locker = Locker::builder(store.clone()).spawner(spawner).build();
        Mortal { runtime, locker }
    }

    fn waits(&self, party: &'static str, parties: u32, ttl: Duration) {
        let barrier = self.locker.barrier("step", parties).ttl(ttl);
        self.runtime.spawn(async move { barrier.wait(party).await });
    }

    fn dies(self) {
        self.runtime.shutdown_background();
    }
}

#[tokio::test]
async fn who_dies_breaks_the_round_when_its_ttl_has_passed() {
    let store = Memory::default();
    let ttl = Duration::from_millis(300);
    let mut waiting = JoinSet::new();
    for party in ["one", "two"] {
        let barrier = barrier(&store, 4).ttl(ttl);
        waiting.spawn(async move { barrier.wait(party).await.unwrap() });
    }
    until_arrived(&barrier(&store, 4), 2).await;
    let mortal = Mortal::new(&store);
    mortal.waits("mortal", 4, ttl);
    until_arrived(&barrier(&store, 4), 3).await;
    mortal.dies();
    while let Some(meeting) = tokio::time::timeout(HANG, waiting.join_next()).await.unwrap() {
        let Meeting { round, verdict, .. } = meeting.unwrap();
        assert_eq!((round, verdict), (1, Verdict::Broken(Breach::Died)));
    }
}

#[tokio::test]
async fn the_dead_do_not_open_a_round_for_those_who_come_later() {
    let store = Memory::default();
    let ttl = Duration::from_millis(20);
    for _ in 0..2 {
        // Nobody is there to see it die.
        let mortal = Mortal::new(&store);
        mortal.waits("mortal", 2, ttl);
        until_arrived(&barrier(&store, 2), 1).await;
        mortal.dies();
        Clock::boot().sleep(ttl * 2).await;
    }
    let before = barrier(&store, 2).status().await.unwrap().round;
    let alone = barrier(&store, 2).wait_at_most("alone", Duration::from_millis(1)).await.unwrap();
    assert_eq!((alone.round, alone.verdict), (before + 1, Verdict::Broken(Breach::TimedOut)));
}

#[tokio::test]
async fn who_comes_again_after_a_restart_takes_its_own_place() {
    let store = Memory::default();
    let before = Mortal::new(&store);
    before.waits("worker", 2, Duration::from_secs(600));
    until_arrived(&barrier(&store, 2), 1).await;
    before.dies();
    // The ghost's sign of life lasts. Counted beside it, one more would open the round.
    let again = barrier(&store, 2).wait_at_most("worker", Duration::from_millis(1)).await.unwrap();
    assert_eq!((again.round, again.verdict), (1, Verdict::Broken(Breach::TimedOut)));
}

#[tokio::test]
async fn bad_input_is_refused_and_leaves_nothing() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let invalid = |it: Result<Meeting, Error>| match it {
        Err(Error::Invalid { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert!(invalid(locker.barrier("step", 0).wait("a").await).contains("no parties"));
    assert!(invalid(locker.barrier("", 2).wait("a").await).contains("empty"));
    invalid(locker.barrier("step", 2).wait("a\nb").await);
    invalid(locker.barrier("step", 2).wait("").await);
    assert!(invalid(locker.barrier("step", 2).ttl(Duration::ZERO).wait("a").await).contains("ttl"));
    // What can never open is refused at once, and in the lengths that were written.
    let short = Duration::from_millis(1);
    let many = locker.barrier("step", 871).wait_at_most("a", short).await;
    assert!(invalid(many).contains("at most 870 can be written down"));
    let long = invalid(locker.barrier("step", 500).wait_at_most("x".repeat(29), short).await);
    assert!(long.contains("has 29 bytes") && long.contains("each has at most 28"), "{long}");
    let named = locker.barrier("x".repeat(487), 1).enter("a").await.unwrap_err();
    assert!(named.to_string().contains("has 487 bytes; at most 486 are allowed"), "{named}");
    locker.barrier("x".repeat(486), 1).enter("a").await.unwrap();
    assert!(locker.barrier("step", 2).status().await.unwrap().arrived.is_empty());

    let first = barrier(&store, 2);
    let first = tokio::spawn(async move { first.wait("a").await });
    until_arrived(&barrier(&store, 2), 1).await;
    assert!(invalid(barrier(&store, 3).wait("b").await).contains("2 parties gather"));
    let twin = barrier(&store, 2);
    let twin = tokio::spawn(async move { twin.wait("a").await });
    assert!(invalid(tokio::time::timeout(HANG, first).await.unwrap().unwrap()).contains("a name of its own"));
    barrier(&store, 2).wait("b").await.unwrap();
    twin.await.unwrap().unwrap();
}

#[test]
fn it_works_on_threads_without_a_runtime() {
    let store = Memory::default();
    let other = barrier(&store, 2);
    let other = std::thread::spawn(move || other.wait_blocking("other").unwrap());
    let one = barrier(&store, 2).wait_blocking("one").unwrap();
    assert_eq!((one, one.verdict), (other.join().unwrap(), Verdict::Open));
    let short = Duration::from_millis(1);
    let alone = barrier(&store, 2).wait_at_most_blocking("one", short).unwrap();
    assert_eq!(alone.verdict, Verdict::Broken(Breach::TimedOut));
    let alone = barrier(&store, 2).enter_at_most_blocking("one", short).unwrap();
    assert!(matches!(alone, Entry::Broken(Breach::TimedOut)));
    assert_eq!(barrier(&store, 2).status_blocking().unwrap().round, 4);
}

/// Memos whose every so-manieth write is done and not answered.
#[derive(Clone, Debug)]
struct Forgetful(Memory, Arc<AtomicU32>);

impl Backend for Forgetful {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        self.0.enter(claim)
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
    }
}

impl Memos for Forgetful {
    async fn read(&self, key: &Key) -> Answer<Option<Memo>> {
        Memos::read(&self.0, key).await
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Answer<Swap> {
        let answer = Memos::swap(&self.0, key, seen, value, keep).await;
        if self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
            return Err(Fault::transient("forgetful", "writing a memo", "the answer was lost"));
        }
        answer
    }

    async fn changed(&self, key: &Key, seen: Option<u64>) {
        Memos::changed(&self.0, key, seen).await;
    }
}

/// Everybody comes again and again, some give up; what each heard of each round is put side by side.
async fn storm<B: Backend + Clone>(store: B, parties: u32, rounds: u32) {
    let mut waiting = JoinSet::new();
    for party in 0..parties {
        let barrier = Locker::new(store.clone()).barrier("storm", parties).ttl(HANG);
        waiting.spawn(async move {
            let mut heard = Vec::new();
            for turn in 0..rounds {
                let name = format!("party {party}");
                let meeting = match (turn * 7 + party * 5) % 11 {
                    0 => barrier.wait_at_most(name, Duration::from_micros(300)).await.unwrap(),
                    1 => {
                        let bored = Duration::from_micros(500);
                        let Ok(it) = tokio::time::timeout(bored, barrier.wait(name)).await else { continue };
                        it.unwrap()
                    }
                    _ => barrier.wait_at_most(name, Duration::from_millis(100)).await.unwrap(),
                };
                heard.push(meeting);
            }
            heard
        });
    }
    let mut verdicts: BTreeMap<u64, Vec<Verdict>> = BTreeMap::new();
    while let Some(heard) = tokio::time::timeout(HANG, waiting.join_next()).await.unwrap() {
        for Meeting { round, verdict, .. } in heard.unwrap() {
            verdicts.entry(round).or_default().push(verdict);
        }
    }
    let mut opened = 0;
    for (round, heard) in &verdicts {
        assert!(heard.iter().all(|it| *it == heard[0]), "round {round}: {heard:?}");
        assert!(heard.len() <= parties as usize, "round {round} had more parties than there are: {heard:?}");
        opened += u32::from(heard[0] == Verdict::Open);
    }
    assert!(0 < opened && opened < rounds * parties, "{opened} opened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_storm_of_time_outs_and_walkers_verdicts_never_differ() {
    storm(Memory::default(), 4, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_lost_change_no_verdict() {
    storm(Forgetful(Memory::default(), Arc::default()), 3, 60).await;
}

#[tokio::test]
async fn those_who_went_in_together_leave_together_without_waiting_for_the_gone() {
    let store = Memory::default();
    let mut going_in = JoinSet::new();
    for party in ["one", "two", "gone"] {
        let barrier = barrier(&store, 3);
        going_in.spawn(async move { (party, barrier.enter(party).await.unwrap()) });
    }
    let mut inside = BTreeMap::new();
    for (party, entry) in going_in.join_all().await {
        let Entry::Inside(it) = entry else { panic!("{party}: {entry:?}") };
        assert_eq!((it.round(), it.parties().len()), (1, 3));
        inside.insert(party, it);
    }
    let one = inside.remove("one").unwrap();
    let mut one = tokio::spawn(one.leave());
    tokio::time::timeout(Duration::from_millis(20), &mut one).await.expect_err("others are still inside");
    drop(inside.remove("gone"));
    tokio::time::timeout(Duration::from_millis(20), &mut one).await.expect_err("one is still inside");
    let two = inside.remove("two").unwrap();
    tokio::time::timeout(HANG, two.leave()).await.unwrap().unwrap();
    tokio::time::timeout(HANG, one).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn nobody_goes_in_where_the_round_is_broken() {
    let entry = barrier(&Memory::default(), 2).enter_at_most("one", Duration::from_millis(1)).await.unwrap();
    assert!(matches!(entry, Entry::Broken(Breach::TimedOut)), "{entry:?}");
}
