//! Those who share a lock enter together: one write lets all of them in, and rings for all.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::fs;
use std::path::Path;

use common::*;
use lockkeeper_core::backend::{Backend as _, Place as _, Turn};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::{Claim, Key};
use lockkeeper_sqlite::{Sqlite, SqliteOptions};

const SHARERS: usize = 16;

fn reader() -> Claim {
    room("shared", 1, u32::MAX).ttl(PATIENCE)
}

fn writer() -> Claim {
    room("shared", u32::MAX, u32::MAX).ttl(PATIENCE)
}

/// In a child: wait until somebody says that we are in, tell our number, and keep the lock until the parent says that it
/// is enough.
async fn share(path: &Path) {
    let backend = Sqlite::with(SqliteOptions::new(path)).await.unwrap();
    let mut place = backend.enter(reader());
    waits(place.turn().await.unwrap());
    place.changed().await;
    let grant = held(place.turn().await.unwrap());
    let entered = path.with_file_name(format!("{}.entered", std::process::id()));
    fs::write(entered, grant.counter.to_string()).unwrap();
    let enough = path.with_file_name("enough");
    eventually("the parent has seen all", || enough.exists()).await;
    place.leave().await.unwrap();
}

fn entered(fixture: &Fixture) -> Vec<u64> {
    let files = fs::read_dir(fixture.folder.path()).unwrap().map(|it| it.unwrap().path());
    let entered = files.filter(|it| it.extension().is_some_and(|it| it == "entered"));
    entered.filter_map(|it| fs::read_to_string(it).unwrap().parse().ok()).collect()
}

#[test]
fn sixteen_processes_that_read_enter_by_one_write_of_the_writer_who_leaves() {
    let test = "sixteen_processes_that_read_enter_by_one_write_of_the_writer_who_leaves";
    if let Some(path) = role() {
        return run(share(&path));
    }
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut first, grant) = hold(&backend, writer()).await;
        let children = children(SHARERS, test, &fixture.path());
        let waiting = "SELECT count(*) FROM lockkeeper_claim WHERE counter = 0";
        let all = i64::try_from(SHARERS).unwrap();
        eventually("all wait", || fixture.number(waiting) == all).await;
        let mut last = backend.enter(writer());
        waits(last.turn().await.unwrap());
        let commits = Commits::of(&fixture);
        first.leave().await.unwrap();
        let show = backend.show(&Key::new("shared").unwrap()).await.unwrap().unwrap();
        assert_eq!(show.holders.len(), SHARERS, "all are in before anybody hears of it");
        assert_eq!(show.waiters.len(), 1, "and the writer behind them waits");
        eventually("all have been told", || entered(&fixture).len() == SHARERS).await;
        assert_eq!(commits.count(), 1);
        let mut numbers = entered(&fixture);
        numbers.sort_unstable();
        assert!(grant.counter < numbers[0]);
        assert!(numbers.windows(2).all(|it| it[0] + 1 == it[1]), "each has its own: {numbers:?}");
        fs::write(fixture.path().with_file_name("enough"), "").unwrap();
        assert!(numbers[SHARERS - 1] < acquire(&mut last).await.counter);
        join(children);
    });
}

/// What others count, as one who waits is told.
fn theirs(turn: Turn) -> Option<u32> {
    match turn {
        Turn::Wait { theirs, .. } => theirs,
        Turn::Held(grant) => panic!("it does not fit: {grant:?}"),
    }
}

#[test]
fn whoever_waits_for_permits_is_told_that_others_count_otherwise() {
    run(async {
        let fixture = Fixture::new();
        let (here, there) = (fixture.open().await, fixture.open().await);
        let (mut careful, _) = hold(&here, room("mail", 2, 3)).await;
        let mut agrees = there.enter(room("mail", 2, 3));
        assert_eq!(theirs(agrees.turn().await.unwrap()), None);
        agrees.leave().await.unwrap();
        // Four would fit into a room of eight, and do not: others say three.
        let mut hopes = there.enter(room("mail", 4, 8));
        assert_eq!(theirs(hopes.turn().await.unwrap()), Some(3));
        careful.leave().await.unwrap();
        acquire(&mut hopes).await;
    });
}

#[test]
fn numbers_are_in_the_order_of_the_line_whoever_asks_first() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut first, _) = hold(&backend, writer()).await;
        let mut line: Vec<_> = (0..SHARERS).map(|_| backend.enter(reader())).collect();
        for place in &mut line {
            waits(place.turn().await.unwrap());
        }
        first.leave().await.unwrap();
        let mut next = u64::MAX;
        for place in line.iter_mut().rev() {
            let counter = held(place.turn().await.unwrap()).counter;
            assert!(counter < next);
            next = counter;
        }
    });
}

#[test]
fn one_who_was_let_in_and_died_keeps_a_writer_out_for_its_ttl_and_no_longer() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut first, _) = hold(&backend, writer()).await;
        let mut dead = backend.enter(reader().ttl(SECOND));
        waits(dead.turn().await.unwrap());
        let mut last = backend.enter(writer());
        waits(last.turn().await.unwrap());
        first.leave().await.unwrap();
        drop(dead);
        let expiry = fixture.number("SELECT min(expires) FROM lockkeeper_claim WHERE counter != 0");
        let ends = lockkeeper_core::Moment::from_nanos(expiry.unsigned_abs());
        let grant = acquire(&mut last).await;
        assert!(ends <= grant.sent_at.unwrap(), "nobody is thrown out");
        assert!(ends <= lockkeeper_core::Clock::boot().now());
    });
}
