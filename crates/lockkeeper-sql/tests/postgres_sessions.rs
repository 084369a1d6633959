//! Session locks on a real PostgreSQL: what ends a session, what a server forgets, and who may not come in.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "how a child process talks to its parent")]

#[allow(dead_code, reason = "these children are told nothing more")]
mod child;
mod turns;

use std::time::Duration;

use child::Other;
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Claim, Clock, Fence, Guard, Key, Locker};
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::{self as servers, PgBouncer, PgBouncerOptions, PoolMode};
use lockkeeper_sql::fenced::FencedError;
use lockkeeper_sql::postgres::{PostgresFences, durable_switch, session_switch};
use lockkeeper_sql::{Postgres, PostgresSessions};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::{Client, NoTls};
use turns::Turns;

/// A patience that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longer than any patience: whoever takes over before has not waited for it.
const LONG: Duration = Duration::from_secs(1000);
const TTL: Duration = Duration::from_secs(4);

async fn start(settings: &[(&str, &str)]) -> servers::Postgres {
    let options =
        settings.iter().fold(servers::PostgresOptions::default(), |it, (name, value)| it.set(name, value));
    servers::Postgres::start(options).await.unwrap()
}

fn session_url(url: &str) -> String {
    format!("{url}?mode=session")
}

async fn open(url: &str) -> PostgresSessions {
    PostgresSessions::connect(&session_url(url)).await.unwrap()
}

