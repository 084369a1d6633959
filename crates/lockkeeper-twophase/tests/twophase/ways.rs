//! How a transaction may go: all work at once, readers that stay, and an answer as soon as it is decided.

use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Error, Isolation, Participant, Point, Verdict};
use tokio::sync::oneshot;

use crate::protocol::gated;
use crate::site::{HANG, Site};

/// Each waits for the other one, so they cannot run one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_at_once_is_done_at_the_same_time() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let ((one, other), (here, there)) = (oneshot::channel(), oneshot::channel());
    let (take, give) = bank.statements("a");
    let work = office.transaction().within(HANG).at_once().on("orders", async move |db: &Client| {
        db.batch_execute(&take).await?;
        one.send(()).unwrap();
        Ok(there.await?)
    });
    let work = work.on("stock", async move |db: &mut Conn| {
        for it in give {
            db.query_drop(it).await?;
        }
        here.send(()).unwrap();
        Ok(other.await?)
    });
    let done = work.commit().await.unwrap();
    assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
    assert!(site.check(&bank, "at once").await);

    // The error of one ends the other, and everything is rolled back.
    let (take, _) = bank.statements("b");
    let work = office.transaction().within(HANG).at_once().on("orders", async move |db: &Client| {
        db.batch_execute(&take).await?;
        Ok(db.batch_execute("SELECT pg_sleep(600)").await?)
    });
    let work = work.on("stock", async |db: &mut Conn| Ok(db.query_drop("UPDATE nothing SET x = 1").await?));
    let error = work.commit().await.unwrap_err();
    assert!(matches!(&error, Error::Aborted { by: Some(by), .. } if by == "stock"), "{error}");
    assert_eq!(site.state(&bank).await.0, 90, "only the first was done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_after_the_verdict_does_not_wait_for_the_branches() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let (office, gate) = gated(&bank, Point::Committing).await;
    let (take, give) = bank.statements("a");
    let work = office.transaction().within(HANG).answer_after_verdict();
    let work = work.on("orders", async move |db: &Client| Ok(db.batch_execute(&take).await?));
    let work = work.on("stock", async move |db: &mut Conn| {
        for it in give {
            db.query_drop(it).await?;
        }
        Ok(())
    });
    // No branch is told before the gate opens.
    let done = tokio::time::timeout(HANG, work.commit()).await.expect("nobody waits for them").unwrap();
    assert_eq!(done.pending, ["orders", "stock"]);
    assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
    assert_eq!(site.state(&bank).await.0, 100, "and they are not told yet");
    gate.open.send(()).unwrap();
    gate.open.send(()).unwrap();
    let over = async {
        while !bank.setup().await.survey().await.unwrap().transactions.is_empty() {
            Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, over).await.expect("the office goes on by itself");
    assert!(site.check(&bank, "in the background").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_stays_until_the_end_if_it_is_asked_to() {
    let site = Site::start().await;
    site.postgres.sql("CREATE DATABASE second").await.unwrap();
    let second = format!("postgres://postgres@{}/second", site.postgres.address());
    let bank = site.bank().await;
    for (early, held) in [(true, "0"), (false, "1")] {
        let (arrive, mut arrived) = tokio::sync::mpsc::unbounded_channel();
        let (open, closed) = std::sync::mpsc::channel::<()>();
        let closed = std::sync::Mutex::new(closed);
        let setup = bank.setup().await.participant("second", Participant::postgres(&second).unwrap());
        let setup = setup.observer(move |step| {
            if step.point == Point::Decided {
                arrive.send(()).unwrap();
                tokio::task::block_in_place(|| closed.lock().unwrap().recv_timeout(HANG)).unwrap();
            }
        });
        let office = setup.start().await.unwrap();
        let (take, give) = bank.statements(if early { "a" } else { "b" });
        let work = office.transaction().within(HANG).read_only_vote(early);
        let work = work.on("orders", async move |db: &Client| Ok(db.batch_execute(&take).await?));
        let work = work.on("stock", async move |db: &mut Conn| {
            for it in give {
                db.query_drop(it).await?;
            }
            Ok(())
        });
        let work = work.on("second", async |db: &Client| Ok(db.batch_execute("SELECT 1").await?));
        let look = async {
            arrived.recv().await.unwrap();
            let prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE '%second'";
            assert_eq!(bank.here(prepared).await, held, "who only read votes early: {early}");
            open.send(()).unwrap();
        };
        let (done, ()) = tokio::join!(work.commit(), look);
        assert_eq!(office.verdict(&done.unwrap().id).await.unwrap(), Verdict::Committed);
        office.close().await.unwrap();
    }
    // Whoever names it no more is told so, until the log does not know it either.
    let unreachable = bank.setup().await.survey().await.unwrap().unreachable;
    assert!(matches!(&unreachable[..], [it] if it.participant == "second"), "{unreachable:?}");
    let log = rusqlite::Connection::open(bank.folder.join("2pc.db")).unwrap();
    log.execute("DELETE FROM lockkeeper_2pc_participant WHERE name = 'second'", []).unwrap();
    assert!(site.check(&bank, "readers").await);
}

/// It writes nothing, so it ends with its vote: a `LISTEN` is over with its session, and a `NOTIFY` is sent although the rest is
/// rolled back, which the guide says. Whoever keeps readers to the end is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_that_only_listens_or_notifies_ends_with_its_vote() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    for (sql, early, commits) in
        [("LISTEN x", true, true), ("NOTIFY x", true, true), ("NOTIFY x", false, false)]
    {
        let (_, [give, _]) = bank.statements("a");
        let work = office.transaction().within(HANG).read_only_vote(early);
        let work = work.on("orders", async move |db: &Client| Ok(db.batch_execute(sql).await?));
        let work = work.on("stock", async move |db: &mut Conn| Ok(db.query_drop(give).await?));
        let told = work.commit().await;
        match &told {
            Ok(_) => assert!(commits, "{sql}, {early}"),
            Err(Error::Aborted { by, .. }) => {
                assert!(!commits && by.as_deref() == Some("orders"), "{sql}: {told:?}");
            }
            Err(error) => panic!("{sql}, {early}: {error}"),
        }
    }
    assert_eq!(site.state(&bank).await.1, 120, "two of three gave");
}

/// The branch has begun before its work, so that the work itself comes too late to choose.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_isolation_of_branches_is_what_was_chosen() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    for (tag, level, name) in [
        ("a", Isolation::Serializable, "SERIALIZABLE"),
        ("b", Isolation::ReadCommitted, "READ COMMITTED"),
        ("c", Isolation::RepeatableRead, "REPEATABLE READ"),
    ] {
        let (take, [give, insert]) = bank.statements(tag);
        let work = office.transaction().within(HANG).isolation(level);
        let work = work.on("orders", async move |db: &Client| {
            db.batch_execute(&take).await?;
            let found: String = db.query_one("SHOW transaction_isolation", &[]).await?.get(0);
            assert_eq!(found.to_uppercase(), name, "PostgreSQL");
            Ok(())
        });
        let work = work.on("stock", async move |db: &mut Conn| {
            db.query_drop(give).await?;
            db.query_drop(insert).await?;
            let found: Option<String> = db.query_first("SELECT @@tx_isolation").await?;
            assert_eq!(found.map(|it| it.replace('-', " ")).as_deref(), Some(name), "MariaDB");
            Ok(())
        });
        work.commit().await.unwrap();
    }
    assert!(site.check(&bank, "isolation").await);
}
