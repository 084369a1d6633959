//! Session locks on a real PostgreSQL: what ends a session, what a server forgets, and who may not come in.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "how a child process talks to its parent")]

#[allow(dead_code, reason = "these children are told nothing more")]
mod child;
#[allow(dead_code, unused_imports, unused_macros, reason = "the cases of the other files are told there")]
mod faults;
mod postgres_site;
mod session_cases;
mod turns;

use faults::Site;
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Claim, Clock, Error, Guard, Key};
use lockkeeper_servers::{PgBouncer, PgBouncerOptions, PoolMode};
use lockkeeper_sql::postgres::{durable_switch, session_switch};
use lockkeeper_sql::{Postgres, PostgresSessions};
use postgres_site::OnPostgres;
use rustix::process::{Pid, Signal, kill_process};
use session_cases::{LONG, Sessions, TTL, locker, open, session_url, until, within};
use tokio_postgres::{Client, NoTls};

impl Sessions for OnPostgres {
    type Sessions = PostgresSessions;

    async fn sessions(url: &str) -> Result<PostgresSessions, Error> {
        PostgresSessions::connect(url).await
    }

    async fn durable(url: &str) -> Result<Postgres, Error> {
        Postgres::connect(url).await
    }

    fn switches() -> [String; 2] {
        [session_switch("lockkeeper"), durable_switch("lockkeeper")]
    }

    async fn followed() -> (Self, Self) {
        let leader = OnPostgres::start(&[("wal_level", "replica")]).await;
        let follower = leader.0.standby().await.unwrap();
        (leader, OnPostgres(follower))
    }

    async fn knows(&self, leader: &Self) -> bool {
        let written = leader.sql("SELECT pg_current_wal_flush_lsn()").await;
        let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{}'", written.trim());
        self.sql(&replayed).await.trim() == "t"
    }

    async fn promote(&self) {
        self.0.promote().await.unwrap();
    }

    const FENCES_AHEAD: &'static str = "SELECT setval('lockkeeper.lockkeeper_session_counter', last_value + 1000000000) \
         FROM lockkeeper.lockkeeper_session_counter";

    const COUNTS: &'static [(&'static str, &'static str)] =
        &[("track_functions", "pl"), ("autovacuum", "off"), ("max_locks_per_transaction", "256")];

    async fn statements(&self) -> u64 {
        let sql = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database";
        self.sql(sql).await.trim().parse().unwrap()
    }

    async fn beats(&self) -> u64 {
        let sql =
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname LIKE '%session_beat%'";
        self.sql(sql).await.trim().parse().unwrap()
    }

    async fn open_sessions(&self) -> u64 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
        self.sql(sql).await.trim().parse().unwrap()
    }

    async fn narrow() -> (Self, String) {
        let site = OnPostgres::start(&[("max_connections", "12")]).await;
        let url = site.url();
        (site, url)
    }
}

session_cases::session_cases!(OnPostgres);

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

#[tokio::test]
async fn a_crash_inside_the_server_is_a_restart() {
    let server = OnPostgres::start(&[]).await;
    let (here, clock) = (locker(open::<OnPostgres>(&server.url()).await, TTL), Clock::boot());
    let guard = here.lock("orders/42").await.unwrap();
    // One process of the server dies, and the server forgets all sessions without being started again.
    let backend = client(&server.url()).await;
    let pid: i32 = backend.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let killed_at = clock.now();
    within(guard.lost()).await;
    let next = within(here.lock("orders/42")).await.unwrap();
    assert!(TTL <= clock.now() - killed_at, "let in although others may still believe in their locks");
    assert!(guard.fence() < next.fence());
}

#[tokio::test]
async fn poolers_are_refused_with_what_to_do() {
    let server = OnPostgres::start(&[]).await;
    for mode in [PoolMode::Session, PoolMode::Transaction, PoolMode::Statement] {
        let pooler = PgBouncer::start(&server.0, PgBouncerOptions::default().mode(mode)).await.unwrap();
        let refused = PostgresSessions::connect(&session_url(&pooler.url())).await.unwrap_err().to_string();
        assert!(refused.contains("a pooler stands between"), "{mode:?}: {refused}");
        assert!(refused.contains("name the server itself"), "{mode:?}: {refused}");
    }
}

#[tokio::test]
async fn names_meet_neither_each_other_nor_the_users_own_advisory_locks() {
    let server = OnPostgres::start(&[]).await;
    let (store, user) = (open::<OnPostgres>(&server.url()).await, client(&server.url()).await);
    let other = session_url(&server.url()) + "&schema=other";
    let elsewhere = locker(PostgresSessions::connect(&other).await.unwrap(), TTL);
    user.batch_execute(
        "SELECT pg_advisory_lock(n), pg_advisory_lock(1, n::integer) FROM generate_series(1, 200) AS n",
    )
    .await
    .unwrap();
    let here = locker(store, TTL);
    let mut guards = Vec::new();
    for at in 0..100 {
        let name = format!("orders/{at}");
        guards.push(here.try_lock(&name).await.unwrap().expect("only other names are held"));
        guards.push(elsewhere.try_lock(&name).await.unwrap().expect("another schema is another store"));
    }
    let alike = "SELECT count(*) - count(DISTINCT number) FROM lockkeeper.lockkeeper_session_name";
    assert_eq!(server.sql(alike).await.trim(), "0");
    assert!(guards.iter().all(Guard::is_valid));
}

