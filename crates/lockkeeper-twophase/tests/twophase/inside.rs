//! Work in the log's own SQLite file: done by the commit that decides, or not at all.

use lockkeeper_core::{Locker, Memory};
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Error, TwoPhase, Verdict, WorkError};

use crate::site::{Bank, Place, Site};

fn kept(bank: &Bank) -> i64 {
    let file = rusqlite::Connection::open(bank.folder.join("2pc.db")).unwrap();
    file.query_one("SELECT count(*) FROM shelf", [], |it| it.get(0)).unwrap()
}

fn put(db: &rusqlite::Connection) -> Result<(), WorkError> {
    db.execute("INSERT INTO shelf VALUES ('a lock')", [])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_in_the_file_of_the_log_is_done_with_the_decision() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let file = rusqlite::Connection::open(bank.folder.join("2pc.db")).unwrap();
    file.execute_batch("CREATE TABLE shelf (what TEXT)").unwrap();
    let attempt = async |tag: &str, also: &str, work: fn(&rusqlite::Connection) -> Result<(), WorkError>| {
        let sql = bank.statements(tag).0 + "; " + also;
        let work = office.transaction().in_log(work).on("orders", async move |db: &Client| {
            drop(db.batch_execute(&sql).await);
            Ok(())
        });
        work.commit().await
    };
    let done = attempt("a", "SELECT 1", put).await.unwrap();
    assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
    assert_eq!((kept(&bank), site.state(&bank).await.0), (1, 90));

    // The work in the file fails when all others have promised.
    let refuse = |db: &rusqlite::Connection| {
        put(db)?;
        Err(WorkError::new("the shelf is full"))
    };
    let error = attempt("b", "SELECT 1", refuse).await.unwrap_err();
    let Error::Aborted { id, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("the shelf is full"), "{error}");
    assert_eq!(office.verdict(id).await.unwrap(), Verdict::Aborted);
    assert_eq!((kept(&bank), site.state(&bank).await.0), (1, 90));

    // Another one cannot promise: the file is not even asked.
    let error = attempt("c", "INSERT INTO nothing VALUES (1)", put).await.unwrap_err();
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
    assert_eq!((kept(&bank), site.state(&bank).await.0), (1, 90));

    // Alone, beside decisions of others.
    let alone = office.transaction().in_log(put).commit().await.unwrap();
    assert_eq!(office.verdict(&alone.id).await.unwrap(), Verdict::Committed);
    assert_eq!(kept(&bank), 2);
    let survey = bank.setup().await.survey().await.unwrap();
    assert_eq!(survey.transactions, [], "nothing is left to finish");
    let twice = office.transaction().in_log(put).in_log(put).commit().await.unwrap_err();
    assert!(matches!(twice, Error::Invalid { .. }), "{twice}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_in_sqlite_elsewhere_than_the_log_is_refused() {
    let site = Site::start().await;
    let bank = site.bank_with(Place::BesideOrders).await;
    let office = bank.office().await;
    let error = office.transaction().in_log(put).commit().await.unwrap_err();
    assert!(
        matches!(error, Error::Unsupported { .. }) && error.to_string().contains("cannot promise"),
        "{error}"
    );
}

/// No participant is needed for it, and so no server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_in_the_log_that_panics_or_ends_its_transaction_harms_nobody_else() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("2pc.db");
    let locker = Locker::new(Memory::default());
    let office = TwoPhase::open(&format!("sqlite:{}", path.display()), &locker).await.unwrap();
    let office = office.start().await.unwrap();
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch("CREATE TABLE shelf (what TEXT)").unwrap();
    let count = || -> i64 { file.query_one("SELECT count(*) FROM shelf", [], |it| it.get(0)).unwrap() };

    let panics = office.transaction().in_log(|db| {
        put(db)?;
        panic!("the shelf fell")
    });
    let error = panics.commit().await.unwrap_err();
    let Error::Aborted { id, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("panicked: the shelf fell"), "{error}");
    assert_eq!((count(), office.verdict(id).await.unwrap()), (0, Verdict::Aborted));

    // Whoever ends the transaction makes the decision, or unmakes it; and what is told is what happened.
    let ends: [(&'static str, Result<(), &'static str>, bool); 4] = [
        ("COMMIT", Ok(()), true),
        ("COMMIT", Err("too late"), true),
        ("COMMIT; BEGIN", Ok(()), true),
        ("ROLLBACK", Ok(()), false),
    ];
    let mut kept = 0;
    for (sql, answer, committed) in ends {
        let ended = office.transaction().in_log(move |db| {
            put(db)?;
            db.execute_batch(sql)?;
            answer.map_err(WorkError::new)
        });
        let told = ended.commit().await;
        kept += i64::from(committed);
        assert_eq!(count(), kept, "{sql}");
        match told {
            Ok(done) => {
                assert!(committed, "{sql}: told {done:?}");
                assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed, "{sql}");
            }
            Err(Error::Aborted { id, .. }) => {
                assert!(!committed, "{sql}, {answer:?}: told aborted");
                assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Aborted, "{sql}");
            }
            Err(error) => panic!("{sql}, {answer:?}: {error}"),
        }
    }
    // The log goes on.
    let last = office.transaction().in_log(put).commit().await.unwrap();
    assert_eq!((count(), office.verdict(&last.id).await.unwrap()), (kept + 1, Verdict::Committed));
}
