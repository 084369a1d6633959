//! Both databases commit or neither does, as long as everybody lives; and what callers are told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::site::{Bank, HANG, Site};
use lockkeeper_core::{Clock, Guard, Locker, Memory};
use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Error, Office, Point, TransactionId, Verdict};

fn sendable<T: Send>(it: T) -> T {
    it
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_commit_or_neither_does() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let done = sendable(bank.transfer(&office, "a")).await.unwrap();
    assert!(done.pending.is_empty(), "{done:?}");
    assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
    assert!(site.check(&bank, "a commit").await);

    // The second branch fails, the first has done its work.
    let (take, _) = bank.statements("b");
    let failed = office
        .transaction()
        .on("orders", async move |db: &Client| {
            db.batch_execute(&take).await?;
            Ok(())
        })
        .on("stock", async |db: &mut Conn| Ok(db.query_drop("UPDATE nothing SET x = 1").await?));
    let Err(Error::Aborted { id, by, .. }) = sendable(failed.commit()).await else {
        panic!("it cannot be committed")
    };
    assert_eq!(by.as_deref(), Some("stock"));
    assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Aborted);
    assert!(site.check(&bank, "an abort").await);
    let (here, ..) = site.state(&bank).await;
    assert_eq!(here, 90, "only the first was done");
}

/// An observer that stays at a point until the test lets it go, and the sign that it is there.
pub(crate) struct Gate {
    pub(crate) arrived: tokio::sync::mpsc::UnboundedReceiver<()>,
    pub(crate) open: std::sync::mpsc::Sender<()>,
    id: Arc<Mutex<Option<TransactionId>>>,
}

impl Gate {
    /// Whose step it was.
    pub(crate) fn id(&self) -> Option<TransactionId> {
        self.id.lock().unwrap().clone()
    }
}

pub(crate) async fn gated(bank: &Bank, point: Point) -> (Office, Gate) {
    let (arrive, arrived) = tokio::sync::mpsc::unbounded_channel();
    let (open, closed) = std::sync::mpsc::channel();
    let closed = Mutex::new(closed);
    let id = Arc::new(Mutex::new(None));
    let seen = id.clone();
    let setup = bank.setup().await.observer(move |step| {
        if step.point == point {
            *seen.lock().unwrap() = step.id.cloned();
            arrive.send(()).unwrap();
            tokio::task::block_in_place(|| closed.lock().unwrap().recv_timeout(HANG)).unwrap();
        }
    });
    (setup.start().await.unwrap(), Gate { arrived, open, id })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_that_goes_away_before_the_decision_aborts_and_after_it_does_not() {
    let site = Site::start().await;
    for (point, moved) in [(Point::AllPrepared, false), (Point::Decided, true)] {
        let bank = site.bank().await;
        let (office, mut gate) = gated(&bank, point).await;
        tokio::select! {
            answer = bank.transfer(&office, "a") => panic!("{answer:?}"),
            _ = gate.arrived.recv() => {}
        }
        // The future is dropped now.
        gate.open.send(()).unwrap();
        let over = async {
            while !bank.setup().await.survey().await.unwrap().transactions.is_empty() {
                Clock::boot().sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(HANG, over).await.expect("the office goes on without the caller");
        assert_eq!(site.check(&bank, &format!("{point:?}")).await, moved);
    }
}

/// Before anybody was asked for a vote: the end of the sessions rolls back, and their rows are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_goes_away_during_the_work_leaves_nothing() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let (take, [give, _]) = bank.statements("a");
    let working = tokio::sync::Notify::new();
    let sign = &working;
    let work = office.transaction().within(HANG).on("orders", async move |db: &Client| {
        db.batch_execute(&take).await?;
        Ok(())
    });
    let work = work.on("stock", async move |db: &mut Conn| {
        db.query_drop(give).await?;
        sign.notify_one();
        std::future::pending::<()>().await;
        Ok(())
    });
    tokio::select! {
        answer = work.commit() => panic!("{answer:?}"),
        () = working.notified() => {}
    }
    // The future is gone. The next one needs the same rows.
    bank.transfer(&office, "b").await.unwrap();
    assert!(site.check(&bank, "dropped during the work").await);
    assert_eq!(site.state(&bank).await.0, 90, "one of two was done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_guard_keeps_every_branch_out() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let locker = Locker::new(Memory::default());
    let old = locker.lock("orders/42").await.unwrap();
    let transfer = async |guard: &Guard, tag: &str| {
        let (take, give) = bank.statements(tag);
        let work = office.transaction().guarded_by(guard).on("orders", async move |db: &Client| {
            db.batch_execute(&take).await?;
            Ok(())
        });
        let work = work.on("stock", async move |db: &mut Conn| {
            for it in give {
                db.query_drop(it).await?;
            }
            Ok(())
        });
        work.commit().await
    };
    transfer(&old, "a").await.unwrap();
    old.release().await.unwrap();
    let new = locker.lock("orders/42").await.unwrap();
    transfer(&new, "b").await.unwrap();
    // A guard with the old number, as a holder has it that was paused.
    let paused = Locker::new(Memory::default()).lock("orders/42").await.unwrap();
    assert!(paused.fence() < new.fence());
    let error = transfer(&paused, "c").await.unwrap_err();
    assert!(matches!(error, Error::Aborted { .. }) && error.to_string().contains("stale"), "{error}");
    assert_eq!(site.state(&bank).await.0, 80, "two of three were done");
    // Whichever branch is asked first, alone and beside others.
    for beside in [true, false] {
        let (take, [give, _]) = bank.statements("d");
        let work = office.transaction().guarded_by(&paused);
        let work = work.on("stock", async move |db: &mut Conn| Ok(db.query_drop(give).await?));
        let told = if beside {
            work.on("orders", async move |db: &Client| Ok(db.batch_execute(&take).await?)).commit().await
        } else {
            work.commit().await
        };
        let Err(Error::Aborted { by, source, .. }) = told else {
            panic!("{beside}: the guard is old: {told:?}")
        };
        assert!(by.as_deref() == Some("stock") && source.to_string().contains("stale"), "{by:?}: {source}");
    }
    assert_eq!(site.state(&bank).await.1, 120, "nothing was given");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_agree_and_readers_need_no_decision() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = std::sync::Arc::new(bank.office().await);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..16 {
        let (bank, office) = (bank.clone(), office.clone());
        tasks.spawn(async move { bank.transfer(&office, &n.to_string()).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(site.state(&bank).await.0, 100 - 160);
    assert!(site.check(&bank, "sixteen at once").await);

    let before = site.postgres.sql("SELECT count(*) FROM pg_prepared_xacts").await.unwrap();
    let read =
        office.transaction().on("orders", async |db: &Client| Ok(db.batch_execute("SELECT 1").await?));
    let done = read.commit().await.unwrap();
    assert_eq!(before.trim(), "0");
    assert_eq!(
        office.verdict(&done.id).await.unwrap(),
        Verdict::Aborted,
        "there was nothing to decide: no row"
    );
}
