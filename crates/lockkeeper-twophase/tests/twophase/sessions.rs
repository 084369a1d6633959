//! What sessions are like, whatever their server chose; and that a statement nobody waits for any more ends there, too.

use std::time::Duration;

use lockkeeper_servers::{MariaDb, MariaDbOptions};
use lockkeeper_twophase::mysql_async::{Conn, Opts, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Committed, Error, Office, Participant, Result, TwoPhase, Verdict};
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::site::{Bank, HANG, Site, locker};

/// Work that changes a row and then does nothing for ten minutes, at one participant or at both. Tells when it begins to do
/// nothing.
async fn stuck(
    bank: &Bank,
    office: &Office,
    whose: &str,
    within: Duration,
    begun: &Notify,
) -> Result<Committed> {
    let (take, [give, _]) = bank.statements("stuck");
    let (here, there) = (whose != "stock", whose != "orders");
    let work = office.transaction().within(within).at_once();
    let work = work.on("orders", async move |db: &Client| {
        db.batch_execute(&take).await?;
        if here {
            begun.notify_one();
            db.batch_execute("SELECT pg_sleep(600)").await?;
        }
        Ok(())
    });
    let work = work.on("stock", async move |db: &mut Conn| {
        db.query_drop(give).await?;
        if there {
            begun.notify_one();
            db.query_drop("DO SLEEP(600)").await?;
        }
        Ok(())
    });
    work.commit().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_nobody_waits_for_any_more_ends_at_its_server_too() {
    let site = Site::start().await;
    for whose in ["orders", "stock", "both"] {
        for waits in [true, false] {
            let name = format!("{whose}, the caller waits: {waits}");
            let bank = site.bank().await;
            let (office, begun) = (bank.office().await, Notify::new());
            if waits {
                let told = stuck(&bank, &office, whose, Duration::from_secs(2), &begun).await;
                let Err(Error::Aborted { id, .. }) = told else { panic!("{name}: {told:?}") };
                assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Aborted, "{name}");
            } else {
                let work = stuck(&bank, &office, whose, HANG, &begun);
                let gone = async {
                    tokio::select! {
                        told = work => panic!("{name}: {told:?}"),
                        () = begun.notified() => {}
                    }
                };
                tokio::time::timeout(HANG, gone).await.expect("it begins");
            }
            // Needs the same rows, and may wait for them a fifth of what the statements take.
            bank.transfer(&office, "next").await.unwrap_or_else(|it| panic!("{name}: {it}"));
            assert_eq!(site.state(&bank).await.0, 90, "{name}: one of two was done");
            assert!(site.check(&bank, &name).await);
        }
    }
}

/// Also if we die: the server itself ends what takes longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_itself_ends_a_statement_that_takes_longer_than_the_transaction_may() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let limit = async || {
        let mut limit = 0_i64;
        let seen = &mut limit;
        let work = office.transaction().within(HANG).on("orders", async move |db: &Client| {
            let sql = "SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout'";
            *seen = db.query_one(sql, &[]).await?.get(0);
            Ok(())
        });
        work.commit().await.unwrap();
        limit
    };
    let found = limit().await;
    assert!(0 < found && found <= 1000 + i64::try_from(HANG.as_millis()).unwrap(), "{found}");
    site.postgres.sql("ALTER ROLE postgres SET statement_timeout = '70s'").await.unwrap();
    assert_eq!(limit().await, 70_000, "one that is shorter stays");
}

/// With autocommit off the server would forget what we note, each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_commits_nothing_by_itself_takes_part_all_the_same() {
    let options = MariaDbOptions::default().set("autocommit", "0").set("completion-type", "1");
    let server = MariaDb::start(options).await.unwrap();
    server.sql("CREATE TABLE move (id int)").await.unwrap();
    let folder = TempDir::new().unwrap();
    let locker = locker(folder.path()).await;
    for n in 0..2 {
        let log = format!("sqlite:{}", folder.path().join("2pc.db").display());
        let setup = TwoPhase::open(&log, &locker).await.unwrap();
        let setup = setup.participant("stock", Participant::mysql(&server.url()).unwrap());
        let office = setup.start().await.unwrap_or_else(|it| panic!("start {n}: {it}"));
        let work = office.transaction().on("stock", async move |db: &mut Conn| {
            Ok(db.query_drop(format!("INSERT INTO move VALUES ({n})")).await?)
        });
        let done = work.commit().await.unwrap();
        assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
        office.close().await.unwrap();
    }
    let mut conn = Conn::new(Opts::from_url(&server.url()).unwrap()).await.unwrap();
    let count: Option<u32> = conn.query_first("SELECT count(*) FROM move").await.unwrap();
    assert_eq!(count, Some(2));
}
