//! One leader at a time, with terms that grow; observers see who leads, and that nobody does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Profile, Result as Answer};
use lockkeeper_core::election::LEADER_BYTES_MAX;
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::memos::{Memo, Memos, Swap};
use lockkeeper_core::{Claim, Clock, Error, Key, Leader, Leaders, Locker, Memory};

const HANG: Duration = Duration::from_secs(60);

fn pair() -> (Memory, Locker, Locker) {
    let store = Memory::default();
    (store.clone(), Locker::new(store.clone()), Locker::new(store))
}

#[tokio::test]
async fn one_leads_and_everybody_sees_it() {
    let (store, here, there) = pair();
    assert_eq!(there.leader("role").await.unwrap(), None);
    let leads = here.campaign("role", "first").win().await.unwrap();
    let seen = there.leader("role").await.unwrap().expect("somebody leads");
    assert_eq!(
        (seen.value.as_str(), seen.term, seen.holder.pid),
        ("first", leads.term(), std::process::id())
    );
    let short = there.campaign("role", "second").wait_at_most(Duration::from_millis(20)).win().await;
    assert!(matches!(short, Err(Error::TimedOut { .. })));
    leads.proclaim("first, moved").await.unwrap();
    assert_eq!(there.leader("role").await.unwrap().unwrap().value, "first, moved");
    let term = leads.term();
    leads.resign().await.unwrap();
    assert_eq!(there.leader("role").await.unwrap(), None);
    let next = there.campaign("role", "second\n\nwith lines").wait_at_most(HANG).win().await.unwrap();
    assert!(term < next.term());
    assert_eq!(here.leader("role").await.unwrap().unwrap().value, "second\n\nwith lines");
    next.resign().await.unwrap();
    assert!(store.is_empty());
}

#[tokio::test]
async fn observers_see_each_change_and_each_vacancy() {
    let (_store, here, there) = pair();
    let mut leaders = there.leaders("role").unwrap();
    assert_eq!(leaders.next().await.unwrap(), None, "the first is told at once");
    for value in ["one", "two"] {
        let leads = here.campaign("role", value).wait_at_most(HANG).win().await.unwrap();
        let seen = tokio::time::timeout(HANG, leaders.next()).await.unwrap().unwrap();
        assert_eq!(seen.expect("somebody leads").value, value);
        // Dropped without a word: given back in the background.
        drop(leads);
        assert_eq!(tokio::time::timeout(HANG, leaders.next()).await.unwrap().unwrap(), None);
    }
}

/// A store whose memos cannot be read for a while.
#[derive(Clone, Debug)]
struct Hidden(Memory, Arc<AtomicBool>);

impl Backend for Hidden {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        self.0.enter(claim)
    }

    fn memos(&self) -> Option<Arc<dyn lockkeeper_core::memos::DynMemos>> {
        Some(Arc::new(self.clone()))
    }
}

