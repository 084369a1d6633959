//! In-process locks beside `tokio::sync::Mutex`.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use lockkeeper_core::{Locker, Memory};
use tokio::runtime::Runtime;

use crate::measure::beside;
use crate::report::{Bound, Row};

const SHARDS: usize = 64;
const KEYS: usize = 1000;

/// What one would write by hand: a sharded map from names to mutexes.
#[derive(Default)]
struct ByHand {
    hasher: RandomState,
    shards: Vec<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>,
}

impl ByHand {
    fn new() -> Self {
        ByHand { hasher: RandomState::new(), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn get(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let shard = usize::try_from(self.hasher.hash_one(name)).unwrap_or(0) % SHARDS;
        let mut shard = self.shards[shard].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(it) = shard.get(name) {
            return it.clone();
        }
        shard.entry(name.to_owned()).or_default().clone()
    }
}

pub(crate) fn run() -> Vec<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    vec![uncontended(&runtime), contended(&runtime)]
}

fn uncontended(runtime: &Runtime) -> Row {
    const OPS: u32 = 200_000;
    let names: Vec<String> = (0..KEYS).map(|it| format!("orders/{it}")).collect();
    let (locker, by_hand) = (Locker::new(Memory::default()), ByHand::new());
    let (ours, theirs) = beside(
        OPS,
        || {
            runtime.block_on(async {
                for name in names.iter().cycle().take(OPS as usize) {
                    drop(locker.lock(name).await);
                }
            });
        },
        || {
            runtime.block_on(async {
                for name in names.iter().cycle().take(OPS as usize) {
                    drop(by_hand.get(name).lock_owned().await);
                }
            });
        },
    );
    Row {
        what: "in-process lock + unlock, uncontended, 1,000 names, beside a sharded map of `tokio::sync::Mutex`",
        ours: format!("{ours:?}"),
        theirs: format!("{theirs:?}"),
        ratio: ours.as_secs_f64() / theirs.as_secs_f64(),
        bound: Bound::AtMost(3.0),
        note: String::new(),
    }
}

fn contended(runtime: &Runtime) -> Row {
    const TASKS: u32 = 64;
    const EACH: u32 = 2_000;
    let locker = Locker::new(Memory::default());
    let mutex = Arc::new(tokio::sync::Mutex::new(()));
    let (ours, theirs) = beside(
        TASKS * EACH,
        || {
            runtime.block_on(async {
                let tasks: Vec<_> = (0..TASKS)
                    .map(|_| {
                        let locker = locker.clone();
                        tokio::spawn(async move {
                            for _ in 0..EACH {
                                let guard = locker.lock("one").await;
                                tokio::task::yield_now().await;
                                drop(guard);
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    let _ = task.await;
                }
            });
        },
        || {
            runtime.block_on(async {
                let tasks: Vec<_> = (0..TASKS)
                    .map(|_| {
                        let mutex = mutex.clone();
                        tokio::spawn(async move {
                            for _ in 0..EACH {
                                let guard = mutex.lock().await;
                                tokio::task::yield_now().await;
                                drop(guard);
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    let _ = task.await;
                }
            });
        },
    );
    Row {
        what: "in-process, 64 tasks on one key, beside one `tokio::sync::Mutex`",
        ours: format!("{ours:?}"),
        theirs: format!("{theirs:?}"),
        ratio: ours.as_secs_f64() / theirs.as_secs_f64(),
        bound: Bound::AtMost(3.0),
        note: String::new(),
    }
}
