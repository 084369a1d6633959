//! What is idle: how much of it may stay, what makes it go, and what observers hear of that.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::observe::{CooledBy, Event, Observer, Verb};
use lockkeeper_core::{Claim, Clock, Guard, Key, Load, Locker, LockerBuilder, Memory};
use tokio::sync::{Notify, watch};

const HOUR: Duration = Duration::from_secs(3600);
const HANG: Duration = Duration::from_secs(10);

fn warm(store: &Memory) -> LockerBuilder {
    Locker::builder(store.clone()).ttl(HOUR).warm(true)
}

async fn cycle(locker: &Locker, name: &str) {
    locker.lock(name).await.unwrap().release().await.unwrap();
}

async fn is_held(store: &Memory, name: &str) -> bool {
    store.show(&Key::new(name).unwrap()).await.unwrap().is_some_and(|it| !it.holders.is_empty())
}

async fn until(mut done: impl AsyncFnMut() -> bool) {
    tokio::time::timeout(HANG, async {
        while !done().await {
            Clock::boot().sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
}

#[derive(Clone, Debug, Default)]
struct Cooled(Arc<Mutex<Vec<(String, CooledBy)>>>);

impl Cooled {
    fn all(&self) -> Vec<(String, CooledBy)> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Cooled {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Cooled { key, by, .. } = event {
            self.0.lock().unwrap().push((key.to_string(), *by));
        }
    }
}

#[tokio::test]
async fn what_was_in_use_when_too_many_were_idle_counts_when_it_comes_back() {
    let store = Memory::default();
    let locker = warm(&store).warm_max(4).build();
    let names = ["a", "b", "c", "d"];
    for name in names {
        cycle(&locker, name).await;
    }
    let mut in_use: Vec<Guard> = Vec::new();
    for name in names {
        in_use.push(locker.lock(name).await.unwrap());
    }
    // Twice as many as may stay: each of those in use is looked at, and looked at again.
    for nth in 0..8 {
        cycle(&locker, &format!("other/{nth}")).await;
    }
    for guard in in_use {
        guard.release().await.unwrap();
    }
    assert!(locker.lines() <= 4, "{} are idle, 4 may be", locker.lines());
}

#[tokio::test]
async fn what_is_gone_does_not_count_among_those_that_may_stay() {
    let store = Memory::default();
    let (locker, there) =
        (warm(&store).warm_max(4).build(), Locker::builder(store.clone()).ttl(HOUR).build());
    cycle(&locker, "first").await;
    for name in ["b", "c", "d"] {
        cycle(&locker, name).await;
        tokio::time::timeout(HANG, there.lock(name)).await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(locker.lines(), 1);
    for nth in 0..3 {
        cycle(&locker, &format!("other/{nth}")).await;
    }
    assert_eq!(locker.lines(), 4, "there was room for all of them");
    assert!(is_held(&store, "first").await, "nothing had to go for them");
}

/// A store that cannot call anybody, and whose renewals are answered when they are let.
#[derive(Clone, Debug, Default)]
struct Slow {
    inner: Memory,
    alarm: Arc<watch::Sender<u64>>,
    asked: Arc<Notify>,
    answers: Arc<Notify>,
    answered: Arc<Notify>,
}

struct SlowPlace(MemoryPlace, Slow);

impl Backend for Slow {
    type Place = SlowPlace;

    fn profile(&self) -> Profile {
        let mut profile = self.inner.profile().looking();
        profile.notifies = false;
        profile
    }

    fn enter(&self, claim: Claim) -> SlowPlace {
        SlowPlace(self.inner.enter(claim), self.clone())
    }

    fn alarm(&self) -> Option<watch::Receiver<u64>> {
        Some(self.alarm.subscribe())
    }
}

impl Place for SlowPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.0.turn().await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.1.asked.notify_one();
        self.1.answers.notified().await;
        let answer = self.0.renew().await;
        self.1.answered.notify_one();
        answer
    }

    async fn leave(&mut self) -> Result<()> {
        self.0.leave().await
    }
}

#[tokio::test]
async fn what_became_idle_while_it_was_renewed_looks_too() {
    let store = Slow::default();
    let (cooled, locker) = (Cooled::default(), || Locker::builder(store.clone()).ttl(HOUR).warm(true));
    let (here, there) = (locker().observer(cooled.clone()).build(), locker().build());
    let guard = here.lock("k").await.unwrap();
    store.alarm.send_modify(|it| *it += 1);
    tokio::time::timeout(HANG, store.asked.notified()).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(here.lines(), 1, "it stays");
    store.answers.notify_one();
    // Nobody waited by then.
    tokio::time::timeout(HANG, store.answered.notified()).await.unwrap();
    let guard =
        tokio::time::timeout(HANG, async { there.lock("k").await.unwrap() }).await.expect("nobody looked");
    assert_eq!(cooled.all(), [("k".to_owned(), CooledBy::Recall)]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn whoever_came_while_nobody_listened_is_heard_when_it_becomes_idle() {
    // Nobody listens here while a lock is held, as nobody does anywhere in its first milliseconds.
    let store = Slow::default();
    let (cooled, locker) = (Cooled::default(), || Locker::builder(store.clone()).ttl(HOUR).warm(true));
    let (here, there) = (locker().observer(cooled.clone()).build(), locker().build());
    let guard = here.lock("k").await.unwrap();
    let waiting = tokio::spawn(async move { there.lock("k").await.unwrap() });
    let key = Key::new("k").unwrap();
    until(async || store.inner.show(&key).await.unwrap().is_some_and(|it| !it.waiters.is_empty())).await;
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(HANG, waiting).await.expect("it was kept all the same").unwrap();
    assert_eq!(cooled.all(), [("k".to_owned(), CooledBy::Recall)], "it was idle for a moment");
    guard.release().await.unwrap();
}

/// How often the store was asked for a turn.
#[derive(Clone, Debug, Default)]
struct Turns(Arc<AtomicU32>);

impl Observer for Turns {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Asked { verb: Verb::Turn, .. } = event {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test]
async fn a_try_of_who_keeps_nothing_gets_what_is_idle_too() {
    let store = Memory::default();
    let (here, there) = (warm(&store).build(), Locker::builder(store.clone()).ttl(HOUR).build());
    cycle(&here, "k").await;
    let tried = async {
        loop {
            if let Some(guard) = there.try_lock("k").await.unwrap() {
                return guard;
            }
        }
    };
    tokio::time::timeout(HANG, tried).await.expect("nobody works under it").release().await.unwrap();
    assert_eq!(here.lines(), 0);
}

#[tokio::test]
async fn a_try_waits_for_nobody_who_keeps_nothing() {
    let (store, turns) = (Memory::default(), Turns::default());
    let (here, there) =
        (Locker::builder(store.clone()).ttl(HOUR).build(), warm(&store).observer(turns.clone()).build());
    let guard = here.lock("k").await.unwrap();
    assert!(there.try_lock("k").await.unwrap().is_none());
    assert_eq!(turns.0.load(Ordering::Relaxed), 1, "one look, and no place in line");
    guard.release().await.unwrap();
}

/// A store that can sound its alarm.
#[derive(Clone, Debug)]
struct Alarmed(Memory, Arc<watch::Sender<u64>>);

impl Backend for Alarmed {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        self.0.enter(claim)
    }

    fn alarm(&self) -> Option<watch::Receiver<u64>> {
        Some(self.1.subscribe())
    }
}

#[tokio::test]
async fn what_goes_because_of_an_alarm_is_told_as_recalled() {
    let store = Alarmed(Memory::default(), Arc::new(watch::Sender::new(0)));
    let cooled = Cooled::default();
    let locker = Locker::builder(store.clone()).ttl(HOUR).warm(true).observer(cooled.clone()).build();
    cycle(&locker, "k").await;
    store.1.send_modify(|it| *it += 1);
    until(async || locker.lines() == 0).await;
    assert_eq!(cooled.all(), [("k".to_owned(), CooledBy::Recall)]);
}

#[tokio::test]
async fn what_goes_with_its_locker_is_told() {
    let store = Memory::default();
    let cooled = Cooled::default();
    let shut = warm(&store).observer(cooled.clone()).build();
    cycle(&shut, "shut").await;
    shut.shutdown(HANG).await.unwrap();
    assert_eq!(cooled.all(), [("shut".to_owned(), CooledBy::Closed)]);
    let dropped = warm(&store).observer(cooled.clone()).build();
    cycle(&dropped, "dropped").await;
    drop(dropped);
    assert_eq!(cooled.all()[1..], [("dropped".to_owned(), CooledBy::Closed)]);
    until(async || store.is_empty()).await;
}

#[tokio::test]
async fn a_lock_that_is_broken_is_told_to_whoever_listens_already() {
    let store = Memory::default();
    let claim = || Claim::new(Key::new("k").unwrap(), HOUR).unwrap();
    let mut holder = store.enter(claim());
    assert!(matches!(holder.turn().await.unwrap(), Turn::Held(_)));
    let (told, told_at) = mpsc::channel();
    let listening = tokio::spawn(async move {
        holder.changed().await;
        told.send(()).unwrap();
    });
    // It listens by now.
    tokio::task::yield_now().await;
    store.break_lock(&Key::new("k").unwrap()).await.unwrap();
    tokio::time::timeout(HANG, listening).await.expect("nobody told it").unwrap();
    assert!(told_at.try_recv().is_ok());
}

/// Whoever is woken looks into the store at once.
struct Looks(Memory, mpsc::Sender<usize>);

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.1.send(self.0.len()).unwrap();
    }
}

impl fmt::Debug for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Looks")
    }
}