fn locker(store: PostgresSessions, ttl: Duration) -> Locker {
    Locker::builder(store).ttl(ttl).wait_at_most(PATIENCE).outage_max(PATIENCE).build()
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::select! {
        out = work => out,
        () = Clock::boot().sleep(PATIENCE) => panic!("this hangs"),
    }
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

fn this_test() -> String {
    std::thread::current().name().unwrap().to_owned()
}

/// The other process of a test: it takes the lock, says so, and says when it has lost it.
async fn hold_until_lost(ttl: Duration) -> bool {
    let Some(url) = child::told() else { return false };
    let guard = locker(open(&url).await, ttl).lock("orders/42").await.unwrap();
    child::tell(&format!("held {}", guard.fence().get()));
    guard.lost().await;
    child::tell(&format!("lost {}", guard.is_valid()));
    true
}

async fn is_refused(url: &str, fence: Fence) -> bool {
    let (fences, mut client) = (PostgresFences::new("public").unwrap(), client(url).await);
    fences.create(&client).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let checked = fences.check(&transaction, &Key::new("orders/42").unwrap(), fence).await;
    transaction.commit().await.unwrap();
    matches!(checked, Err(FencedError::Stale { .. }))
}

#[tokio::test]
async fn a_killed_holder_is_replaced_long_before_its_ttl() {
    if hold_until_lost(LONG).await {
        return;
    }
    let server = start(&[]).await;
    let other = Other::start(&this_test(), &server.url());
    let before: u64 = other.expect("held ").parse().unwrap();
    let here = locker(open(&server.url()).await, LONG);
    let waiting = tokio::spawn(async move { here.lock("orders/42").await.map(|it| it.fence()) });
    other.signal(Signal::KILL);
    let fence = within(waiting).await.unwrap().unwrap();
    assert!(before < fence.get());
}

#[tokio::test]
async fn a_stopped_holder_is_replaced_after_its_ttl_and_learns_it() {
    if hold_until_lost(TTL).await {
        return;
    }
    let server = start(&[]).await;
    let other = Other::start(&this_test(), &server.url());
    let before: u64 = other.expect("held ").parse().unwrap();
    let here = locker(open(&server.url()).await, TTL);
    assert!(here.try_lock("orders/42").await.unwrap().is_none());
    other.signal(Signal::STOP);
    let guard = within(here.lock("orders/42")).await.unwrap();
    assert!(before < guard.fence().get());
    assert!(!is_refused(&server.url(), guard.fence()).await);
    assert!(
        is_refused(&server.url(), Fence::from_u64(before)).await,
        "a holder that was stopped writes no more"
    );
    other.signal(Signal::CONT);
    assert_eq!(other.expect("lost "), "false");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_broken_connection_is_told_at_once_and_the_next_has_the_lock() {
    let server = start(&[]).await;
    let network = Proxy::start(server.port()).await.unwrap();
    let url = server.url().replace(&server.address(), &network.address());
    let (here, there) = (locker(open(&url).await, LONG), locker(open(&server.url()).await, LONG));
    let guard = here.lock("orders/42").await.unwrap();
    network.cut();
    within(guard.lost()).await;
    let next = within(there.lock("orders/42")).await.unwrap();
    assert!(guard.fence() < next.fence());
    drop(next);
    // Its process goes on with another session.
    within(here.lock("orders/42")).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_session_cut_on_the_servers_side_only_has_two_holders_and_one_who_may_write() {
    let server = start(&[]).await;
    let network = Proxy::start(server.port()).await.unwrap();
    let url = server.url().replace(&server.address(), &network.address());
    let (here, there) = (locker(open(&url).await, LONG), locker(open(&server.url()).await, TTL));
    let guard = here.lock("orders/42").await.unwrap();
    assert!(!is_refused(&server.url(), guard.fence()).await);
    // The server ends the session, and the word of it is lost.
    network.set(Direction::ToClient, Rule::Drop);
    server
        .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lockkeeper'")
        .await
        .unwrap();
    let next = within(there.lock("orders/42")).await.unwrap();
    assert!(guard.is_valid(), "this is what a session lock cannot promise");
    assert!(!is_refused(&server.url(), next.fence()).await);
    assert!(is_refused(&server.url(), guard.fence()).await, "and this is the answer");
    network.cut();
    within(guard.lost()).await;
}

#[tokio::test]
async fn after_a_restart_nobody_is_let_in_before_the_longest_ttl_is_over() {
    if hold_until_lost(TTL).await {
        return;
    }
    let server = start(&[]).await;
    let other = Other::start(&this_test(), &server.url());
    let before: u64 = other.expect("held ").parse().unwrap();
    other.signal(Signal::STOP);
    let clock = Clock::boot();
    server.kill().unwrap();
    let killed_at = clock.now();
    server.start().await.unwrap();
    // One with a short ttl waits for those with longer ones.
    let here = locker(open(&server.url()).await, TTL / 2);
    let tried = here.try_lock("orders/42").await.unwrap().is_some();
    let too_early = tried && clock.now() - killed_at < TTL;
    assert!(!too_early, "let in although a holder before the restart may still believe in its lock");
    let guard = within(here.lock("orders/42")).await.unwrap();
    let waited = clock.now() - killed_at;
    assert!(TTL <= waited, "let in {waited:?} after the crash although a holder had {TTL:?}");
    assert!(before < guard.fence().get(), "fences grow over a crash");
    other.signal(Signal::CONT);
    assert_eq!(other.expect("lost "), "false");
}

#[tokio::test]
async fn a_crash_inside_the_server_is_a_restart() {
    let server = start(&[]).await;
    let (here, clock) = (locker(open(&server.url()).await, TTL), Clock::boot());
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
async fn a_promoted_standby_lets_nobody_in_too_early_and_its_fences_grow() {
    let server = start(&[("wal_level", "replica")]).await;
    let standby = server.standby().await.unwrap();
    let (here, clock) = (locker(open(&server.url()).await, TTL), Clock::boot());
    let guard = here.lock("orders/42").await.unwrap();
    // It knows of our session when it has replayed what was written until now.
    let lsn = server.sql("SELECT pg_current_wal_flush_lsn()").await.unwrap();
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{}'", lsn.trim());
    within(async {
        while standby.sql(&replayed).await.unwrap().trim() != "t" {
            clock.sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    server.kill().unwrap();
    let killed_at = clock.now();
    standby.promote().await.unwrap();
    let there = locker(open(&standby.url()).await, TTL);
    let next = within(there.lock("orders/42")).await.unwrap();
    assert!(TTL <= clock.now() - killed_at, "the standby let somebody in too early");
    assert!(guard.fence() < next.fence());
    within(guard.lost()).await;
}

#[tokio::test]
async fn poolers_are_refused_with_what_to_do() {
    let server = start(&[]).await;
    for mode in [PoolMode::Session, PoolMode::Transaction, PoolMode::Statement] {
        let pooler = PgBouncer::start(&server, PgBouncerOptions::default().mode(mode)).await.unwrap();
        let refused = PostgresSessions::connect(&session_url(&pooler.url())).await.unwrap_err().to_string();
        assert!(refused.contains("a pooler stands between"), "{mode:?}: {refused}");
        assert!(refused.contains("name the server itself"), "{mode:?}: {refused}");
    }
}

#[tokio::test]
async fn a_schema_keeps_locks_of_one_mode_and_is_turned_over_without_a_step_back() {
    let server = start(&[]).await;
    let (url, clock) = (server.url(), Clock::boot());
    let durable = Locker::builder(Postgres::connect(&url).await.unwrap()).wait_at_most(PATIENCE).build();
    let first = durable.lock("orders/42").await.unwrap();
    let refused = PostgresSessions::connect(&session_url(&url)).await.unwrap_err().to_string();
    assert!(refused.contains("keeps durable locks"), "{refused}");

    let held = server.sql(&session_switch("lockkeeper")).await.unwrap_err().to_string();
    assert!(held.contains("somebody holds a lock"), "{held}");
    let before = first.fence();
    first.release().await.unwrap();
    server.sql(&session_switch("lockkeeper")).await.unwrap();
    let refused = durable.lock("orders/42").await.unwrap_err().to_string();
    assert!(refused.contains("keeps session locks"), "one that still runs is told: {refused}");
    let refused = Postgres::connect(&url).await.unwrap_err().to_string();
    assert!(refused.contains("keeps session locks"), "{refused}");

    let sessions = locker(open(&url).await, TTL);
    let second = sessions.lock("orders/42").await.unwrap();
    assert!(before < second.fence());
    let used = server.sql(&durable_switch("lockkeeper")).await.unwrap_err().to_string();
    assert!(used.contains("still uses"), "{used}");
    let before = second.fence();
    drop((second, sessions));
    within(async {
        // Its sessions end in the background, and the clock passes its fences.
        while server.sql(&durable_switch("lockkeeper")).await.is_err() {
            clock.sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let durable = Locker::builder(Postgres::connect(&url).await.unwrap()).wait_at_most(PATIENCE).build();
    assert!(before < durable.lock("orders/42").await.unwrap().fence());
}

#[tokio::test]
async fn names_meet_neither_each_other_nor_the_users_own_advisory_locks() {
    let server = start(&[]).await;
    let (store, user) = (open(&server.url()).await, client(&server.url()).await);
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
    assert_eq!(server.sql(alike).await.unwrap().trim(), "0");
    assert!(guards.iter().all(Guard::is_valid));
}

#[tokio::test]
async fn a_full_lock_table_is_told_and_loses_no_lock() {
    let server = start(&[("max_locks_per_transaction", "10"), ("max_connections", "12")]).await;
    let store = open(&server.url()).await;
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
async fn names_above_the_bound_of_waiting_connections_take_turns() {
    let server = start(&[]).await;
    let bounded = session_url(&server.url()) + "&waiting_max=1";
    let (here, told) = (locker(open(&server.url()).await, TTL), Turns::default());
    let store = PostgresSessions::connect(&bounded).await.unwrap();
    let there = Locker::builder(store).ttl(TTL).wait_at_most(PATIENCE).observer(told.clone()).build();
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        held.push(here.lock(name).await.unwrap());
    }
    let waiting: Vec<_> = ["a", "b", "c"]
        .map(|name| {
            let there = there.clone();
            tokio::spawn(async move { there.lock(name).await?.release().await })
        })
        .into();
    // One of them stands in the server's line, and the others say that they do not.
    within(told.are_told(2)).await;
    held.reverse();
    for guard in held {
        guard.release().await.unwrap();
    }
    for served in waiting {
        within(served).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn operators_see_who_holds_and_who_waits_and_break_one_lock_alone() {
    let server = start(&[]).await;
    let (store, there) = (open(&server.url()).await, locker(open(&server.url()).await, TTL));
    let here = locker(store.clone(), TTL);
    let broken = here.lock("orders/42").note("import").await.unwrap();
    let kept = here.lock("orders/43").await.unwrap();
    let waiting = tokio::spawn(async move { there.lock("orders/42").await });
    let key = Key::new("orders/42").unwrap();
    let shown = within(async {
        loop {
            let shown = store.show(&key).await.unwrap().unwrap();
            if !shown.waiters.is_empty() {
                return shown;
            }
            Clock::boot().sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(shown.holders.len(), 1);
    assert_eq!(shown.holders[0].label.note.as_deref(), Some("import"));
    assert_eq!(shown.holders[0].label.pid, std::process::id());
    assert_eq!(shown.holders[0].fence, Some(broken.fence()));
    assert!(shown.holders[0].since.is_some() && shown.waiters[0].since.is_some());
    assert_eq!(store.list("orders/").await.unwrap().len(), 2);

    assert_eq!(within(store.break_lock(&key)).await.unwrap().len(), 1);
    within(broken.lost()).await;
    let next = within(waiting).await.unwrap().unwrap();
    assert!(broken.fence() < next.fence());
    assert!(kept.is_valid() && store.show(kept.key()).await.unwrap().is_some(), "only one lock was broken");
    let first = &store.doctor().await.unwrap()[0];
    assert!(first.consequence.contains("cut on the server's side only"), "{first:?}");
}

#[tokio::test]
async fn one_beat_keeps_a_thousand_locks() {
    let server = start(&[("track_functions", "pl"), ("max_locks_per_transaction", "256")]).await;
    let (here, clock) = (locker(open(&server.url()).await, TTL), Clock::boot());
    let mut guards = Vec::new();
    for at in 0..1000 {
        guards.push(here.lock(format!("orders/{at}")).await.unwrap());
    }
    let beats = || async {
        let sql =
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname LIKE '%session_beat%'";
        server.sql(sql).await.unwrap().trim().parse::<u64>().unwrap()
    };
    // The server counts with a delay, so begin when it has begun to count, and end when it goes on.
    let (from, begun) = (beats().await, clock.now());
    let beaten = within(async {
        loop {
            let (beaten, lasted) = (beats().await - from, clock.now() - begun);
            if 6 <= beaten && TTL * 2 <= lasted {
                return beaten;
            }
            clock.sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    // Six are due, and some that were counted late. A beat for each lock would be six thousand.
    assert!(beaten < 100, "{beaten} beats");
    assert!(guards.iter().all(Guard::is_valid));
}

#[tokio::test]
async fn a_beat_counts_from_when_it_was_sent() {
    let (server, clock) = (start(&[]).await, Clock::boot());
    let network = Proxy::start(server.port()).await.unwrap();
    let store = open(&server.url().replace(&server.address(), &network.address())).await;
    let mut place = store.enter(Claim::new(Key::new("orders/42").unwrap(), LONG).unwrap());
    assert!(matches!(place.turn().await.unwrap(), Turn::Held(_)));
    // Once before, so that the statement is prepared and the next time there is nothing but the beat.
    place.renew().await.unwrap();
    network.set(Direction::ToClient, Rule::Hold);
    let sent = network.counters().to_server;
    let (called, mut renewing) = (clock.now(), Box::pin(place.renew()));
    let released_at = tokio::select! {
        renewal = &mut renewing => panic!("answered although no answer arrives: {renewal:?}"),
        () = async {
            within(network.wait_for(|it| sent < it.to_server)).await.unwrap();
            clock.sleep(Duration::from_millis(300)).await;
        } => clock.now(),
    };
    network.set(Direction::ToClient, Rule::Pass);
    let renewal = within(renewing).await.unwrap();
    let Renewal::Held { valid_for, sent_at, .. } = renewal else { panic!("it was lost") };
    let valid_until = sent_at.unwrap_or(called).after(valid_for);
    assert!(valid_until <= released_at.after(LONG), "the ttl counts from the answer, not from the beat");
}

#[tokio::test]
async fn waiting_for_one_lock_holds_up_none_of_the_others() {
    let server = start(&[]).await;
    let (store, there) = (open(&server.url()).await, locker(open(&server.url()).await, LONG));
    let here = locker(store.clone(), LONG);
    let (held, wanted) = (here.lock("held").await.unwrap(), there.lock("wanted").await.unwrap());
    let waiting = tokio::spawn({
        let here = here.clone();
        async move { here.lock("wanted").await.map(|it| it.fence()) }
    });
    within(async {
        while store.show(wanted.key()).await.unwrap().is_none_or(|it| it.waiters.is_empty()) {
            Clock::boot().sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    within(here.lock("another")).await.unwrap().release().await.unwrap();
    assert!(held.is_valid(), "a lock was lost because its process waits for another");
    let before = wanted.fence();
    wanted.release().await.unwrap();
    assert!(before < within(waiting).await.unwrap().unwrap());
    assert!(held.is_valid(), "a lock was lost because its process waited for another");
}
