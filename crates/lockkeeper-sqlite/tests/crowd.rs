//! Crowds: many processes at one lock, many names in one process. Nobody is refused, nothing is lost, and a hand-off
//! costs the same however many wait.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use common::*;
use lockkeeper_core::backend::{Backend as _, Place as _};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::kit::locked;
use lockkeeper_core::observe::{Event, Observer};
use lockkeeper_core::{Clock, Guard, Key, Locker, LockerBuilder};
use lockkeeper_sqlite::{Sqlite, SqliteOptions};
use tokio::task::JoinSet;

/// How long each crowd is counted.
const WHILE: Duration = Duration::from_secs(3);

/// A crowd takes the whole machine: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    locked(&ALONE)
}

/// A locker that blames a slow machine on nobody.
fn locker(backend: Sqlite) -> LockerBuilder {
    Locker::builder(backend).outage_max(PATIENCE)
}

/// In a child: take and give back the lock until the parent says that it is enough; tell how often.
fn take_turns(path: &Path) -> u32 {
    let enough = path.with_file_name("enough");
    run(async {
        let locker = locker(Sqlite::with(SqliteOptions::new(path)).await.unwrap()).build();
        let mut served = 0_u32;
        while !enough.exists() {
            let guard = locker.lock("hot").wait_at_most(PATIENCE).await.expect("nobody is refused");
            served += 1;
            guard.release().await.unwrap();
        }
        served
    })
}

/// How many hand-offs there are in a second between this many processes, all of which stand in line at first.
async fn rate(count: usize, test: &str) -> f64 {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let (mut holder, _) = hold(&backend, short("hot", PATIENCE)).await;
    let children = children(count, test, &fixture.path());
    let key = Key::new("hot").unwrap();
    while backend.show(&key).await.unwrap().unwrap().waiters.len() < count {
        Clock::boot().sleep(Duration::from_millis(50)).await;
    }
    let clock = Clock::boot();
    let began = clock.now();
    holder.leave().await.unwrap();
    clock.sleep(WHILE).await;
    fs::write(fixture.path().with_file_name("enough"), "").unwrap();
    let took = clock.now() - began;
    let served = |it: &String| -> u32 {
        it.lines().find_map(|it| it.split_once("served ")).unwrap().1.parse().unwrap()
    };
    let served: u32 = join(children).iter().map(served).sum();
    f64::from(served) / took.as_secs_f64()
}

#[test]
fn a_line_of_two_hundred_processes_does_not_collapse() {
    let test = "a_line_of_two_hundred_processes_does_not_collapse";
    if let Some(path) = role() {
        println!("served {}", take_turns(&path));
        return;
    }
    let _alone = alone();
    // The machine may be busy with other things: ten are counted before and after, and a twentieth is enough here: the
    // line must not stand still. What share it keeps is the benchmark's to say, on a quiet machine.
    let before = run(rate(10, test));
    let many = run(rate(200, test));
    let after = run(rate(10, test));
    println!("hand-offs in a second: {before:.0} and {after:.0} with 10, {many:.0} with 200");
    assert!(0.05 * before.min(after) <= many, "{before:.0}, {many:.0}, {after:.0}");
}

#[test]
fn all_places_of_a_process_are_kept_by_one_write() {
    const COUNT: usize = 50;
    let _alone = alone();
    run(async {
        let fixture = Fixture::new();
        let (here, there) = (fixture.open().await, fixture.open().await);
        let mut held = Vec::new();
        for index in 0..COUNT {
            held.push(hold(&there, short(&format!("key {index}"), PATIENCE)).await.0);
        }
        let locker = locker(here).ttl(6 * SECOND).build();
        let mut waiting = JoinSet::new();
        for index in 0..COUNT {
            let request = locker.lock(format!("key {index}"));
            waiting.spawn(async move { request.await.unwrap() });
            // One after the other, so that they are not all due at the same moment.
            let waiters = i64::try_from(index + 1).unwrap();
            eventually("it waits", || fixture.number(WAITERS) == waiters).await;
        }
        let commits = Commits::of(&fixture);
        // Until all of them have been kept twice.
        for _ in 0..2 {
            let expiry = fixture.number("SELECT max(expires) FROM lockkeeper_claim WHERE counter = 0");
            eventually("all are kept", || fixture.number(FIRST_EXPIRY) > expiry).await;
        }
        let written = commits.count();
        assert!(written <= 2 * COUNT / 4, "{written} writes to keep {COUNT} places a few times");
        assert_eq!(fixture.number(WAITERS), i64::try_from(COUNT).unwrap(), "nobody lost its place");
        for mut place in held {
            place.leave().await.unwrap();
        }
        while let Some(guard) = waiting.join_next().await {
            guard.unwrap().release().await.unwrap();
        }
    });
}

const WAITERS: &str = "SELECT count(*) FROM lockkeeper_claim WHERE counter = 0";
const FIRST_EXPIRY: &str = "SELECT min(expires) FROM lockkeeper_claim WHERE counter = 0";

/// Counts renewals and losses.
#[derive(Clone, Debug, Default)]
struct Tally(Arc<(AtomicUsize, AtomicUsize)>);

impl Observer for Tally {
    fn observe(&self, event: &Event<'_>) {
        let side = match event {
            Event::Renewed { .. } => &self.0.0,
            Event::Lost { .. } => &self.0.1,
            _ => return,
        };
        side.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn thousands_of_names_at_once_are_all_granted_and_none_is_lost() {
    const NAMES: usize = 2000;
    let _alone = alone();
    run(async {
        let fixture = Fixture::new();
        let tally = Tally::default();
        let locker = locker(fixture.open().await).ttl(8 * SECOND).observer(tally.clone()).build();
        let old = locker.lock("held before").await.unwrap();
        let mut asked = JoinSet::new();
        for index in 0..NAMES {
            let request = locker.lock(format!("name {index}"));
            asked.spawn(async move { request.await.unwrap() });
        }
        let mut guards = vec![old];
        while let Some(guard) = asked.join_next().await {
            guards.push(guard.unwrap());
        }
        eventually("all are renewed twice", || 2 * NAMES <= tally.0.0.load(Ordering::Relaxed)).await;
        assert_eq!(tally.0.1.load(Ordering::Relaxed), 0, "locks were lost");
        assert!(guards.iter().all(Guard::is_valid));
        drop(guards);
        locker.shutdown(PATIENCE).await.unwrap();
        assert_eq!(fixture.claims(), 0);
    });
}

#[test]
fn short_processes_leave_a_bounded_rest_behind() {
    if let Some(path) = role() {
        // It takes one lock and dies with it, long before the cleaner comes.
        return run(async {
            let backend = Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
            let mut place = backend.enter(short(&format!("{}", std::process::id()), SECOND / 100));
            held(place.turn().await.unwrap());
        });
    }
    let _alone = alone();
    let fixture = Fixture::new();
    for _ in 0..20 {
        let left = children(4, "short_processes_leave_a_bounded_rest_behind", &fixture.path());
        join(left);
        // A claim that is not over cannot be removed; the next ones come when these are.
        let last =
            u64::try_from(fixture.number("SELECT coalesce(max(expires), 0) FROM lockkeeper_claim")).unwrap();
        let over = || lockkeeper_core::Moment::from_nanos(last) <= Clock::boot().now();
        run(eventually("they are over", over));
    }
    assert!(fixture.claims() <= 8, "{} claims of dead processes are left", fixture.claims());
}
