//! Logs in servers: the same answers as with a file, one commit that is the decision, and a log that dies.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::clock::pause_thread;
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{Flavour, Postgres, PostgresOptions};
use lockkeeper_servers::{MariaDb, MariaDbOptions, MysqlOptions};
use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper_twophase::rusqlite::Connection;
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Error, Participant, Point, TwoPhase, Verdict};

use crate::site::{Bank, HANG, Place, Site, locker};
use crate::takeover::take_the_seat;
use crate::worker::{Orders, Worker};

const PLACES: [Place; 4] = [Place::BesideOrders, Place::BesideStock, Place::WithOrders, Place::WithStock];

/// An office of this bank, and the participants that it prepared, in the order in which they told.
async fn watched(bank: &Bank) -> (lockkeeper_twophase::Office, Arc<Mutex<Vec<String>>>) {
    let prepared = Arc::new(Mutex::new(Vec::new()));
    let seen = prepared.clone();
    let setup = bank.setup().await.observer(move |step| {
        if step.point == Point::Prepared {
            seen.lock().unwrap().extend(step.participant.map(str::to_owned));
        }
    });
    (setup.start().await.unwrap(), prepared)
}

async fn commits_and_aborts<F: Flavour>(site: &Site<F>, place: Place) {
    let bank = site.bank_with(place).await;
    let (office, prepared) = watched(&bank).await;
    let name = format!("{place:?}");
    let done = bank.transfer(&office, "a").await.unwrap();
    assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed, "{name}");
    assert!(site.check(&bank, &name).await);
    let mut who = std::mem::take(&mut *prepared.lock().unwrap());
    who.sort();
    // Whoever has the log promises nothing: its commit is the decision.
    match place {
        Place::WithOrders => assert_eq!(who, ["stock"]),
        Place::WithStock => assert_eq!(who, ["orders"]),
        _ => assert_eq!(who, ["orders", "stock"]),
    }
    // An odd note, and work that fails at the other participant.
    let (take, give) = bank.statements("b");
    let failed = office.transaction().note("it's \"odd\" \\ \u{1f512}\0; --").on(
        "orders",
        async move |db: &Client| {
            db.batch_execute(&take).await?;
            Ok(())
        },
    );
    let failed = failed.on("stock", async move |db: &mut Conn| {
        db.query_drop(&give[0]).await?;
        Ok(db.query_drop("UPDATE nothing SET x = 1").await?)
    });
    let Err(Error::Aborted { id, by, .. }) = failed.commit().await else {
        panic!("{name}: it cannot be committed")
    };
    assert_eq!(by.as_deref(), Some("stock"), "{name}");
    assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Aborted, "{name}");
    assert_eq!(site.state(&bank).await.0, 90, "{name}: only the first was done");
    // Many at once, each with a row of its own.
    let office = Arc::new(office);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (bank, office) = (bank.clone(), office.clone());
        tasks.spawn(async move { bank.transfer(&office, &format!("\u{e9}{n}")).await });
    }
    while let Some(done) = tasks.join_next().await {
        let done = done.unwrap().unwrap();
        assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed, "{name}");
    }
    assert_eq!(site.state(&bank).await.0, 10, "{name}");
    assert!(site.check(&bank, &name).await);
    // What is forgotten is unknown, not aborted.
    assert!(bank.setup().await.forget(&done.id).await.unwrap(), "{name}");
    let forgotten = office.verdict(&done.id).await.unwrap();
    assert!(
        matches!(&forgotten, Verdict::Unknown(why) if why.contains("forgotten")),
        "{name}: {forgotten:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_a_server_does_what_a_file_does() {
    let site = Site::start().await;
    for place in PLACES {
        commits_and_aborts(&site, place).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_mysql_does_what_a_file_does() {
    let site = Site::of(MysqlOptions::default()).await;
    for place in [Place::BesideStock, Place::WithStock] {
        commits_and_aborts(&site, place).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_coordinator_is_refused_by_a_log_in_a_server() {
    let site = Site::start().await;
    for place in PLACES {
        let bank = site.bank_with(place).await;
        // With the log in a participant the decision would be about to be sent.
        let orders = Orders { die: Some(("AllPrepared", "")), stop: true, ..Orders::default() };
        let (worker, id) = Worker::start(&bank, &orders).hear("id ").await;
        worker.until_stopped().await;
        // Another lock store, so that nobody waits for a ttl: the log alone refuses.
        take_the_seat(&bank, &id).await;
        worker.go_on(&bank);
        let (worker, told) = worker.hear("told ").await;
        assert_eq!(told, "superseded", "{place:?}");
        assert_eq!(bank.verdict(&id).await, Verdict::Aborted, "{place:?}: nobody can commit it any more");
        drop(worker.end().await);
        bank.recover().await;
        assert!(!site.check(&bank, &format!("{place:?}")).await);
    }
}

/// The first decision waits until as many have promised. How many flushes it took to write all.
async fn flushes(site: &Site, place: Place, crowd: usize) -> usize {
    let bank = site.bank_with(place).await;
    let (promised, begun, seen) = (AtomicUsize::new(0), AtomicBool::new(false), Arc::new(Mutex::new(vec![])));
    let (seen_too, file) = (seen.clone(), bank.log.strip_prefix("sqlite:").map(str::to_owned));
    let setup = bank.setup().await.observer(move |step| match step.point {
        Point::AllPrepared => drop(promised.fetch_add(1, Ordering::SeqCst)),
        Point::Deciding => {
            if !begun.swap(true, Ordering::SeqCst) {
                tokio::task::block_in_place(|| {
                    while promised.load(Ordering::SeqCst) < crowd {
                        pause_thread(Duration::from_millis(1));
                    }
                });
            }
            if let Some(file) = &file {
                // What was flushed before this one.
                let rows = "SELECT count(*) FROM lockkeeper_2pc_verdict";
                let rows = Connection::open(file).unwrap().query_one(rows, [], |it| it.get::<_, i64>(0));
                seen_too.lock().unwrap().push(rows.unwrap());
            }
        }
        _ => {}
    });
    let office = setup.start().await.unwrap();
    let one = async |n: usize| {
        let insert = format!("INSERT INTO move VALUES ('flush-{}-{n}')", bank.account);
        let same = insert.clone();
        let work = office.transaction().within(HANG);
        let work = work.on("orders", async move |db: &Client| Ok(db.batch_execute(&insert).await?));
        work.on("stock", async move |db: &mut Conn| Ok(db.query_drop(same).await?)).commit().await.unwrap();
    };
    futures_util::future::join_all((0..crowd).map(one)).await;
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    if place == Place::File {
        seen.dedup();
        return seen.len();
    }
    let log = Bank { postgres: bank.log.clone(), ..bank.clone() };
    log.here("SELECT count(DISTINCT xmin::text) FROM noted").await.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn decisions_that_wait_share_a_flush() {
    let site = Site::start().await;
    for place in [Place::File, Place::BesideOrders] {
        let flushes = flushes(&site, place, 12).await;
        // One for the first, one for those that waited, and perhaps for one that was on its way.
        assert!((2..=4).contains(&flushes), "{place:?}: {flushes} flushes for 12 decisions");
    }
}

/// The answer to a decision is lost while the coordinator lives: it asks again, and the caller is told what happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_of_the_log_is_asked_for_again() {
    let site = Site::start().await;
    for place in PLACES {
        for lost_on_its_way_there in [true, false] {
            let name = format!("{place:?}, request lost: {lost_on_its_way_there}");
            let bank = site.bank_with(place).await;
            let orders = Proxy::start(site.postgres.port()).await.unwrap();
            let stock = Proxy::start(site.mysql.port()).await.unwrap();
            let behind = bank.behind(&site, &orders, &stock);
            let office = behind.office().await;
            let at = if matches!(place, Place::BesideOrders | Place::WithOrders) { &orders } else { &stock };
            let words = b"INTO lockkeeper_2pc_verdict";
            if lost_on_its_way_there {
                at.lose_request(words);
            } else {
                at.lose_reply(words);
            }
            let told = behind.transfer(&office, "a").await;
            crate::site::until_nothing_is_left(&office).await;
            let moved = site.check(&bank, &name).await;
            match told {
                Ok(done) => {
                    assert!(moved, "{name}: told {done:?}");
                    assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed, "{name}");
                }
                Err(Error::Aborted { id, .. }) => {
                    assert!(!moved, "{name}: told aborted");
                    assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Aborted, "{name}");
                }
                Err(error) => panic!("{name}: {error}"),
            }
            assert!(!(lost_on_its_way_there && moved), "{name}: what never arrived was never decided");
        }
    }
}

/// The decision is on its way for so long that the office gives it up, rules abort, and rolls back. Then it arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_that_arrives_late_is_refused() {
    let site = Site::start().await;
    let bank = site.bank_with(Place::BesideOrders).await;
    let proxy = Proxy::start(site.postgres.port()).await.unwrap();
    // Only the log is behind the proxy.
    let log = bank.log.replace(&site.postgres.address(), &proxy.address());
    let office = Bank { log, ..bank.clone() }.office().await;
    proxy.keep_request(b"INTO lockkeeper_2pc_verdict");
    let told = bank.transfer(&office, "a").await;
    let Err(Error::Aborted { id, .. }) = told else { panic!("nobody answered: {told:?}") };
    assert_eq!(proxy.counters().kept, 1);
    // The session that was given up, and the one that ruled.
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = 'bank{}'", bank.account);
    assert_eq!(bank.here(&sessions).await, "2");
    proxy.let_go();
    let done = async {
        while bank.here(&sessions).await != "1" {
            lockkeeper_core::Clock::boot().sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, done).await.expect("it arrives");
    assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Aborted, "what was told stays true");
    crate::site::until_nothing_is_left(&office).await;
    assert!(!site.check(&bank, "late").await);
}

/// The server with the log dies with the decision on its way, and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_dies_and_comes_back_keeps_its_word() {
    let site = Site::start().await;
    for (place, at) in [
        (Place::WithOrders, "Deciding"),
        (Place::WithStock, "Deciding"),
        (Place::BesideOrders, "Deciding"),
        (Place::BesideStock, "Deciding"),
        (Place::BesideStock, "Decided"),
        (Place::WithOrders, "Decided"),
    ] {
        comes_back(&site, place, at).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_mysql_that_dies_and_comes_back_keeps_its_word() {
    let site = Site::of(MysqlOptions::default()).await;
    for (place, at) in
        [(Place::WithStock, "Deciding"), (Place::BesideStock, "Deciding"), (Place::BesideStock, "Decided")]
    {
        comes_back(&site, place, at).await;
    }
}

async fn comes_back<F: Flavour>(site: &Site<F>, place: Place, at: &'static str) {
    let moved = at == "Decided";
    let name = format!("{place:?} at {at}");
    let bank = site.bank_with(place).await;
    let orders = Orders { die: Some((at, "")), stop: true, ..Orders::default() };
    let (worker, id) = Worker::start(&bank, &orders).hear("id ").await;
    worker.until_stopped().await;
    if matches!(place, Place::BesideOrders | Place::WithOrders) {
        site.postgres.kill().unwrap();
        site.postgres.start().await.unwrap();
    } else {
        site.mysql.kill().unwrap();
        site.mysql.start().await.unwrap();
    }
    worker.go_on(&bank);
    let (worker, told) = worker.hear("told ").await;
    drop(worker.end().await);
    bank.recover().await;
    let found = site.check(&bank, &name).await;
    assert_eq!(found, moved, "{name}: told {told}");
    assert_eq!(told.starts_with("committed"), found, "{name}: told {told}");
    assert_eq!(bank.verdict(&id).await == Verdict::Committed, found, "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_a_server_is_refused_if_it_is_of_another_version_and_needs_no_prepared_transactions_at_home()
{
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let locker = locker(folder.path()).await;
    server.sql("CREATE DATABASE old").await.unwrap();
    let old = format!("postgres://postgres@{}/old", server.address());
    let bank = Bank {
        account: 0,
        folder: folder.path().into(),
        postgres: old.clone(),
        mysql: String::new(),
        log: old.clone(),
        locks: None,
    };
    bank.here("CREATE TABLE lockkeeper_2pc_log (one int, id text, version int); INSERT INTO lockkeeper_2pc_log VALUES (1, 'x', 7)").await;
    let error = TwoPhase::open(&old, &locker).await.unwrap_err();
    assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains("version 7")), "{error}");
    assert_eq!(
        bank.here("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'lockkeeper%'").await,
        "1",
        "nothing was touched"
    );
    let server_of_stock = MariaDb::start(MariaDbOptions::default()).await.unwrap();
    let made = "CREATE TABLE lockkeeper_2pc_log (one int, id text, version int); INSERT INTO lockkeeper_2pc_log VALUES (1, 'x', 7)";
    server_of_stock.sql(made).await.unwrap();
    let error = TwoPhase::open(&server_of_stock.url(), &locker).await.unwrap_err();
    assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains("version 7")), "{error}");
    let tables = server_of_stock.sql("SHOW TABLES LIKE 'lockkeeper%'").await.unwrap();
    assert_eq!(tables.trim(), "lockkeeper_2pc_log", "nothing was touched");
    let nowhere = TwoPhase::open("postgres://u:secret@127.0.0.1:1/d", &locker).await.unwrap_err();
    assert!(
        matches!(nowhere, Error::Unavailable { .. }) && !format!("{nowhere} {nowhere:?}").contains("secret"),
        "{nowhere}"
    );

    // `max_prepared_transactions` is 0 here, and that is no matter: this branch is never prepared.
    let office = TwoPhase::open(&server.url(), &locker).await.unwrap();
    let office = office.participant("orders", Participant::postgres(&server.url()).unwrap());
    let office = office.start().await.unwrap();
    server.sql("CREATE TABLE t (id int)").await.unwrap();
    let work = office.transaction().within(HANG);
    let work =
        work.on("orders", async |db: &Client| Ok(db.batch_execute("INSERT INTO t VALUES (1)").await?));
    let done = work.commit().await.unwrap();
    assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
    assert_eq!(server.sql("SELECT count(*) FROM t").await.unwrap().trim(), "1");
}
