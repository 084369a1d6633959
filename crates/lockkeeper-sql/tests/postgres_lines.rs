//! Lines of a real PostgreSQL: those who share enter together, and processes of several versions stand in one line.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Grant, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Claim, Clock, Key, Load, Locker};
use lockkeeper_servers as servers;
use lockkeeper_sql::Postgres;
use lockkeeper_sql::postgres::PostgresPlace;

/// A patience that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough that nobody asks because of it.
const TTL: Duration = Duration::from_secs(5 * 60);
const READERS: usize = 20;
const ROOM: u32 = 100;

async fn start() -> servers::Postgres {
    servers::Postgres::start(servers::PostgresOptions::default()).await.unwrap()
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::select! {
        out = work => out,
        () = Clock::boot().sleep(PATIENCE) => panic!("this hangs"),
    }
}

fn enter(store: &Postgres, weight: u32) -> PostgresPlace {
    let claim = Claim::new(Key::new("room").unwrap(), TTL).unwrap();
    store.enter(claim.load(Load::new(weight, ROOM)))
}

async fn held(place: &mut PostgresPlace, why: &str) -> Grant {
    match place.turn().await.unwrap() {
        Turn::Held(grant) => grant,
        Turn::Wait { .. } => panic!("must wait, although {why}"),
    }
}

async fn waits(place: &mut PostgresPlace) {
    assert!(matches!(place.turn().await.unwrap(), Turn::Wait { .. }), "entered past others");
}

/// Readers of several processes, in line.
async fn readers(server: &servers::Postgres) -> Vec<PostgresPlace> {
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(Postgres::connect(&server.url()).await.unwrap());
    }
    let mut all = Vec::new();
    for at in 0..READERS {
        let mut reader = enter(&stores[at % stores.len()], 1);
        waits(&mut reader).await;
        all.push(reader);
    }
    all
}

/// All are told by one leave, and have the lock when they first ask, whoever asks first; numbers follow the line.
async fn all_enter(readers: &mut [PostgresPlace]) {
    let mut last = u64::MAX;
    for reader in readers.iter_mut().rev() {
        within(reader.changed()).await;
        let grant = held(reader, "the writer has left").await;
        assert!(grant.counter < last, "numbers follow the line");
        last = grant.counter;
    }
}

#[tokio::test]
async fn whoever_was_let_in_is_sure_of_it_for_no_longer_than_its_row_says() {
    let (server, clock) = (start().await, Clock::boot());
    let store = Postgres::connect(&server.url()).await.unwrap();
    let (mut first, mut next) = (enter(&store, ROOM), enter(&store, ROOM));
    held(&mut first, "it is free").await;
    waits(&mut next).await;
    // It has waited for a while, of which it need not tell the server.
    clock.sleep(Duration::from_millis(500)).await;
    first.leave().await.unwrap();
    let called = clock.now();
    let grant = held(&mut next, "the first has left").await;
    let valid_until = grant.sent_at.unwrap_or(called).after(grant.valid_for);
    let left = "SELECT expires - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM lockkeeper.lockkeeper_claim";
    let left: u64 = server.sql(left).await.unwrap().trim().parse().unwrap();
    let ends_by = clock.now().after(Duration::from_micros(left));
    assert!(valid_until <= ends_by, "believed for longer than the row lives");
    assert!(called.after(TTL / 2) < valid_until, "it has most of its ttl");
}

#[tokio::test]
async fn whoever_is_near_and_waits_for_long_is_called_and_asks_nothing_meanwhile() {
    let (server, mut places) = (start().await, Vec::new());
    for _ in 0..3 {
        places.push(enter(&Postgres::connect(&server.url()).await.unwrap(), ROOM));
    }
    let [first, next, last] = &mut places[..] else { panic!("three") };
    held(first, "it is free").await;
    waits(next).await;
    waits(last).await;
    // It stood behind the next one, which stays: from now on it is called.
    within(last.changed()).await;
    waits(last).await;
    let standing = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%lockkeeper_stand%' \
                    AND pid <> pg_backend_pid()";
    assert_eq!(server.sql(standing).await.unwrap().trim(), "0", "statements go on while nothing happens");
    let deaf = "SELECT count(*) FROM lockkeeper.lockkeeper_claim WHERE NOT held AND wake IS NULL";
    assert_eq!(server.sql(deaf).await.unwrap().trim(), "0", "somebody cannot be called");
    first.leave().await.unwrap();
    within(next.changed()).await;
    held(next, "the first has left").await;
    next.leave().await.unwrap();
    within(last.changed()).await;
    held(last, "the one before has left").await;
}

#[tokio::test]
async fn a_holder_that_was_told_that_somebody_waits_asks_no_more_what_it_knows() {
    let options = servers::PostgresOptions::default().set("log_statement", "all");
    let server = servers::Postgres::start(options).await.unwrap();
    let store = Postgres::connect(&server.url()).await.unwrap();
    let (mut holder, mut next) = (enter(&store, ROOM), enter(&store, ROOM));
    held(&mut holder, "it is free").await;
    waits(&mut next).await;
    within(holder.changed()).await;
    let renewal = holder.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { wanted: true, .. }), "{renewal:?}");
    // From now on it hears only what is new: that the lock is taken away.
    let taken = server.sql("SELECT count(*) FROM lockkeeper.lockkeeper_break_3(sha256('room'))");
    let ((), taken) = within(async { tokio::join!(holder.changed(), taken) }).await;
    assert_eq!(taken.unwrap().trim(), "1");
    assert_eq!(holder.renew().await.unwrap(), Renewal::Lost);
    let log = server.log_tail(1_000_000);
    let asked = log.lines().filter(|it| it.contains("execute") && it.contains("lockkeeper_hear_3")).count();
    assert_eq!(asked, 1, "each time it listens it asks, is told what it knows, and renews");
}