impl Memos for Hidden {
    async fn read(&self, key: &Key) -> Answer<Option<Memo>> {
        if self.1.load(Ordering::Acquire) {
            return Err(Fault::transient("hidden", "reading a memo", "nobody answers"));
        }
        Memos::read(&self.0, key).await
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Answer<Swap> {
        Memos::swap(&self.0, key, seen, value, keep).await
    }

    async fn changed(&self, key: &Key, seen: Option<u64>) {
        Memos::changed(&self.0, key, seen).await;
    }
}

#[tokio::test]
async fn an_observer_that_cannot_see_says_so_and_tells_nobody_a_vacancy() {
    let (store, here, _) = pair();
    let hidden = Arc::new(AtomicBool::new(false));
    let there = Locker::builder(Hidden(store, hidden.clone())).outage_max(Duration::from_millis(50)).build();
    let leads = here.campaign("role", "one").win().await.unwrap();
    let mut leaders = there.leaders("role").unwrap();
    assert_eq!(next(&mut leaders).await.expect("somebody leads").value, "one");
    hidden.store(true, Ordering::Release);
    leads.proclaim("one, unseen").await.unwrap();
    for _ in 0..2 {
        let blind = tokio::time::timeout(HANG, leaders.next()).await.unwrap();
        assert!(matches!(blind, Err(Error::Unavailable { .. })), "{blind:?}");
    }
    assert!(there.leader("role").await.is_err());
    hidden.store(false, Ordering::Release);
    assert_eq!(next(&mut leaders).await.expect("it led all the time").value, "one, unseen");
}

async fn next(leaders: &mut Leaders) -> Option<Leader> {
    tokio::time::timeout(HANG, leaders.next()).await.unwrap().unwrap()
}

/// The observer looks only when it is asked, so each leader has gone and the next leads before it looks again.
#[tokio::test]
async fn a_vacancy_that_was_over_before_anybody_looked_is_told_before_the_next_leader() {
    const TERMS: usize = 20;
    let (_store, here, there) = pair();
    let mut leaders = there.leaders("role").unwrap();
    assert_eq!(next(&mut leaders).await, None);
    let mut leads = here.campaign("role", "0").win().await.unwrap();
    for term in 1..=TERMS {
        let seen = next(&mut leaders).await.expect("somebody leads");
        assert_eq!((seen.term, seen.value), (leads.term(), (term - 1).to_string()));
        // The same leader says something else: nobody went.
        leads.proclaim("moved").await.unwrap();
        assert_eq!(next(&mut leaders).await.expect("it still leads").value, "moved");
        leads.resign().await.unwrap();
        leads = here.campaign("role", term.to_string()).win().await.unwrap();
        assert_eq!(there.leader("role").await.unwrap().unwrap().term, leads.term(), "the next leads already");
        assert_eq!(next(&mut leaders).await, None, "every resignation is seen");
    }
    assert_eq!(next(&mut leaders).await.unwrap().term, leads.term());
    leads.resign().await.unwrap();
    assert_eq!(next(&mut leaders).await, None);
}

/// A leader whose lock was taken away is not heard to go: the next one writes over what it said.
#[tokio::test]
async fn a_leader_that_is_replaced_without_a_word_leaves_a_vacancy_too() {
    let (store, here, there) = pair();
    let mut leaders = there.leaders("role").unwrap();
    let first = here.campaign("role", "same").win().await.unwrap();
    assert_eq!(next(&mut leaders).await.unwrap().term, first.term());
    store.break_lock(&Key::new("role").unwrap()).await.unwrap();
    let second = there.campaign("role", "same").wait_at_most(HANG).win().await.unwrap();
    assert_eq!(next(&mut leaders).await, None, "the value is the same, the leader is not");
    assert_eq!(next(&mut leaders).await.unwrap().term, second.term());
}

#[tokio::test]
async fn a_leader_that_dies_is_seen_to_be_gone_after_its_ttl() {
    let store = Memory::default();
    let ttl = Duration::from_millis(4500);
    let here = Locker::builder(store.clone()).ttl(ttl).build();
    let there = Locker::new(store.clone());
    let leads = here.campaign("role", "value").win().await.unwrap();
    let mut leaders = there.leaders("role").unwrap();
    assert!(leaders.next().await.unwrap().is_some());
    // It gives signs of life, which are no news to an observer.
    let memo = Key::new("leader:role").unwrap();
    let seen = store.read(&memo).await.unwrap().expect("somebody leads");
    tokio::time::timeout(HANG, store.changed(&memo, Some(seen.version))).await.unwrap();
    assert!(there.leader("role").await.unwrap().is_some());
    // Its lock is taken away: it learns so, gives no sign of life any more, and the memo ends.
    store.break_lock(&Key::new("role").unwrap()).await.unwrap();
    assert!(matches!(leads.run(std::future::pending::<()>()).await, Err(Error::Lost { .. })));
    assert!(!leads.is_valid());
    assert_eq!(tokio::time::timeout(HANG, leaders.next()).await.unwrap().unwrap(), None);
    assert!(leads.proclaim("still me").await.is_err());
    assert_eq!(there.leader("role").await.unwrap(), None, "the dead do not proclaim");
}

#[tokio::test]
async fn a_campaign_stands_again_after_a_loss_and_stops_the_work_first() {
    let store = Memory::default();
    let locker = Locker::builder(store.clone()).ttl(Duration::from_millis(200)).build();
    let (terms, at_work) = (AtomicU64::new(0), Arc::new(AtomicBool::new(false)));
    let campaign = locker.campaign("role", "value");
    let done = campaign.run(async |leads| {
        assert!(!at_work.swap(true, Ordering::SeqCst), "two of our own work at once");
        let guard = Working(at_work.clone());
        let before = terms.swap(leads.term().get(), Ordering::SeqCst);
        assert!(before < leads.term().get());
        if before == 0 {
            store.break_lock(&Key::new("role").unwrap()).await.unwrap();
            std::future::pending::<()>().await;
        }
        drop(guard);
        "led twice"
    });
    assert_eq!(tokio::time::timeout(HANG, done).await.unwrap().unwrap(), "led twice");
    assert_eq!(locker.leader("role").await.unwrap(), None);
    assert!(store.is_empty());
}

struct Working(Arc<AtomicBool>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_never_overlap_and_always_grow() {
    let store = Memory::default();
    let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..6 {
        let locker = Locker::new(store.clone());
        let (inside, last) = (inside.clone(), last.clone());
        tasks.spawn(async move {
            for _ in 0..50 {
                let leads = locker.campaign("role", at.to_string()).win().await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two lead");
                let term = leads.term().get();
                assert!(last.swap(term, Ordering::SeqCst) < term);
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                leads.resign().await.unwrap();
            }
        });
    }
    while let Some(task) = tokio::time::timeout(HANG, tasks.join_next()).await.unwrap() {
        task.unwrap();
    }
    assert!(store.is_empty());
}

#[tokio::test]
async fn bad_input_is_refused_in_words_and_nothing_is_left() {
    let (store, here, _) = pair();
    let long = here.campaign("role", "x".repeat(LEADER_BYTES_MAX + 1)).win().await.unwrap_err();
    assert!(long.to_string().contains("at most 1024"), "{long}");
    let name = here.campaign("", "value").win().await.unwrap_err();
    assert!(name.to_string().contains("the lock name is empty"), "{name}");
    assert!(here.leader("line\nbreak").await.is_err());
    let name = here.campaign("x".repeat(506), "value").win().await.unwrap_err();
    assert!(name.to_string().contains("has 506 bytes; at most 505 are allowed"), "{name}");
    let leads = here.campaign("role", "v".repeat(LEADER_BYTES_MAX)).win().await.unwrap();
    assert!(leads.proclaim("x".repeat(LEADER_BYTES_MAX + 1)).await.is_err());
    leads.resign().await.unwrap();
    assert!(store.is_empty());
}

/// What is not a leader's, or of a version that writes otherwise, is no vacancy.
#[tokio::test]
async fn what_is_not_a_leaders_is_told_as_such_and_left_to_whose_it_is() {
    let (store, here, there) = pair();
    let (memo, hour) = (Key::new("leader:role").unwrap(), Duration::from_secs(3600));
    Memos::swap(&store, &memo, None, b"foreign", hour).await.unwrap();
    let refused = there.leader("role").await.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    assert!(refused.to_string().contains("\"role\" is not a leader's"), "{refused}");
    let mut leaders = there.leaders("role").unwrap();
    assert!(leaders.next().await.is_err());
    // Whoever has the lock leads, and says so. What was told is not told again.
    let campaign = here.campaign("role", "one");
    let (seen, leads) = tokio::join!(next(&mut leaders), campaign.win());
    let leads = leads.unwrap();
    assert_eq!(seen.expect("it leads").term, leads.term());
    assert_eq!(there.leader("role").await.unwrap().expect("it leads").term, leads.term());
    let seen = Memos::read(&store, &memo).await.unwrap().expect("it was written").version;
    Memos::swap(&store, &memo, Some(seen), b"foreign", hour).await.unwrap();
    leads.resign().await.unwrap();
    assert_eq!(Memos::read(&store, &memo).await.unwrap().expect("it is not ours").value, b"foreign");
}

/// A store in which the first word of a leader takes so long that its time is over meanwhile.
#[derive(Clone, Debug)]
struct Drowsy(Memory, Clock, Arc<AtomicBool>);

impl Backend for Drowsy {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        self.0.enter(claim)
    }

    fn memos(&self) -> Option<Arc<dyn lockkeeper_core::memos::DynMemos>> {
        Some(Arc::new(self.clone()))
    }
}

impl Memos for Drowsy {
    async fn read(&self, key: &Key) -> Answer<Option<Memo>> {
        Memos::read(&self.0, key).await
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Answer<Swap> {
        if !self.2.swap(true, Ordering::SeqCst) {
            self.1.advance_by(HANG);
        }
        Memos::swap(&self.0, key, seen, value, keep).await
    }

    async fn changed(&self, key: &Key, seen: Option<u64>) {
        Memos::changed(&self.0, key, seen).await;
    }
}

#[tokio::test]
async fn a_role_that_is_lost_before_it_is_told_is_not_led_and_the_campaign_stands_again() {
    let clock = Clock::virtual_from(HANG);
    let store = Drowsy(Memory::new(clock.clone()), clock.clone(), Arc::default());
    let locker = Locker::builder(store).clock(clock.clone()).ttl(HANG / 10).build();
    let campaign = locker.campaign("role", "here");
    let led = campaign.run(async |leads| leads.is_valid());
    let time = async {
        loop {
            tokio::task::yield_now().await;
            clock.advance_by(Duration::from_millis(10));
        }
    };
    let led = async {
        tokio::select! {
            led = led => led,
            () = time => unreachable!("time has no end"),
        }
    };
    let led = tokio::time::timeout(HANG, led).await.expect("nobody leads").unwrap();
    assert!(led, "what was lost is led");
}
