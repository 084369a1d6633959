//! The cancellation matrix: every verb, whatever becomes of its call, whatever its caller does.
//!
//! Enumerated, not sampled. Each cell ends with the same questions: was there ever more than one holder, is
//! the store empty after the ttl, can another process have the lock, and can this one have it again. Where every
//! call is answered in the end, the same holds on a store that forgets nobody by itself.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Error, Key, Locker, Memory, Spawn};
use lockkeeper_testkit::chance::Chance;
use lockkeeper_testkit::chaos::{Chaos, Delivery, Fate, Verb};
use lockkeeper_testkit::sim::{Ended, Executor, Held, Witness};

mod lasting;

use lasting::Lasting;

const TTL: Duration = Duration::from_secs(1);
const KEY: &str = "matrix";
const HERE: u32 = 1;
const THERE: u32 = 2;

const VERBS: [Verb; 4] = [Verb::Turn, Verb::Changed, Verb::Renew, Verb::Leave];

const FATES: [Fate; 8] = [
    Fate::OK,
    Fate::REQUEST_LOST,
    Fate::REPLY_LOST,
    Fate::slow(Duration::from_millis(200), Duration::from_millis(200)),
    // Answered after the ttl, and answered after the caller's patience.
    Fate::slow(Duration::ZERO, Duration::from_millis(1600)),
    Fate::slow(Duration::from_secs(2), Duration::from_secs(2)),
    Fate::NEVER,
    Fate::UNANSWERED,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Waits,
    /// Goes away after the first poll.
    DropsAtOnce,
    /// Goes away in the middle.
    DropsLater,
    /// Has a limit of its own.
    TimesOut,
}

const CALLERS: [Caller; 4] = [Caller::Waits, Caller::DropsAtOnce, Caller::DropsLater, Caller::TimesOut];

#[derive(Clone, Copy, Debug)]
struct Cell {
    verb: Verb,
    fate: Fate,
    caller: Caller,
    /// Whether the other process holds the lock at first.
    contended: bool,
    /// Whether the store forgets whoever is silent.
    forgets: bool,
}

/// Two processes and a store; what happens to one verb of the first is the cell's matter.
#[derive(Clone)]
struct World {
    clock: Clock,
    executor: Executor,
    witness: Witness,
    store: Memory,
    here: Locker,
    there: Locker,
    /// Whether the cell's call was made at all.
    met: Arc<AtomicBool>,
}

impl World {
    fn new(cell: Cell) -> Self {
        let clock = Clock::virtual_from(Duration::from_secs(1));
        let executor = Executor::new(clock.clone(), Chance::seeded(7));
        let store = Memory::new(clock.clone());
        let mut planned = Some(cell.fate);
        let met = Arc::new(AtomicBool::new(false));
        let meets = met.clone();
        let plan = move |verb, _: &_| {
            if verb != cell.verb {
                return Fate::OK;
            }
            meets.store(true, Ordering::Relaxed);
            planned.take().unwrap_or(Fate::OK)
        };
        let locker = |builder: lockkeeper_core::LockerBuilder, process| {
            builder
                .clock(clock.clone())
                .spawner(executor.process(process))
                .ttl(TTL)
                .outage_max(TTL * 3)
                .build()
        };
        let (here, there) = if cell.forgets {
            let chaos = Chaos::new(store.clone(), clock.clone(), plan);
            (Locker::builder(chaos), Locker::builder(store.clone()))
        } else {
            let lasting = Lasting(store.clone());
            let chaos = Chaos::new(lasting.clone(), clock.clone(), plan);
            (Locker::builder(chaos), Locker::builder(lasting))
        };
        let (here, there) = (locker(here, HERE), locker(there, THERE));
        World { witness: Witness::default(), clock, executor, store, here, there, met }
    }

