//! Session locks on a real MariaDB and MySQL: what ends a session, what a server forgets, and who may not come in.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "how a child process talks to its parent")]

#[allow(dead_code, reason = "these children are told nothing more")]
mod child;
#[allow(dead_code, unused_imports, unused_macros, reason = "the cases of the other files are told there")]
mod faults;
mod mysql_site;
mod turns;

use std::time::Duration;

use child::Other;
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Claim, Clock, Guard, Key, Locker};
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::{Daemon, MysqlPool};
use lockkeeper_sql::mysql::{durable_switch, session_switch};
use lockkeeper_sql::{Mysql, MysqlSessions};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use mysql_site::{OnMariaDb, OnMysql, Ours};
use rustix::process::Signal;
use turns::Turns;

/// A patience that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longer than any patience: whoever takes over before has not waited for it.
const LONG: Duration = Duration::from_secs(1000);
const TTL: Duration = Duration::from_secs(4);

fn session_url(url: &str) -> String {
    format!("{url}?mode=session")
}

async fn open(url: &str) -> MysqlSessions {
    MysqlSessions::connect(&session_url(url)).await.unwrap()
}

fn locker(store: MysqlSessions, ttl: Duration) -> Locker {
    Locker::builder(store).ttl(ttl).wait_at_most(PATIENCE).outage_max(PATIENCE).build()
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::select! {
        out = work => out,
        () = Clock::boot().sleep(PATIENCE) => panic!("this hangs"),
    }
}

async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    within(async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    })
    .await
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

/// The server through a network of our own.
async fn by_proxy<S: Ours>(site: &S) -> (Proxy, String) {
    let network = Proxy::start(site.port()).await.unwrap();
    let url = site.url().replace(&site.address(), &network.address());
    (network, url)
}

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
    a_killed_holder_is_replaced_long_before_its_ttl;
    a_stopped_holder_is_replaced_after_its_ttl_and_learns_it;
    a_broken_connection_is_told_and_the_next_has_the_lock;
    a_session_cut_on_the_servers_side_only_has_two_holders_and_one_who_may_write;
    after_a_restart_nobody_is_let_in_before_the_longest_ttl_is_over;
    a_promoted_replica_lets_nobody_in_too_early_and_its_fences_grow;
    a_database_keeps_locks_of_one_mode_and_is_turned_over_without_a_step_back;
    names_meet_neither_each_other_nor_other_databases;
    operators_see_who_holds_and_who_waits_and_break_one_lock_alone;
    a_beat_counts_from_when_it_was_sent;
    waiting_for_one_lock_holds_up_none_of_the_others;
    fences_are_reserved_before_they_are_given;
    a_server_without_a_connection_left_says_so_and_loses_no_lock;
    names_above_the_bound_of_waiting_connections_take_turns;
    a_proxy_that_shares_connections_is_refused_with_what_to_do;
    a_connection_that_breaks_is_not_taken_for_such_a_proxy;
}

async fn a_killed_holder_is_replaced_long_before_its_ttl<S: Ours>() {
    if hold_until_lost(LONG).await {
        return;
    }
    let site = S::start(&[]).await;
    let other = Other::start(&this_test(), &site.url());
    let before: u64 = other.expect("held ").parse().unwrap();
    let here = locker(open(&site.url()).await, LONG);
    let waiting = tokio::spawn(async move { here.lock("orders/42").await.map(|it| it.fence()) });
    other.signal(Signal::KILL);
    let fence = within(waiting).await.unwrap().unwrap();
    assert!(before < fence.get());
}

async fn a_stopped_holder_is_replaced_after_its_ttl_and_learns_it<S: Ours>() {
    if hold_until_lost(TTL).await {
        return;
    }
    let site = S::start(&[]).await;
    let other = Other::start(&this_test(), &site.url());
    let before: u64 = other.expect("held ").parse().unwrap();
    let here = locker(open(&site.url()).await, TTL);
    assert!(here.try_lock("orders/42").await.unwrap().is_none());
    other.signal(Signal::STOP);
    let guard = within(here.lock("orders/42")).await.unwrap();
    assert!(before < guard.fence().get());
    assert!(S::write(&site.url(), guard.fence().get()).await);
    assert!(!S::write(&site.url(), before).await, "a holder that was stopped writes no more");
    other.signal(Signal::CONT);
    assert_eq!(other.expect("lost "), "false");
    guard.release().await.unwrap();
}