#[tokio::test]
async fn readers_behind_a_writer_enter_together() {
    let server = start().await;
    let store = Postgres::connect(&server.url()).await.unwrap();
    let mut writer = enter(&store, ROOM);
    let first = held(&mut writer, "it is free").await;
    let mut readers = readers(&server).await;
    let mut next = enter(&store, ROOM);
    waits(&mut next).await;
    writer.leave().await.unwrap();
    all_enter(&mut readers).await;
    // What the leaver has written is all that is written: whoever asks neither locks nor changes its row.
    let locked = "SELECT count(*) FROM lockkeeper.lockkeeper_claim WHERE held AND xmax <> '0'::xid";
    assert_eq!(server.sql(locked).await.unwrap().trim(), "0", "whoever was let in locks its row");
    // A writer behind them enters when the last of them has gone, in whatever order they go.
    waits(&mut next).await;
    let newest = held(&mut readers[READERS - 1], "it is inside").await;
    for reader in &mut readers {
        reader.leave().await.unwrap();
    }
    within(next.changed()).await;
    let second = held(&mut next, "all readers have left").await;
    assert!(first.counter < newest.counter && newest.counter < second.counter);
}

#[tokio::test]
async fn readers_wait_for_the_writer_before_them_and_not_for_each_other() {
    let server = start().await;
    let store = Postgres::connect(&server.url()).await.unwrap();
    let (mut holder, mut writer) = (enter(&store, ROOM), enter(&store, ROOM));
    held(&mut holder, "it is free").await;
    waits(&mut writer).await;
    let mut readers = readers(&server).await;
    // They wait for the server's lock of the writer, as many as have a connection for it, and no message is needed.
    let watching = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    within(async { while server.sql(watching).await.unwrap() == "0" {} }).await;
    holder.leave().await.unwrap();
    within(writer.changed()).await;
    held(&mut writer, "the holder has left").await;
    writer.leave().await.unwrap();
    all_enter(&mut readers).await;
}

/// The functions of an older version, as a process of that version calls them for one name.
struct Old<'a> {
    server: &'a servers::Postgres,
    version: u8,
}

impl Old<'_> {
    async fn call(&self, verb: &str, id: u8, rest: &str) -> String {
        let call = format!("lockkeeper.lockkeeper_{verb}_{}", self.version);
        self.server.sql(&format!("SELECT {call}(sha256('both'::bytea), '\\x0{id}'{rest})")).await.unwrap()
    }

    async fn turn(&self, id: u8, load: &str) -> String {
        let (seq, bell) = if self.version == 1 { ("", "") } else { (", 0", ", false") };
        let rest = format!("{seq}, 'both', 60000000, {load}, true, 'old', 1, NULL, NULL, NULL{bell}");
        self.call("turn", id, &rest).await
    }

    async fn leave(&self, id: u8) {
        self.call("leave", id, if self.version == 1 { "" } else { ", 0, 0" }).await;
    }
}

async fn share_the_lines(version: u8, schema: &str) {
    let server = start().await;
    server.sql(schema).await.unwrap();
    let old = Old { server: &server, version };
    // An old process holds; a new one waits, and is called when the old one leaves.
    assert!(old.turn(1, "1, 1").await.starts_with("{1,"));
    let store = Postgres::connect(&server.url()).await.unwrap();
    let locker = Locker::builder(store.clone()).ttl(TTL).wait_at_most(PATIENCE).build();
    let waiting = tokio::spawn({
        let locker = locker.clone();
        async move { locker.lock("both").await.unwrap() }
    });
    let is_waiting = async || {
        let info = store.show(&Key::new("both").unwrap()).await.unwrap();
        info.is_some_and(|it| !it.waiters.is_empty())
    };
    within(async { while !is_waiting().await {} }).await;
    old.leave(1).await;
    let guard = within(waiting).await.unwrap();
    // The new one holds; an old one waits, and is let in when the new one leaves, with a larger counter.
    assert!(old.turn(2, "1, 1").await.starts_with("{0,"));
    let fence = guard.fence();
    guard.release().await.unwrap();
    assert!(old.turn(2, "1, 1").await.starts_with("{1,"));
    old.leave(2).await;
    let guard = locker.lock("both").await.unwrap();
    assert!(fence < guard.fence());
    guard.release().await.unwrap();
    // Those who share: an old process lets in the first of them, a new one whoever fits beside it.
    assert!(old.turn(3, "2, 2").await.starts_with("{1,"));
    let claim = || Claim::new(Key::new("both").unwrap(), TTL).unwrap().load(Load::new(1, 2));
    let (mut one, mut other) = (store.enter(claim()), store.enter(claim()));
    waits(&mut one).await;
    waits(&mut other).await;
    old.leave(3).await;
    within(one.changed()).await;
    let first = held(&mut one, "it was let in").await.counter;
    within(other.changed()).await;
    let second = held(&mut other, "both fit").await.counter;
    assert!(first < second, "{first}, {second}");
}

#[tokio::test]
async fn processes_of_version_1_share_the_lines() {
    share_the_lines(1, include_str!("postgres_site/version_1.sql")).await;
}

#[tokio::test]
async fn processes_of_version_2_share_the_lines() {
    share_the_lines(2, include_str!("postgres_site/version_2.sql")).await;
}
