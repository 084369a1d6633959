//! TLS on real servers: an encrypted connection is one to a server that is known.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::time::Duration;

use lockkeeper_core::backend::Backend;
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Error, Locker};
use lockkeeper_servers::{self as servers, MariaDb, MariaDbOptions, Tls};
use lockkeeper_sql::{Mysql, Postgres};

/// Two addresses of the loopback, of which the certificate holds one.
const ADDRESSES: &str = "127.0.0.1,127.0.0.2";

async fn mysql(url: &str) -> Result<Mysql, Error> {
    Mysql::connect(url).await
}

async fn postgres(url: &str) -> Result<Postgres, Error> {
    Postgres::connect(url).await
}

/// Take a lock, wait for it, be told, hear what the doctor says.
async fn works_encrypted<B: Backend + Inspect + Clone>(one: B, other: B) {
    let findings = one.doctor().await.unwrap();
    let encrypted = findings.iter().find(|it| it.what.contains("is encrypted")).unwrap();
    assert_eq!(encrypted.severity, Severity::Fine);
    assert!(encrypted.what.contains("TLS") || encrypted.what.contains("AES"), "{encrypted:?}");
    assert!(findings.iter().all(|it| it.severity == Severity::Fine), "{findings:?}");
    let (one, other) = (Locker::new(one), Locker::new(other));
    let guard = one.lock("encrypted").await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("encrypted").await.unwrap().fence() });
    let fence = guard.fence();
    guard.release().await.unwrap();
    assert!(fence < waiting.await.unwrap());
}

/// Every way to be wrong about the server, each with its reason.
async fn refuses<B: std::fmt::Debug>(url: &str, tls: &Tls, open: impl AsyncFn(&str) -> Result<B, Error>) {
    // A server that nobody we trust has signed for.
    let folder = tempfile::tempdir().unwrap();
    let stranger = Tls::generate(folder.path()).unwrap();
    for untrusted in [format!("{url}?tls=on"), format!("{url}?tls=on&ca={}", stranger.ca.display())] {
        let error = open(&untrusted).await.unwrap_err();
        assert!(!error.is_transient() && error.to_string().contains("is not trusted"), "{error}");
        assert!(error.to_string().contains("`ca=FILE`"), "{error}");
    }
    // The right authority, another host.
    let ca = tls.ca.display();
    let elsewhere = url.replacen("127.0.0.1", "127.0.0.2", 1);
    let error = open(&format!("{elsewhere}?tls=on&ca={ca}")).await.unwrap_err();
    assert!(error.to_string().contains("another host"), "{error}");
    // Files that cannot be used are named.
    for (keys, named) in [
        ("ca=/nowhere.pem".to_owned(), "/nowhere.pem"),
        (format!("ca={}", tls.server_key.display()), "server.key"),
        (format!("ca={ca}&cert=/nowhere.pem&key=/nowhere.key"), "/nowhere.pem"),
    ] {
        let error = open(&format!("{url}?tls=on&{keys}")).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(named), "{error}");
    }
}

/// A server without TLS is told apart from one that cannot be reached.
async fn needs_tls<B: std::fmt::Debug>(url: &str, open: impl AsyncFn(&str) -> Result<B, Error>) {
    let error = open(&format!("{url}?tls=on")).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("does not offer TLS"), "{error}");
}

#[tokio::test]
async fn a_lock_is_had_over_tls_on_mariadb() {
    let options = MariaDbOptions::default().tls().set("bind-address", ADDRESSES);
    let server = MariaDb::start(options).await.unwrap();
    let (url, tls) = (server.url(), server.tls().unwrap());
    let good = format!("{url}?tls=on&ca={}", tls.ca.display());
    works_encrypted(mysql(&good).await.unwrap(), mysql(&good).await.unwrap()).await;
    refuses(&url, tls, mysql).await;
    // Whoever must be encrypted and is not is told.
    server.sql("SET GLOBAL require_secure_transport = ON").await.unwrap();
    let error = mysql(&url).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("`tls=on`"), "{error}");
}

#[tokio::test]
async fn a_server_may_ask_who_we_are_on_mariadb() {
    let server = MariaDb::start(MariaDbOptions::default().tls()).await.unwrap();
    server.sql("ALTER USER lockkeeper@'127.0.0.1' REQUIRE X509").await.unwrap();
    let (url, tls) = (server.url(), server.tls().unwrap());
    let anonymous = format!("{url}?tls=on&ca={}", tls.ca.display());
    assert!(!mysql(&anonymous).await.unwrap_err().is_transient());
    let known = format!("{anonymous}&cert={}&key={}", tls.client_cert.display(), tls.client_key.display());
    let locker = Locker::new(mysql(&known).await.unwrap());
    locker.lock("known").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_mariadb_without_tls_is_told_apart() {
    let server = MariaDb::start(MariaDbOptions::default()).await.unwrap();
    needs_tls(&server.url(), mysql).await;
}

#[tokio::test]
async fn a_lock_is_had_over_tls_on_postgres() {
    let options =
        servers::PostgresOptions::default().tls().password("p@ss").set("listen_addresses", ADDRESSES);
    let server = servers::Postgres::start(options).await.unwrap();
    let (url, tls) = (server.url(), server.tls().unwrap());
    let good = format!("{url}?tls=on&ca={}", tls.ca.display());
    works_encrypted(postgres(&good).await.unwrap(), postgres(&good).await.unwrap()).await;
    // Messages travel encrypted as well: nobody looks for the lock, and a waiter is called all the same.
    let full = server.sql(
        "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                           WHERE application_name = 'lockkeeper' AND NOT ssl",
    );
    assert_eq!(full.await.unwrap().trim(), "0");
    refuses(&url, tls, postgres).await;
}

#[tokio::test]
async fn a_postgres_without_tls_is_told_apart() {
    let server = servers::Postgres::start(servers::PostgresOptions::default()).await.unwrap();
    needs_tls(&server.url(), postgres).await;
    // In the words of libpq, too.
    let error = postgres(&format!("{}?sslmode=require", server.url())).await.unwrap_err();
    assert!(error.to_string().contains("does not offer TLS"), "{error}");
    tokio::time::timeout(Duration::from_secs(60), postgres(&server.url())).await.unwrap().unwrap();
}
