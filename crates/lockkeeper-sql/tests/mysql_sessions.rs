//! Session locks on a real MariaDB and MySQL: what ends a session, what a server forgets, and who may not come in.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "how a child process talks to its parent")]

#[allow(dead_code, reason = "these children are told nothing more")]
mod child;
#[allow(dead_code, unused_imports, unused_macros, reason = "the cases of the other files are told there")]
mod faults;
mod mysql_site;
mod session_cases;
mod turns;

use std::time::Duration;

use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Error, Guard, Locker};
use lockkeeper_servers::MysqlPool;
use lockkeeper_sql::mysql::{durable_switch, session_switch};
use lockkeeper_sql::{Mysql, MysqlSessions};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use mysql_site::{OnMariaDb, OnMysql, Ours};
use session_cases::{PATIENCE, Sessions, TTL, by_proxy, locker, open, session_url, within};

impl<S: Ours> Sessions for S {
    type Sessions = MysqlSessions;

    async fn sessions(url: &str) -> Result<MysqlSessions, Error> {
        MysqlSessions::connect(url).await
    }

    async fn durable(url: &str) -> Result<Mysql, Error> {
        Mysql::connect(url).await
    }

    fn switches() -> [String; 2] {
        [session_switch(), durable_switch()]
    }

    async fn followed() -> (Self, Self) {
        let (leader, follower) = S::pair().await;
        follower.sql(&S::follow(leader.port())).await;
        (leader, follower)
    }

    async fn knows(&self, _leader: &Self) -> bool {
        // When its row has arrived, and the server's name with it.
        let known = "SELECT COUNT(*) FROM lockkeeper_session_member JOIN lockkeeper_session_epoch ON one = 1";
        self.try_sql(known).await.is_ok_and(|it| it.trim() != "0")
    }

    async fn promote(&self) {}

    const FENCES_AHEAD: &'static str = "UPDATE lockkeeper_session_store SET ceiling = ceiling + 1000000000; \
         UPDATE lockkeeper_session_epoch SET base = base + 1000000000";

    const COUNTS: &'static [(&'static str, &'static str)] = &[];

    async fn statements(&self) -> u64 {
        let said = self.sql("SHOW GLOBAL STATUS LIKE 'Questions'").await;
        said.split_whitespace().last().unwrap().parse().unwrap()
    }

    async fn beats(&self) -> u64 {
        self.statements().await
    }

    async fn open_sessions(&self) -> u64 {
        let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'lockkeeper'";
        self.sql(sql).await.trim().parse().unwrap()
    }

    async fn narrow() -> (Self, String) {
        let site = S::start(&[("max-connections", "12")]).await;
        site.sql(mysql_site::WORKER).await;
        let url = mysql_site::url_of(&site, "worker");
        (site, url)
    }
}

macro_rules! cases {
    ($($name:ident)*) => {
        mod mariadb {
            use super::*;

            session_cases::session_cases!(OnMariaDb);
            $(#[tokio::test]
            async fn $name() {
                super::$name::<OnMariaDb>().await;
            })*
        }

        mod mysql {
            use super::*;

            session_cases::session_cases!(OnMysql);
            $(#[tokio::test]
            async fn $name() {
                super::$name::<OnMysql>().await;
            })*
        }
    };
}

cases! {
    half_seconds_are_rounded_up_and_less_than_one_is_refused
    names_meet_neither_each_other_nor_other_databases
    a_proxy_that_shares_connections_is_refused_with_what_to_do
    a_connection_that_breaks_is_not_taken_for_such_a_proxy
    fences_are_reserved_before_they_are_given
}

