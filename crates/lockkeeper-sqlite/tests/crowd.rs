//! Many processes at one lock: a hand-off costs the same however many wait, and nobody is refused.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::fs;
use std::process::Child;
use std::time::Duration;

use common::*;
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Key, Locker};
use lockkeeper_sqlite::{SqliteBackend, SqliteOptions};

/// Take and give back the lock until the parent says that it is enough; tell how often.
fn take_turns(path: &std::path::Path) {
    let enough = path.with_file_name("enough");
    let served = run(async {
        let locker = Locker::new(SqliteBackend::open(SqliteOptions::new(path)).await.unwrap());
        let mut served = 0_u32;
        while !enough.exists() {
            let guard = locker.lock("hot").wait_at_most(PATIENCE).await.expect("nobody is refused");
            served += 1;
            guard.release().await.unwrap();
        }
        served
    });
    println!("served {served}");
}

/// How many hand-offs there are in a while between this many processes, all of which stand in line at first.
async fn rate(count: usize, test: &str) -> f64 {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let (mut holder, _) = hold(&backend, short("hot", PATIENCE)).await;
    let children: Vec<Child> = children(count, test, &fixture.path());
    let key = Key::new("hot").unwrap();
    while backend.show(&key).await.unwrap().unwrap().waiters.len() < count {
        Clock::boot().sleep(Duration::from_millis(50)).await;
    }
    let (clock, span) = (Clock::boot(), Duration::from_secs(3));
    let began = clock.now();
    use lockkeeper_core::backend::Place as _;
    holder.leave().await.unwrap();
    clock.sleep(span).await;
    fs::write(fixture.path().with_file_name("enough"), "").unwrap();
    let took = clock.now() - began;
    let said = join(children);
    let served = |it: &String| -> u32 {
        it.lines().find_map(|it| it.split_once("served ")).unwrap().1.parse().unwrap()
    };
    let served: u32 = said.iter().map(served).sum();
    f64::from(served) / took.as_secs_f64()
}

#[test]
fn measure() {
    if let Some(path) = role() {
        return take_turns(&path);
    }
    run(async {
        for count in [10, 200, 10] {
            println!("{count}: {:.0}/s", rate(count, "measure").await);
        }
    });
}
