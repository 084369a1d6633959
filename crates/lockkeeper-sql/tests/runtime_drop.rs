//! A runtime that is dropped in the middle of calls leaves the locker whole, and nothing panics.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use lockkeeper_core::Locker;
use lockkeeper_servers::runtime_drop::{Remote, TTL};
use lockkeeper_servers::{self as servers, MariaDb, MariaDbOptions};
use lockkeeper_sql::PostgresSessions;
use lockkeeper_sql::mysql::Mysql;
use lockkeeper_sql::postgres::Postgres;

/// The address with another port.
fn moved(url: &str, from: u16, to: u16) -> String {
    url.replace(&format!(":{from}/"), &format!(":{to}/"))
}

struct OneMariaDb(MariaDb);

impl Remote for OneMariaDb {
    async fn start() -> Self {
        OneMariaDb(MariaDb::start(MariaDbOptions::default()).await.unwrap())
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.0.port()]
    }

    async fn connect(&self, ports: &[u16]) -> Locker {
        let url = moved(&self.0.url(), self.0.port(), ports[0]);
        let backend = Mysql::connect(&url).await.unwrap();
        Locker::builder(backend).ttl(TTL).build()
    }
}

lockkeeper_servers::runtime_drop!(mariadb, OneMariaDb);

struct OneMysql(servers::Mysql);

impl Remote for OneMysql {
    async fn start() -> Self {
        OneMysql(servers::Mysql::start(servers::MysqlOptions::default()).await.unwrap())
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.0.port()]
    }

    async fn connect(&self, ports: &[u16]) -> Locker {
        let url = moved(&self.0.url(), self.0.port(), ports[0]);
        let backend = Mysql::connect(&url).await.unwrap();
        Locker::builder(backend).ttl(TTL).build()
    }
}

lockkeeper_servers::runtime_drop!(mysql, OneMysql);

/// For durable or for session locks.
struct OnePostgres<const SESSIONS: bool>(servers::Postgres);

impl<const SESSIONS: bool> Remote for OnePostgres<SESSIONS> {
    async fn start() -> Self {
        OnePostgres(servers::Postgres::start(servers::PostgresOptions::default()).await.unwrap())
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.0.port()]
    }

    async fn connect(&self, ports: &[u16]) -> Locker {
        let url = moved(&self.0.url(), self.0.port(), ports[0]);
        if !SESSIONS {
            return Locker::builder(Postgres::connect(&url).await.unwrap()).ttl(TTL).build();
        }
        let backend = PostgresSessions::connect(&format!("{url}?mode=session")).await.unwrap();
        let locker = Locker::builder(backend).ttl(TTL).build();
        // A caller that is alone has the socket in its own event loop after a few locks.
        for _ in 0..4 {
            locker.lock("first").await.unwrap().release().await.unwrap();
        }
        locker
    }
}

lockkeeper_servers::runtime_drop!(postgres, OnePostgres<false>);
lockkeeper_servers::runtime_drop!(postgres_sessions, OnePostgres<true>);
lockkeeper_servers::runtime_still!(a_runtime_that_stands_still_holds_nobody_up, OnePostgres<true>);
