//! Bad input: a clear error before anything is asked, or with everything rolled back.

use std::time::Duration;

use lockkeeper_core::{Locker, Memory};
use lockkeeper_servers::{MariaDb, MariaDbOptions, MysqlOptions, Postgres, PostgresOptions};
use lockkeeper_twophase::mysql_async::{Conn, Opts, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::{Client, NoTls, connect};
use lockkeeper_twophase::{Error, Participant, TwoPhase};
use tempfile::TempDir;

use crate::site::{HANG, Site, locker};

fn nowhere() -> Participant {
    Participant::postgres("postgres://u:secret@127.0.0.1:1/d").unwrap()
}

fn said(error: &Error, words: &[&str]) {
    let text = error.to_string();
    for it in words {
        assert!(text.contains(it), "{it:?} is not in {text:?}");
    }
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_anybody_is_asked() {
    let folder = TempDir::new().unwrap();
    let (url, locker) =
        (format!("sqlite:{}", folder.path().join("log").display()), Locker::new(Memory::default()));
    for log in ["postgres://u:secret@h", "mysql://u:secret@h", "sqlite:", "teapot:x"] {
        let error = TwoPhase::open(log, &locker).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{log}: {error}");
        said(&error, &[]);
    }
    let none = TwoPhase::open_existing(&url, &locker).await.unwrap_err();
    assert!(matches!(none, Error::Unavailable { .. }) && none.to_string().contains("no log"), "{none}");
    assert!(!folder.path().join("log").exists(), "and none is made");
    for bad in ["postgres://u:secret@h", "mysql://u:secret@h/d", "postgres//", ""] {
        let error = Participant::postgres(bad).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{bad}");
        said(&error, &["postgres://"]);
    }
    for bad in ["mysql://u:secret@h", "postgres://u:secret@h/d", "mysql", "mysql://u:secret@h:port/d"] {
        let error = Participant::mysql(bad).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{bad}");
        said(&error, &[]);
    }
    for bad in ["sqlite:/tmp/x.db", "teapot:x", ""] {
        let error = Participant::of_url(bad).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{bad}");
        said(&error, &["postgres://", "only in the log's own file"]);
    }
    let long = "a".repeat(49);
    for name in ["", "a b", "Orders", "a'", long.as_str()] {
        let office = TwoPhase::open(&url, &locker).await.unwrap().participant(name, nowhere());
        let error = office.start().await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{name:?}: {error}");
        said(&error, &["small letters", "48"]);
    }
    let twice =
        TwoPhase::open(&url, &locker).await.unwrap().participant("a", nowhere()).participant("a", nowhere());
    said(&twice.start().await.unwrap_err(), &["two participants", "\"a\""]);
    // What was called aborted must not be forgotten before it can no longer arrive.
    let forgetful = TwoPhase::open(&url, &locker).await.unwrap().remember(Duration::from_secs(59));
    said(&forgetful.start().await.unwrap_err(), &["remember for 59s", "at least a minute"]);
    // A new participant must answer once.
    let error =
        TwoPhase::open(&url, &locker).await.unwrap().participant("a", nowhere()).start().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    said(&error, &["postgres://127.0.0.1:1/d"]);

    let office = TwoPhase::open(&url, &locker)
        .await
        .unwrap()
        .remember(Duration::from_secs(120))
        .start()
        .await
        .unwrap();
    let long = office.transaction().within(Duration::from_secs(61)).in_log(|_| Ok(())).commit().await;
    said(&long.unwrap_err(), &["`within` is 61s", "remembers for 120s"]);
    said(&office.transaction().commit().await.unwrap_err(), &["without a branch"]);
    let strange = office.transaction().on("orders", async |_: &Client| Ok(())).commit().await;
    said(&strange.unwrap_err(), &["no participant \"orders\""]);
    let foreign = "lk1.0123456789abc.0.000000000001z.006abcdeghjkmnpq".parse().unwrap();
    said(&office.verdict(&foreign).await.unwrap_err(), &["another log"]);
    office.close().await.unwrap();
}

#[tokio::test]
async fn a_log_of_another_version_is_refused_and_not_touched() {
    let folder = TempDir::new().unwrap();
    let (file, locker) = (folder.path().join("log"), Locker::new(Memory::default()));
    let made = rusqlite::Connection::open(&file).unwrap();
    made.execute_batch(
        "CREATE TABLE lockkeeper_2pc_log (id, version); INSERT INTO lockkeeper_2pc_log VALUES ('x', 7)",
    )
    .unwrap();
    drop(made);
    let before = std::fs::read(&file).unwrap();
    let error = TwoPhase::open(&format!("sqlite:{}", file.display()), &locker).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    said(&error, &["version 7", "nothing was touched"]);
    assert_eq!(std::fs::read(&file).unwrap(), before);

    std::fs::write(
        &file,
        "this is no database, and longer than a header of one would be, so that it is read",
    )
    .unwrap();
    let error = TwoPhase::open(&format!("sqlite:{}", file.display()), &locker).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

/// A promise that the server does not show is none, also if it reported no error: here something else stands in its list's place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepare_that_the_server_does_not_show_is_not_believed() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let blind = "CREATE SCHEMA blind; CREATE FUNCTION blind.pg_prepared_xact() RETURNS TABLE (gid text) LANGUAGE sql \
                 AS $$ SELECT '' WHERE false $$";
    bank.here(blind).await;
    let (take, give) = bank.statements("a");
    let work = office.transaction().on("orders", async move |db: &Client| {
        db.batch_execute(&take).await?;
        Ok(db.batch_execute("SET search_path = blind, pg_catalog, public").await?)
    });
    let work = work.on("stock", async move |db: &mut Conn| {
        for it in give {
            db.query_drop(it).await?;
        }
        Ok(())
    });
    let error = work.commit().await.unwrap_err();
    assert!(matches!(&error, Error::Aborted { by: Some(by), .. } if by == "orders"), "{error}");
    said(&error, &["did not prepare the branch"]);
    let over = async {
        while bank.here("SELECT count(*) FROM pg_catalog.pg_prepared_xacts").await != "0" {
            lockkeeper_core::Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, over).await.expect("it was prepared all the same, and is found");
    assert!(!site.check(&bank, "not shown").await);
}

/// MariaDB undoes only the statement that waited too long. Work that hears of it and goes on would commit half of itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_row_of_mariadb_ends_with_the_transaction_and_not_before() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let mut other = Conn::new(Opts::from_url(&bank.mysql).unwrap()).await.unwrap();
    let held = format!("BEGIN; UPDATE account SET amount = amount WHERE id = {}", bank.account);
    other.query_drop(held).await.unwrap();
    let (_, [give, insert]) = bank.statements("a");
    let work = office.transaction().within(Duration::from_millis(2900));
    let work = work.on("stock", async move |db: &mut Conn| {
        db.query_drop(insert).await?;
        drop(db.query_drop(give).await);
        Ok(())
    });
    let error = work.commit().await.unwrap_err();
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
    said(&error, &["within"]);
    other.query_drop("ROLLBACK").await.unwrap();
    assert!(!site.check(&bank, "a wait that is too long").await, "nothing of it was done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_participant_that_cannot_do_it_says_what_to_change() {
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let (log, locker) =
        (format!("sqlite:{}", folder.path().join("log").display()), locker(folder.path()).await);
    let office = async |participants: &[(&str, &str)]| {
        let mut office = TwoPhase::open(&log, &locker).await.unwrap();
        for (name, url) in participants {
            office = office.participant(*name, Participant::postgres(url).unwrap());
        }
        office.start().await.map(drop)
    };
    let error = office(&[("a", &server.url())]).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    said(&error, &["max_prepared_transactions", "restart"]);
    drop(server);

    let server =
        Postgres::start(PostgresOptions::default().set("max_prepared_transactions", "5")).await.unwrap();
    let error = office(&[("a", &server.url()), ("b", &server.url())]).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    said(&error, &["one database", "one branch"]);
    // The same of MariaDB, which is known by its own row and not by its address.
    let stock = MariaDb::start(MariaDbOptions::default()).await.unwrap();
    let mut both = TwoPhase::open(&log, &locker).await.unwrap();
    for (name, host) in [("d", "127.0.0.1"), ("e", "localhost")] {
        let url = stock.url().replace("127.0.0.1", host);
        both = both.participant(name, Participant::mysql(&url).unwrap());
    }
    let error = both.start().await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    said(&error, &["one database", "one branch"]);
    // The same name for another database.
    server.sql("CREATE DATABASE second").await.unwrap();
    office(&[("c", &server.url())]).await.unwrap();
    let second = format!("postgres://postgres@{}/second", server.address());
    let error = office(&[("c", &second)]).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    said(&error, &["not the database that the log knows", "nothing was touched", "new name"]);
    let (client, connection) = connect(&second, NoTls).await.unwrap();
    tokio::spawn(connection);
    let made = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'";
    let made: Vec<String> = client.query(made, &[]).await.unwrap().iter().map(|it| it.get(0)).collect();
    assert!(made.is_empty(), "{made:?}");

    stock.sql("CREATE DATABASE second").await.unwrap();
    let named = async |database: &str| {
        let url = format!("mysql://lockkeeper@{}/{database}", stock.address());
        let office = TwoPhase::open(&log, &locker).await.unwrap();
        office.participant("f", Participant::mysql(&url).unwrap()).start().await.map(drop)
    };
    named("lockkeeper").await.unwrap();
    said(
        &named("second").await.unwrap_err(),
        &["not the database that the log knows", "nothing was touched"],
    );
    assert_eq!(stock.sql("SHOW TABLES FROM second").await.unwrap(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_cannot_be_prepared_is_rolled_back_everywhere() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let (_, give) = bank.statements("x");
    let attempt = async |sql: &str| {
        let (sql, give) = (sql.to_owned(), give.clone());
        let work = office.transaction().on("stock", async move |db: &mut Conn| {
            for it in give {
                db.query_drop(it).await?;
            }
            Ok(())
        });
        let work = work.on("orders", async move |db: &Client| {
            // As careless as can be: the error is swallowed.
            drop(db.batch_execute(&sql).await);
            Ok(())
        });
        work.commit().await.unwrap_err()
    };
    for (sql, words) in [
        ("CREATE TEMPORARY TABLE t (id int)", "temporary"),
        ("INSERT INTO move VALUES ('y'); LISTEN x", "LISTEN"),
        ("INSERT INTO nothing VALUES (1)", "its error was not returned"),
        ("COMMIT", "ended its transaction by itself"),
        ("ROLLBACK; BEGIN; INSERT INTO move VALUES ('y')", "ended its transaction by itself"),
    ] {
        let error = attempt(sql).await;
        assert!(matches!(&error, Error::Aborted { by: Some(by), .. } if by == "orders"), "{sql}: {error}");
        said(&error, &[words]);
        crate::site::until_nothing_is_left(&office).await;
        assert!(!site.check(&bank, sql).await);
    }
    // On MariaDB a branch cannot be ended by its work; the server says so.
    for sql in ["COMMIT", "CREATE TABLE t (id int)"] {
        let work =
            office.transaction().on("stock", async move |db: &mut Conn| Ok(db.query_drop(sql).await?));
        let error = work.commit().await.unwrap_err();
        assert!(matches!(&error, Error::Aborted { by: Some(by), .. } if by == "stock"), "{sql}: {error}");
    }
    let zero =
        office.transaction().within(Duration::ZERO).on("orders", async |_: &Client| Ok(())).commit().await;
    said(&zero.unwrap_err(), &["`within` is zero"]);
    let work =
        office.transaction().on("orders", async |_: &Client| Ok(())).on("orders", async |_: &Client| Ok(()));
    said(&work.commit().await.unwrap_err(), &["two branches", "one"]);
    let wrong = office.transaction().on("orders", async |_: &mut Conn| Ok(())).commit().await;
    said(&wrong.unwrap_err(), &["is postgres", "for mysql"]);
    let late = office.transaction().within(Duration::from_millis(50));
    let late = late
        .on("orders", async |db: &Client| Ok(db.batch_execute("SELECT pg_sleep(600)").await?))
        .commit()
        .await;
    said(&late.unwrap_err(), &["not done within 50ms"]);
    assert!(!site.check(&bank, "at last").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_without_the_right_to_list_is_refused() {
    let site = Site::of(MysqlOptions::default()).await;
    let user = "CREATE USER poor@'127.0.0.1'; GRANT ALL ON lockkeeper.* TO poor@'127.0.0.1'";
    site.mysql.sql(user).await.unwrap();
    let mut bank = site.bank().await;
    bank.mysql = bank.mysql.replace("lockkeeper@", "poor@");
    let error = bank.setup().await.start().await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    said(&error, &["XA_RECOVER_ADMIN"]);
}