#[test]
fn nobody_is_woken_while_the_store_inside_this_process_is_locked() {
    let (say, heard) = mpsc::channel();
    let (done, over) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Memory::default();
            let claim = |load| Claim::new(Key::new("k").unwrap(), HOUR).unwrap().load(load);
            let waker = Waker::from(Arc::new(Looks(store.clone(), say)));
            let listens = |place: &mut MemoryPlace| {
                let changed = std::pin::pin!(place.changed());
                assert!(changed.poll(&mut Context::from_waker(&waker)).is_pending());
            };
            let (mut holder, mut next) = (store.enter(claim(Load::MUTEX)), store.enter(claim(Load::MUTEX)));
            holder.turn().await.unwrap();
            listens(&mut holder);
            // Somebody begins to wait; then what they wait for is to end at another time; then it is broken.
            next.turn().await.unwrap();
            holder.changed().await;
            listens(&mut holder);
            listens(&mut next);
            holder.linger(HOUR).await.unwrap();
            store.break_lock(&Key::new("k").unwrap()).await.unwrap();
        });
        done.send(()).unwrap();
    });
    over.recv_timeout(HANG).expect("whoever was woken could not look into the store");
    assert_eq!(heard.iter().collect::<Vec<_>>(), [1, 1, 1], "the holder, who waits, the holder");
}