async fn half_seconds_are_rounded_up_and_less_than_one_is_refused<S: Sessions>() {
    let site = S::start(&[]).await;
    let store = open::<S>(&site.url()).await;
    let here = locker(store.clone(), TTL);
    let guard = here.lock("orders/42").ttl(Duration::from_millis(3500)).await.unwrap();
    let shown = store.show(guard.key()).await.unwrap().unwrap();
    assert_eq!(shown.holders[0].valid_for, TTL);
    let told = store.doctor().await.unwrap();
    assert!(told.iter().any(|it| it.what.contains("rounded up to whole seconds")), "{told:?}");
    let refused = here.lock("orders/43").ttl(Duration::from_millis(500)).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
}

async fn names_meet_neither_each_other_nor_other_databases<S: Sessions>() {
    let site = S::start(&[]).await;
    site.sql("CREATE DATABASE other; GRANT ALL ON other.* TO lockkeeper@'127.0.0.1'").await;
    let here = locker(open::<S>(&site.url()).await, TTL);
    let elsewhere = site.url().trim_end_matches("lockkeeper").to_owned() + "other";
    let elsewhere = locker(open::<S>(&elsewhere).await, TTL);
    let long = "x".repeat(100);
    let longer = format!("{long}y");
    let mut guards = Vec::new();
    for name in ["Order", "order", "ORDER", "é", "e\u{301}", "ß", "ss", long.as_str(), longer.as_str()] {
        guards.push(here.try_lock(name).await.unwrap().expect("only other names are held"));
        guards.push(elsewhere.try_lock(name).await.unwrap().expect("another database is another store"));
        assert!(here.try_lock(name).await.unwrap().is_none(), "{name} is held");
    }
    assert!(guards.iter().all(Guard::is_valid));
}

async fn a_proxy_that_shares_connections_is_refused_with_what_to_do<S: Sessions>() {
    let site = S::start(&[]).await;
    let pool = MysqlPool::start(site.port()).await.unwrap();
    let url = site.url().replace(&site.address(), &pool.address());
    // It does share: one client, several sessions.
    let mut client = Conn::new(Opts::from_url(&url).unwrap()).await.unwrap();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        sessions.extend(client.query_first::<u32, _>("SELECT CONNECTION_ID()").await.unwrap());
    }
    assert_ne!(sessions[0], sessions[1]);
    let refused = MysqlSessions::connect(&session_url(&url)).await.unwrap_err().to_string();
    assert!(
        refused.contains("a proxy stands between") && refused.contains("remove `mode=session`"),
        "{refused}"
    );
    // Durable locks are rows, and bear it.
    let store = Mysql::connect(&url).await.unwrap();
    let locker = Locker::builder(store).ttl(TTL).wait_at_most(PATIENCE).build();
    let guard = within(locker.lock("orders/42")).await.unwrap();
    assert!(locker.clone().try_lock("orders/43").await.unwrap().is_some());
    guard.release().await.unwrap();
}

async fn a_connection_that_breaks_is_not_taken_for_such_a_proxy<S: Sessions>() {
    let site = S::start(&[]).await;
    let (network, url) = by_proxy(&site).await;
    let here = locker(open::<S>(&url).await, TTL);
    // The question whether somebody stands between goes unanswered once.
    network.lose_request(b"processlist");
    let guard = within(here.lock("orders/42")).await.unwrap();
    assert_eq!(network.counters().cut, 1, "nothing was lost");
    guard.release().await.unwrap();
}

async fn fences_are_reserved_before_they_are_given<S: Sessions>() {
    let site = S::start(&[]).await;
    let here = locker(open::<S>(&site.url()).await, TTL);
    let before = here.lock("orders/42").await.unwrap().fence();
    // Others of the server's users count on.
    site.sql("DO BENCHMARK(100000, UUID_SHORT())").await;
    let guard = within(here.lock("orders/42")).await.unwrap();
    assert!(before < guard.fence());
    let ceiling: u64 = site.sql("SELECT ceiling FROM lockkeeper_session_store").await.trim().parse().unwrap();
    let counter = guard.fence().get() >> 16;
    assert!(counter < ceiling, "{counter} was given, and only those below {ceiling} are reserved");
}
