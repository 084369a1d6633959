//! Faults on a real MariaDB and on a real MySQL: what breaks around locks must not break locks.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "how a child process talks to its parent")]

mod child;
mod faults;
mod mysql_site;

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use faults::{Site, within};
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Clock, Key, Locker};
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_sql::Mysql;
use mysql_site::{OnMariaDb, OnMysql, Ours, url_of};
use tokio::runtime::{Builder, Handle};
use tokio::task::yield_now;

/// The cases that are told in the same words on both servers.
macro_rules! cases {
    ($($name:ident;)*) => {
        mod mariadb {
            use super::*;

            faults::cases!(OnMariaDb);
            $(#[tokio::test]
            async fn $name() {
                super::$name::<OnMariaDb>().await;
            })*
        }

        mod mysql {
            use super::*;

            faults::cases!(OnMysql);
            $(#[tokio::test]
            async fn $name() {
                super::$name::<OnMysql>().await;
            })*
        }
    };
}

cases! {
    a_hundred_locks_are_renewed_by_few_statements;
    a_full_disk_is_told_and_nothing_held_is_lost;
    tables_of_an_earlier_version_are_upgraded_and_their_locks_stay_held;
    without_room_for_prepared_statements_the_procedures_do_all;
    clients_in_different_time_zones_agree;
    a_user_without_rights_is_told_so;
    the_doctor_finds_settings_under_which_locks_are_forgotten;
    a_wrong_password_is_permanent_and_not_shown;
    what_was_withdrawn_while_a_runtime_opened_its_connection_is_not_sent;
}

async fn a_hundred_locks_are_renewed_by_few_statements<S: Ours>() {
    let site = S::start(&[("log-output", "TABLE"), ("general-log", "1")]).await;
    let held = faults::hold_many(&site).await;
    let count = "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE 'UPDATE lockkeeper_lock FORCE INDEX (PRIMARY) SET expires%'";
    let renewals: usize = site.sql(count).await.trim().parse().unwrap();
    assert!((1..held / 4).contains(&renewals), "{renewals} statements for {held} locks");
}

