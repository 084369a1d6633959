//! Attacks on a real PostgreSQL: hostile settings, forgotten connections, silent hosts, no connection left.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Claim, Clock, Error, Fence, Key, Load, Locker};
use lockkeeper_servers::proxy::{Proxy, Rule};
use lockkeeper_servers::{self as servers, PgBouncer, PgBouncerOptions};
use lockkeeper_sql::Postgres;
use lockkeeper_sql::postgres::PostgresFences;
use tokio::task::JoinSet;
use tokio_postgres::{Config, NoTls};

/// A patience that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(6);

async fn start(settings: &[(&str, &str)]) -> servers::Postgres {
    let options = servers::PostgresOptions::default();
    let options = settings.iter().fold(options, |it, (name, value)| it.set(name, value));
    servers::Postgres::start(options).await.unwrap()
}

async fn open(url: &str) -> Postgres {
    Postgres::connect(url).await.unwrap()
}

fn locker(store: Postgres) -> Locker {
    Locker::builder(store).ttl(TTL).wait_at_most(PATIENCE).build()
}

fn at_port(server: &servers::Postgres, port: u16) -> String {
    server.url().replacen(&format!(":{}/", server.port()), &format!(":{port}/"), 1)
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::select! {
        out = work => out,
        () = Clock::boot().sleep(PATIENCE) => panic!("this hangs"),
    }
}

/// Settings under which statements of ours would fail, or be forgotten, if sessions did not set their own.
const HOSTILE: &str = "SET default_transaction_isolation = 'serializable'; \
    SET default_transaction_deferrable = on; SET synchronous_commit = off; SET search_path = evil, pg_catalog; \
    SET lock_timeout = 1; SET idle_session_timeout = 300; SET idle_in_transaction_session_timeout = 1; \
    SET standard_conforming_strings = off; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard'; \
    SET transform_null_equals = on; SET array_nulls = off; SET bytea_output = 'escape'; SET TimeZone = 'Asia/Tokyo'";

/// Functions that stand in for the server's own, for whoever does not say which it means.
const EVIL: &str = "CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC; \
    CREATE FUNCTION evil.encode(bytea, text) RETURNS text LANGUAGE sql AS $$ SELECT 'evil' $$; \
    CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ SELECT $$; \
    CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$";

async fn make_hostile(server: &servers::Postgres, whom: &str) {
    server.sql(EVIL).await.unwrap();
    for setting in HOSTILE.split(';') {
        server.sql(&format!("ALTER {whom} {setting}")).await.unwrap();
    }
}

