//! Two processes with threads and without a runtime count in one file, and nothing is lost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use lockkeeper_servers::{Postgres, PostgresOptions};

/// Two processes of four threads that count five times.
const COUNTED: u64 = 2 * 4 * 5;

#[test]
fn two_programs_with_threads_and_without_async_lose_no_count() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let postgres = runtime.block_on(Postgres::start(PostgresOptions::default())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counter");
    std::fs::write(&file, "0").unwrap();
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plain-threads"));
        command.arg(&file).env("LOCKKEEPER_URL", postgres.url()).spawn().unwrap()
    };
    for mut program in [start(), start()] {
        assert!(program.wait().unwrap().success());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), COUNTED.to_string());
}