async fn a_full_disk_is_told_and_nothing_held_is_lost<S: Ours>() {
    let site = S::small().await;
    let store = site.open(site.port()).await;
    // A server that has to be started again takes its time.
    let ttl = Duration::from_secs(600);
    let locker = Locker::builder(store.clone()).ttl(ttl).outage_max(Duration::from_millis(500)).build();
    let guard = locker.lock("before").await.unwrap();
    site.sql("CREATE TABLE filler (id INT PRIMARY KEY AUTO_INCREMENT, data LONGBLOB)").await;
    while site.try_sql("INSERT INTO filler (data) VALUES (REPEAT('x', 400000))").await.is_ok() {}
    while site.try_sql("INSERT INTO filler (data) VALUES ('x')").await.is_ok() {}
    // Small rows may still find a place on a page; names as long as they come do not for long.
    let mut taken = Vec::new();
    let error = loop {
        assert!(taken.len() < 10_000, "the disk is not full");
        match locker.lock(format!("{:0512}", taken.len())).await {
            Ok(guard) => taken.push(guard),
            Err(error) => break error,
        }
    };
    assert!(error.is_transient(), "{error}");
    // Emptying the tablespace again is not tried here: the server needs more room for that than is left.
    if !error.to_string().contains("full") {
        // What docs/backends/mysql.md says of MariaDB 11.8: it ends itself, and has everything when it is back.
        within(async {
            while !site.has_ended() {
                Clock::boot().sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        site.start_with_room().await;
    }
    guard.check().unwrap();
    let shown = within(async {
        loop {
            // The first may fail for the connection of before.
            if let Ok(info) = store.show(&Key::new("before").unwrap()).await {
                break info;
            }
        }
    });
    let info = shown.await.unwrap();
    assert_eq!(info.holders[0].fence, Some(guard.fence()));
}

/// The tables of version 1, with one lock held for long.
const VERSION_1: &str = "
    CREATE TABLE lockkeeper_lock (`lock` BINARY(32) NOT NULL PRIMARY KEY,
        name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, counter BIGINT NOT NULL);
    CREATE TABLE lockkeeper_claim (`lock` BINARY(32) NOT NULL, slot BIGINT NOT NULL, seq BIGINT NOT NULL,
        id BINARY(16) NOT NULL, held BOOLEAN NOT NULL, counter BIGINT NOT NULL, expires BIGINT NOT NULL,
        since BIGINT NOT NULL, ttl BIGINT NOT NULL, weight BIGINT NOT NULL, capacity BIGINT NOT NULL,
        host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, pid BIGINT NOT NULL,
        owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
        note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, PRIMARY KEY (`lock`, slot));
    CREATE TABLE lockkeeper_store (one INT NOT NULL PRIMARY KEY, version INT NOT NULL, cleaned BIGINT NOT NULL);
    INSERT INTO lockkeeper_store VALUES (1, 1, 0);
    CREATE PROCEDURE lockkeeper_turn_1() SELECT 1;
    INSERT INTO lockkeeper_lock VALUES (UNHEX(SHA2('old', 256)), 'old', 9999999999999);
    INSERT INTO lockkeeper_claim VALUES (UNHEX(SHA2('old', 256)), 0, 7, 'sixteen bytes id', TRUE, 9999999999999,
        9000000000000000000, 0, 1, 1, 1, 'host', 1, NULL, NULL)";

async fn tables_of_an_earlier_version_are_upgraded_and_their_locks_stay_held<S: Ours>() {
    let site = S::start(&[]).await;
    site.sql(VERSION_1).await;
    let (one, other) = tokio::join!(site.open(site.port()), site.open(site.port()));
    let locker = Locker::new(other);
    assert!(locker.try_lock("old").await.unwrap().is_none(), "the holder was forgotten");
    let broken = one.break_lock(&Key::new("old").unwrap()).await.unwrap();
    let fence = locker.lock("old").await.unwrap().fence();
    assert!(broken[0].fence < Some(fence), "{broken:?} {fence}");
    locker.lock("new").await.unwrap().release().await.unwrap();
    // A program of version 1 finds no procedure, and cannot make its own again.
    assert!(site.try_sql("CALL lockkeeper_turn_1()").await.is_err());
    assert!(site.try_sql("INSERT IGNORE INTO lockkeeper_store VALUES (1, 1, 0)").await.is_err());
    // Running the DDL by hand changes nothing.
    site.sql(&lockkeeper_sql::mysql::ddl()).await;
    locker.lock("new").await.unwrap().release().await.unwrap();
}

async fn without_room_for_prepared_statements_the_procedures_do_all<S: Ours>() {
    let site = S::start(&[("max-prepared-stmt-count", "0")]).await;
    faults::exact_count(&site, site.port()).await;
}

async fn clients_in_different_time_zones_agree<S: Ours>() {
    let site = S::start(&[]).await;
    // Sessions take the zone that is set when they begin.
    site.sql("SET GLOBAL time_zone = '+09:00'").await;
    let east = site.open(site.port()).await;
    site.sql("SET GLOBAL time_zone = '-05:00'").await;
    let west = site.open(site.port()).await;
    faults::agree(east, west).await;
}

async fn a_user_without_rights_is_told_so<S: Ours>() {
    let site = S::start(&[]).await;
    let users = "CREATE USER guest@'127.0.0.1'; GRANT SELECT ON lockkeeper.* TO guest@'127.0.0.1'; \
                 CREATE USER worker@'127.0.0.1'";
    site.sql(users).await;
    let open = async |user| Mysql::connect(&url_of(&site, user)).await;
    let error = open("guest").await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("docs/backends/mysql.md"), "{error}");
    // With the DDL run by somebody else, the rights in the documentation are enough.
    site.sql(&lockkeeper_sql::mysql::ddl()).await;
    site.sql("GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON lockkeeper.* TO worker@'127.0.0.1'").await;
    let locker = Locker::new(open("worker").await.unwrap());
    locker.lock("granted").await.unwrap().release().await.unwrap();
    let guest = open("guest").await.map(Locker::new);
    let error = match guest {
        Ok(guest) => guest.lock("granted").await.unwrap_err(),
        Err(error) => error,
    };
    assert!(!error.is_transient() && error.to_string().contains("docs/backends/mysql.md"), "{error}");
}

async fn the_doctor_finds_settings_under_which_locks_are_forgotten<S: Ours>() {
    let site = S::start(&[]).await;
    let store = site.open(site.port()).await;
    let findings = store.doctor().await.unwrap();
    assert!(findings.iter().all(|it| it.severity == Severity::Fine), "{findings:?}");
    site.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2; SET GLOBAL wait_timeout = 5").await;
    let findings = store.doctor().await.unwrap();
    let worst = findings.iter().map(|it| it.severity).max();
    assert_eq!(worst, Some(Severity::Danger), "{findings:?}");
    assert!(findings.iter().any(|it| it.what.contains("wait_timeout")), "{findings:?}");
}

async fn a_wrong_password_is_permanent_and_not_shown<S: Ours>() {
    let site = S::start(&[]).await;
    let url = site.url().replacen("lockkeeper@", "lockkeeper:wrong-word@", 1);
    let error = Mysql::connect(&url).await.unwrap_err();
    assert!(!error.is_transient());
    assert!(!format!("{error} {error:?}").contains("wrong-word"), "{error:?}");
}

/// While a connection is opened no session is known that could be noted as one in doubt.
async fn what_was_withdrawn_while_a_runtime_opened_its_connection_is_not_sent<S: Ours>() {
    let site = S::start(&[]).await;
    let proxy = Proxy::start(site.port()).await.unwrap();
    let one = Locker::builder(site.open(proxy.port()).await).ttl(Duration::from_secs(60)).build();
    let here = Handle::current();
    let blocking = tokio::task::spawn_blocking(move || {
        // The ways by which it goes when one stands still are open before.
        drop(one.lock("before").blocking().unwrap());
        proxy.keep_request(b"information_schema.processlist");
        let still = Builder::new_current_thread().enable_all().build().unwrap();
        let mut asking = Box::pin(one.lock("late"));
        still.block_on(poll_fn(|cx| {
            assert!(asking.as_mut().poll(cx).is_pending());
            cx.waker().wake_by_ref();
            if proxy.counters().kept == 0 { Poll::Pending } else { Poll::Ready(()) }
        }));
        // Whoever asked goes away, and nobody drives that runtime: it is taken by another way, and given back.
        drop(asking);
        here.block_on(one.shutdown(Duration::from_secs(30))).unwrap();
        drop(one);
        let before = proxy.counters().to_client;
        proxy.let_go();
        here.block_on(async {
            while proxy.counters().to_client == before {
                yield_now().await;
            }
        });
        // The runtime goes on, until that connection is closed, too.
        still.block_on(async {
            while proxy.counters().open != 0 {
                yield_now().await;
            }
        });
    });
    within(blocking).await.unwrap();
    let other = Locker::new(site.open(site.port()).await);
    assert!(other.try_lock("late").await.unwrap().is_some(), "it was taken after it was given back");
}
