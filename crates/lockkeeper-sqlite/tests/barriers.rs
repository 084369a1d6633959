//! Barriers on a file: processes meet, some are killed, and what all heard of a round is the same.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use common::*;
use lockkeeper_core::Locker;
use lockkeeper_sqlite::{Sqlite, SqliteOptions};
use lockkeeper_testkit::barriers::{Storm, wait_for_ever};

const PARTY: &str = "LOCKKEEPER_TEST_PARTY";

#[test]
fn a_thousand_rounds_with_kills_have_one_verdict_each() {
    const STORM: Storm = Storm { parties: 4, barriers: 16, rounds: 1000, kills: 5 };
    if let Some(path) = role() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(async {
            let locker = Locker::new(Sqlite::with(SqliteOptions::new(&path)).await.unwrap());
            wait_for_ever(locker, &std::env::var(PARTY).unwrap(), STORM.barriers, SECOND).await;
        });
    }
    let fixture = Fixture::new();
    let test = "a_thousand_rounds_with_kills_have_one_verdict_each";
    let child = |party: &str| {
        let mut command = child_command(test, &fixture.path());
        command.env(PARTY, party).stderr(std::process::Stdio::inherit());
        command
    };
    let seen = STORM.run(child).unwrap();
    assert!(0 < seen.opened && 0 < seen.died, "{seen:?}");
}
