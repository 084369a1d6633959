//! Warm locks on a real store: what its own tests call to see that idle locks are recalled, shown, and taken again for nothing.
//!
//! Each case is given two connections of the store, which stand for two processes, and a ttl so long that nothing is due
//! within it: what a holder hears then, it was told. A case panics if the store fails it.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a case is a test: it fails by panicking, and says so in one place"
)]

use std::future::IntoFuture;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::kit::locked;
use lockkeeper_core::observe::{CooledBy, Event, Observer, Verb};
use lockkeeper_core::{Claim, Clock, Key, Label, Locker, LostReason};
use tokio::sync::oneshot;

/// Only a hang takes longer.
const HANG: Duration = Duration::from_secs(60);

/// More often than one grant has fences.
const OFTEN: usize = 500_000;

/// So often what may go wrong by chance is tried.
const SOME: usize = 10;

/// Why idle locks went.
#[derive(Clone, Debug, Default)]
struct Went(Arc<Mutex<Vec<CooledBy>>>);

impl Observer for Went {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Cooled { by, .. } = event {
            locked(&self.0).push(*by);
        }
    }
}

fn locker<B: Backend<Place: Place> + Clone>(store: &B, ttl: Duration) -> Locker {
    Locker::builder(store.clone()).ttl(ttl).warm(true).build()
}

async fn cycle(locker: &Locker, name: &str) {
    locker.lock(name).await.unwrap().release().await.unwrap();
}

async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    tokio::select! {
        done = future.into_future() => done,
        () = Clock::boot().sleep(HANG) => panic!("{what} did not happen within {HANG:?}"),
    }
}

/// Take one lock far more often than a grant has fences. `asked` tells how much the store was asked so far; in a span it may
/// rise by what `allowed` says, for what has nothing to do with the lock.
///
/// # Cancel safety
/// Dropped half-way it leaves its lock to its ttl.
pub async fn taken_again_without_a_word<B: Backend<Place: Place> + Clone>(
    store: &B,
    ttl: Duration,
    asked: impl AsyncFn() -> u64,
    allowed: impl Fn(Duration) -> u64,
) {
    let (locker, clock) = (locker(store, ttl), Clock::boot());
    // What a connection does once, it has done then.
    for _ in 0..100 {
        cycle(&locker, "again").await;
    }
    let (before, start) = (asked().await, clock.now());
    for _ in 0..OFTEN {
        cycle(&locker, "again").await;
    }
    let (asked, span) = (asked().await - before, clock.now() - start);
    assert!(asked <= allowed(span), "the store was asked {asked} times for {OFTEN} guards of an idle lock");
    assert_eq!(locker.lines(), 1);
    locker.shutdown(HANG).await.unwrap();
}

/// What is idle here is had there by whoever waits for it and by whoever tries, and until then it is shown as what it is.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn recalled<B>(here: &B, there: &B, ttl: Duration)
where
    B: Backend<Place: Place> + Inspect + Clone,
{
    let went = Went::default();
    let holder = Locker::builder(here.clone()).ttl(ttl).warm(true).observer(went.clone()).build();
    let other = locker(there, ttl);
    for (nth, tries) in [false, true, false, true].into_iter().enumerate() {
        let name = format!("recalled/{nth}");
        // Taken again, so that it pays.
        cycle(&holder, &name).await;
        cycle(&holder, &name).await;
        let seen = there.show(&Key::new(&name).unwrap()).await.unwrap().expect("it stays");
        assert!(seen.holders.iter().all(|it| it.label.warm && it.label.note.is_none()), "{seen:?}");
        let guard = if tries {
            // It waits a moment only, and this machine may be slow.
            let mut guard = None;
            while guard.is_none() {
                guard = soon("an answer to a try", other.try_lock(&name)).await.unwrap();
            }
            guard.unwrap()
        } else {
            soon("the recall", other.lock(&name)).await.unwrap()
        };
        guard.release_fully().await.unwrap();
        assert_eq!(*locked(&went.0), vec![CooledBy::Recall; nth + 1]);
    }
    assert_eq!(holder.lines(), 0);
}

