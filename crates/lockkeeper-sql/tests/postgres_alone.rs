//! A caller of a session lock that is alone speaks to PostgreSQL by itself. In a process of its own: its threads are watched.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs;
use std::time::Duration;

use lockkeeper_core::Locker;
use lockkeeper_servers::{Postgres, PostgresOptions};
use lockkeeper_sql::PostgresSessions;

const CYCLES: u64 = 500;

/// How often our own threads have gone to sleep so far.
fn rests() -> u64 {
    let is_ours = |folder: &std::path::Path| {
        fs::read_to_string(folder.join("comm")).is_ok_and(|it| it.starts_with("lockkeeper"))
    };
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|it| it.unwrap().path());
    let told = tasks.filter(|it| is_ours(it)).map(|it| fs::read_to_string(it.join("status")).unwrap());
    let rests = |status: String| {
        let line = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    told.map(rests).sum()
}

async fn cycles(locker: &Locker, count: u64) {
    for _ in 0..count {
        locker.lock("orders/42").await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn whoever_is_alone_wakes_no_thread_of_ours() {
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let store = PostgresSessions::connect(&format!("{}?mode=session", server.url())).await.unwrap();
    let locker = Locker::builder(store).ttl(Duration::from_secs(1000)).build();
    // After a few it has the socket.
    cycles(&locker, 10).await;
    let before = rests();
    assert_ne!(before, 0, "there is such a thread");
    cycles(&locker, CYCLES).await;
    let rests = rests() - before;
    // It looks ten times a second whether it is needed. Each answer would wake it once, two for each lock.
    assert!(rests < CYCLES, "our thread was awake {rests} times in {CYCLES} locks and releases");
}