/// Two processes take turns, and the operator sees it.
async fn take_turns(one: Postgres, other: Postgres) {
    let (lockers, mut tasks) = ([locker(one.clone()), locker(other)], JoinSet::new());
    for at in 0..4 {
        let locker = lockers[at % 2].clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                locker.lock("turns").await.unwrap().release().await.unwrap();
            }
        });
    }
    within(async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await;
    let guard = lockers[0].lock("seen").ttl(Duration::from_secs(1)).await.unwrap();
    assert_eq!(one.list("se").await.unwrap().len(), 1);
    // Long enough for an idle session to be ended, and for renewals.
    Clock::boot().sleep(Duration::from_millis(1500)).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn no_setting_of_the_user_matters() {
    let server = start(&[]).await;
    server.sql("CREATE ROLE worker LOGIN; GRANT CREATE ON DATABASE postgres TO worker").await.unwrap();
    make_hostile(&server, "ROLE worker").await;
    server.sql("ALTER ROLE worker SET default_transaction_read_only = on").await.unwrap();
    server.sql("ALTER ROLE worker SET statement_timeout = 1").await.unwrap();
    let url = server.url().replacen("postgres@", "worker@", 1);
    take_turns(open(&url).await, open(&url).await).await;
    // What a pooled session cannot set is set for each transaction. Said when the session begins: a statement that
    // says it would itself have a millisecond only.
    let mut config: Config = url.parse().unwrap();
    config
        .options("-c statement_timeout=0 -c idle_session_timeout=0 -c idle_in_transaction_session_timeout=0");
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client.batch_execute("BEGIN READ WRITE").await.unwrap();
    let turn = "SELECT lockkeeper.lockkeeper_turn_3('\\x01', '\\x02', 0, 'x', 1000000, 1, 1, true, 'h', 1, NULL, NULL, NULL, false) FROM lockkeeper.lockkeeper_settings_3()";
    client.batch_execute(&format!("SET standard_conforming_strings = on; {turn}")).await.unwrap();
    let row = client.query_one("SHOW synchronous_commit", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "on");
}

#[tokio::test]
async fn no_setting_of_a_pooled_session_matters_or_it_is_named() {
    let server = start(&[]).await;
    make_hostile(&server, "DATABASE postgres").await;
    let pooler =
        PgBouncer::start(&server, PgBouncerOptions::default().set("default_pool_size", "4")).await.unwrap();
    take_turns(open(&pooler.url()).await, open(&pooler.url()).await).await;
    server.sql("ALTER DATABASE postgres SET default_transaction_read_only = on").await.unwrap();
    let pooler = PgBouncer::start(&server, PgBouncerOptions::default()).await.unwrap();
    let error = Postgres::connect(&pooler.url()).await.unwrap_err();
    assert!(error.to_string().contains("default_transaction_read_only"), "{error}");
}

/// Let the connection that speaks next be forgotten by whatever stands between; all others work.
async fn forget_whoever_speaks(proxy: &Proxy) {
    let dropped = proxy.counters().dropped;
    proxy.set_both(Rule::Drop);
    proxy.wait_for(|it| dropped < it.dropped).await.unwrap();
    proxy.set_both(Rule::Pass);
}

#[tokio::test]
async fn a_connection_that_was_forgotten_on_the_way_loses_no_lock_and_fails_no_call() {
    let server = start(&[]).await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let locker = locker(open(&at_port(&server, proxy.port())).await);
    let guard = locker.lock("kept").await.unwrap();
    // The renewal's connection.
    forget_whoever_speaks(&proxy).await;
    Clock::boot().sleep(TTL).await;
    guard.check().unwrap();
    // The commands' connection: a call that takes a lock, and one that gives it back.
    let taking = tokio::spawn({
        let locker = locker.clone();
        async move { locker.lock("taken").ttl(Duration::from_secs(10 * 60)).await }
    });
    forget_whoever_speaks(&proxy).await;
    let taken = within(taking).await.unwrap().unwrap();
    let leaving = tokio::spawn(taken.release());
    forget_whoever_speaks(&proxy).await;
    within(leaving).await.unwrap().unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_silent_host_among_several_holds_up_nobody() {
    let (silent, server) = (start(&[]).await, start(&[]).await);
    silent.pause().unwrap();
    let url = |first: u16, second: u16| {
        format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres")
    };
    // Frozen: it accepts connections and says nothing.
    let begun = Clock::boot().now();
    let locker_of_both = locker(open(&url(silent.port(), server.port())).await);
    locker_of_both.lock("frozen").await.unwrap().release().await.unwrap();
    assert!(Clock::boot().now() - begun < Duration::from_secs(10), "longer than one timeout");
    // A black hole on the way to a running client's host: its locks are kept by another way.
    let (one, other) =
        (Proxy::start(server.port()).await.unwrap(), Proxy::start(server.port()).await.unwrap());
    let running = locker(open(&url(one.port(), other.port())).await);
    let guard = running.lock("running").await.unwrap();
    one.set_both(Rule::Drop);
    Clock::boot().sleep(TTL * 3 / 2).await;
    guard.check().unwrap();
    assert!(0 < other.counters().accepted);
    guard.release().await.unwrap();
    running.lock("running").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_renewal_needs_is_there_before_the_grant() {
    let server = start(&[("max_connections", "12")]).await;
    server.sql("CREATE ROLE worker LOGIN; GRANT CREATE ON DATABASE postgres TO worker").await.unwrap();
    let url = server.url().replacen("postgres@", "worker@", 1);
    let locker = Locker::builder(open(&url).await).ttl(Duration::from_secs(3)).build();
    let guard = locker.lock("crowded").await.unwrap();
    let mut others = Vec::new();
    while let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
        others.push((client, tokio::spawn(async move { drop(connection.await) })));
    }
    assert!(!others.is_empty());
    Clock::boot().sleep(Duration::from_secs(5)).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    locker.lock("crowded").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn processes_that_live_shortly_clean_as_well() {
    let server = start(&[]).await;
    open(&server.url()).await;
    server
        .sql(
            "INSERT INTO lockkeeper.lockkeeper_lock SELECT sha256(i::text::bytea), 'dead/' || i, 1 \
             FROM generate_series(1, 3000) AS i; \
             INSERT INTO lockkeeper.lockkeeper_claim SELECT sha256(i::text::bytea), 1, sha256(i::text::bytea), true, 1, \
             1, 1, 1, 1, 'gone', 1 FROM generate_series(1, 3000) AS i; \
             UPDATE lockkeeper.lockkeeper_store SET cleaned = 0",
        )
        .await
        .unwrap();
    let left = async || {
        let count = "SELECT (SELECT count(*) FROM lockkeeper.lockkeeper_claim) \
                     + (SELECT count(*) FROM lockkeeper.lockkeeper_lock)";
        server.sql(count).await.unwrap().trim().parse::<u32>().unwrap()
    };
    let mut processes = 0;
    while 0 < left().await {
        open(&server.url()).await;
        processes += 1;
        assert!(processes <= 40, "{} rows are left after {processes} processes", left().await);
    }
}

#[tokio::test]
async fn a_table_of_fences_is_made_by_many_at_once() {
    let server = start(&[]).await;
    for round in 0..10 {
        let schema = format!("shop_{round}");
        server.sql(&format!("CREATE SCHEMA {schema}")).await.unwrap();
        let is_old = round % 2 == 1;
        if is_old {
            // As it was before readers had a number of their own.
            let old = format!(
                "CREATE TABLE {schema}.lockkeeper_fence (resource bytea PRIMARY KEY, name text NOT NULL, fence bigint NOT NULL); \
                 INSERT INTO {schema}.lockkeeper_fence VALUES (sha256('old'), 'old', 10)"
            );
            server.sql(&old).await.unwrap();
        }
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let (url, fences) = (server.url(), PostgresFences::new(&schema).unwrap());
            tasks.spawn(async move {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
                tokio::spawn(async move { drop(connection.await) });
                fences.create(&client).await
            });
        }
        while let Some(made) = tasks.join_next().await {
            made.unwrap().unwrap();
        }
        let (mut client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        let tx = client.transaction().await.unwrap();
        let (fences, key) = (PostgresFences::new(&schema).unwrap(), Key::new("old").unwrap());
        let refused = fences.check(&tx, &key, Fence::from_u64(9)).await.is_err();
        assert_eq!(refused, is_old, "what an old table knew is kept");
    }
}

#[tokio::test]
async fn a_claim_heavier_than_its_room_is_refused_and_blocks_nobody() {
    let server = start(&[]).await;
    let store = open(&server.url()).await;
    let key = Key::new("room").unwrap();
    let heavy = Claim::new(key.clone(), TTL).unwrap().load(Load::new(3, 2));
    let fault = store.enter(heavy).turn().await.unwrap_err();
    assert!(!fault.is_transient() && fault.message.contains("capacity is 2"), "{fault}");
    assert!(store.show(&key).await.unwrap().is_none());
    locker(store).lock("room").await.unwrap().release().await.unwrap();
}

#[test]
fn a_runtime_that_nobody_drives_holds_up_nobody() {
    let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, locker, guard) = idle.block_on(async {
        let server = start(&[]).await;
        let locker = locker(open(&server.url()).await);
        let guard = locker.lock("there").await.unwrap();
        (server, locker, guard)
    });
    // From now on nobody drives the runtime on which the store was opened.
    let begun = Clock::boot().now();
    locker.lock("blocking").blocking().unwrap().release_blocking().unwrap();
    guard.release_blocking().unwrap();
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    other.block_on(async { locker.lock("elsewhere").await.unwrap().release().await.unwrap() });
    assert!(Clock::boot().now() - begun < Duration::from_secs(30), "somebody waited for it");
    drop(server);
}

/// In a line in which each waits for the one before it, all are served in order, also if all sessions end; and none of
/// the server's own locks outlives its claim.
#[tokio::test]
async fn whoever_waits_for_the_one_before_it_is_served_also_if_all_sessions_end() {
    let server = start(&[]).await;
    let count = async |sql: &str| server.sql(sql).await.unwrap().trim().parse::<usize>().unwrap();
    let until = async |sql: &str, wanted: usize| {
        within(async {
            while count(sql).await != wanted {
                Clock::boot().sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    };
    let in_line = "SELECT count(*) FROM lockkeeper.lockkeeper_claim WHERE NOT held";
    let bells = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'";
    let watches = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    for kill in [false, true] {
        let held = locker(open(&server.url()).await).lock("line").await.unwrap();
        let (mut waiting, served) = (JoinSet::new(), Arc::new(Mutex::new(Vec::new())));
        for at in 0..3 {
            let (one, served) = (locker(open(&server.url()).await), served.clone());
            waiting.spawn(async move {
                let guard = one.lock("line").await.unwrap();
                // While it is held: of two that gave it back, the second may be told so first.
                served.lock().unwrap().push(at);
                guard.release().await.unwrap();
            });
            until(in_line, at + 1).await;
        }
        assert_eq!(count(bells).await, 3, "one for each who waits");
        until(watches, 2).await;
        if kill {
            let all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
            assert!(6 <= count(all).await);
        }
        held.release().await.unwrap();
        within(waiting.join_all()).await;
        assert_eq!(*served.lock().unwrap(), [0, 1, 2]);
        until(bells, 0).await;
    }
}

#[tokio::test]
async fn what_is_refused_for_lack_of_rights_leaves_nothing_to_do() {
    let server = start(&[]).await;
    drop(open(&server.url()).await);
    let rights = "ON ALL TABLES IN SCHEMA lockkeeper";
    let grant = format!(
        "CREATE ROLE clerk LOGIN; GRANT USAGE ON SCHEMA lockkeeper TO clerk; GRANT SELECT, INSERT, UPDATE, DELETE {rights} TO clerk"
    );
    server.sql(&grant).await.unwrap();
    let url = server.url().replacen("postgres@", "clerk@", 1);
    let locker = locker(open(&format!("{url}?clean_every=1h")).await);
    locker.lock("job").await.unwrap().release().await.unwrap();
    // On the connections that are open.
    server.sql(&format!("REVOKE ALL {rights} FROM clerk")).await.unwrap();
    for at in 0..30 {
        let error = within(locker.lock(format!("job/{at}"))).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { transient: false, .. }), "{error:?}");
        assert!(error.to_string().contains("grant it the rights"), "{error}");
    }
    // Everything that was begun has come to its end.
    Clock::boot().sleep(Duration::from_secs(1)).await;
    let began = server.sql("SELECT clock_timestamp()").await.unwrap();
    Clock::boot().sleep(Duration::from_secs(3)).await;
    let since =
        format!("SELECT count(*) FROM pg_stat_activity WHERE usename = 'clerk' AND '{began}' < query_start");
    assert_eq!(server.sql(&since).await.unwrap(), "0", "statements after 30 refusals");
    within(locker.shutdown(Duration::from_secs(5))).await.unwrap();
}