/// A store whose connection can break: its holders are told then, and nobody called.
#[derive(Clone, Debug, Default)]
struct Breaking(Memory, Arc<Notify>);

struct BreakingPlace {
    inner: MemoryPlace,
    broke: Arc<Notify>,
    called: bool,
}

impl Backend for Breaking {
    type Place = BreakingPlace;

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn enter(&self, claim: Claim) -> BreakingPlace {
        BreakingPlace { inner: self.0.enter(claim), broke: self.1.clone(), called: true }
    }
}

impl Place for BreakingPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.inner.turn().await
    }

    async fn changed(&mut self) {
        self.called = tokio::select! {
            () = self.inner.changed() => true,
            () = self.broke.notified() => false,
        };
    }

    fn was_called(&self) -> bool {
        self.called
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.inner.renew().await
    }

    async fn leave(&mut self) -> Result<()> {
        self.inner.leave().await
    }
}

#[tokio::test]
async fn a_broken_connection_ends_what_is_idle_and_is_no_recall() {
    // More than a walk over all idle locks needs.
    const MANY: usize = 40;
    let (store, cooled) = (Breaking::default(), Cooled::default());
    let locker = Locker::builder(store.clone()).ttl(HOUR).warm(true).observer(cooled.clone()).build();
    let all = async || {
        for nth in 0..MANY {
            cycle(&locker, &format!("k/{nth}")).await;
        }
    };
    all().await;
    assert_eq!(locker.lines(), MANY);
    until(async || {
        store.1.notify_waiters();
        locker.lines() == 0
    })
    .await;
    assert!(cooled.all().iter().all(|it| it.1 == CooledBy::Recall));
    all().await;
    assert_eq!(locker.lines(), MANY, "nobody had wanted any of them");
}

/// A store in which whoever leaves is slow, and sometimes never through. It remembers who said what.
#[derive(Clone, Debug, Default)]
struct Lingering {
    inner: Memory,
    said: Arc<Mutex<Vec<&'static str>>>,
    never: bool,
}

struct LingeringPlace(MemoryPlace, Lingering);

impl Lingering {
    fn say(&self, what: &'static str) {
        self.said.lock().unwrap().push(what);
    }

    fn said(&self) -> Vec<&'static str> {
        self.said.lock().unwrap().clone()
    }
}

impl Backend for Lingering {
    type Place = LingeringPlace;

    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn enter(&self, claim: Claim) -> LingeringPlace {
        LingeringPlace(self.inner.enter(claim), self.clone())
    }
}

impl Place for LingeringPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.1.say("asks");
        self.0.turn().await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }

    async fn leave(&mut self) -> Result<()> {
        if self.1.never {
            std::future::pending::<()>().await;
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let left = self.0.leave().await;
        self.1.say("has left");
        left
    }
}

#[tokio::test]
async fn what_is_idle_and_of_no_use_has_left_before_the_store_is_asked_again() {
    let store = Lingering::default();
    let locker = Locker::builder(store.clone()).ttl(HOUR).warm(true).build();
    cycle(&locker, "k").await;
    // With another ttl it cannot be taken again. Nobody but we had it, so a try must have it.
    let tried = locker.try_lock("k").ttl(HOUR / 2).cold().await.unwrap();
    assert_eq!(store.said(), ["asks", "has left", "asks"], "it stands behind its own place");
    tried.expect("it was idle here").release().await.unwrap();
    cycle(&locker, "k").await;
    locker
        .lock("k")
        .ttl(HOUR / 2)
        .cold()
        .wait_at_most(Duration::ZERO)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let asks = ["asks", "has left"].into_iter().cycle().take(8);
    assert_eq!(store.said(), asks.collect::<Vec<_>>(), "whoever waits is no worse off");
}

#[tokio::test]
async fn whoever_needs_it_does_not_wait_for_ever_for_what_never_leaves() {
    let store = Lingering { never: true, ..Lingering::default() };
    let ttl = Duration::from_millis(500);
    let locker = Locker::builder(store.clone()).ttl(ttl).warm(true).build();
    cycle(&locker, "k").await;
    let waits = tokio::spawn(locker.lock("k").ttl(2 * ttl).cold());
    until(async || 2 <= store.said().len()).await;
    waits.abort();
    assert_eq!(store.said(), ["asks"; 2], "the store says whose turn it is");
}