/// Whoever keeps nothing itself tries, and gets what is idle; and nobody waits for what is held by a process that keeps nothing. For
/// stores that tell a try whether the holder may be idle, or show who holds.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn tried<B: Backend<Place: Place> + Clone>(here: &B, there: &B, ttl: Duration) {
    let (holder, other) = (locker(here, ttl), Locker::builder(there.clone()).ttl(ttl).build());
    cycle(&holder, "tried").await;
    // It waits a moment only, and this machine may be slow.
    let tried = soon("a try", async {
        loop {
            if let Some(guard) = other.try_lock("tried").await.unwrap() {
                return guard;
            }
        }
    });
    let busy = tried.await;
    assert_eq!(holder.lines(), 0);
    let turns = Turns::default();
    let tries = Locker::builder(here.clone()).ttl(ttl).warm(true).observer(turns.clone()).build();
    assert!(tries.try_lock("tried").await.unwrap().is_none());
    assert_eq!(*locked(&turns.0), 1, "it was asked once, and nobody stood in line");
    busy.release().await.unwrap();
}

/// How often a store was asked for a turn.
#[derive(Clone, Debug, Default)]
struct Turns(Arc<Mutex<u32>>);

impl Observer for Turns {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Asked { verb: Verb::Turn, .. } = event {
            *locked(&self.0) += 1;
        }
    }
}

/// A lock that is broken is told to its holder, long before its renewal is due; one that is idle goes quietly.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn a_break_is_told<B>(here: &B, there: &B, ttl: Duration)
where
    B: Backend<Place: Place> + Inspect + Clone,
{
    let cold = Locker::builder(here.clone()).ttl(ttl).build();
    for locker in [cold, locker(here, ttl)] {
        let guard = locker.lock("broken").await.unwrap();
        let lost = tokio::spawn(guard.lost());
        // It may be broken before it listens: then it hears when it begins to.
        there.break_lock(guard.key()).await.unwrap();
        assert_eq!(soon("the loss", lost).await.unwrap(), LostReason::Taken);
        assert!(!guard.is_valid());
        drop(guard);
    }
    what_is_broken_while_idle_goes(here, there, ttl).await;
}

