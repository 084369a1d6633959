//! Two-phase commits are counted by what their callers were answered, on real servers.

#![cfg(all(feature = "twophase", feature = "sqlite"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::Meters;
use lockkeeper::twophase::tokio_postgres::Client;
use lockkeeper::twophase::{Office, Participant, Point, TwoPhase, WorkError};
use lockkeeper_servers::{Postgres, PostgresOptions};

/// Two databases of one server, and an office that is counted.
async fn office(server: &Postgres, folder: &tempfile::TempDir, meters: &Meters) -> Office {
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    for database in ["here", "there"] {
        server.sql(&format!("CREATE DATABASE {database}")).await.unwrap();
    }
    let url = |database: &str| format!("postgres://postgres@{}/{database}", server.address());
    let locker = lockkeeper::connect(&file("locks.db")).await.unwrap();
    let (count, asked) = (meters.two_phase(), AtomicBool::new(false));
    let setup = TwoPhase::open(&file("2pc.db"), &locker).await.unwrap();
    setup
        .participant("here", Participant::postgres(&url("here")).unwrap())
        .participant("there", Participant::postgres(&url("there")).unwrap())
        .observer(move |step| {
            count(step);
            // Whoever listens and fails hurts nobody, and least of all whoever was answered.
            let first = step.point == Point::Answered && !asked.swap(true, Ordering::SeqCst);
            assert!(!first, "this listener fails once");
        })
        .start()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_of_commit_is_counted_once_by_its_answer() {
    let options = PostgresOptions::default().set("max_prepared_transactions", "10");
    let (server, folder, meters) =
        (Postgres::start(options).await.unwrap(), tempfile::tempdir().unwrap(), Meters::new());
    let office = office(&server, &folder, &meters).await;
    let sql = "CREATE TABLE IF NOT EXISTS it (id int)";
    let create = async |db: &Client| Ok(db.batch_execute(sql).await?);
    office.transaction().on("here", create).on("there", create).commit().await.unwrap();

    let refuse = async |_: &Client| Err(WorkError::new("no"));
    office.transaction().on("here", create).on("there", refuse).commit().await.unwrap_err();
    office.transaction().commit().await.unwrap_err();

    // Nobody waits for this one to its end.
    let stands = async |_: &Client| std::future::pending().await;
    let gone = office.transaction().on("here", create).on("there", stands).commit();
    tokio::time::timeout(Duration::from_millis(50), gone).await.unwrap_err();

    let now = meters.snapshot();
    let answered = |outcome| now.sum("lockkeeper.twophase.duration", &[("outcome", outcome)]);
    assert_eq!(["committed", "aborted", "failed", "withdrawn"].map(answered), [1, 1, 1, 1]);
    assert_eq!(now.sum("lockkeeper.twophase.duration", &[]), 4, "and nothing else");
    let text = meters.openmetrics();
    assert!(text.contains("lockkeeper_twophase_duration_seconds_count{outcome=\"committed\"} 1\n"), "{text}");
    assert!(!text.contains("in_doubt"), "nobody has looked: {text}");
    office.close().await.unwrap();
}
