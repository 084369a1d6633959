//! In-process locks beside `tokio::sync::Mutex`.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Locker, Memory};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::measure::{beside, more_than};
use crate::report::{Bound, Row, say};

const SHARDS: usize = 64;
const NAMES: usize = 1000;
const TASKS: u32 = 64;

type Shard = Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>;

/// What one would write by hand: a sharded map from names to mutexes.
struct ByHand {
    hasher: RandomState,
    shards: Vec<Shard>,
}

impl ByHand {
    fn new() -> Self {
        ByHand { hasher: RandomState::new(), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn get(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let shard = usize::try_from(self.hasher.hash_one(name)).unwrap_or(0) % SHARDS;
        let mut shard = locked(&self.shards[shard]);
        match shard.get(name) {
            Some(it) => it.clone(),
            None => shard.entry(name.to_owned()).or_default().clone(),
        }
    }
}

pub(crate) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let what =
        "in-process lock + unlock, uncontended, 1,000 names, beside a sharded map of `tokio::sync::Mutex`";
    Ok(vec![
        uncontended(&runtime, what),
        uncontended(&several, "the same on `multi_thread`"),
        contended(&runtime),
        metered(&runtime),
    ])
}

/// As a task of the runtime, which is what a program does on either kind.
fn uncontended(runtime: &Runtime, what: &'static str) -> Row {
    const OPS: usize = 200_000;
    let names: Arc<Vec<String>> = Arc::new((0..NAMES).map(|it| format!("orders/{it}")).collect());
    let (locker, by_hand) = (Locker::new(Memory::default()), Arc::new(ByHand::new()));
    let ours = || {
        let (names, locker) = (names.clone(), locker.clone());
        as_task(runtime, async move {
            for name in names.iter().cycle().take(OPS) {
                drop(locker.lock(name).await);
            }
        });
    };
    let theirs = || {
        let (names, by_hand) = (names.clone(), by_hand.clone());
        as_task(runtime, async move {
            for name in names.iter().cycle().take(OPS) {
                drop(by_hand.get(name).lock_owned().await);
            }
        });
    };
    Row::of_times(what, beside(u32::try_from(OPS).unwrap_or(1), ours, theirs), 1.5)
}

fn as_task(runtime: &Runtime, work: impl Future<Output = ()> + Send + 'static) {
    if let Err(error) = runtime.block_on(runtime.spawn(work)) {
        say(&format!("a side of a comparison failed: {error}"));
    }
}

/// What it costs to be counted.
fn metered(runtime: &Runtime) -> Row {
    const OPS: u32 = 20_000;
    let names: Vec<String> = (0..NAMES).map(|it| format!("orders/{it}")).collect();
    let meters = lockkeeper::Meters::new();
    let plain = Locker::new(Memory::default());
    let metered = Locker::builder(Memory::default()).observer(meters.clone()).build();
    let use_all = |locker: &Locker| {
        runtime.block_on(async {
            for name in names.iter().cycle().take(OPS as usize) {
                drop(locker.lock(name).await);
            }
        });
    };
    let (more, [on, off]) = more_than(OPS, || use_all(&metered), || use_all(&plain));
    Row {
        what: "in-process lock + unlock, `Meters` on, beside no observer: nanoseconds more",
        ours: format!("{on:.1} ns"),
        theirs: format!("{off:.1} ns"),
        ratio: more,
        bound: Bound::AtMost(60.0),
        note: format!(
            "{} holds counted; each needs two readings of the clock, which take {:.0} ns",
            meters.snapshot().sum("lockkeeper.hold.duration", &[]),
            2e9 * clock_reading().as_secs_f64()
        ),
    }
}

/// What it costs to know the time.
fn clock_reading() -> Duration {
    const READINGS: u32 = 200_000;
    let clock = Clock::boot();
    let read = || {
        for _ in 0..READINGS {
            std::hint::black_box(clock.now());
        }
    };
    beside(READINGS, read, read).0
}

fn contended(runtime: &Runtime) -> Row {
    const EACH: u32 = 2_000;
    let locker = Locker::new(Memory::default());
    let mutex = Arc::new(tokio::sync::Mutex::new(()));
    let ours = || {
        in_tasks(runtime, || {
            let locker = locker.clone();
            async move {
                for _ in 0..EACH {
                    let guard = locker.lock("one").await;
                    tokio::task::yield_now().await;
                    drop(guard);
                }
            }
        });
    };
    let theirs = || {
        in_tasks(runtime, || {
            let mutex = mutex.clone();
            async move {
                for _ in 0..EACH {
                    let guard = mutex.lock().await;
                    tokio::task::yield_now().await;
                    drop(guard);
                }
            }
        });
    };
    Row::of_times(
        "in-process, 64 tasks on one key, beside one `tokio::sync::Mutex`",
        beside(TASKS * EACH, ours, theirs),
        3.0,
    )
}

/// Run 64 tasks to their end.
fn in_tasks<F: Future<Output = ()> + Send + 'static>(runtime: &Runtime, task: impl Fn() -> F) {
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(task())).collect();
        for task in tasks {
            let _ = task.await;
        }
    });
}
