//! Faults on a real MariaDB: what breaks around locks must not break locks.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "how a child process talks to its parent")]

mod child;
mod faults;

use std::ops::Deref;
use std::time::Duration;

use faults::Site;
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Fence, Key, Locker};
use lockkeeper_sql::mysql::MysqlFences;
use lockkeeper_sql::{Mysql, MysqlOptions};
use lockkeeper_testkit::servers::{Daemon, KitError, MariaDb, MariaDbOptions};
use mysql_async::{Conn, Opts, TxOpts};

struct OnMariaDb(MariaDb);

impl Deref for OnMariaDb {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.0
    }
}

impl Site for OnMariaDb {
    type Store = Mysql;

    async fn start(settings: &[(&str, &str)]) -> Self {
        let options = MariaDbOptions::default();
        let options = settings.iter().fold(options, |it, (name, value)| it.set(name, value));
        OnMariaDb(MariaDb::start(options).await.unwrap())
    }

    async fn open_url(url: &str) -> Mysql {
        let options = MysqlOptions::from_url(url).unwrap().answer_within(Duration::from_secs(5));
        Mysql::connect(options).await.unwrap()
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn try_sql(&self, statements: &str) -> Result<String, KitError> {
        self.0.sql(statements).await
    }

    async fn write(url: &str, fence: u64) -> bool {
        let mut conn = Conn::new(Opts::from_url(url).unwrap()).await.unwrap();
        MysqlFences.create(&mut conn).await.unwrap();
        let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
        let resource = Key::new("process").unwrap();
        let checked = MysqlFences.check(&mut tx, &resource, Fence::from_u64(fence)).await;
        tx.commit().await.unwrap();
        checked.is_ok()
    }

    /// A free lock is taken by a prepared statement, whose parameters are bytes; the procedures hear digits.
    fn marks(hash: &[u8]) -> [Vec<u8>; 2] {
        let digits = hash.iter().flat_map(|it| [it >> 4, it & 15]);
        [hash.to_vec(), digits.map(|it| b"0123456789abcdef"[usize::from(it)]).collect()]
    }

    const IDLE_TIME_OUT: (&'static str, &'static str) = ("wait-timeout", "1");
    const ISOLATION: (&'static str, [&'static str; 2]) =
        ("transaction-isolation", ["READ-UNCOMMITTED", "SERIALIZABLE"]);
    const DROP_TABLES: &'static str = "DROP TABLE lockkeeper_claim, lockkeeper_lock, lockkeeper_store";
    const SCHEMA: &'static str = "";
    const KILL_CONNECTIONS: &'static str = "KILL HARD CONNECTION USER lockkeeper";
}

faults::cases!(OnMariaDb);

#[tokio::test]
async fn a_hundred_locks_are_renewed_by_few_statements() {
    let site = OnMariaDb::start(&[("log-output", "TABLE"), ("general-log", "1")]).await;
    let held = faults::hold_many(&site).await;
    let count =
        "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE 'UPDATE lockkeeper_lock SET expires%'";
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
    assert!(error.is_transient() && error.to_string().contains("full"), "{error}");
    // Emptying the tablespace again is not tried here: the server needs more room for that than is left.
    guard.check().unwrap();
    let info = store.show(&Key::new("before").unwrap()).await.unwrap().unwrap();
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

#[tokio::test]
async fn tables_of_an_earlier_version_are_upgraded_and_their_locks_stay_held() {
    let site = OnMariaDb::start(&[]).await;
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

#[tokio::test]
async fn without_room_for_prepared_statements_the_procedures_do_all() {
    let site = OnMariaDb::start(&[("max-prepared-stmt-count", "0")]).await;
    faults::exact_count(&site, site.port()).await;
}

#[tokio::test]
async fn clients_in_different_time_zones_agree() {
    let site = OnMariaDb::start(&[]).await;
    // Sessions take the zone that is set when they begin.
    site.sql("SET GLOBAL time_zone = '+09:00'").await;
    let east = site.open(site.port()).await;
    site.sql("SET GLOBAL time_zone = '-05:00'").await;
    let west = site.open(site.port()).await;
    faults::agree(east, west).await;
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
