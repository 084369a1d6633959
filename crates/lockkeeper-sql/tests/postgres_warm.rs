//! Warm locks and listening holders on a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::time::Duration;

use lockkeeper_core::backend::Backend as _;
use lockkeeper_core::{Locker, LostReason};
use lockkeeper_servers as servers;
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_sql::Postgres;
use lockkeeper_testkit::warm;

/// So long that nothing is due within a test: what a holder hears, it was told.
const TTL: Duration = Duration::from_secs(3600);
/// Only a hang takes longer.
const HANG: Duration = Duration::from_secs(60);

async fn start() -> servers::Postgres {
    servers::Postgres::start(servers::PostgresOptions::default()).await.unwrap()
}

async fn process(server: &servers::Postgres) -> Postgres {
    Postgres::connect(&server.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_idle_in_one_process_is_had_by_another() {
    let server = start().await;
    warm::recalled(&process(&server).await, &process(&server).await, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_tries_gets_what_is_idle_and_waits_for_nothing_else() {
    let server = start().await;
    warm::tried(&process(&server).await, &process(&server).await, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_lock_is_told_to_its_holder_in_another_process() {
    let server = start().await;
    warm::a_break_is_told(&process(&server).await, &process(&server).await, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_taken_again_and_again_is_not_written() {
    let server = start().await;
    // One changes with every turn and leave, the other with every renewal.
    let sums = "SELECT (SELECT coalesce(sum(counter), 0) FROM lockkeeper.lockkeeper_lock) \
                + (SELECT coalesce(sum(expires), 0) FROM lockkeeper.lockkeeper_claim)";
    let written = async || server.sql(sums).await.unwrap().trim().parse().unwrap();
    warm::taken_again_without_a_word(&process(&server).await, TTL, written, |_| 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_deleted_by_hand_is_told_to_its_holder() {
    let server = start().await;
    let locker = Locker::builder(process(&server).await).ttl(TTL).build();
    let guard = locker.lock("deleted").await.unwrap();
    // It listens when its row says where it can be called.
    let hears = "SELECT count(wake) FROM lockkeeper.lockkeeper_claim";
    while server.sql(hears).await.unwrap().trim() != "1" {
        tokio::task::yield_now().await;
    }
    let lost = tokio::spawn(guard.lost());
    server.sql("DELETE FROM lockkeeper.lockkeeper_claim").await.unwrap();
    assert_eq!(tokio::time::timeout(HANG, lost).await.unwrap().unwrap(), LostReason::Taken);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_holds_for_a_moment_does_not_listen_and_who_may_not_keeps_nothing() {
    let server = start().await;
    let hears = "SELECT count(wake) FROM lockkeeper.lockkeeper_claim";
    let locker = Locker::builder(process(&server).await).ttl(TTL).build();
    let guard = locker.lock("short").await.unwrap();
    assert_eq!(server.sql(hears).await.unwrap().trim(), "0", "it may be given back the next moment");
    guard.release().await.unwrap();
    let separator = if server.url().contains('?') { '&' } else { '?' };
    let deaf = Postgres::connect(&format!("{}{separator}listen=no", server.url())).await.unwrap();
    assert!(!deaf.profile().notifies);
    let locker = Locker::builder(deaf).ttl(TTL).warm(true).build();
    locker.lock("cold").await.unwrap().release().await.unwrap();
    assert_eq!(locker.lines(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_no_recall_and_nobody_is_idle_without_one() {
    let server = start().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let url = server.url().replace(&format!(":{}", server.port()), &format!(":{}", proxy.port()));
    let far = Postgres::connect(&url).await.unwrap();
    let (cut, mend) = (
        async || {
            proxy.refuse().await.unwrap();
            proxy.cut();
        },
        async || proxy.accept().await.unwrap(),
    );
    warm::idle_goes_when_the_connection_breaks(&far, &process(&server).await, TTL, cut, mend).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recall_is_answered_while_the_application_stands_still_and_many_of_its_callers_wait() {
    let server = start().await;
    let url = server.url();
    let connect = async move || Postgres::connect(&url).await.unwrap();
    warm::recalled_while_its_application_stands_still(connect, &process(&server).await, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_readers_of_two_processes_go_for_a_writer() {
    let server = start().await;
    warm::idle_readers_go_for_a_writer(&process(&server).await, &process(&server).await, TTL).await;
}