    /// Start something in a process; what comes back tells whether it is done.
    fn start(&self, process: u32, work: impl Future<Output = ()> + Send + 'static) -> Arc<AtomicBool> {
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        self.executor.process(process).spawn(Box::pin(async move {
            work.await;
            flag.store(true, Ordering::Relaxed);
        }));
        done
    }

    /// Run until all of it is done, watching every step.
    fn finish(&self, what: &str, done: &[Arc<AtomicBool>]) -> Result<(), String> {
        let until = self.clock.now().after(TTL * 100);
        let all = || done.iter().all(|it| it.load(Ordering::Relaxed));
        let ended = self.executor.run(until, all, || self.witness.look());
        if let Some(what) = self.witness.verdict() {
            return Err(what);
        }
        if ended == Ended::Done { Ok(()) } else { Err(format!("{what}: {ended:?}")) }
    }

    /// Take the lock as the cell's caller does; `None` if it went away or was told no.
    async fn take(&self, cell: Cell) -> Option<Arc<Held>> {
        let request = self.here.lock(KEY);
        // Only the verbs of waiting meet this caller; the others begin with a lock that is held.
        let caller =
            if matches!(cell.verb, Verb::Turn | Verb::Changed) { cell.caller } else { Caller::Waits };
        let answer = match caller {
            Caller::Waits => request.await.map(Some),
            Caller::TimesOut => request.wait_at_most(TTL / 2).await.map(Some),
            Caller::DropsAtOnce => gone_after(&self.clock, Duration::ZERO, request.into_future()).await,
            Caller::DropsLater => gone_after(&self.clock, TTL / 2, request.into_future()).await,
        };
        match answer {
            Ok(guard) => guard.map(|it| self.witness.received(HERE, it, true)),
            Err(Error::TimedOut { .. } | Error::Unavailable { .. }) => None,
            Err(error) => {
                self.witness.accuse(format!("a good request was answered with: {error}"));
                None
            }
        }
    }

    /// Hold it over at least one renewal, and end as the cell's caller does.
    async fn use_up(&self, cell: Cell, guard: Arc<Held>) {
        let span = match (cell.verb, cell.caller) {
            (Verb::Renew, Caller::DropsAtOnce) => TTL / 3 + Duration::from_millis(10),
            (Verb::Renew, Caller::DropsLater) => TTL / 2,
            (Verb::Renew, _) => TTL * 3,
            _ => TTL / 10,
        };
        if cell.caller == Caller::TimesOut && cell.verb == Verb::Renew {
            let _ = gone_after(&self.clock, TTL, async { guard.run(self.clock.sleep(span)).await }).await;
        } else {
            self.clock.sleep(span).await;
        }
        let Some(guard) = Arc::into_inner(guard) else {
            return;
        };
        match cell.caller {
            Caller::Waits => drop(guard.release().await),
            Caller::DropsAtOnce => drop(guard),
            Caller::DropsLater => drop(gone_after(&self.clock, Duration::ZERO, guard.release()).await),
            Caller::TimesOut => drop(gone_after(&self.clock, TTL / 2, guard.release()).await),
        }
    }
}

/// The answer, or `Ok(None)` if the caller goes away first. It polls at least once.
async fn gone_after<T>(
    clock: &Clock,
    span: Duration,
    future: impl Future<Output = Result<T, Error>>,
) -> Result<Option<T>, Error> {
    let (mut future, mut timer) = (pin!(future), pin!(clock.sleep(span)));
    poll_fn(|cx| {
        if let Poll::Ready(answer) = future.as_mut().poll(cx) {
            return Poll::Ready(answer.map(Some));
        }
        timer.as_mut().poll(cx).map(|()| Ok(None))
    })
    .await
}

