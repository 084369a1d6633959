//! Warm locks and listening holders on a file: one process rings for another, and what stays costs no write.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::time::Duration;

use common::*;
use lockkeeper_testkit::warm;

/// So long that nothing is due within a test: what a holder hears, it was told.
const TTL: Duration = Duration::from_secs(3600);

#[test]
fn a_lock_that_is_taken_again_and_again_is_not_written() {
    run(async {
        let fixture = Fixture::new();
        let store = fixture.open().await;
        let watcher = rusqlite::Connection::open(fixture.path()).unwrap();
        // It changes with every commit of another connection.
        let version = || watcher.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).unwrap();
        let asked = async || version().unsigned_abs();
        warm::taken_again_without_a_word(&store, TTL, asked, |_| 0).await;
    });
}

#[test]
fn what_is_idle_in_one_process_is_had_by_another() {
    run(async {
        let fixture = Fixture::new();
        warm::recalled(&fixture.open().await, &fixture.open().await, TTL).await;
    });
}

#[test]
fn a_broken_lock_is_told_to_its_holder_in_another_process() {
    run(async {
        let fixture = Fixture::new();
        warm::a_break_is_told(&fixture.open().await, &fixture.open().await, TTL).await;
    });
}

#[test]
fn whoever_tries_gets_what_is_idle_and_waits_for_nothing_else() {
    run(async {
        let fixture = Fixture::new();
        warm::tried(&fixture.open().await, &fixture.open().await, TTL).await;
    });
}