async fn a_broken_connection_is_told_and_the_next_has_the_lock<S: Ours>() {
    let site = S::start(&[]).await;
    let (network, url) = by_proxy(&site).await;
    let (here, there) = (locker(open(&url).await, LONG), locker(open(&site.url()).await, LONG));
    let guard = here.lock("orders/42").await.unwrap();
    network.cut();
    within(guard.lost()).await;
    let next = within(there.lock("orders/42")).await.unwrap();
    assert!(guard.fence() < next.fence());
    drop(next);
    // Its process goes on with another session.
    within(here.lock("orders/42")).await.unwrap().release().await.unwrap();
}

async fn a_session_cut_on_the_servers_side_only_has_two_holders_and_one_who_may_write<S: Ours>() {
    let site = S::start(&[]).await;
    let (network, url) = by_proxy(&site).await;
    let (here, there) = (locker(open(&url).await, LONG), locker(open(&site.url()).await, TTL));
    let guard = here.lock("orders/42").await.unwrap();
    assert!(S::write(&site.url(), guard.fence().get()).await);
    // The server ends the session, and the word of it is lost.
    network.set(Direction::ToClient, Rule::Drop);
    site.kill_connections().await;
    let next = within(there.lock("orders/42")).await.unwrap();
    assert!(guard.is_valid(), "this is what a session lock cannot promise");
    assert!(S::write(&site.url(), next.fence().get()).await);
    assert!(!S::write(&site.url(), guard.fence().get()).await, "and this is the answer");
    network.cut();
    within(guard.lost()).await;
}

