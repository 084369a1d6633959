//! Several hosts in one URL: two that take writes are never both believed, and an old primary is left for the one that was
//! promoted.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::time::Duration;

use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Clock, Error, Locker};
use lockkeeper_servers::proxy::BlackHole;
use lockkeeper_servers::{Postgres as Server, PostgresOptions};
use lockkeeper_sql::{Postgres, PostgresSessions};

/// A patience that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(3);
const NAP: Duration = Duration::from_millis(50);

async fn start() -> Server {
    let server = Server::start(PostgresOptions::default()).await.unwrap();
    // An ordinary user may ask what is compared.
    server.sql("CREATE ROLE worker LOGIN; GRANT CREATE ON DATABASE postgres TO worker").await.unwrap();
    server
}

fn url_of(one: &Server, other: &Server, settings: &str) -> String {
    let (one, other) = (one.port(), other.port());
    format!("postgres://worker@127.0.0.1:{one},127.0.0.1:{other}/postgres?timeout=4s&{settings}")
}

async fn open(url: &str) -> Locker {
    Locker::builder(Postgres::connect(url).await.unwrap()).ttl(TTL).wait_at_most(PATIENCE).build()
}

async fn open_sessions(url: &str) -> Locker {
    Locker::builder(PostgresSessions::connect(url).await.unwrap()).ttl(TTL).wait_at_most(PATIENCE).build()
}

/// Try until it is so.
async fn until<T>(mut it: impl AsyncFnMut() -> Option<T>) -> T {
    let clock = Clock::boot();
    let give_up = clock.now().after(PATIENCE);
    loop {
        if let Some(found) = it().await {
            return found;
        }
        assert!(clock.now() < give_up, "it never is");
        clock.sleep(NAP).await;
    }
}

async fn knows(server: &Server, name: &str) -> bool {
    let count = format!("SELECT count(*) FROM lockkeeper.lockkeeper_lock WHERE name = '{name}'");
    server.sql(&count).await.unwrap() != "0"
}

fn says(error: &Error, words: &str, server: &Server) {
    let (text, host) = (error.to_string(), format!("127.0.0.1:{}", server.port()));
    assert!(text.contains(words) && text.contains(&host), "{text}");
}

#[tokio::test]
async fn whoever_comes_new_believes_neither_of_two_stores() {
    let (one, other) = (start().await, start().await);
    let error = Postgres::connect(&url_of(&one, &other, "")).await.unwrap_err();
    says(&error, "both take writes", &one);
    says(&error, "both take writes", &other);
    let error = PostgresSessions::connect(&url_of(&one, &other, "mode=session")).await.unwrap_err();
    says(&error, "both take writes", &other);
}

async fn keeps_to_its_store(opened: impl AsyncFn(&str) -> Locker, settings: &str) {
    let (ours, stranger) = (start().await, start().await);
    stranger.stop().await.unwrap();
    let locker = opened(&url_of(&stranger, &ours, settings)).await;
    let guard = locker.lock("kept").await.unwrap();
    stranger.start().await.unwrap();
    ours.stop().await.unwrap();
    guard.lost().await;
    // What is asked for now is refused in words, and not given by the other.
    let told = until(async || match locker.lock("other").await {
        Ok(_) => panic!("another store was believed"),
        Err(error) => error.to_string().contains("is another store than").then_some(error),
    });
    says(&told.await, "is another store than", &stranger);
    ours.start().await.unwrap();
    until(async || locker.lock("kept").await.ok()).await.release().await.unwrap();
}

#[tokio::test]
async fn a_process_keeps_to_the_store_that_it_knows() {
    keeps_to_its_store(open, "").await;
}

#[tokio::test]
async fn session_locks_keep_to_the_store_that_they_know() {
    keeps_to_its_store(open_sessions, "mode=session").await;
}

#[tokio::test]
async fn an_old_primary_is_left_for_the_one_that_was_promoted() {
    let old = start().await;
    let running = open(&url_of(&old, &old, "")).await;
    running.lock("before").await.unwrap().release().await.unwrap();
    let new = old.standby().await.unwrap();
    let url = url_of(&old, &new, "clean_every=1s");
    let running = open(&url).await;
    let guard = running.lock("kept").await.unwrap();
    new.promote().await.unwrap();
    // Both take writes now. Whoever comes asks the old one first, and goes to the new one.
    let store = Postgres::connect(&url).await.unwrap();
    let findings = store.doctor().await.unwrap();
    let two = findings.iter().find(|it| it.what.contains("both take writes")).expect("the doctor sees two");
    assert_eq!(two.severity, Severity::Danger);
    let newcomer = Locker::builder(store).ttl(TTL).wait_at_most(PATIENCE).build();
    newcomer.lock("new").await.unwrap().release().await.unwrap();
    assert!(knows(&new, "new").await && !knows(&old, "new").await);
    // Whoever was connected to the old one notices, and does not hold there for ever.
    let mut number = 0;
    until(async || {
        number += 1;
        let name = format!("probe/{number}");
        running.lock(&name).await.ok()?.release().await.ok()?;
        knows(&new, &name).await.then_some(())
    })
    .await;
    drop(guard);
    new.stop().await.unwrap();
    let told = until(async || match running.lock("late").await {
        Ok(_) => panic!("an old primary was believed"),
        Err(error) => error.to_string().contains("is an old primary").then_some(error),
    });
    says(&told.await, "is an old primary", &old);
}

#[tokio::test]
async fn a_first_host_that_is_dead_or_a_black_hole_keeps_no_newcomer_out() {
    let (server, dead) = (start().await, start().await);
    dead.stop().await.unwrap();
    let (silent, unreachable) = (BlackHole::silent().unwrap(), BlackHole::unreachable().await.unwrap());
    for first in [dead.port(), silent.port(), unreachable.port()] {
        let second = server.port();
        // Whoever waited for the first until it gives up would have no time left.
        let url = format!(
            "postgres://worker@127.0.0.1:{first},127.0.0.1:{second}/postgres?timeout=20s&connect_timeout=20s"
        );
        open(&url).await.lock("job").await.unwrap().release().await.unwrap();
    }
}
