//! Participants and logs over TLS, by their URLs alone.

use lockkeeper_servers::{MariaDbOptions, PostgresOptions, Tls};
use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Error, Participant, TwoPhase, Verdict, WorkError};

use crate::site::{HANG, Place, Site, locker};

/// The same URL, encrypted.
fn secured(url: &str, tls: &Tls) -> String {
    format!("{url}?tls=on&ca={}", tls.ca.display())
}

async fn encrypted_site() -> Site {
    let postgres = PostgresOptions::default().set("max_prepared_transactions", "100").tls();
    Site::with(postgres, MariaDbOptions::default().tls()).await
}

/// Work that insists on a connection that is encrypted.
async fn insist_here(db: &Client) -> Result<(), WorkError> {
    let row = db.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]).await?;
    if row.get(0) { Ok(()) } else { Err(WorkError::new("PostgreSQL is reached in the clear")) }
}

async fn insist_there(db: &mut Conn) -> Result<(), WorkError> {
    let cipher: Option<(String, String)> = db.query_first("SHOW SESSION STATUS LIKE 'Ssl_cipher'").await?;
    if cipher.is_some_and(|it| !it.1.is_empty()) {
        return Ok(());
    }
    Err(WorkError::new("MariaDB is reached in the clear"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn participants_and_logs_are_reached_over_tls() {
    let site = encrypted_site().await;
    let (here, there) = (site.postgres.tls().unwrap(), site.mysql.tls().unwrap());
    for place in [Place::File, Place::BesideOrders, Place::WithStock] {
        let bank = site.bank_with(place).await;
        let log = match place {
            Place::File => bank.log.clone(),
            Place::BesideOrders => secured(&bank.log, here),
            _ => secured(&bank.log, there),
        };
        let setup = TwoPhase::open(&log, &locker(&bank.folder).await).await.unwrap();
        let orders = Participant::postgres(&secured(&bank.postgres, here)).unwrap();
        let stock = Participant::mysql(&secured(&bank.mysql, there)).unwrap();
        let office = setup.participant("orders", orders).participant("stock", stock).start().await.unwrap();
        let (take, give) = bank.statements("a");
        let work = office.transaction().within(HANG).on("orders", async move |db: &Client| {
            insist_here(db).await?;
            Ok(db.batch_execute(&take).await?)
        });
        let work = work.on("stock", async move |db: &mut Conn| {
            insist_there(db).await?;
            for it in give {
                db.query_drop(it).await?;
            }
            Ok(())
        });
        let done = work.commit().await.unwrap();
        assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed, "{place:?}");
        assert!(site.check(&bank, &format!("{place:?}")).await);
    }
    let clear = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                 WHERE application_name = 'lockkeeper' AND NOT ssl";
    assert_eq!(site.postgres.sql(clear).await.unwrap().trim(), "0", "nor is the log reached in the clear");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_nobody_vouches_for_is_refused_with_what_to_do() {
    let site = encrypted_site().await;
    let bank = site.bank().await;
    let strangers = Tls::generate(site.folder.path()).unwrap();
    let locker = locker(&bank.folder).await;
    let orders = Participant::postgres(&secured(&bank.postgres, &strangers)).unwrap();
    let stock = Participant::mysql(&secured(&bank.mysql, &strangers)).unwrap();
    for participant in [orders, stock] {
        let setup = TwoPhase::open(&bank.log, &locker).await.unwrap().participant("new", participant);
        let error = setup.start().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("`ca=FILE`"), "what to do: {error}");
    }
    for url in [&bank.postgres, &bank.mysql] {
        let nowhere = format!("{url}?tls=on&ca=/nowhere/ca.pem");
        let made = if url.starts_with("mysql") {
            Participant::mysql(&nowhere)
        } else {
            Participant::postgres(&nowhere)
        };
        let error = made.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
    }
}
