//! Faults on a real PostgreSQL: what breaks around locks must not break locks.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "how a child process talks to its parent")]

mod child;
mod faults;
mod postgres_site;

use std::time::Duration;

use faults::Site;
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Clock, Key, Locker};
use lockkeeper_servers::{self as servers, Daemon, PgBouncer, PgBouncerOptions};
use lockkeeper_sql::Postgres;
use postgres_site::OnPostgres;

faults::cases!(OnPostgres);

#[tokio::test]
async fn a_hundred_locks_are_renewed_by_few_statements() {
    let site = OnPostgres::start(&[("log_statement", "all")]).await;
    let held = faults::hold_many(&site).await;
    let log = site.0.log_tail(1_000_000);
    let renewals =
        log.lines().filter(|it| it.contains("execute") && it.contains("lockkeeper_renew_3")).count();
    assert!((1..held / 4).contains(&renewals), "{renewals} statements for {held} locks");
}

/// A full disk, or one that has space again, for all sessions.
async fn limit_files(site: &OnPostgres, bytes: Option<u64>) {
    site.0.limit_files(bytes).await.unwrap();
    site.kill_connections().await;
}

#[tokio::test]
async fn a_full_disk_is_told_in_time_and_passes() {
    let site = OnPostgres::start(&[("autovacuum", "off")]).await;
    // Whoever begins to listen writes so into its row, and leaves room where the row was.
    let url = site.url();
    let separator = if url.contains('?') { '&' } else { '?' };
    let store = OnPostgres::open_url(&format!("{url}{separator}listen=no")).await;
    let builder = || Locker::builder(store.clone()).outage_max(Duration::from_millis(500));
    let (short, long) = (builder().ttl(Duration::from_secs(3)).build(), builder().build());
    // Fill the table until it is larger than a segment of the log, which must not hit the limit.
    let fill = |rows: u32, bytes: u32| {
        format!(
            "INSERT INTO lockkeeper.lockkeeper_claim SELECT sha256('filler'), nextval('filler'), '', false, 0, \
             9000000000000000000, 0, 1, 1, repeat('x', {bytes}), 0, NULL, NULL, NULL FROM generate_series(1, {rows})"
        )
    };
    site.sql(
        "CREATE SEQUENCE filler; ALTER TABLE lockkeeper.lockkeeper_claim SET (fillfactor = 100), \
         ALTER COLUMN host SET STORAGE PLAIN",
    )
    .await;
    site.sql(&fill(10_000, 1900)).await;
    let (brief, kept) =
        (short.lock("brief").await.unwrap(), long.lock("kept").ttl(Duration::from_secs(5 * 60)));
    let kept = kept.await.unwrap();
    let size: u64 = site.sql("SELECT pg_relation_size('lockkeeper.lockkeeper_claim')").await.parse().unwrap();
    assert!(17 << 20 < size, "{size}");
    // Not a whole page more: the server's write falls short, as it does on a full disk.
    limit_files(&site, Some(size + 100)).await;
    for bytes in [1900, 500, 100, 1] {
        while site.try_sql(&fill(1, bytes)).await.is_ok() {}
    }
    let error = faults::within(async { long.lock("new").await.unwrap_err() }).await;
    assert!(error.is_transient() && error.to_string().contains("disk is full"), "{error}");
    // Whoever cannot be renewed is told before anybody else could have the lock; whoever has time keeps it.
    // A renewal writes over its last but one, whose place must be taken first, by one who has read the page.
    let taking = format!("SELECT count(*) FROM lockkeeper.lockkeeper_claim; {}", fill(1, 1));
    let squeeze = async {
        loop {
            drop(site.try_sql(&taking).await);
        }
    };
    faults::within(async { tokio::select!(_ = brief.lost() => {}, () = squeeze => {}) }).await;
    assert!(!brief.is_valid());
    kept.check().unwrap();
    let info = store.show(&Key::new("kept").unwrap()).await.unwrap().unwrap();
    assert_eq!(info.holders[0].fence, Some(kept.fence()));

    limit_files(&site, None).await;
    let again = faults::within(async { short.lock("brief").await.unwrap() }).await;
    assert!(brief.fence() < again.fence());
    again.release().await.unwrap();
    kept.release().await.unwrap();
    long.lock("new").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn clients_in_different_time_zones_agree() {
    let site = OnPostgres::start(&[]).await;
    let zone = |it: &str| format!("{}?options=-c%20TimeZone%3D{it}", site.url());
    let east = OnPostgres::open_url(&zone("Asia/Tokyo")).await;
    let west = OnPostgres::open_url(&zone("America/New_York")).await;
    faults::agree(east, west).await;
}

#[tokio::test]
async fn a_promoted_standby_knows_the_holders_and_gives_larger_fences() {
    let site = OnPostgres::start(&[]).await;
    let standby = site.0.standby().await.unwrap();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", site.port(), standby.port());
    let url = format!("postgres://postgres@{hosts}/postgres");
    // Made before the standby is asked: sessions that cannot write are passed over.
    let (one, other) = (OnPostgres::open_url(&url).await, OnPostgres::open_url(&url).await);
    let (one, other) = (Locker::new(one), Locker::new(other));
    let guard = one.lock("failover").ttl(Duration::from_secs(60)).await.unwrap();
    let caught_up = "SELECT count(*) FROM lockkeeper.lockkeeper_claim";
    while !standby.sql(caught_up).await.is_ok_and(|it| it == "1") {
        Clock::boot().sleep(Duration::from_millis(20)).await;
    }
    site.0.kill().unwrap();
    standby.promote().await.unwrap();
    while let Err(error) = other.try_lock("failover").await {
        assert!(error.is_transient(), "{error}");
    }
    assert!(other.try_lock("failover").await.unwrap().is_none(), "the holder was forgotten");
    let fence = guard.fence();
    guard.release().await.unwrap();
    assert!(fence < other.lock("failover").await.unwrap().fence());
}

#[tokio::test]
async fn a_user_without_rights_is_told_so() {
    let site = OnPostgres::start(&[]).await;
    site.sql("CREATE ROLE guest LOGIN; CREATE ROLE worker LOGIN").await;
    let as_user = |it: &str| site.url().replacen("postgres@", &format!("{it}@"), 1);
    let open = async |user| Postgres::connect(&as_user(user)).await;
    let error = open("guest").await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("docs/backends/postgres.md"), "{error}");
    // With the DDL run by somebody else, the rights in the documentation are enough.
    site.sql(&lockkeeper_sql::postgres::ddl("lockkeeper")).await;
    site.sql(
        "GRANT USAGE ON SCHEMA lockkeeper TO worker; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockkeeper TO worker",
    )
    .await;
    let locker = Locker::new(open("worker").await.unwrap());
    locker.lock("granted").await.unwrap().release().await.unwrap();
    let error = open("guest").await.map(Locker::new).err().map_or_else(String::new, |it| it.to_string());
    assert!(error.contains("may not"), "{error}");
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_breaks_nothing_and_the_doctor_names_it() {
    let site = OnPostgres::start(&[]).await;
    let pooler = PgBouncer::start(&site.0, PgBouncerOptions::default().set("default_pool_size", "3"));
    let pooler = pooler.await.unwrap();
    faults::exact_count(&site, pooler.port()).await;
    let findings = site.open(pooler.port()).await.doctor().await.unwrap();
    assert!(findings.iter().any(|it| it.what.contains("pooler")), "{findings:?}");
    let findings = site.open(site.port()).await.doctor().await.unwrap();
    assert!(findings.iter().all(|it| it.severity == Severity::Fine), "{findings:?}");
}

#[tokio::test]
async fn the_doctor_finds_settings_under_which_locks_are_forgotten() {
    let site = OnPostgres::start(&[("fsync", "off"), ("synchronous_commit", "off")]).await;
    let findings = site.open(site.port()).await.doctor().await.unwrap();
    let worst = findings.iter().max_by_key(|it| it.severity).unwrap();
    assert_eq!((worst.severity, worst.what.as_str()), (Severity::Danger, "fsync is off"), "{findings:?}");
    let commit = findings.iter().find(|it| it.what.contains("synchronous_commit")).unwrap();
    assert_eq!(commit.severity, Severity::Fine, "{findings:?}");
}

#[tokio::test]
async fn a_wrong_password_is_permanent_and_not_shown() {
    let options = servers::PostgresOptions::default().password("right-word");
    let server = servers::Postgres::start(options).await.unwrap();
    let url = server.url().replace("right-word", "wrong-word");
    let error = Postgres::connect(&url).await.unwrap_err();
    assert!(!error.is_transient());
    assert!(!format!("{error} {error:?}").contains("wrong-word"), "{error:?}");
}

#[tokio::test]
async fn a_release_that_a_crash_undoes_leaves_the_lock_free_after_its_ttl() {
    // What is not flushed by a commit stays in memory for seconds.
    let site = OnPostgres::start(&[("wal_writer_delay", "10s"), ("wal_writer_flush_after", "1GB")]).await;
    let (ttl, patience) = (Duration::from_secs(2), Duration::from_secs(60));
    for _ in 0..5 {
        let store = site.open(site.port()).await;
        let here = Locker::builder(store).ttl(ttl).wait_at_most(patience).outage_max(patience).build();
        let guard = here.lock("orders/42").await.unwrap();
        let before = guard.fence();
        guard.release().await.unwrap();
        site.kill().unwrap();
        Daemon::start(&site).await.unwrap();
        let held = site.sql("SELECT count(*) FROM lockkeeper.lockkeeper_claim WHERE held").await;
        let next = here.lock("orders/42").await.unwrap();
        assert!(before < next.fence(), "fences grow over a crash");
        next.release().await.unwrap();
        if held.trim() == "1" {
            return;
        }
    }
    panic!("every release was on disk before it was told");
}
