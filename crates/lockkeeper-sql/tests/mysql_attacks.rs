//! What broke under attack on MariaDB and MySQL: settings, forgotten connections, full servers, many starts at once.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "what is printed is shown when a test fails")]

mod child;
#[allow(dead_code, unused_imports, unused_macros, reason = "the cases of the other files are told there")]
mod faults;
mod mysql_site;

use std::time::Duration;

use faults::within;
use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::memos::{Memos as _, Swap};
use lockkeeper_core::{Claim, ClaimId, Clock, Error, Fence, Key, Load, Locker};
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_sql::Mysql;
use lockkeeper_sql::mysql::MysqlFences;
use mysql_async::{Conn, Opts, TxOpts};
use mysql_site::{OnMariaDb, OnMysql, Ours, WORKER, url_of};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(3);

/// The cases that are told in the same words on both servers.
macro_rules! cases {
    ($($name:ident;)*) => {
        mod mariadb {
            $(#[tokio::test]
            async fn $name() {
                super::$name::<super::OnMariaDb>().await;
            })*
        }

        mod mysql {
            $(#[tokio::test]
            async fn $name() {
                super::$name::<super::OnMysql>().await;
            })*
        }
    };
}

cases! {
    no_setting_of_the_server_changes_what_our_statements_mean;
    what_is_granted_is_committed_whatever_a_commit_begins;
    forgotten_connections_lose_no_lock_and_hold_up_no_call;
    a_server_without_a_free_connection_loses_no_lock;
    short_processes_clean_up;
    four_who_make_the_table_of_fences_at_once_all_succeed;
    four_who_write_the_first_memo_make_its_tables_and_one_of_them_writes;
    memos_without_tables_are_refused_where_none_may_be_made;
    a_weight_above_the_capacity_is_refused_and_blocks_nobody;
    twenty_who_start_together_all_start;
    twenty_who_upgrade_together_all_start;
    whoever_version_3_let_in_and_did_not_tell_is_told;
    a_session_in_doubt_is_thrown_away;
    replication_is_warned_of_only_if_a_replica_is_there;
    a_runtime_that_nobody_drives_holds_up_nobody;
    what_is_refused_for_lack_of_rights_leaves_nothing_to_do;
}

fn locker(store: Mysql) -> Locker {
    Locker::builder(store).ttl(TTL).wait_at_most(Duration::from_secs(60)).build()
}

async fn connect(url: &str) -> Mysql {
    within(async { Mysql::connect(url).await.unwrap() }).await
}

