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
    // What is held is young again; and what it leaves alone is not kept for ever.
    let young = "SELECT count(*) FROM lockkeeper.lockkeeper_session_name WHERE name = 'held' AND born <> 0";
    assert_eq!(server.sql(young).await.trim(), "1");
    guard.release().await.unwrap();
    server.sql("UPDATE lockkeeper.lockkeeper_session_name SET born = 0").await;
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
    server.sql("DROP FUNCTION lockkeeper.lockkeeper_session_clean_3(integer, bigint, bigint)").await;
    let fixed = session_url(&server.url()) + "&create=no";
    let refused = PostgresSessions::connect(&fixed).await.unwrap_err().to_string();
    assert!(refused.contains("lacks the tables or functions of session locks"), "{refused}");
    let here = locker(open::<OnPostgres>(&server.url()).await, TTL);
    here.lock("orders/42").await.unwrap().release().await.unwrap();
    // Programs that know only the name of before clean as it is done now.
    let older = "SELECT prosrc LIKE '%clean_3%' FROM pg_proc WHERE proname IN \
                 ('lockkeeper_session_clean_1', 'lockkeeper_session_clean_2')";
    assert_eq!(server.sql(older).await.split_whitespace().collect::<Vec<_>>(), ["t", "t"]);
    PostgresSessions::connect(&fixed).await.unwrap();
}

/// Locks and releases by a session of its own, and how often the function was called that looks a name up, all in all.
async fn looked_up(server: &OnPostgres, cycles: usize, meanwhile: impl AsyncFn()) -> u64 {
    let locker = locker(open::<OnPostgres>(&server.url()).await, LONG);
    for at in 0..cycles {
        locker.lock("orders/42").await.unwrap().release().await.unwrap();
        if at == 0 {
            meanwhile().await;
        }
    }
    within(locker.shutdown(LONG)).await.unwrap();
    drop(locker);
    until(async || (server.open_sessions().await == 0).then_some(())).await;
    let calls = "SELECT sum(calls) FROM pg_stat_user_functions WHERE funcname LIKE '%session_take%'";
    server.sql(calls).await.trim().parse().unwrap()
}

#[tokio::test]
async fn a_name_that_a_cleaner_may_remove_is_looked_at_again_when_it_is_taken() {
    let server = OnPostgres::start(OnPostgres::COUNTS).await;
    // The first gives the name its number.
    assert_eq!(looked_up(&server, 5, async || {}).await, 1);
    assert_eq!(looked_up(&server, 2, async || {}).await, 1);
    server.sql("UPDATE lockkeeper.lockkeeper_session_name SET born = 0").await;
    assert_eq!(looked_up(&server, 2, async || {}).await, 3, "each time while it is old");
    // It is sure for two seconds after the first lock, by the server's clock, and not after that.
    let sure = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 3540000000";
    let young = format!("UPDATE lockkeeper.lockkeeper_session_name SET born = {sure} + 2000000");
    server.sql(&young).await;
    let over = format!("SELECT born < {sure} FROM lockkeeper.lockkeeper_session_name");
    let until_old = async || until(async || (server.sql(&over).await.trim() == "t").then_some(())).await;
    assert_eq!(looked_up(&server, 3, until_old).await, 5, "what was known is too old for the second");
    // Whoever waits has its place in the line, so it looks before.
    server.sql(&young).await;
    let (here, there) = (open::<OnPostgres>(&server.url()).await, open::<OnPostgres>(&server.url()).await);
    let (here, there) = (locker(here, LONG), locker(there, LONG));
    let first = here.lock("orders/42").await.unwrap();
    let waits = there.lock("orders/42");
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'";
    let waited = async {
        until(async || (server.sql(waiting).await.trim() == "1").then_some(())).await;
        until_old().await;
        first.release().await.unwrap();
    };
    let (second, ()) = within(async { tokio::join!(async { waits.await.unwrap() }, waited) }).await;
    second.release().await.unwrap();
    assert_eq!(looked_up_by_all(&server, [here, there]).await, 6, "by the one who waited");
}

async fn looked_up_by_all(server: &OnPostgres, all: [lockkeeper_core::Locker; 2]) -> u64 {
    for locker in all {
        within(locker.shutdown(LONG)).await.unwrap();
    }
    looked_up(server, 0, async || {}).await
}

/// Locks and releases, so that a caller that is alone has its session's socket in its own event loop.
async fn alone(locker: &lockkeeper_core::Locker) {
    for _ in 0..20 {
        locker.lock("orders/42").await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_kept_although_the_runtime_that_hears_its_session_stands_still() {
    let server = OnPostgres::start(&[]).await;
    let (here, there) = (open::<OnPostgres>(&server.url()).await, open::<OnPostgres>(&server.url()).await);
    let (here, there) = (locker(here, TTL), locker(there, TTL));
    let (held, holds) = tokio::sync::oneshot::channel();
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let blocked = std::thread::spawn(move || {
        let caller = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        caller.block_on(async {
            alone(&here).await;
            let guard = here.lock("orders/42").await.unwrap();
            held.send(()).unwrap();
            // Nothing of this runtime moves.
            waits.recv().unwrap();
            guard.is_valid()
        })
    });
    holds.await.unwrap();
    let clock = Clock::boot();
    let until = clock.now().after(TTL * 3);
    while clock.now() < until {
        assert!(there.try_lock("orders/42").await.unwrap().is_none(), "another has it");
        clock.sleep(TTL / 10).await;
    }
    go_on.send(()).unwrap();
    assert!(blocked.join().unwrap(), "its beats were answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_whose_event_loop_nobody_moves_is_no_end_of_it() {
    let server = OnPostgres::start(&[]).await;
    let here = locker(open::<OnPostgres>(&server.url()).await, LONG);
    let still = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = still.handle().clone();
    // Tokio drives the event loop of such a runtime in `Runtime::block_on` only.
    let done = tokio::task::spawn_blocking(move || handle.block_on(async { alone(&here).await }));
    within(done).await.unwrap();
    drop(tokio::task::spawn_blocking(move || drop(still)).await);
}

#[tokio::test]
async fn whoever_goes_away_as_a_wait_begins_is_not_waited_for() {
    let server = OnPostgres::start(&[]).await;
    let (here, there) = (open::<OnPostgres>(&server.url()).await, open::<OnPostgres>(&server.url()).await);
    let claim = || Claim::new(Key::new("orders/42").unwrap(), LONG).unwrap();
    let held = async |place: &mut lockkeeper_sql::PostgresSessionsPlace| {
        until(async || matches!(place.turn().await.unwrap(), Turn::Held(_)).then_some(())).await;
    };
    let (mut first, mut second) = (there.enter(claim()), here.enter(claim()));
    held(&mut first).await;
    assert!(matches!(second.turn().await.unwrap(), Turn::Wait { .. }));
    first.leave().await.unwrap();
    held(&mut second).await;
    second.leave().await.unwrap();
    held(&mut first).await;
    // It has waited a moment ago and has a session for that, so that it begins with the first poll.
    let mut gone = Box::pin(second.turn());
    let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(gone.as_mut().poll(cx).is_pending()));
    assert!(begun.await);
    drop(gone);
    first.leave().await.unwrap();
    held(&mut second).await;
    second.leave().await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_session_is_told_while_a_caller_hears_it() {
    let server = OnPostgres::start(&[]).await;
    let here = locker(open::<OnPostgres>(&server.url()).await, LONG);
    alone(&here).await;
    let guard = here.lock("orders/42").await.unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    server.sql(end).await;
    // No beat is due for long.
    within(guard.lost()).await;
}