#[tokio::test]
async fn a_full_lock_table_is_told_and_loses_no_lock() {
    let server = OnPostgres::start(&[("max_locks_per_transaction", "10"), ("max_connections", "12")]).await;
    let store = open::<OnPostgres>(&server.url()).await;
    let enter =
        |at: usize| store.enter(Claim::new(Key::new(&format!("orders/{at}")).unwrap(), LONG).unwrap());
    let mut held = Vec::new();
    let refused = loop {
        let mut place = enter(held.len());
        match place.turn().await {
            Ok(turn) => assert!(matches!(turn, Turn::Held(_)), "nobody else is there"),
            Err(fault) => break (place, fault),
        }
        held.push(place);
        assert!(held.len() < 100_000, "the table of locks never runs full");
    };
    let (mut refused, fault) = refused;
    assert!(fault.to_string().contains("max_locks_per_transaction"), "{fault}");
    for place in &mut held {
        assert!(matches!(place.renew().await.unwrap(), Renewal::Held { .. }), "what is held stays");
    }
    // What shows the locks needs some of the room itself.
    for _ in 0..20 {
        held.pop().unwrap().leave().await.unwrap();
    }
    let told = store.doctor().await.unwrap();
    assert!(told.iter().any(|it| it.remedy.contains("max_locks_per_transaction")), "{told:?}");
    assert_eq!(store.list("").await.unwrap().len(), held.len());
    assert!(matches!(refused.turn().await.unwrap(), Turn::Held(_)), "there is room again");
}

#[tokio::test]
async fn the_cleaner_leaves_alone_what_its_own_session_holds() {
    let server = OnPostgres::start(&[]).await;
    let often = session_url(&server.url()) + "&clean_every=10ms";
    let store = PostgresSessions::connect(&often).await.unwrap();
    let (here, there) = (locker(store.clone(), TTL), locker(open::<OnPostgres>(&server.url()).await, TTL));
    let guard = here.lock("held").await.unwrap();
    here.lock("idle").await.unwrap().release().await.unwrap();
    // As if both had been used for the first time long ago.
    server.sql("UPDATE lockkeeper.lockkeeper_session_name SET born = 0").await;
    let idle = "SELECT count(*) FROM lockkeeper.lockkeeper_session_name WHERE name = 'idle'";
    until(async || (server.sql(idle).await.trim() == "0").then_some(())).await;
    assert!(there.try_lock("held").await.unwrap().is_none(), "two hold one lock");
    assert!(guard.is_valid());
    assert_eq!(store.show(guard.key()).await.unwrap().unwrap().holders.len(), 1);
    // What it leaves alone is not kept for ever.
    guard.release().await.unwrap();
    until(async || {
        (server.sql("SELECT count(*) FROM lockkeeper.lockkeeper_session_name").await.trim() == "0")
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn functions_of_the_version_before_are_made_anew() {
    let server = OnPostgres::start(&[]).await;
    drop(open::<OnPostgres>(&server.url()).await);
    server.sql("DROP FUNCTION lockkeeper.lockkeeper_session_clean_2(integer, bigint, bigint)").await;
    let fixed = session_url(&server.url()) + "&create=no";
    let refused = PostgresSessions::connect(&fixed).await.unwrap_err().to_string();
    assert!(refused.contains("lacks the tables or functions of session locks"), "{refused}");
    let here = locker(open::<OnPostgres>(&server.url()).await, TTL);
    here.lock("orders/42").await.unwrap().release().await.unwrap();
    // Programs that know only the name of before clean as it is done now.
    let older = "SELECT prosrc LIKE '%clean_2%' FROM pg_proc WHERE proname = 'lockkeeper_session_clean_1'";
    assert_eq!(server.sql(older).await.trim(), "t");
    PostgresSessions::connect(&fixed).await.unwrap();
}

#[tokio::test]
async fn a_name_that_a_cleaner_may_remove_is_looked_at_again_when_it_is_taken() {
    let server = OnPostgres::start(OnPostgres::COUNTS).await;
    let (here, there) =
        (locker(open::<OnPostgres>(&server.url()).await, LONG), open::<OnPostgres>(&server.url()).await);
    let cycles = async |count: usize| {
        for _ in 0..count {
            here.lock("orders/42").await.unwrap().release().await.unwrap();
        }
    };
    // The first gives the name its number.
    cycles(5).await;
    server.sql("UPDATE lockkeeper.lockkeeper_session_name SET born = 0").await;
    cycles(2).await;
    // By whichever way it was taken, it was given back as often.
    let guard = locker(there, LONG).try_lock("orders/42").await.unwrap();
    guard.expect("nobody has it").release().await.unwrap();
    within(here.shutdown(LONG)).await.unwrap();
    drop(here);
    until(async || (server.open_sessions().await == 0).then_some(())).await;
    let looked = "SELECT sum(calls) FROM pg_stat_user_functions WHERE funcname LIKE '%session_take%'";
    // The first, the two of the old name, and the other process's.
    assert_eq!(server.sql(looked).await.trim(), "4");
}
