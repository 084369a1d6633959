//! The doctor for participants: what endangers a promise is named, and what cannot promise is refused.

use lockkeeper_servers::{MariaDb, MariaDbOptions, Postgres, PostgresOptions};
use lockkeeper_twophase::{Error, Finding, Participant, Severity, Survey, TwoPhase};
use tempfile::TempDir;

use crate::site::{HANG, Place, Site, locker};

/// The findings at this participant that are worse than fine, in words.
fn worse(survey: &Survey, whose: &str) -> Vec<(Severity, String)> {
    let of = survey.findings.iter().filter(|it| it.0 == whose && it.1.severity > Severity::Fine);
    of.map(|(_, Finding { severity, what, consequence, remedy, .. })| {
        assert!(!consequence.is_empty() && !remedy.is_empty(), "{what} says what follows and what to do");
        (*severity, what.clone())
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_endanger_a_promise_are_named() {
    let careless = MariaDbOptions::default().set("innodb-flush-log-at-trx-commit", "2").set("log-bin", "log");
    let site = Site::of(careless.set("sync-binlog", "0")).await;
    let bank = site.bank().await;
    let survey = bank.setup().await.survey().await.unwrap();
    assert_eq!(worse(&survey, "orders"), [], "its settings are good");
    let [flush, binlog] = &worse(&survey, "stock")[..] else { panic!("{survey:?}") };
    assert!(flush.1.contains("innodb_flush_log_at_trx_commit is 2"), "{flush:?}");
    assert!(binlog.1.contains("sync_binlog is 0"), "{binlog:?}");
    assert_eq!((flush.0, binlog.0), (Severity::Danger, Severity::Danger));
    site.postgres.sql("ALTER SYSTEM SET fsync = off").await.unwrap();
    site.postgres.restart().await.unwrap();
    let survey = bank.setup().await.survey().await.unwrap();
    assert!(worse(&survey, "orders").iter().any(|it| it.1.contains("fsync is off")), "{survey:?}");
    // Dangerous is not impossible, also with a binary log.
    let office = bank.office().await;
    bank.transfer(&office, "a").await.unwrap();
    assert!(site.check(&bank, "with a binary log").await);
}

/// Nobody takes part there, and it is the one server that must not forget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_of_the_log_is_looked_at_too() {
    let site = Site::start().await;
    let bank = site.bank_with(Place::BesideOrders).await;
    let of_log = async || worse(&bank.setup().await.survey().await.unwrap(), "the log");
    assert_eq!(of_log().await, [], "its settings are good");
    site.postgres.sql("ALTER SYSTEM SET fsync = off").await.unwrap();
    site.postgres.restart().await.unwrap();
    let found = of_log().await;
    assert!(found.iter().any(|it| it.0 == Severity::Danger && it.1.contains("fsync is off")), "{found:?}");
    // Where the log lives with a participant that one is named.
    let bank = site.bank_with(Place::WithOrders).await;
    let survey = bank.setup().await.survey().await.unwrap();
    assert_eq!(worse(&survey, "the log"), []);
    assert_eq!(worse(&survey, "orders").len(), 1, "{survey:?}");

    let careless = MariaDbOptions::default().set("innodb-flush-log-at-trx-commit", "0");
    let site = Site::of(careless).await;
    let bank = site.bank_with(Place::BesideStock).await;
    let found = worse(&bank.setup().await.survey().await.unwrap(), "the log");
    let [(severity, what)] = &found[..] else { panic!("{found:?}") };
    assert!(
        *severity == Severity::Danger && what.contains("innodb_flush_log_at_trx_commit is 0"),
        "{found:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_tables_that_cannot_be_rolled_back_are_named() {
    let logging =
        MariaDbOptions::default().set("log-bin", "log").set("sync-binlog", "1").set("server-id", "1");
    let site = Site::of(logging).await;
    let bank = site.bank().await;
    let survey = bank.setup().await.survey().await.unwrap();
    assert_eq!(worse(&survey, "stock"), [], "a binary log alone is no danger");

    let replica = MariaDb::start(MariaDbOptions::default().set("server-id", "2")).await.unwrap();
    let rights = "GRANT REPLICATION SLAVE ON *.* TO reader@'127.0.0.1' IDENTIFIED BY 'r'; \
                  GRANT PROCESS ON *.* TO lockkeeper@'127.0.0.1'; CREATE TABLE old (id int) ENGINE = MyISAM";
    site.mysql.sql(rights).await.unwrap();
    let follow = format!(
        "CHANGE MASTER TO master_host = '127.0.0.1', master_port = {}, master_user = 'reader', master_password = 'r', \
         master_use_gtid = no; START SLAVE",
        site.mysql.port()
    );
    replica.sql(&follow).await.unwrap();
    let seen = async {
        loop {
            let survey = bank.setup().await.survey().await.unwrap();
            let found = worse(&survey, "stock");
            if let Some(replicas) = found.iter().find(|it| it.1.contains("replicas read its binary log")) {
                assert_eq!(replicas.0, Severity::Warning);
                let told = survey.findings.iter().find(|it| it.1.what == replicas.1).unwrap();
                assert!(told.1.consequence.contains("MDEV-32020"), "{told:?}");
                return found;
            }
            lockkeeper_core::Clock::boot().sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let found = tokio::time::timeout(HANG, seen).await.expect("the replica connects");
    assert!(found.iter().any(|it| it.1.contains("old (MyISAM)")), "{found:?}");
    assert!(!found.iter().any(|it| it.1.contains("account")), "InnoDB is fine: {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_participant_without_room_for_promises_is_told_unless_the_log_lives_there() {
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let locker = locker(folder.path()).await;
    let file = format!("sqlite:{}", folder.path().join("log").display());
    let survey = async |log: &str| {
        let setup = TwoPhase::open(log, &locker).await.unwrap();
        setup.participant("orders", Participant::postgres(&server.url()).unwrap()).survey().await.unwrap()
    };
    let apart = worse(&survey(&file).await, "orders");
    let [(severity, what)] = &apart[..] else { panic!("{apart:?}") };
    assert!(*severity == Severity::Danger && what.contains("max_prepared_transactions is 0"), "{apart:?}");
    assert_eq!(worse(&survey(&server.url()).await, "orders"), [], "its branches are never prepared");
}

/// The server's setting is enough: a node that is alone in its cluster refuses XA as all others do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_galera_cluster_is_refused() {
    let node = MariaDbOptions::default().set("wsrep-on", "ON").set("binlog-format", "ROW");
    refused(node, &["Galera", "XA"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_engines_that_cannot_prepare_is_refused() {
    let old = MariaDbOptions::default().set("innodb", "OFF").set("default-storage-engine", "MyISAM");
    refused(old, &["no InnoDB"]).await;
}

/// MariaDB says of itself what it is told to, as behind a proxy that must look old.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_server_is_refused() {
    refused(MariaDbOptions::default().set("version", "10.4.34-MariaDB"), &["MariaDB 10.5", "10.4.34"]).await;
}

/// Refused at the start, and named by the doctor, which looks all the same.
async fn refused(options: MariaDbOptions, words: &[&str]) {
    let server = MariaDb::start(options).await.unwrap();
    let folder = TempDir::new().unwrap();
    let locker = locker(folder.path()).await;
    let url = format!("sqlite:{}", folder.path().join("log").display());
    let setup = async || {
        let setup = TwoPhase::open(&url, &locker).await.unwrap();
        setup.participant("stock", Participant::mysql(&server.url()).unwrap())
    };
    let error = setup().await.start().await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let survey = setup().await.survey().await.unwrap();
    let found = worse(&survey, "stock");
    for it in words {
        assert!(error.to_string().contains(it), "{it}: {error}");
    }
    assert!(
        found.iter().any(|it| it.0 == Severity::Danger && it.1.contains(words[0])),
        "the doctor says so, too: {survey:?}"
    );
}