/// Everything that statements of ours can meet: made on a fresh database, and used by several.
async fn works(url: &str) {
    let (one, other) = (connect(url).await, connect(url).await);
    let (near, far) = (locker(one.clone()), locker(other));
    let held = near.lock("settings/a").await.unwrap();
    let beside = near.lock("settings/ä").await.unwrap();
    assert!(far.try_lock("settings/a").await.unwrap().is_none());
    let waiting = tokio::spawn(async move { far.lock("settings/a").await.unwrap().fence() });
    within(async {
        while one.show(held.key()).await.unwrap().unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let listed = one.list("settings/").await.unwrap();
    assert_eq!(listed.iter().map(|it| it.key.as_str()).collect::<Vec<_>>(), ["settings/a", "settings/ä"]);
    let fence = held.fence();
    held.release().await.unwrap();
    assert!(fence < within(waiting).await.unwrap());
    assert_eq!(one.break_lock(beside.key()).await.unwrap().len(), 1);
    one.doctor().await.unwrap();
}

async fn no_setting_of_the_server_changes_what_our_statements_mean<S: Ours>() {
    let site = S::start(&[]).await;
    site.sql(WORKER).await;
    let mode = format!("sql_mode = '{}'", S::MODE);
    let settings = [
        "completion_type = 1",
        "completion_type = 2",
        "sql_safe_updates = 1",
        &mode,
        "sql_select_limit = 1",
        "autocommit = 0",
        "transaction_isolation = 'SERIALIZABLE'",
        "transaction_read_only = 1",
        "time_zone = '-05:00'",
        "character_set_client = latin1, @@GLOBAL.character_set_results = latin1, \
         @@GLOBAL.character_set_connection = latin1",
        "group_concat_max_len = 4, @@GLOBAL.max_sort_length = 64, @@GLOBAL.sql_auto_is_null = 1",
        "init_connect = 'SET timestamp = 1; START TRANSACTION'",
    ];
    for (at, setting) in settings.iter().enumerate() {
        let database = format!("settings_{at}");
        let make = format!("CREATE DATABASE {database}; GRANT ALL ON {database}.* TO worker@'127.0.0.1'");
        site.sql(&make).await;
        let name = setting.split(' ').next().unwrap();
        // Some servers call it otherwise.
        let name = if site.try_sql(&format!("SELECT @@GLOBAL.{name}")).await.is_ok() {
            name.to_owned()
        } else {
            name.replace("transaction_", "tx_")
        };
        let rest = setting.split_once(' ').unwrap().1;
        let before = site.sql(&format!("SELECT @@GLOBAL.{name}")).await;
        site.sql(&format!("SET GLOBAL {name} {rest}")).await;
        let url = url_of(&site, "worker").replacen("/lockkeeper", &format!("/{database}"), 1);
        println!("{setting}");
        works(&url).await;
        let before = before.trim();
        let number = before.chars().all(|it| it.is_ascii_digit()) && !before.is_empty();
        let before = if number { before.to_owned() } else { format!("'{before}'") };
        site.sql(&format!("SET GLOBAL {name} = {before}")).await;
    }
}

async fn what_is_granted_is_committed_whatever_a_commit_begins<S: Ours>() {
    let site = S::start(&[("completion-type", "CHAIN")]).await;
    let (one, other) = (locker(site.open(site.port()).await), locker(site.open(site.port()).await));
    // In company, so that a procedure has committed on the connection before.
    let first = one.lock("before").await.unwrap();
    assert!(other.try_lock("before").await.unwrap().is_none());
    first.release().await.unwrap();
    let guard = one.lock("chained").await.unwrap();
    let joined = one.lock("before").await.unwrap();
    site.kill_connections().await;
    assert!(other.try_lock("chained").await.unwrap().is_none(), "the grant was told and not committed");
    assert!(other.try_lock("before").await.unwrap().is_none(), "the grant was told and not committed");
    guard.check().unwrap();
    joined.check().unwrap();
}

async fn forgotten_connections_lose_no_lock_and_hold_up_no_call<S: Ours>() {
    let site = S::start(&[]).await;
    let proxy = Proxy::start(site.port()).await.unwrap();
    // Renewals come every other second.
    let (ttl, idle) = (TTL * 2, Duration::from_secs(1));
    let far = Locker::builder(site.open(proxy.port()).await).ttl(ttl).build();
    let guard = far.lock("held").await.unwrap();
    proxy.forget_idle(Some(idle));
    // Each renewal, and each call below, comes after a silence in which its connection was forgotten.
    for at in 0..3 {
        Clock::boot().sleep(ttl / 2).await;
        guard.check().unwrap();
        let next = within(async { far.lock(format!("later/{at}")).await.unwrap() }).await;
        Clock::boot().sleep(idle * 3 / 2).await;
        within(async { next.release().await.unwrap() }).await;
    }
    assert!(3 <= proxy.counters().forgotten, "{:?}", proxy.counters());
    guard.release().await.unwrap();
    let near = locker(site.open(site.port()).await);
    assert!(near.try_lock("held").await.unwrap().is_some(), "given back and not free");
}

async fn a_server_without_a_free_connection_loses_no_lock<S: Ours>() {
    let site = S::start(&[("max-connections", "20")]).await;
    site.sql(WORKER).await;
    let url = url_of(&site, "worker");
    let guard = locker(connect(&url).await).lock("crowded").await.unwrap();
    let mut crowd = Vec::new();
    while let Ok(conn) = Conn::new(Opts::from_url(&url).unwrap()).await {
        crowd.push(conn);
    }
    Clock::boot().sleep(TTL * 2).await;
    guard.check().unwrap();
    drop(crowd);
}

async fn short_processes_clean_up<S: Ours>() {
    let site = S::start(&[]).await;
    drop(site.open(site.port()).await);
    // Three thousand locks of long ago, of which some were held when their process died, and some waited for.
    let fill = "INSERT INTO lockkeeper_lock (`lock`, name, counter, id, seq, expires, ttl) \
                WITH RECURSIVE n AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM n WHERE n < 3000) \
                SELECT UNHEX(SHA2(n, 256)), n, 1, IF(n % 3 = 0, REPEAT('x', 16), NULL), 1, 1, 1 FROM n; \
                INSERT INTO lockkeeper_claim (`lock`, seq, id, held, counter, expires, since, ttl, weight, capacity, host, pid) \
                SELECT `lock`, 1, name, FALSE, 0, 1, 1, 1, 1, 1, '', 1 FROM lockkeeper_lock WHERE name % 50 = 1; \
                UPDATE lockkeeper_store SET cleaned = 0";
    site.sql(&format!("SET SESSION max_recursive_iterations = 10000; {fill}").replace(
        "SET SESSION max_recursive_iterations = 10000;",
        if site.try_sql("SELECT @@max_recursive_iterations").await.is_ok() {
            "SET SESSION max_recursive_iterations = 10000;"
        } else {
            "SET SESSION cte_max_recursion_depth = 10000;"
        },
    ))
    .await;
    let left = async || {
        let count = "SELECT (SELECT COUNT(*) FROM lockkeeper_lock) + (SELECT COUNT(*) FROM lockkeeper_claim)";
        site.sql(count).await.trim().parse::<u32>().unwrap()
    };
    let before = left().await;
    assert!(3000 < before);
    // Each lives for one lock, as the command does.
    for at in 0..3 {
        let short = locker(site.open(site.port()).await);
        short.lock(format!("short/{at}")).await.unwrap().release().await.unwrap();
    }
    // What was in a line was touched when it was settled, and is spared for its hour.
    let after = left().await;
    assert!(after < 100, "{after} of {before} rows are left");
}

async fn four_who_make_the_table_of_fences_at_once_all_succeed<S: Ours>() {
    // As it was before readers had a number of their own.
    let old = "CREATE TABLE lockkeeper_fence (resource BINARY(32) NOT NULL PRIMARY KEY, \
               name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, fence BIGINT NOT NULL) \
               ENGINE = InnoDB; INSERT INTO lockkeeper_fence VALUES (UNHEX(SHA2('old', 256)), 'old', 10)";
    let site = S::start(&[]).await;
    for round in 0..10 {
        let is_old = round % 2 == 1;
        if is_old {
            site.sql(old).await;
        }
        let mut makers = JoinSet::new();
        for _ in 0..4 {
            let mut conn = Conn::new(Opts::from_url(&site.url()).unwrap()).await.unwrap();
            makers.spawn(async move { MysqlFences.create(&mut conn).await });
        }
        while let Some(made) = makers.join_next().await {
            made.unwrap().unwrap();
        }
        let mut conn = Conn::new(Opts::from_url(&site.url()).unwrap()).await.unwrap();
        let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
        let (key, fence) = (Key::new("old").unwrap(), Fence::from_u64(9));
        let refused = MysqlFences.check(&mut tx, &key, fence).await.is_err();
        assert_eq!(refused, is_old, "what an old table knew is kept");
        tx.rollback().await.unwrap();
        site.sql("DROP TABLE lockkeeper_fence").await;
    }
}

async fn four_who_write_the_first_memo_make_its_tables_and_one_of_them_writes<S: Ours>() {
    let (site, key) = (S::start(&[]).await, Key::new("nightly").unwrap());
    for _ in 0..5 {
        let mut writers = JoinSet::new();
        for at in 0..4 {
            let (store, key) = (site.open(site.port()).await, key.clone());
            writers.spawn(async move { store.swap(&key, None, &[at], Duration::from_secs(3600)).await });
        }
        let mut written = 0;
        while let Some(answer) = writers.join_next().await {
            written += u32::from(matches!(answer.unwrap().unwrap(), Swap::Done(_)));
        }
        assert_eq!(written, 1);
        site.sql("DROP TABLE lockkeeper_memo; DROP TABLE lockkeeper_memo_version").await;
    }
}

async fn memos_without_tables_are_refused_where_none_may_be_made<S: Ours>() {
    let (site, key) = (S::start(&[]).await, Key::new("nightly").unwrap());
    site.open(site.port()).await;
    let url = format!("{}?create=no", site.url());
    let store = Mysql::connect(&url).await.unwrap();
    assert_eq!(store.read(&key).await.unwrap(), None);
    let fault = store.swap(&key, None, b"done", TTL).await.unwrap_err();
    assert!(!fault.is_transient() && fault.message.contains("run the DDL"), "{fault}");
    let warned = |findings: &[lockkeeper_core::inspect::Finding]| {
        findings.iter().any(|it| it.severity == Severity::Warning && it.what.contains("memos"))
    };
    assert!(warned(&store.doctor().await.unwrap()));
    // Made by hand, as the page says.
    for statement in lockkeeper_sql::mysql::memo_ddl().split_inclusive(";\n") {
        site.sql(statement).await;
    }
    assert!(matches!(store.swap(&key, None, b"done", TTL * 100).await.unwrap(), Swap::Done(_)));
    assert_eq!(store.read(&key).await.unwrap().unwrap().value, b"done");
    assert!(!warned(&store.doctor().await.unwrap()));
}

async fn a_weight_above_the_capacity_is_refused_and_blocks_nobody<S: Ours>() {
    let site = S::start(&[]).await;
    let store = site.open(site.port()).await;
    let key = Key::new("room").unwrap();
    let claim = |weight, capacity| Claim::new(key.clone(), TTL).unwrap().load(Load::new(weight, capacity));
    let mut holder = store.enter(claim(1, 2));
    assert!(matches!(holder.turn().await.unwrap(), Turn::Held(_)));
    let mut misfit = store.enter(claim(3, 2));
    let fault = misfit.turn().await.unwrap_err();
    assert!(!fault.is_transient() && fault.to_string().contains("capacity"), "{fault}");
    misfit.leave().await.unwrap();
    let mut beside = store.enter(claim(1, 2));
    assert!(matches!(beside.turn().await.unwrap(), Turn::Held(_)), "the line is blocked");
}

async fn start_together<S: Ours>(site: &S) {
    let mut starts = JoinSet::new();
    for at in 0..20 {
        let url = site.url();
        starts.spawn(async move {
            let one = Mysql::connect(&url).await?;
            locker(one).lock(format!("start/{at}")).await?.release().await
        });
    }
    within(async {
        while let Some(started) = starts.join_next().await {
            started.unwrap().unwrap();
        }
    })
    .await;
}

async fn twenty_who_start_together_all_start<S: Ours>() {
    let site = S::start(&[]).await;
    start_together(&site).await;
}

async fn twenty_who_upgrade_together_all_start<S: Ours>() {
    let site = S::start(&[]).await;
    site.sql(include_str!("mysql_site/version_2.sql")).await;
    start_together(&site).await;
    assert_eq!(site.sql("SELECT version FROM lockkeeper_store").await.trim(), "4");
    let old = locker(site.open(site.port()).await).try_lock("old").await.unwrap();
    assert!(old.is_none(), "the holder was forgotten");
}

/// Version 3 gave a number only to whoever asked.
async fn whoever_version_3_let_in_and_did_not_tell_is_told<S: Ours>() {
    let site = S::start(&[]).await;
    site.sql(include_str!("mysql_site/version_3.sql")).await;
    start_together(&site).await;
    assert_eq!(site.sql("SELECT version FROM lockkeeper_store").await.trim(), "4");
    let store = site.open(site.port()).await;
    let claim = |id: &[u8; 16], weight| {
        let (id, key) = (ClaimId::from_bytes(*id), Key::new("old").unwrap());
        store.enter(Claim::known_as(id, key, TTL).load(Load::new(weight, u32::MAX)))
    };
    let (mut told, mut untold) = (claim(b"sixteen bytes id", 1), claim(b"the id not told_", 1));
    let Turn::Held(grant) = untold.turn().await.unwrap() else { panic!("it was let in") };
    assert!(9_999_999_999_999 < grant.counter);
    assert!(matches!(told.turn().await.unwrap(), Turn::Held(grant) if grant.counter == 9_999_999_999_998));
    let mut next = claim(b"sixteen other id", u32::MAX);
    assert!(matches!(next.turn().await.unwrap(), Turn::Wait { .. }));
    told.leave().await.unwrap();
    untold.leave().await.unwrap();
    assert!(matches!(next.turn().await.unwrap(), Turn::Held(after) if grant.counter < after.counter));
}

/// After the disk was full a session may still be inside a transaction. The next lock does not meet it.
async fn a_session_in_doubt_is_thrown_away<S: Ours>() {
    let site = S::small().await;
    let store = site.open(site.port()).await;
    let one = Locker::builder(store).ttl(TTL).outage_max(Duration::from_millis(500)).build();
    site.sql("CREATE TABLE filler (id INT PRIMARY KEY AUTO_INCREMENT, data LONGBLOB)").await;
    while site.try_sql("INSERT INTO filler (data) VALUES (REPEAT('x', 400000))").await.is_ok() {}
    while site.try_sql("INSERT INTO filler (data) VALUES ('x')").await.is_ok() {}
    let mut full = 0;
    for at in 0..5000 {
        let name = format!("{at:0512}");
        // A second claim on the same name goes through the procedures, whose transactions are longer.
        let taken = one.lock(&name).await;
        let Err(error) = taken else { continue };
        assert!(error.is_transient() && error.to_string().contains("full"), "{error}");
        full += 1;
        if full == 20 {
            break;
        }
    }
    assert!(0 < full, "the disk is not full");
    // Where the server has room enough to make room, all is well again.
    if site.try_sql("DROP TABLE filler").await.is_ok() {
        within(async {
            while let Err(error) = one.lock("after").await {
                assert!(error.is_transient() && error.to_string().contains("full"), "{error}");
            }
        })
        .await;
    }
}

async fn replication_is_warned_of_only_if_a_replica_is_there<S: Ours>() {
    let (source, replica) = S::pair().await;
    let store = source.open(source.port()).await;
    let worst = async || store.doctor().await.unwrap().iter().map(|it| it.severity).max();
    assert_eq!(worst().await, Some(Severity::Fine), "{:?}", store.doctor().await.unwrap());
    replica.sql(&S::follow(source.port())).await;
    within(async {
        while worst().await != Some(Severity::Warning) {
            Clock::boot().sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let findings = store.doctor().await.unwrap();
    assert!(findings.iter().any(|it| it.what.contains("replica")), "{findings:?}");
}

async fn a_runtime_that_nobody_drives_holds_up_nobody<S: Ours>() {
    let site = S::start(&[]).await;
    let url = site.url();
    let blocking = tokio::task::spawn_blocking(move || {
        let still = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let one = locker(still.block_on(connect(&url)));
        // The runtime lives, and nobody drives it any more.
        drop(one.lock("still").blocking().unwrap());
        // Nor does one that is only entered.
        let entered = still.enter();
        for _ in 0..5 {
            drop(one.lock("still").blocking().unwrap());
        }
        drop(entered);
        let other = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let driven = one.clone();
        other.block_on(async move { driven.lock("still").await.unwrap().release().await.unwrap() });
    });
    within(blocking).await.unwrap();
}

async fn what_is_refused_for_lack_of_rights_leaves_nothing_to_do<S: Ours>() {
    let site = S::start(&[]).await;
    drop(site.open(site.port()).await);
    let clerk = "clerk@'127.0.0.1'";
    site.sql(&format!("CREATE USER {clerk}")).await;
    // Table by table: rights to a whole database are remembered by the connections that use it.
    let things = site
        .try_sql(
            "SELECT CONCAT('TABLE lockkeeper.', table_name) FROM information_schema.tables \
             WHERE table_schema = 'lockkeeper' UNION ALL SELECT CONCAT(routine_type, ' lockkeeper.', routine_name) \
             FROM information_schema.routines WHERE routine_schema = 'lockkeeper'",
        )
        .await
        .unwrap();
    let right = |it: &str| if it.starts_with("TABLE") { "SELECT, INSERT, UPDATE, DELETE" } else { "EXECUTE" };
    for thing in things.lines() {
        site.sql(&format!("GRANT {} ON {thing} TO {clerk}", right(thing))).await;
    }
    let locker = locker(connect(&format!("{}?clean_every=1h", url_of(&site, "clerk"))).await);
    locker.lock("job").await.unwrap().release().await.unwrap();
    for thing in things.lines() {
        site.sql(&format!("REVOKE {} ON {thing} FROM {clerk}", right(thing))).await;
    }
    for at in 0..30 {
        let error = within(locker.lock(format!("job/{at}"))).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { transient: false, .. }), "{error:?}");
    }
    // Everything that was begun has come to its end.
    Clock::boot().sleep(Duration::from_secs(1)).await;
    let questions = async || {
        let told = site.try_sql("SHOW GLOBAL STATUS LIKE 'Questions'").await.unwrap();
        told.split_whitespace().last().and_then(|it| it.parse::<u64>().ok()).unwrap()
    };
    let before = questions().await;
    Clock::boot().sleep(Duration::from_secs(3)).await;
    // The kit asks a little itself.
    let since = questions().await - before;
    assert!(since <= 10, "{since} statements after 30 refusals");
    within(locker.shutdown(Duration::from_secs(5))).await.unwrap();
}