/// Run one cell; the answer tells whether its call was made at all.
fn run(cell: Cell) -> Result<bool, String> {
    let world = World::new(cell);
    let first = world.clone();
    let neighbour = async move {
        let held = if cell.contended { first.there.lock(KEY).await.ok() } else { None };
        let held = held.map(|it| first.witness.received(THERE, it, true));
        first.clock.sleep(TTL / 4).await;
        drop(held);
    };
    let second = world.clone();
    let caller = async move {
        second.clock.sleep(Duration::from_millis(1)).await;
        if let Some(guard) = second.take(cell).await {
            second.use_up(cell, guard).await;
        }
    };
    let third = world.clone();
    let rival = async move {
        // Whatever happens there, whoever waits here is served, again and again.
        for _ in 0..30 {
            third.clock.sleep(TTL / 8).await;
            let Ok(guard) = third.there.lock(KEY).await else {
                return third.witness.accuse("the rival was refused".into());
            };
            let guard = third.witness.received(THERE, guard, true);
            third.clock.sleep(TTL / 8).await;
            drop(guard);
        }
    };
    let all = [world.start(THERE, neighbour), world.start(HERE, caller), world.start(THERE, rival)];
    world.finish("the cell", &all)?;
    settled(&world)?;
    afterwards(&world)?;
    Ok(world.met.load(Ordering::Relaxed))
}

/// After the ttl, and time for every late answer, nothing is left.
fn settled(world: &World) -> Result<(), String> {
    let it = world.clone();
    let found = Arc::new(Mutex::new(None));
    let slot = found.clone();
    let look = async move {
        it.clock.sleep(TTL * 8).await;
        let key = Key::new(KEY).expect("the name is a key");
        *slot.lock().expect("nobody panicked") = it.store.show(&key).await.expect("memory does not fail");
    };
    world.finish("settling", &[world.start(THERE, look)])?;
    let found = found.lock().expect("nobody panicked").take();
    found.map_or(Ok(()), |it| Err(format!("left in the store: {it:?}")))
}

/// Both processes can have the lock again, and neither keeps a line.
fn afterwards(world: &World) -> Result<(), String> {
    for (process, locker) in [(THERE, &world.there), (HERE, &world.here)] {
        let (it, locker) = (world.clone(), locker.clone());
        let again = async move {
            match locker.lock(KEY).wait_at_most(TTL * 5).await {
                Ok(guard) => drop(it.witness.received(process, guard, true)),
                Err(error) => it.witness.accuse(format!("process {process} cannot lock any more: {error}")),
            }
        };
        world.finish("locking again", &[world.start(process, again)])?;
    }
    let lines = world.there.lines() + world.here.lines();
    if lines == 0 { Ok(()) } else { Err(format!("{lines} lines are left")) }
}

fn cells() -> impl Iterator<Item = Cell> {
    let fates = VERBS.into_iter().flat_map(|verb| FATES.map(|fate| (verb, fate)));
    let callers = fates.flat_map(|(verb, fate)| CALLERS.map(|caller| (verb, fate, caller)));
    let cells = callers.flat_map(|(verb, fate, caller)| {
        [false, true].map(|contended| Cell { verb, fate, caller, contended, forgets: true })
    });
    cells.flat_map(|it| {
        // Of a call that is never answered nobody can tell what it left behind.
        let answered = !matches!(it.fate.delivery, Delivery::Never | Delivery::Unanswered);
        [Some(it), answered.then_some(Cell { forgets: false, ..it })].into_iter().flatten()
    })
}

#[test]
fn every_cell_of_the_matrix_holds() {
    let (mut all, mut met) = (0, 0);
    let mut bad = Vec::new();
    for cell in cells() {
        all += 1;
        match run(cell) {
            Ok(true) => met += 1,
            Ok(false) => bad.push(format!("{cell:?}: the call was never made")),
            Err(what) => bad.push(format!("{cell:?}: {what}")),
        }
    }
    assert!(bad.is_empty(), "{} of {all} cells are broken:\n{}", bad.len(), bad.join("\n"));
    // Eight fates on the one store, six on the other. Whoever waits listens, and so does whoever holds.
    assert_eq!((all, met), (4 * 14 * 4 * 2, 4 * 14 * 4 * 2));
}
