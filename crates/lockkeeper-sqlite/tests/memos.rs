//! Memos in the file: they outlive their writer and the machine's next start, and go when their time is over.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::path::Path;
use std::time::Duration;

use lockkeeper_core::memos::{Memos as _, Swap};
use lockkeeper_core::{Error, Key, Locker, Once};
use lockkeeper_sqlite::{Sqlite, SqliteOptions};

const HOUR: Duration = Duration::from_secs(3600);

async fn open(file: &Path) -> Sqlite {
    Sqlite::with(SqliteOptions::new(file)).await.unwrap()
}

async fn write(store: &Sqlite, name: &str, keep: Duration) {
    let written = store.swap(&Key::new(name).unwrap(), None, name.as_bytes(), keep).await.unwrap();
    assert!(matches!(written, Swap::Done(_)), "{written:?}");
}

async fn read(store: &Sqlite, name: &str) -> Option<Vec<u8>> {
    store.read(&Key::new(name).unwrap()).await.unwrap().map(|it| it.value)
}

fn execute(file: &Path, sql: &str) {
    rusqlite::Connection::open(file).unwrap().execute_batch(sql).unwrap();
}

#[tokio::test]
async fn a_memo_outlives_its_writer_and_a_restart_of_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let store = open(&file).await;
    for name in ["long", "over"] {
        write(&store, name, HOUR).await;
    }
    drop(store);
    assert_eq!(read(&open(&file).await, "long").await.as_deref(), Some(b"long".as_slice()));
    // What another boot has left: its clock says nothing any more, so the time of day decides.
    execute(
        &file,
        "UPDATE lockkeeper_store SET boot = 'earlier'; UPDATE lockkeeper_memo SET boot = 'earlier', expires = 1; \
         UPDATE lockkeeper_memo SET wall = 1 WHERE key = 'over'",
    );
    let store = open(&file).await;
    assert_eq!(read(&store, "long").await.as_deref(), Some(b"long".as_slice()));
    assert_eq!(read(&store, "over").await, None);
}

#[tokio::test]
async fn setting_the_time_of_day_ends_no_memo() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let store = open(&file).await;
    write(&store, "kept", HOUR).await;
    execute(&file, "UPDATE lockkeeper_memo SET wall = 1");
    // The next write cleans, and must not take it for one whose time is over.
    write(&store, "other", HOUR).await;
    assert_eq!(read(&store, "kept").await.as_deref(), Some(b"kept".as_slice()));
}

#[tokio::test]
async fn those_whose_time_is_over_do_not_stay_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let store = open(&file).await;
    for at in 0..100 {
        write(&store, &format!("tick/{at}"), HOUR).await;
    }
    execute(&file, "UPDATE lockkeeper_memo SET wall = 1, expires = 1");
    for at in 0..4 {
        write(&store, &format!("new/{at}"), HOUR).await;
    }
    let left = rusqlite::Connection::open(&file).unwrap();
    let left: i64 = left.query_row("SELECT count(*) FROM lockkeeper_memo", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 4);
}

#[tokio::test]
async fn a_file_without_memos_has_no_table_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let locker = Locker::new(open(&file).await);
    locker.lock("orders/42").await.unwrap().release().await.unwrap();
    assert_eq!(locker.leader("orders/42").await.unwrap(), None);
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'lockkeeper_memo'";
    let tables: i64 =
        rusqlite::Connection::open(&file).unwrap().query_row(tables, [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 0);
}

#[tokio::test]
async fn a_job_runs_once_over_all_lockers_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut ran = 0;
    for _ in 0..3 {
        let locker = Locker::new(open(&file).await);
        let once = locker.once("nightly", "2026-11-15").run(async |_| Ok::<_, Error>(())).await.unwrap();
        ran += u32::from(once == Once::Ran(()));
    }
    assert_eq!(ran, 1);
}
