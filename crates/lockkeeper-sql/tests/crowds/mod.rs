//! Crowds that every SQL store must bear, told once for all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::Backend;
use lockkeeper_core::{Clock, Guard, Locker};
use tokio::task::JoinSet;

/// A patience that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(2 * 60);
const TTL: Duration = Duration::from_secs(2);

/// A database server with room for a crowd.
pub(crate) trait Crowded: Sized + Send + Sync + 'static {
    type Store: Backend + Clone;
    async fn start() -> Self;
    /// Open the store, as a new process would.
    async fn open(&self) -> Self::Store;
}

/// The cases that are told in the same words on every server.
macro_rules! cases {
    ($site:ty) => {
        #[tokio::test]
        async fn many_names_at_once_are_all_granted_and_none_is_lost() {
            crowds::many_names(&<$site>::start().await, crowds::count("LOCKKEEPER_NAMES", 1000)).await;
        }

        #[tokio::test]
        async fn a_line_of_many_who_wait_does_not_collapse() {
            let many = crowds::count("LOCKKEEPER_WAITERS", 60);
            crowds::one_lock(&<$site>::start().await, many).await;
        }
    };
}
pub(crate) use cases;

/// How many: more by hand than in the ordinary test.
pub(crate) fn count(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|it| it.parse().ok()).unwrap_or(usual)
}

/// Many names at once in one process: all are granted, none is lost, nor one that was held before.
pub(crate) async fn many_names<S: Crowded>(site: &S, names: usize) {
    let clock = Clock::boot();
    let locker =
        Locker::builder(site.open().await).ttl(TTL).wait_at_most(PATIENCE).outage_max(PATIENCE).build();
    let before = locker.lock("before").await.unwrap();
    let begun = clock.now();
    let mut tasks = JoinSet::new();
    for at in 0..names {
        let locker = locker.clone();
        tasks.spawn(async move { locker.lock(format!("crowd/{at}")).await });
    }
    let mut guards: Vec<Guard> = Vec::new();
    while let Some(taken) = tasks.join_next().await {
        guards.push(taken.unwrap().unwrap());
    }
    println!("{names} names in {:?}", clock.now() - begun);
    // Long enough for all to be renewed several times.
    clock.sleep(TTL * 3 / 2).await;
    let lost = guards.iter().filter(|it| !it.is_valid()).count();
    assert_eq!(lost, 0, "lost of {names}");
    before.check().unwrap();
    let begun = clock.now();
    let mut tasks = JoinSet::new();
    for guard in guards {
        tasks.spawn(guard.release());
    }
    while let Some(left) = tasks.join_next().await {
        left.unwrap().unwrap();
    }
    println!("given back in {:?}", clock.now() - begun);
    before.check().unwrap();
    before.release().await.unwrap();
}

/// Hand-offs per second while `count` processes want one lock and hold it for no time.
async fn rate<S: Crowded>(site: &S, name: &'static str, count: usize, hand_offs: u32) -> f64 {
    let clock = Clock::boot();
    let (done, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    let mut lockers = Vec::new();
    for _ in 0..count {
        let builder = Locker::builder(site.open().await).ttl(Duration::from_secs(10));
        lockers.push(builder.wait_at_most(PATIENCE).outage_max(PATIENCE).build());
    }
    let held = lockers[0].lock(name).await.unwrap();
    let begun = Arc::new(AtomicU64::new(0));
    for locker in lockers {
        let (done, clock, begun) = (done.clone(), clock.clone(), begun.clone());
        tasks.spawn(async move {
            loop {
                let guard = locker.lock(name).await.unwrap();
                let before = done.fetch_add(1, Ordering::AcqRel);
                if before + 1 == count as u64 {
                    // All have waited once: the crowd is there.
                    begun.store(clock.now().as_nanos(), Ordering::Release);
                }
                guard.release().await.unwrap();
                if u64::from(hand_offs) + count as u64 <= before {
                    return;
                }
            }
        });
    }
    held.release().await.unwrap();
    let mut ended = None;
    while let Some(left) = tasks.join_next().await {
        left.unwrap();
        ended.get_or_insert_with(|| clock.now());
    }
    let span = ended.unwrap() - lockkeeper_core::Moment::from_nanos(begun.load(Ordering::Acquire));
    f64::from(hand_offs) / span.as_secs_f64()
}

/// One lock and many processes that wait for it: a hand-off costs the same, and nobody is refused.
pub(crate) async fn one_lock<S: Crowded>(site: &S, many: usize) {
    let few = rate(site, "few", 10, 300).await;
    let crowd = rate(site, "many", many, 300).await;
    println!("{few:.0} hand-offs/s with 10 who wait, {crowd:.0} with {many}");
    // What share a long line keeps is the benchmark's to say. Here all are served, and it does not stand still.
    assert!(few * 0.1 <= crowd, "{crowd:.1} hand-offs/s with {many} who wait, {few:.1} with ten");
}
