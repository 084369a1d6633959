//! Faults on a real MariaDB: what breaks around locks must not break locks.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "how a child process talks to its parent")]

mod child;
mod faults;

use std::time::Duration;

use faults::Site;
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Fence, Key, Locker};
use lockkeeper_sql::mysql::MysqlFences;
use lockkeeper_sql::{Mysql, MysqlOptions};
use lockkeeper_testkit::servers::{MariaDb, MariaDbOptions};
use mysql_async::{Conn, Opts, TxOpts};

struct OnMariaDb(MariaDb);

impl OnMariaDb {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let options = MariaDbOptions::default();
        let options = settings.iter().fold(options, |it, (name, value)| it.set(name, value));
        OnMariaDb(MariaDb::start(options).await.unwrap())
    }
}

impl Site for OnMariaDb {
    type Store = Mysql;

    async fn open(&self, port: u16) -> Mysql {
        OnMariaDb::open_url(&format!("mysql://lockkeeper@127.0.0.1:{port}/lockkeeper")).await
    }

    async fn open_url(url: &str) -> Mysql {
        let options = MysqlOptions::from_url(url).unwrap().answer_within(Duration::from_secs(5));
        Mysql::connect(options).await.unwrap()
    }

    fn url(&self) -> String {
        self.0.url()
    }

    fn port(&self) -> u16 {
        self.0.port()
    }

    async fn sql(&self, statements: &str) -> String {
        self.0.sql(statements).await.unwrap()
    }

    async fn kill_connections(&self) {
        self.sql("KILL HARD CONNECTION USER lockkeeper").await;
    }

    async fn restart(&self) {
        self.0.restart().await.unwrap();
    }

    fn pause(&self) {
        self.0.pause().unwrap();
    }

    fn resume(&self) {
        self.0.resume().unwrap();
    }

    const DROP_TABLES: &'static str = "DROP TABLE lockkeeper_claim, lockkeeper_lock, lockkeeper_store";

    fn mark(bytes: &[u8]) -> Vec<u8> {
        let digits = bytes.iter().flat_map(|it| [it >> 4, it & 15]);
        digits.map(|it| b"0123456789abcdef"[usize::from(it)]).collect()
    }
}

/// A write that its fence protects. `false` if it was refused.
async fn write(url: &str, fence: u64) -> bool {
    let mut conn = Conn::new(Opts::from_url(url).unwrap()).await.unwrap();
    MysqlFences.create(&mut conn).await.unwrap();
    let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
    let resource = Key::new("process").unwrap();
    let checked = MysqlFences.check(&mut tx, &resource, Fence::from_u64(fence)).await;
    tx.commit().await.unwrap();
    checked.is_ok()
}

#[tokio::test]
async fn killed_connections_lose_no_lock() {
    faults::killed_connections(&OnMariaDb::start(&[]).await).await;
}

#[tokio::test]
async fn an_idle_time_out_shorter_than_the_hold_does_not_matter() {
    faults::idle_time_out(&OnMariaDb::start(&[("wait-timeout", "1")]).await).await;
}

#[tokio::test]
async fn a_restarted_server_knows_its_holders() {
    faults::restarted_server(&OnMariaDb::start(&[]).await).await;
}

#[tokio::test]
async fn lost_requests_and_replies_are_repeated_without_harm() {
    faults::lost_messages(&OnMariaDb::start(&[]).await).await;
}

#[tokio::test]
async fn a_silent_server_is_an_outage_that_passes() {
    faults::silent_server(&OnMariaDb::start(&[]).await).await;
}

#[tokio::test]
async fn a_paused_server_is_waited_for() {
    faults::paused_server(&OnMariaDb::start(&[]).await).await;
}

#[tokio::test]
async fn dropped_tables_are_made_anew_after_the_holder_has_learnt_of_it() {
    faults::dropped_tables(&OnMariaDb::start(&[]).await).await;
}

#[tokio::test]
async fn renewals_go_on_while_the_application_blocks_its_thread() {
    faults::blocked_runtime(&OnMariaDb::start(&[]).await).await;
}

#[tokio::test]
async fn every_isolation_level_counts_right() {
    for level in ["READ-UNCOMMITTED", "SERIALIZABLE"] {
        let site = OnMariaDb::start(&[("transaction-isolation", level)]).await;
        faults::exact_count(&site, site.port()).await;
    }
}

#[tokio::test]
async fn the_operator_sees_and_breaks() {
    faults::operators_view(&OnMariaDb::start(&[]).await).await;
}

#[tokio::test]
async fn what_dead_processes_left_is_removed() {
    let site = OnMariaDb::start(&[]).await;
    let count = |table| format!("SELECT COUNT(*) FROM lockkeeper_{table}");
    let age = "UPDATE lockkeeper_lock SET counter = 1 WHERE name LIKE 'dead/%'";
    faults::cleaned(&site, &count("claim"), &count("lock"), age).await;
}

