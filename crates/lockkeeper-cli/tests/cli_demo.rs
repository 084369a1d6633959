//! The flash sale, in small: real processes, real books.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Store, code, failed, lockkeeper, output, text};

#[test]
fn every_strategy_that_promises_it_sells_exactly_what_there_is() {
    let store = Store::new();
    let plot = store.path("plot.svg");
    let args =
        ["demo", "flash-sale", "--json", "--instances", "3", "--buyers", "100", "--stock", "20", "--plot"];
    let end = output(lockkeeper(args).arg(&plot).env("TMPDIR", store.folder.path()));
    assert_eq!(code(&end), 0, "{end:?}");
    let reports: Vec<serde_json::Value> = serde_json::from_slice(&end.stdout).unwrap();
    assert_eq!(reports.len(), 7);
    for report in &reports[1..] {
        assert_eq!((report["sold"].as_u64(), report["oversold"].as_u64()), (Some(20), Some(0)), "{report}");
        assert_eq!(report["unbooked"].as_u64(), Some(0), "{report}");
    }
    assert!(reports[0]["sold"].as_u64() >= Some(20), "nobody is kept out: {}", reports[0]);
    let drawn = std::fs::read_to_string(plot).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.matches("<rect").count() == 8, "{drawn}");
    let left: Vec<_> =
        std::fs::read_dir(store.folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["plot.svg"], "nothing stays behind");
}

#[test]
fn one_strategy_can_be_chosen_and_more_stock_than_buyers_is_no_error() {
    let store = Store::new();
    let plot = store.path("plot.svg");
    let args = ["demo", "flash-sale", "--strategy", "lockkeeper", "--buyers", "7", "--stock", "9", "--plot"];
    let end = output(lockkeeper(args).arg(&plot).env("TMPDIR", store.folder.path()));
    assert_eq!(code(&end), 0, "{end:?}");
    let table = text(&end.stdout);
    assert!(table.lines().count() == 2 && table.contains("lockkeeper  7 "), "{table}");
    failed(&output(&mut lockkeeper(["demo", "flash-sale", "--buyers", "0"])), 64);
    failed(&output(&mut lockkeeper(["demo", "flash-sale", "--strategy", "hope"])), 64);
}

#[tokio::test]
async fn the_locks_can_be_on_a_redis_server() {
    use lockkeeper_testkit::servers::{Redis, RedisOptions};
    let server = Redis::start(RedisOptions::default().password("hunter2")).await.unwrap();
    let store = Store::new();
    let plot = store.path("plot.svg");
    let sale = ["demo", "flash-sale", "--json", "--buyers", "60", "--stock", "20", "--plot"];
    let strategies = ["--strategy", "plain-lock", "--strategy", "two-tier", "--strategy", "lockkeeper"];
    let mut command = lockkeeper(sale);
    command
        .arg(&plot)
        .args(strategies)
        .env("LOCKKEEPER_URL", server.url())
        .env("TMPDIR", store.folder.path());
    let end = tokio::task::spawn_blocking(move || output(&mut command)).await.unwrap();
    assert_eq!(code(&end), 0, "{end:?}");
    assert!(text(&end.stderr).contains("the locks are on redis://***@"), "{end:?}");
    assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
    let reports: Vec<serde_json::Value> = serde_json::from_slice(&end.stdout).unwrap();
    assert!(reports.len() == 3 && reports.iter().all(|it| it["sold"].as_u64() == Some(20)), "{reports:?}");
}