async fn after_a_restart_nobody_is_let_in_before_the_longest_ttl_is_over<S: Ours>() {
    if hold_until_lost(TTL).await {
        return;
    }
    let site = S::start(&[]).await;
    let other = Other::start(&this_test(), &site.url());
    let before: u64 = other.expect("held ").parse().unwrap();
    other.signal(Signal::STOP);
    let clock = Clock::boot();
    site.kill().unwrap();
    let killed_at = clock.now();
    Daemon::start(&site).await.unwrap();
    // One with a short ttl waits for those with longer ones.
    let here = locker(open(&site.url()).await, TTL / 2);
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

async fn a_promoted_replica_lets_nobody_in_too_early_and_its_fences_grow<S: Ours>() {
    let (source, replica) = S::pair().await;
    replica.sql(&S::follow(source.port())).await;
    let (here, clock) = (locker(open(&source.url()).await, TTL), Clock::boot());
    let guard = here.lock("orders/42").await.unwrap();
    // It knows of our session when its row has arrived, and the server's name with it.
    let known = "SELECT COUNT(*) FROM lockkeeper_session_member JOIN lockkeeper_session_epoch ON one = 1";
    until(async || replica.try_sql(known).await.is_ok_and(|it| it.trim() != "0").then_some(())).await;
    source.kill().unwrap();
    let killed_at = clock.now();
    let there = locker(open(&replica.url()).await, TTL);
    let next = within(there.lock("orders/42")).await.unwrap();
    assert!(TTL <= clock.now() - killed_at, "the replica let somebody in too early");
    assert!(guard.fence() < next.fence());
    within(guard.lost()).await;
}

async fn a_database_keeps_locks_of_one_mode_and_is_turned_over_without_a_step_back<S: Ours>() {
    let site = S::start(&[]).await;
    let url = site.url();
    let durable = Locker::builder(Mysql::connect(&url).await.unwrap()).wait_at_most(PATIENCE).build();
    let first = durable.lock("orders/42").await.unwrap();
    let refused = MysqlSessions::connect(&session_url(&url)).await.unwrap_err().to_string();
    assert!(refused.contains("keeps durable locks"), "{refused}");

    let held = site.try_sql(&session_switch()).await.unwrap_err().to_string();
    assert!(held.contains("somebody holds a lock"), "{held}");
    let before = first.fence();
    first.release().await.unwrap();
    site.sql(&session_switch()).await;
    let refused = durable.lock("orders/42").await.unwrap_err().to_string();
    assert!(refused.contains("keeps session locks"), "one that still runs is told: {refused}");
    let refused = Mysql::connect(&url).await.unwrap_err().to_string();
    assert!(refused.contains("keeps session locks"), "{refused}");

    let sessions = locker(open(&url).await, TTL);
    let second = sessions.lock("orders/42").await.unwrap();
    assert!(before < second.fence());
    let used = site.try_sql(&durable_switch()).await.unwrap_err().to_string();
    assert!(used.contains("still uses"), "{used}");
    let before = second.fence();
    drop((second, sessions));
    // Its sessions end in the background, and the clock passes its fences.
    until(async || site.try_sql(&durable_switch()).await.ok()).await;
    let durable = Locker::builder(Mysql::connect(&url).await.unwrap()).wait_at_most(PATIENCE).build();
    assert!(before < durable.lock("orders/42").await.unwrap().fence());
}

async fn names_meet_neither_each_other_nor_other_databases<S: Ours>() {
    let site = S::start(&[]).await;
    site.sql("CREATE DATABASE other; GRANT ALL ON other.* TO lockkeeper@'127.0.0.1'").await;
    let here = locker(open(&site.url()).await, TTL);
    let elsewhere = site.url().trim_end_matches("lockkeeper").to_owned() + "other";
    let elsewhere = locker(open(&elsewhere).await, TTL);
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

async fn names_above_the_bound_of_waiting_connections_take_turns<S: Ours>() {
    let site = S::start(&[]).await;
    let (here, told) = (locker(open(&site.url()).await, TTL), Turns::default());
    let store = MysqlSessions::connect(&(session_url(&site.url()) + "&waiting_max=1")).await.unwrap();
    let there = Locker::builder(store).ttl(TTL).wait_at_most(PATIENCE).observer(told.clone()).build();
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        held.push(here.lock(name).await.unwrap());
    }
    let waiting = ["a", "b", "c"].map(|name| {
        let there = there.clone();
        tokio::spawn(async move { there.lock(name).await?.release().await })
    });
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

async fn a_proxy_that_shares_connections_is_refused_with_what_to_do<S: Ours>() {
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

async fn a_connection_that_breaks_is_not_taken_for_such_a_proxy<S: Ours>() {
    let site = S::start(&[]).await;
    let (network, url) = by_proxy(&site).await;
    let here = locker(open(&url).await, TTL);
    // The question whether somebody stands between goes unanswered once.
    network.lose_request(b"processlist");
    let guard = within(here.lock("orders/42")).await.unwrap();
    assert_eq!(network.counters().cut, 1, "nothing was lost");
    guard.release().await.unwrap();
}

async fn operators_see_who_holds_and_who_waits_and_break_one_lock_alone<S: Ours>() {
    let site = S::start(&[]).await;
    let (store, there) = (open(&site.url()).await, locker(open(&site.url()).await, TTL));
    let half = Duration::from_millis(3500);
    let here = locker(store.clone(), half);
    let broken = here.lock("orders/42").note("import").await.unwrap();
    let kept = here.lock("orders/43").await.unwrap();
    let waiting = tokio::spawn(async move { there.lock("orders/42").await });
    let key = Key::new("orders/42").unwrap();
    let shown = until(async || {
        let shown = store.show(&key).await.unwrap().unwrap();
        (!shown.waiters.is_empty() && shown.holders[0].fence.is_some()).then_some(shown)
    })
    .await;
    assert_eq!(shown.holders.len(), 1);
    assert_eq!(shown.waiters.len(), 1);
    assert_eq!(shown.holders[0].label.note.as_deref(), Some("import"));
    assert_eq!(shown.holders[0].label.pid, std::process::id());
    assert_eq!(shown.holders[0].fence, Some(broken.fence()));
    assert_eq!(shown.holders[0].valid_for, TTL, "half seconds are rounded up");
    assert!(shown.holders[0].since.is_some() && shown.waiters[0].since.is_some());
    until(async || (store.list("orders/").await.unwrap().len() == 2).then_some(())).await;
    assert!(store.list("order_").await.unwrap().is_empty());

    assert_eq!(within(store.break_lock(&key)).await.unwrap().len(), 1);
    within(broken.lost()).await;
    let next = within(waiting).await.unwrap().unwrap();
    assert!(broken.fence() < next.fence());
    assert!(kept.is_valid() && store.show(kept.key()).await.unwrap().is_some(), "only one lock was broken");
    let told = store.doctor().await.unwrap();
    assert!(told[0].consequence.contains("cut on the server's side only"), "{told:?}");
    assert!(told.iter().any(|it| it.what.contains("rounded up to whole seconds")), "{told:?}");
}

async fn a_beat_counts_from_when_it_was_sent<S: Ours>() {
    let (site, clock) = (S::start(&[]).await, Clock::boot());
    let (network, url) = by_proxy(&site).await;
    let store = open(&url).await;
    let mut place = store.enter(Claim::new(Key::new("orders/42").unwrap(), LONG).unwrap());
    assert!(matches!(place.turn().await.unwrap(), Turn::Held(_)));
    loop {
        network.set(Direction::ToClient, Rule::Hold);
        let sent = network.counters().to_server;
        let (called, mut renewing) = (clock.now(), Box::pin(place.renew()));
        let held_at = tokio::select! {
            renewal = &mut renewing => panic!("answered although no answer arrives: {renewal:?}"),
            // A statement, not only the question whether the server is there.
            _ = network.wait_for(|it| sent + 100 < it.to_server) => Some(clock.now()),
            () = clock.sleep(Duration::from_secs(2)) => None,
        };
        network.set(Direction::ToClient, Rule::Pass);
        let renewal = within(renewing).await.unwrap();
        let Renewal::Held { valid_for, sent_at, .. } = renewal else { panic!("it was lost") };
        let valid_until = sent_at.unwrap_or(called).after(valid_for);
        // That question may have gone before, and the beat waits for its answer: then nothing is shown.
        let Some(held_at) = held_at else { continue };
        assert!(valid_until <= held_at.after(LONG), "the ttl counts from the answer, not from the beat");
        return;
    }
}

async fn waiting_for_one_lock_holds_up_none_of_the_others<S: Ours>() {
    let site = S::start(&[]).await;
    let (store, there) = (open(&site.url()).await, locker(open(&site.url()).await, LONG));
    let here = locker(store.clone(), LONG);
    let (held, wanted) = (here.lock("held").await.unwrap(), there.lock("wanted").await.unwrap());
    let waiting = tokio::spawn({
        let here = here.clone();
        async move { here.lock("wanted").await.map(|it| it.fence()) }
    });
    until(async || {
        store.show(wanted.key()).await.unwrap().is_some_and(|it| !it.waiters.is_empty()).then_some(())
    })
    .await;
    within(here.lock("another")).await.unwrap().release().await.unwrap();
    assert!(held.is_valid(), "a lock was lost because its process waits for another");
    let before = wanted.fence();
    wanted.release().await.unwrap();
    assert!(before < within(waiting).await.unwrap().unwrap());
    assert!(held.is_valid(), "a lock was lost because its process waited for another");
}

async fn fences_are_reserved_before_they_are_given<S: Ours>() {
    let site = S::start(&[]).await;
    let here = locker(open(&site.url()).await, TTL);
    let before = here.lock("orders/42").await.unwrap().fence();
    // Others of the server's users count on.
    site.sql("DO BENCHMARK(100000, UUID_SHORT())").await;
    let guard = within(here.lock("orders/42")).await.unwrap();
    assert!(before < guard.fence());
    let ceiling: u64 = site.sql("SELECT ceiling FROM lockkeeper_session_store").await.trim().parse().unwrap();
    let counter = guard.fence().get() >> 16;
    assert!(counter < ceiling, "{counter} was given, and only those below {ceiling} are reserved");
}

async fn a_server_without_a_connection_left_says_so_and_loses_no_lock<S: Ours>() {
    let site = S::start(&[("max-connections", "12")]).await;
    site.sql(mysql_site::WORKER).await;
    let url = mysql_site::url_of(&site, "worker");
    let (store, held) = (open(&url).await, locker(open(&url).await, TTL));
    let guard = held.lock("held").await.unwrap();
    let mut others = Vec::new();
    let refused = within(async {
        loop {
            match MysqlSessions::connect(&session_url(&url)).await {
                Ok(another) => {
                    let guard = locker(another, TTL).lock(format!("other/{}", others.len())).await;
                    match guard {
                        Ok(guard) => others.push(guard),
                        Err(error) => return error,
                    }
                }
                Err(error) => return error,
            }
        }
    })
    .await;
    assert!(refused.to_string().contains("max_connections"), "{refused}");
    assert!(guard.is_valid() && others.iter().all(Guard::is_valid), "what is held stays");
    others.clear();
    drop(store);
    within(held.lock("another")).await.unwrap().release().await.unwrap();
}
