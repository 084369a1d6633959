//! Servers die and come back, lose a branch, or were told otherwise by somebody; and what is not ours stays untouched.

use lockkeeper_servers::{Flavour, KitError, MariaDbOptions};
use lockkeeper_twophase::mysql_async::{Conn, Opts, prelude::Queryable};
use lockkeeper_twophase::{Error, Fate, Point, Ruling, Verdict};

use crate::protocol::gated;
use crate::site::{Bank, HANG, Site};
use crate::worker::{Orders, Worker};

/// Kill and start again.
pub(crate) async fn crash<F: Flavour>(site: &Site<F>, orders: bool, stock: bool) -> Result<(), KitError> {
    if orders {
        site.postgres.kill()?;
    }
    if stock {
        site.mysql.kill()?;
    }
    if orders {
        site.postgres.start().await?;
    }
    if stock {
        site.mysql.start().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn participants_may_die_between_prepare_and_commit() {
    let site = Site::start().await;
    // Where the coordinator is, which servers die, and whether it dies with them.
    for (at, orders, stock, dies, moved) in [
        ("Worked", true, true, false, false),
        ("AllPrepared", true, false, false, true),
        ("AllPrepared", false, true, true, false),
        ("Decided", false, true, false, true),
        ("Decided", true, true, false, true),
        ("Decided", true, true, true, true),
    ] {
        let name = format!("{at}, orders {orders}, stock {stock}, coordinator {dies}");
        let bank = site.bank().await;
        let task = Orders { die: Some((at, "")), stop: true, ..Orders::default() };
        let (worker, id) = Worker::start(&bank, &task).hear("id ").await;
        worker.until_stopped().await;
        crash(&site, orders, stock).await.unwrap();
        if dies {
            drop(worker);
        } else {
            worker.go_on(&bank);
            let (worker, told) = worker.hear("told ").await;
            assert_eq!(told.starts_with("committed"), moved, "{name}: told {told}");
            drop(worker.end().await);
        }
        bank.recover().await;
        assert_eq!(site.check(&bank, &name).await, moved, "{name}");
        assert_eq!(bank.verdict(&id).await == Verdict::Committed, moved, "{name}");
    }
}

/// The measured loss: after `COM_RESET_CONNECTION` MariaDB says OK to whoever ends a branch and does nothing, until it is
/// restarted. A coordinator dies there, and its branch is such a one. What is left until the restart is told.
async fn lose_a_branch(at: &'static str) -> (Site, Bank) {
    // Its sessions see by default what nobody has committed: that must not be taken for a commit.
    let site = Site::of(MariaDbOptions::default().set("transaction-isolation", "READ-UNCOMMITTED")).await;
    let bank = site.bank().await;
    let orders = Orders { die: Some((at, "")), ..Orders::default() };
    let (killed, said) = Worker::start(&bank, &orders).end().await;
    assert!(killed);
    let id = said.iter().find_map(|it| it.strip_prefix("id ")).unwrap();
    // The same branch again, in a session that is reset as a pool would do it.
    let xid = format!("'{id}','1.stock',1279996496");
    site.mysql.sql(&format!("XA ROLLBACK {xid}")).await.unwrap();
    let mut session = Conn::new(Opts::from_url(&bank.mysql).unwrap()).await.unwrap();
    let (_, [give, insert]) = bank.statements("w");
    let witness = format!("INSERT INTO lockkeeper_2pc_witness VALUES ('{id}', 1, 'stock')");
    for it in [
        format!("XA START {xid}"),
        give,
        insert,
        witness,
        format!("XA END {xid}"),
        format!("XA PREPARE {xid}"),
    ] {
        session.query_drop(it).await.unwrap();
    }
    assert!(session.reset().await.unwrap(), "the server knows the command");

    let left = loop {
        let (left, busy) = bank.setup().await.recover().await.unwrap();
        if busy.is_empty() {
            break left;
        }
        lockkeeper_core::Clock::boot().sleep(std::time::Duration::from_millis(50)).await;
    };
    assert!(left.iter().any(|it| it.participant == "stock" && it.why.contains("restart")), "{left:?}");
    drop(session);
    (site, bank)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_mariadb_confirms_and_does_not_do_is_noticed() {
    let (site, bank) = lose_a_branch("Decided").await;
    let survey = bank.setup().await.survey().await.unwrap();
    assert_eq!(
        (survey.transactions.len(), survey.damages.len()),
        (1, 0),
        "it is not finished, and not damaged"
    );
    crash(&site, false, true).await.unwrap();
    bank.recover().await;
    assert!(site.check(&bank, "after the restart").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_that_mariadb_confirms_and_does_not_do_is_noticed() {
    let (site, bank) = lose_a_branch("AllPrepared").await;
    let survey = bank.setup().await.survey().await.unwrap();
    assert_eq!(survey.damages, [], "it is not damaged");
    crash(&site, false, true).await.unwrap();
    bank.recover().await;
    assert!(!site.check(&bank, "after the restart").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_that_somebody_ended_by_hand_is_reported_as_damage() {
    let site = Site::start().await;
    for whose in ["orders", "stock"] {
        let bank = site.bank().await;
        let orders = Orders { die: Some(("Decided", "")), ..Orders::default() };
        let (killed, said) = Worker::start(&bank, &orders).end().await;
        assert!(killed);
        let id = said.iter().find_map(|it| it.strip_prefix("id ")).unwrap();
        match whose {
            "orders" => site.postgres.sql(&format!("ROLLBACK PREPARED '{id}:0.orders'")).await.unwrap(),
            _ => site.mysql.sql(&format!("XA ROLLBACK '{id}','1.stock',1279996496")).await.unwrap(),
        };
        bank.recover().await;
        let survey = bank.setup().await.survey().await.unwrap();
        assert_eq!(survey.transactions, [], "there is nothing more to do about it");
        let [damage] = &survey.damages[..] else { panic!("{survey:?}") };
        assert_eq!(
            (damage.id.as_str(), damage.participant.as_str(), damage.expected),
            (id, whose, Ruling::Commit)
        );
        assert!(damage.found.contains("rolled back by somebody else"), "{damage:?}");
        let (here, there, ..) = site.state(&bank).await;
        assert_ne!(here + there, 200, "the money really is gone, and we say so");
    }
    // Also the caller is told, if it lives.
    let bank = site.bank().await;
    let orders = Orders { die: Some(("Decided", "")), stop: true, ..Orders::default() };
    let (worker, id) = Worker::start(&bank, &orders).hear("id ").await;
    worker.until_stopped().await;
    site.postgres.sql(&format!("ROLLBACK PREPARED '{id}:0.orders'")).await.unwrap();
    worker.go_on(&bank);
    let (_worker, told) = worker.hear("told ").await;
    assert!(told.contains("is damaged: orders was rolled back"), "{told}");
}

/// The log takes no damage at that moment: the caller hears of it all the same, and it is noted later.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damage_that_cannot_be_noted_is_told_and_noted_later() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let log = rusqlite::Connection::open(bank.folder.join("2pc.db")).unwrap();
    let full =
        "CREATE TRIGGER full BEFORE INSERT ON lockkeeper_2pc_damage BEGIN SELECT RAISE(ABORT, 'full'); END";
    log.execute_batch(full).unwrap();
    let (office, mut gate) = gated(&bank, Point::Decided).await;
    let meddler = async {
        gate.arrived.recv().await.unwrap();
        let id = gate.id().unwrap();
        site.postgres.sql(&format!("ROLLBACK PREPARED '{id}:0.orders'")).await.unwrap();
        gate.open.send(()).unwrap();
    };
    let (told, ()) = tokio::join!(bank.transfer(&office, "a"), meddler);
    let Err(Error::Damaged { id, branches, .. }) = told else {
        panic!("it is committed, and split: {told:?}")
    };
    assert!(branches.iter().any(|it| it.contains("orders was rolled back")), "{branches:?}");
    let survey = bank.setup().await.survey().await.unwrap();
    assert_eq!((survey.transactions.len(), survey.damages.len()), (1, 0), "it is not finished: {survey:?}");
    log.execute_batch("DROP TRIGGER full").unwrap();
    let noted = async {
        while !bank.setup().await.survey().await.unwrap().transactions.is_empty() {
            lockkeeper_core::Clock::boot().sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, noted).await.expect("the office tries again");
    let survey = bank.setup().await.survey().await.unwrap();
    let [damage] = &survey.damages[..] else { panic!("{survey:?}") };
    assert_eq!((&damage.id, damage.participant.as_str()), (&id, "orders"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_of_others_and_of_a_lost_log_are_never_touched() {
    let site = Site::start().await;
    let bank = site.bank().await;
    site.postgres.sql("CREATE TABLE other (id text)").await.unwrap();
    site.mysql.sql("CREATE TABLE other (id text)").await.unwrap();
    let elsewhere = "lk1.0123456789abc.0.000000000001z.006abcdeghjkmnpq";
    for gid in ["order-42", &format!("{elsewhere}:0.orders"), "lk1.odd"] {
        let sql = format!("BEGIN; INSERT INTO other VALUES ('x'); PREPARE TRANSACTION '{gid}'");
        site.postgres.sql(&sql).await.unwrap();
    }
    for xid in ["'order-42'", &format!("'{elsewhere}','1.stock',1279996496"), "X'ff00','b'"] {
        let sql = format!("XA START {xid}; INSERT INTO other VALUES ('x'); XA END {xid}; XA PREPARE {xid}");
        site.mysql.sql(&sql).await.unwrap();
    }
    // A coordinator dies with one branch committed and one not, and its log is lost with it.
    let orders = Orders {
        die: Some(("Committed", "orders")),
        hold: Some(("Committing", "stock")),
        ..Orders::default()
    };
    let (killed, _) = Worker::start(&bank, &orders).end().await;
    assert!(killed);
    for file in ["2pc.db", "2pc.db-wal", "2pc.db-shm"] {
        drop(std::fs::remove_file(bank.folder.join(file)));
    }
    bank.recover().await;
    let prepared = "SELECT count(*) FROM pg_prepared_xacts";
    assert_eq!(site.postgres.sql(prepared).await.unwrap().trim(), "3");
    let listed = site.mysql.sql("XA RECOVER").await.unwrap();
    assert_eq!(
        listed.lines().count(),
        4,
        "those of others, and the one that only the lost log could decide: {listed}"
    );
    let (here, there, ..) = site.state(&bank).await;
    assert_eq!((here, there), (90, 100), "this is what a lost log costs, until a person decides");
}

/// The document's last case: both dead, and the log lost with them. What one has committed was decided; the rest nobody knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_log_only_what_is_proven_is_finished() {
    let site = Site::start().await;
    // Where the coordinator dies, what it holds up, and whether a witness proves the decision.
    for (die, hold, moved) in [
        (("Committed", "orders"), ("Committing", "stock"), Some(true)),
        (("Committed", "stock"), ("Committing", "orders"), Some(true)),
        (("Decided", ""), ("", ""), None),
        (("AllPrepared", ""), ("", ""), None),
    ] {
        let name = format!("{die:?}");
        let bank = site.bank().await;
        let orders = Orders { die: Some(die), hold: Some(hold), ..Orders::default() };
        let (killed, said) = Worker::start(&bank, &orders).end().await;
        assert!(killed, "{name}: {said:?}");
        let id = said.iter().find_map(|it| it.strip_prefix("id ")).unwrap();
        let lost = id.split('.').nth(1).unwrap();
        for file in ["2pc.db", "2pc.db-wal", "2pc.db-shm"] {
            drop(std::fs::remove_file(bank.folder.join(file)));
        }
        let recover = async |dry_run| bank.setup().await.recover_without_log(lost, dry_run).await.unwrap();
        // As long as the dead hold the seat, nothing is done.
        let free = async {
            loop {
                let [orphan] = &recover(true).await[..] else { panic!("{name}: one is left") };
                if !matches!(&orphan.fate, Fate::Nothing(why) if why.contains("holds its seat")) {
                    return orphan.clone();
                }
                lockkeeper_core::Clock::boot().sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        let told = tokio::time::timeout(HANG, free).await.expect("the seat of the dead is lost by its ttl");
        assert_eq!(told.id.as_str(), id);
        assert_eq!(told.fate == Fate::Commit, moved.is_some(), "{name}: {told:?}");
        assert_eq!(recover(true).await.len(), 1, "{name}: a dry run does nothing");
        let done = recover(false).await;
        assert_eq!(done, [told], "{name}: what was said is what is done");
        if moved.is_some() {
            assert_eq!(recover(false).await, [], "{name}");
            assert!(site.check(&bank, &name).await);
            continue;
        }
        // Nobody has acted. Whatever a person guesses: here one of each, and so the document's damage.
        assert_eq!(recover(false).await.len(), 1, "{name}: it stays as it is");
        site.postgres.sql(&format!("COMMIT PREPARED '{id}:0.orders'")).await.unwrap();
        site.mysql.sql(&format!("XA ROLLBACK '{id}','1.stock',1279996496")).await.unwrap();
        let (here, there, ..) = site.state(&bank).await;
        assert_ne!(here + there, 200, "{name}: without a log this can happen");
        let [split] = &recover(true).await[..] else { panic!("{name}: it is told") };
        assert_eq!(
            (split.id.as_str(), &split.prepared[..], &split.committed[..]),
            (id, &[][..], &["orders".to_owned()][..])
        );
        assert!(
            matches!(&split.fate, Fate::Nothing(why) if why.contains("perhaps damaged")),
            "{name}: {split:?}"
        );
    }
    let bank = site.bank().await;
    for lost in ["", "teapot", "0123456789abu"] {
        let error = bank.setup().await.recover_without_log(lost, true).await.unwrap_err();
        assert!(error.to_string().contains("no name of a log"), "{lost}: {error}");
    }
    let office = bank.office().await;
    let done = bank.transfer(&office, "a").await.unwrap();
    let error = bank.setup().await.recover_without_log(done.id.log(), false).await.unwrap_err();
    assert!(error.to_string().contains("this log is here"), "{error}");
}