/// An idle lock that is broken is forgotten by its holder, quietly.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn what_is_broken_while_idle_goes<B>(here: &B, there: &B, ttl: Duration)
where
    B: Backend<Place: Place> + Inspect + Clone,
{
    let locker = locker(here, ttl);
    cycle(&locker, "broken while idle").await;
    there.break_lock(&Key::new("broken while idle").unwrap()).await.unwrap();
    soon("its end", async {
        while locker.lines() != 0 {
            Clock::boot().sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// What is idle goes at once when the connection breaks by which its process would be called, also while no other can be opened;
/// and that is no call: nobody wanted it. `cut` breaks the connection of `here` for good, until `mend`.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn idle_goes_when_the_connection_breaks<B: Backend<Place: Place> + Clone>(
    here: &B,
    there: &B,
    ttl: Duration,
    cut: impl AsyncFn(),
    mend: impl AsyncFn(),
) {
    let went = Went::default();
    let holder = Locker::builder(here.clone()).ttl(ttl).warm(true).observer(went.clone()).build();
    cycle(&holder, "cut").await;
    cut().await;
    soon("its end", nothing_idle(&holder)).await;
    mend().await;
    assert_eq!(*locked(&went.0), [CooledBy::Recall], "it went because nobody could have called");
    soon("the lock", async { there_takes(there, "cut", ttl).await }).await;
    // Whoever is given back while there is no connection must not stay, either.
    let guard = holder.lock("cut in use").await.unwrap();
    cut().await;
    drop(guard);
    soon("its end", nothing_idle(&holder)).await;
    mend().await;
    is_no_call(here, there, ttl, cut, mend).await;
}

async fn there_takes<B: Backend<Place: Place> + Clone>(there: &B, name: &str, ttl: Duration) {
    let locker = Locker::builder(there.clone()).ttl(ttl).wait_at_most(HANG).build();
    locker.lock(name).await.unwrap().release().await.unwrap();
}

async fn nothing_idle(locker: &Locker) {
    while locker.lines() != 0 {
        Clock::boot().sleep(Duration::from_millis(1)).await;
    }
}

/// A place that holds, and may be idle, resolves when the connection breaks and says that nobody called; afterwards it learns who wants it.
async fn is_no_call<B: Backend<Place: Place>>(
    here: &B,
    there: &B,
    ttl: Duration,
    cut: impl AsyncFn(),
    mend: impl AsyncFn(),
) {
    let (key, pause) = (Key::new("no call").unwrap(), Duration::from_millis(5));
    let Label { host, pid, .. } = Label::of_this_process();
    let label = Label::new(host, pid, None, Some("lockkeeper.warm".to_owned()));
    assert!(label.warm);
    let warm = Claim::new(key.clone(), ttl).unwrap().labelled(Arc::new(label));
    let (mut holder, mut waiter) = (here.enter(warm), there.enter(Claim::new(key, ttl).unwrap()));
    soon("the lock", holds(&mut holder)).await;
    cut().await;
    soon("a sign of the break", holder.changed()).await;
    assert!(!holder.was_called(), "nobody wants it");
    mend().await;
    assert!(matches!(waiter.turn().await.unwrap(), Turn::Wait { .. }));
    soon("a call", async {
        loop {
            holder.changed().await;
            // Who comes while nothing can be heard is seen by asking, which any sign is a reason for.
            if holder.was_called() || matches!(holder.renew().await, Ok(Renewal::Held { wanted: true, .. })) {
                return;
            }
            Clock::boot().sleep(pause).await;
        }
    })
    .await;
    for place in [&mut holder, &mut waiter] {
        soon("the end", async { while place.leave().await.is_err() {} }).await;
    }
}

async fn holds(place: &mut impl Place) {
    while !matches!(place.turn().await, Ok(Turn::Held(_))) {
        Clock::boot().sleep(Duration::from_millis(5)).await;
    }
}

/// Others that this process waits for at the same time.
const CROWD: usize = 20;

/// What is idle is had elsewhere while the application of its process stands still, and as many of its callers wait as its connections
/// can bear: whoever answers a recall needs nothing of theirs. `connect` makes a connection of the store, on a runtime that is
/// blocked afterwards.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn recalled_while_its_application_stands_still<B, F>(
    connect: impl FnOnce() -> F + Send + 'static,
    there: &B,
    ttl: Duration,
) where
    B: Backend<Place: Place> + Inspect + Clone,
    F: Future<Output = B>,
{
    let other = Locker::builder(there.clone()).ttl(ttl).build();
    let mut busy = Vec::new();
    for nth in 0..CROWD {
        busy.push(other.lock(format!("crowd/{nth}")).await.unwrap());
    }
    let (ready, idle) = oneshot::channel();
    let (go_on, blocked) = mpsc::channel::<()>();
    let application = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locker = locker(&connect().await, ttl);
            cycle(&locker, "still").await;
            let ask = |nth| tokio::spawn(locker.lock(format!("crowd/{nth}")));
            let _waiting: Vec<_> = (0..CROWD).map(ask).collect();
            // They ask, and stand in line.
            Clock::boot().sleep(Duration::from_millis(200)).await;
            ready.send(()).unwrap();
            // Nothing of it runs until the other has the lock.
            let _ = blocked.recv();
        });
    });
    soon("an idle lock", idle).await.unwrap();
    soon("the recall", other.lock("still")).await.unwrap().release().await.unwrap();
    drop((go_on, busy));
    tokio::task::spawn_blocking(move || application.join()).await.unwrap().unwrap();
}

/// Readers that are idle in two processes stay beside each other, and all go for one writer.
///
/// # Cancel safety
/// Dropped half-way it leaves its locks to their ttl.
pub async fn idle_readers_go_for_a_writer<B: Backend<Place: Place> + Clone>(
    here: &B,
    there: &B,
    ttl: Duration,
) {
    let readers = [locker(here, ttl), locker(there, ttl)];
    // Whatever begins to hear in the middle of it may send one away for nothing; if one were in another's way, it would
    // happen each time.
    let mut beside = false;
    for _ in 0..SOME {
        for reader in &readers {
            reader.read("shared").await.unwrap().release().await.unwrap();
        }
        beside |= readers.iter().all(|it| it.lines() == 1);
    }
    assert!(beside, "no reader is in another's way");
    let writer = Locker::builder(there.clone()).ttl(ttl).build();
    let guard = soon("the recalls", writer.write("shared")).await.unwrap();
    assert!(readers.iter().all(|it| it.lines() == 0));
    guard.release().await.unwrap();
}
