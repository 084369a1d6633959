//! A transaction with one writer commits by itself: no promise, no row in the log, and who asks later is told all the same.

use std::time::Duration;

use lockkeeper_core::{Locker, Memory};
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_twophase::mysql_async::{Conn, Opts, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Error, Participant, Point, TwoPhase, Verdict};

use crate::protocol::gated;
use crate::site::{Bank, HANG, Site};
use crate::worker::{Orders, Worker};

/// The rows of the log.
fn rows(bank: &Bank) -> i64 {
    let log = rusqlite::Connection::open(bank.folder.join("2pc.db")).unwrap();
    log.query_one("SELECT count(*) FROM lockkeeper_2pc_verdict", [], |it| it.get(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_writer_needs_no_promise_and_no_log() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let setup = bank.setup().await.observer(|step| {
        assert!(
            ![Point::Preparing, Point::Prepared, Point::Deciding].contains(&step.point),
            "nobody promises or decides: {step:?}"
        );
    });
    let office = setup.start().await.unwrap();
    let taken = bank.take(&office, "a").await.unwrap();
    let given = bank.give(&office, "a").await.unwrap();
    for done in [&taken, &given] {
        assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
    }
    assert_eq!(site.state(&bank).await.0, 90);
    assert_eq!(site.state(&bank).await.1, 110);
    assert_eq!(rows(&bank), 0);
    // An error of the work rolls back, and so does one that only the commit finds.
    let failed = office
        .transaction()
        .on("stock", async |db: &mut Conn| Ok(db.query_drop("UPDATE nothing SET x = 1").await?));
    let Err(Error::Aborted { id, .. }) = failed.commit().await else { panic!("it cannot be committed") };
    assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Aborted);
    bank.here("CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
    let twice = office
        .transaction()
        .on("orders", async |db: &Client| Ok(db.batch_execute("INSERT INTO late VALUES (1), (1)").await?));
    let error = twice.commit().await.unwrap_err();
    let Error::Aborted { id, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("23505"), "{error}");
    assert_eq!(office.verdict(id).await.unwrap(), Verdict::Aborted);
    // Work that ends its own transaction is told that it did.
    let ended = office.transaction().on("stock", async |db: &mut Conn| Ok(db.query_drop("COMMIT").await?));
    let error = ended.commit().await.unwrap_err();
    assert!(error.to_string().contains("ended its transaction by itself"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_writer_among_readers_of_postgres_goes_alone() {
    let site = Site::start().await;
    let bank = site.bank().await;
    site.postgres.sql("CREATE DATABASE second").await.unwrap();
    let second = format!("postgres://postgres@{}/second", site.postgres.address());
    let prepared = std::sync::Arc::new(std::sync::Mutex::new(0));
    let seen = prepared.clone();
    let setup = bank.setup().await.participant("second", Participant::postgres(&second).unwrap());
    let setup = setup.observer(move |step| *seen.lock().unwrap() += u32::from(step.point == Point::Prepared));
    let office = setup.start().await.unwrap();
    for (reads, promises) in [(true, 0), (false, 2)] {
        *prepared.lock().unwrap() = 0;
        let (take, _) = bank.statements(if reads { "a" } else { "b" });
        let work = office.transaction().on("orders", async move |db: &Client| {
            db.batch_execute(&take).await?;
            Ok(())
        });
        let sql = if reads { "SELECT 1" } else { "CREATE TABLE t (id int)" };
        let done = work
            .on("second", async move |db: &Client| Ok(db.batch_execute(sql).await?))
            .commit()
            .await
            .unwrap();
        assert_eq!(*prepared.lock().unwrap(), promises, "the other one only reads: {reads}");
        assert_eq!(rows(&bank), i64::from(!reads));
        assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
    }
    assert_eq!(site.state(&bank).await.0, 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_found_out() {
    let site = Site::start().await;
    for (whose, reply) in [("orders", true), ("orders", false), ("stock", true), ("stock", false)] {
        let bank = site.bank().await;
        let orders = Proxy::start(site.postgres.port()).await.unwrap();
        let stock = Proxy::start(site.mysql.port()).await.unwrap();
        let office = bank.behind(&site, &orders, &stock).office().await;
        let (at, words) = (if whose == "orders" { &orders } else { &stock }, b":once");
        if reply {
            at.lose_reply(words);
        } else {
            at.lose_request(words);
        }
        let told =
            if whose == "orders" { bank.take(&office, "a").await } else { bank.give(&office, "a").await };
        let (here, there, ..) = site.state(&bank).await;
        let moved = (here, there) != (100, 100);
        let (id, committed) = match told {
            Ok(done) => (done.id, true),
            Err(Error::Aborted { id, .. }) => (id, false),
            Err(error) => panic!("{whose}, {reply}: {error}"),
        };
        assert_eq!(committed, moved, "{whose}, {reply}: what the caller is told is what happened");
        assert!(reply || !moved, "{whose}: what never arrived was never done");
        assert_eq!(office.verdict(&id).await.unwrap() == Verdict::Committed, moved);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_after_a_death_is_told() {
    let site = Site::start().await;
    for (at, moved) in [("Committing", false), ("Committed", true)] {
        let bank = site.bank().await;
        let orders = Orders { die: Some((at, "orders")), alone: true, ..Orders::default() };
        let (killed, said) = Worker::start(&bank, &orders).end().await;
        assert!(killed, "{said:?}");
        let id = said.iter().find_map(|it| it.strip_prefix("id ")).unwrap();
        bank.recover().await;
        let verdict = bank.verdict(id).await;
        assert_eq!(verdict == Verdict::Committed, moved, "{at}: {verdict:?}");
        assert_eq!(site.state(&bank).await.0, if moved { 90 } else { 100 });
    }
}

/// It stands still before its commit; somebody takes its seat and is asked. What it answered stays true.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_called_aborted_cannot_commit_any_more() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let (office, mut gate) = gated(&bank, Point::Committing).await;
    let id = std::sync::Arc::new(std::sync::Mutex::new(None));
    let asked = id.clone();
    let other = async {
        gate.arrived.recv().await.unwrap();
        let setup = async || {
            let setup = TwoPhase::open(&bank.log, &Locker::new(Memory::default())).await.unwrap();
            let setup = setup.participant("orders", Participant::postgres(&bank.postgres).unwrap());
            setup.participant("stock", Participant::mysql(&bank.mysql).unwrap())
        };
        let open =
            bank.here("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'").await;
        assert_eq!(open, "1", "its branch is open");
        let found = gate.id().unwrap();
        setup().await.recover().await.unwrap();
        let verdict = setup().await.verdict(&found).await.unwrap();
        assert_eq!(verdict, Verdict::Aborted);
        *asked.lock().unwrap() = Some(found);
        gate.open.send(()).unwrap();
    };
    let (told, ()) = tokio::join!(bank.take(&office, "a"), other);
    assert!(matches!(told, Err(Error::Aborted { .. })), "{told:?}");
    assert_eq!(site.state(&bank).await.0, 100);
    let id = id.lock().unwrap().clone().unwrap();
    assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Aborted);
}

/// Old marks are looked for without locks, and removed one by one: nobody waits for a branch that is prepared beyond them, and
/// nobody for who removes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn old_marks_are_forgotten_beside_a_prepared_branch_and_keep_nobody_out() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let done = bank.give(&office, "a").await.unwrap();
    bank.take(&office, "a").await.unwrap();
    // A branch of another seat, which nobody ends, and a mark from long ago.
    let beyond = format!("lk1.{}.7.0000000000001.0000000100000000", done.id.log());
    let xid = format!("'{beyond}','0.stock',1279996496");
    let mut held = Conn::new(Opts::from_url(&bank.mysql).unwrap()).await.unwrap();
    for it in [
        format!("XA START {xid}"),
        format!("INSERT INTO lockkeeper_2pc_witness VALUES ('{beyond}', 0, 'stock')"),
        format!("XA END {xid}"),
        format!("XA PREPARE {xid}"),
    ] {
        held.query_drop(it).await.unwrap();
    }
    let old = format!("lk1.{}.0.0000000000001.0000000100000000", done.id.log());
    let marks = format!("SELECT count(*) FROM lockkeeper_2pc_witness WHERE id = '{old}'");
    let mark = format!("INSERT INTO lockkeeper_2pc_witness VALUES ('{old}', -1, ':once')");
    bank.here(&mark).await;
    bank.there(&mark).await;
    let gone = async {
        for tag in 0.. {
            bank.transfer(&office, &format!("t{tag}")).await.unwrap();
            if bank.here(&marks).await == "0" && bank.there(&marks).await == "0" {
                return;
            }
            lockkeeper_core::Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(HANG, gone).await.expect("the sweep forgets it, whoever is prepared beyond it");
    // It stays known as long as the log would keep it, and not longer.
    assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
    let verdict = office.verdict(&old.parse().unwrap()).await.unwrap();
    assert!(matches!(verdict, Verdict::Unknown(_)), "it is forgotten, not aborted: {verdict:?}");
    held.query_drop(format!("XA ROLLBACK {xid}")).await.unwrap();
}
