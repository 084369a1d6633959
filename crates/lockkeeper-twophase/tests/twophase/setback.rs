//! What was set back: a participant that gives its numbers to others now, and a log that has lost its newest rows.

use std::path::Path;

use lockkeeper_core::Clock;
use lockkeeper_twophase::{Ruling, TransactionId, Verdict};
use rusqlite::{Connection, params};

use crate::recovery::first_round;
use crate::site::{Bank, HANG, Site};
use crate::worker::{Orders, Worker};

/// A coordinator that dies there, and its transaction.
async fn died(bank: &Bank, orders: Orders) -> TransactionId {
    let (killed, said) = Worker::start(bank, &orders).end().await;
    assert!(killed, "{said:?}");
    said.iter().find_map(|it| it.strip_prefix("id ")).unwrap().parse().unwrap()
}

/// After a failover to a standby that was behind, or after a backup was restored, the number that the log has noted is somebody
/// else's, or nobody's yet. Whether a branch that is gone has committed only its witness tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_somebody_else_has_now_proves_nothing() {
    let site = Site::start().await;
    let numbers = async || {
        let committed = site.postgres.sql("SELECT pg_current_xact_id()").await.unwrap();
        let aborted = site.postgres.sql("BEGIN; SELECT pg_current_xact_id(); ROLLBACK").await.unwrap();
        let number = |it: String| it.lines().find_map(|it| it.trim().parse::<u64>().ok()).unwrap();
        [("committed", number(committed)), ("aborted", number(aborted)), ("in the future", 1 << 40)]
    };
    for (whose, number) in numbers().await {
        for (word, whole) in [("COMMIT", true), ("ROLLBACK", false)] {
            let name = format!("{word}, and the number is {whose}");
            let bank = site.bank().await;
            let id = died(&bank, Orders { die: Some(("Decided", "")), ..Orders::default() }).await;
            site.postgres.sql(&format!("{word} PREPARED '{id}:0.orders'")).await.unwrap();
            let log = Connection::open(bank.folder.join("2pc.db")).unwrap();
            let noted = "UPDATE lockkeeper_2pc_verdict SET branches = ?1 WHERE id = ?2";
            log.execute(noted, params![format!("0.orders={number} 1.stock"), id.as_str()]).unwrap();
            assert_eq!(first_round(&bank).await, [], "{name}: it is known how it ended");
            let survey = bank.setup().await.survey().await.unwrap();
            assert_eq!(survey.transactions, [], "{name}: nothing is left to do");
            let damaged: Vec<&str> = survey.damages.iter().map(|it| it.participant.as_str()).collect();
            assert_eq!(damaged, if whole { vec![] } else { vec!["orders"] }, "{name}: {survey:?}");
            let (here, there, ..) = site.state(&bank).await;
            assert_eq!((here, there), (if whole { 90 } else { 100 }, 110), "{name}");
        }
    }
}

/// A copy of the log as it is now.
fn back_up(bank: &Bank, copy: &Path) {
    let log = Connection::open(bank.folder.join("2pc.db")).unwrap();
    log.execute("VACUUM INTO ?1", [copy.display().to_string()]).unwrap();
}

fn restore(bank: &Bank, copy: &Path) {
    for file in ["2pc.db", "2pc.db-wal", "2pc.db-shm"] {
        drop(std::fs::remove_file(bank.folder.join(file)));
    }
    std::fs::copy(copy, bank.folder.join("2pc.db")).unwrap();
}

/// Who is away when the log is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
    Nobody,
    /// Who is prepared. Nobody may forget meanwhile what the other one knows.
    Stock,
    /// Who has committed. Nobody who is there knows of it, and afterwards it is told.
    Orders,
}

/// It was decided, PostgreSQL has committed and MariaDB is prepared; then the log is set back to before the decision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_set_back_is_put_right_by_who_has_committed_and_it_is_told() {
    let site = Site::start().await;
    for away in [Away::Nobody, Away::Stock, Away::Orders] {
        let name = format!("away: {away:?}");
        let bank = site.bank().await;
        // The seat is in the copy, as it is in every copy but the first.
        bank.office().await.close().await.unwrap();
        let copy = bank.folder.join("copy.db");
        back_up(&bank, &copy);
        let die = Orders {
            die: Some(("Committed", "orders")),
            hold: Some(("Committing", "stock")),
            ..Orders::default()
        };
        let id = died(&bank, die).await;
        restore(&bank, &copy);
        match away {
            Away::Nobody => {}
            Away::Stock => site.mysql.kill().unwrap(),
            Away::Orders => site.postgres.kill().unwrap(),
        }
        first_round(&bank).await;
        match away {
            Away::Nobody => {}
            Away::Stock => site.mysql.start().await.unwrap(),
            Away::Orders => site.postgres.start().await.unwrap(),
        }
        bank.recover().await;
        let (here, there, ..) = site.state(&bank).await;
        let whole = away != Away::Orders;
        assert_eq!((here, there), (90, if whole { 110 } else { 100 }), "{name}");
        let survey = bank.setup().await.survey().await.unwrap();
        assert_eq!(survey.transactions, [], "{name}: nothing is left");
        let [damage] = &survey.damages[..] else { panic!("{name}: it is told: {survey:?}") };
        assert_eq!(
            (&damage.id, damage.participant.as_str(), damage.expected),
            (&id, "orders", Ruling::Abort),
            "{name}"
        );
        let verdict = bank.verdict(id.as_str()).await;
        assert_eq!(verdict == Verdict::Committed, whole, "{name}: {verdict:?}");
    }
}

/// Somebody gives a participant up, and a day later the log forgets what is finished. Not this: it may come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_did_damage_is_not_forgotten_and_who_comes_back_is_told() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let id = died(&bank, Orders { die: Some(("Decided", "")), ..Orders::default() }).await;
    site.mysql.kill().unwrap();
    first_round(&bank).await;
    assert_eq!(bank.setup().await.give_up(&id).await.unwrap(), ["stock"]);
    // Both are old, and one of them did no damage.
    let log = Connection::open(bank.folder.join("2pc.db")).unwrap();
    let other = format!("{}{}", &id.as_str()[..id.as_str().len() - 8], "00000000");
    log.execute_batch(&format!(
        "INSERT INTO lockkeeper_2pc_verdict VALUES ('{other}', 0, 1, 'commit', '', '', 1, 1); \
         UPDATE lockkeeper_2pc_verdict SET decided = 1"
    ))
    .unwrap();
    let office = bank.office().await;
    let left = async || -> i64 {
        let count = "SELECT count(*) FROM lockkeeper_2pc_verdict WHERE id = ?1";
        log.query_one(count, [&other], |it| it.get(0)).unwrap()
    };
    let forgotten = async {
        while left().await > 0 {
            Clock::boot().sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, forgotten).await.expect("the sweep forgets what is old");
    office.close().await.unwrap();
    let refused = bank.setup().await.forget(&id).await.unwrap_err();
    assert!(refused.to_string().contains("left a damage"), "{refused}");
    site.mysql.start().await.unwrap();
    bank.recover().await;
    let (here, there, ..) = site.state(&bank).await;
    assert_eq!((here, there), (90, 110), "it was decided, and the log still knows");
    assert_eq!(bank.verdict(id.as_str()).await, Verdict::Committed);
}