#[tokio::test]
async fn a_hundred_locks_are_renewed_by_few_statements() {
    let site = OnMariaDb::start(&[("log-output", "TABLE"), ("general-log", "1")]).await;
    let held = faults::hold_many(&site).await;
    let count =
        "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE 'UPDATE lockkeeper_claim SET expires%'";
    let renewals: usize = site.sql(count).await.trim().parse().unwrap();
    assert!((1..held / 4).contains(&renewals), "{renewals} statements for {held} locks");
}

#[tokio::test]
async fn a_full_disk_is_told_and_nothing_held_is_lost() {
    let settings =
        [("innodb-data-file-path", "ibdata1:12M:autoextend:max:40M"), ("innodb-file-per-table", "0")];
    let site = OnMariaDb::start(&settings).await;
    let store = site.open(site.port()).await;
    let locker = Locker::builder(store.clone()).outage_max(Duration::from_millis(500)).build();
    let guard = locker.lock("before").await.unwrap();
    site.sql("CREATE TABLE filler (id INT PRIMARY KEY AUTO_INCREMENT, data LONGBLOB)").await;
    while site.0.sql("INSERT INTO filler (data) VALUES (REPEAT('x', 400000))").await.is_ok() {}
    while site.0.sql("INSERT INTO filler (data) VALUES ('x')").await.is_ok() {}
    // Small rows may still find a place on a page; names as long as they come do not for long.
    let mut taken = Vec::new();
    let error = loop {
        assert!(taken.len() < 10_000, "the disk is not full");
        match locker.lock(format!("{:0512}", taken.len())).await {
            Ok(guard) => taken.push(guard),
            Err(error) => break error,
        }
    };
    assert!(error.is_transient() && error.to_string().contains("full"), "{error}");
    // Emptying the tablespace again is not tried here: the server needs more room for that than is left.
    guard.check().unwrap();
    let info = store.show(&Key::new("before").unwrap()).await.unwrap().unwrap();
    assert_eq!(info.holders[0].fence, Some(guard.fence()));
}

#[tokio::test]
async fn a_killed_holder_is_replaced() {
    let test = "a_killed_holder_is_replaced";
    match child::told() {
        Some(url) => faults::hold_and_write::<OnMariaDb>(&url, async |fence| write(&url, fence).await).await,
        None => faults::killed_holder(&OnMariaDb::start(&[]).await, test).await,
    }
}

#[tokio::test]
async fn a_frozen_holders_late_write_is_refused() {
    let test = "a_frozen_holders_late_write_is_refused";
    if let Some(url) = child::told() {
        faults::hold_and_write::<OnMariaDb>(&url, async |fence| write(&url, fence).await).await;
        return;
    }
    let site = OnMariaDb::start(&[]).await;
    let url = site.url();
    faults::frozen_holder(&site, test, async |fence| write(&url, fence).await).await;
}

#[tokio::test]
async fn clients_in_different_time_zones_agree() {
    let site = OnMariaDb::start(&[]).await;
    // Sessions take the zone that is set when they begin.
    site.sql("SET GLOBAL time_zone = '+09:00'").await;
    let east = Locker::new(site.open(site.port()).await);
    site.sql("SET GLOBAL time_zone = '-05:00'").await;
    let west = Locker::new(site.open(site.port()).await);
    for (one, other) in [(&east, &west), (&west, &east)] {
        let guard = one.lock("zones").await.unwrap();
        assert!(other.try_lock("zones").await.unwrap().is_none());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_user_without_rights_is_told_so() {
    let site = OnMariaDb::start(&[]).await;
    let users = "CREATE USER guest@'127.0.0.1'; GRANT SELECT ON lockkeeper.* TO guest@'127.0.0.1'; \
                 CREATE USER worker@'127.0.0.1'";
    site.sql(users).await;
    let as_user = |it: &str| site.url().replacen("lockkeeper@", &format!("{it}@"), 1);
    let open = async |user| Mysql::connect(MysqlOptions::from_url(&as_user(user)).unwrap()).await;
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

#[tokio::test]
async fn the_doctor_finds_settings_under_which_locks_are_forgotten() {
    let site = OnMariaDb::start(&[]).await;
    let store = site.open(site.port()).await;
    let findings = store.doctor().await.unwrap();
    assert!(findings.iter().all(|it| it.severity == Severity::Fine), "{findings:?}");
    site.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2; SET GLOBAL wait_timeout = 5").await;
    let findings = store.doctor().await.unwrap();
    let worst = findings.iter().map(|it| it.severity).max();
    assert_eq!(worst, Some(Severity::Danger), "{findings:?}");
    assert!(findings.iter().any(|it| it.what.contains("wait_timeout")), "{findings:?}");
}

#[tokio::test]
async fn a_wrong_password_is_permanent_and_not_shown() {
    let site = OnMariaDb::start(&[]).await;
    let url = site.url().replacen("lockkeeper@", "lockkeeper:wrong-word@", 1);
    let error = Mysql::connect(MysqlOptions::from_url(&url).unwrap()).await.unwrap_err();
    assert!(!error.is_transient());
    assert!(!format!("{error} {error:?}").contains("wrong-word"), "{error:?}");
}
