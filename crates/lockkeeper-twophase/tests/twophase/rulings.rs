//! Rulings by hand: about a transaction whose coordinator only stood still, and about branches whose number nobody noted.

use lockkeeper_core::{Clock, Locker, Memory};
use lockkeeper_servers::proxy::{Proxy, Rule};
use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Committed, Error, Office, Point, Result, Ruling, TransactionId, Verdict};
use rusqlite::params;

use crate::protocol::gated;
use crate::recovery::first_round;
use crate::site::{Bank, HANG, Place, Site};
use crate::worker::{Orders, Worker};

/// Until nothing is in doubt, whoever finishes it.
async fn until_over(bank: &Bank) {
    let over = async {
        while !bank.setup().await.survey().await.unwrap().transactions.is_empty() {
            Clock::boot().sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, over).await.expect("what was ruled is done");
}

/// Somebody with another lock store takes the seat at once, as after its ttl, and rules.
async fn commit_by_hand(bank: &Bank, id: &TransactionId) {
    let person = bank.setup_with(&Locker::new(Memory::default())).await;
    person.resolve(id, Ruling::Commit, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_coordinator_that_wakes_after_a_ruling_by_hand_does_what_was_ruled() {
    let site = Site::start().await;
    for caller_waits in [true, false] {
        let name = format!("the caller waits: {caller_waits}");
        let bank = site.bank().await;
        let (office, mut gate) = gated(&bank, Point::AllPrepared).await;
        let mut transfer = Box::pin(bank.transfer(&office, "a"));
        tokio::select! {
            answer = &mut transfer => panic!("{answer:?}"),
            _ = gate.arrived.recv() => {}
        }
        let id = gate.id().unwrap();
        commit_by_hand(&bank, &id).await;
        assert_eq!(site.state(&bank).await.0, 90, "{name}: PostgreSQL has followed already");
        if caller_waits {
            gate.open.send(()).unwrap();
            let told = transfer.await;
            assert!(matches!(&told, Ok(done) if done.id == id), "{name}: told {told:?}");
        } else {
            drop(transfer);
            gate.open.send(()).unwrap();
        }
        until_over(&bank).await;
        assert!(site.check(&bank, &name).await, "{name}");
        assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Committed, "{name}");
    }
}

/// As [`Bank::transfer`], and the second branch cannot vote.
async fn refused(bank: &Bank, office: &Office) -> Result<Committed> {
    let (take, give) = bank.statements("a");
    let work = office.transaction().within(HANG).on("orders", async move |db: &Client| {
        db.batch_execute(&take).await?;
        Ok(())
    });
    let work = work.on("stock", async move |db: &mut Conn| {
        for it in give {
            db.query_drop(it).await?;
        }
        drop(db.query_drop("KILL CONNECTION_ID()").await);
        Ok(())
    });
    work.commit().await
}

/// Whoever rules before all have promised splits it. The coordinator does not call that aborted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_ruling_by_hand_before_all_votes_is_not_called_aborted() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let (office, mut gate) = gated(&bank, Point::Prepared).await;
    let person = async {
        gate.arrived.recv().await.unwrap();
        commit_by_hand(&bank, &gate.id().unwrap()).await;
        gate.open.send(()).unwrap();
    };
    let (told, ()) = tokio::join!(refused(&bank, &office), person);
    let Err(Error::Unknown { id, source, .. }) = told else { panic!("it is half committed: {told:?}") };
    assert!(source.to_string().contains("ruled by hand"), "{source}");
    assert_eq!(office.verdict(&id).await.unwrap(), Verdict::Committed);
    until_over(&bank).await;
    let (here, there, ..) = site.state(&bank).await;
    assert_eq!((here, there), (90, 100), "this is what such a ruling costs");
}

/// With the log in a participant that one promises nothing, and its part is lost if somebody else decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_ruling_by_hand_that_was_not_the_branch_with_the_log_is_told_as_damage() {
    let site = Site::start().await;
    for (place, whose) in [(Place::WithOrders, "orders"), (Place::WithStock, "stock")] {
        let bank = site.bank_with(place).await;
        let (office, mut gate) = gated(&bank, Point::AllPrepared).await;
        let person = async {
            gate.arrived.recv().await.unwrap();
            commit_by_hand(&bank, &gate.id().unwrap()).await;
            gate.open.send(()).unwrap();
        };
        let (told, ()) = tokio::join!(bank.transfer(&office, "a"), person);
        let Err(Error::Damaged { id, branches, .. }) = told else {
            panic!("{whose} is not committed: {told:?}")
        };
        assert!(
            branches.iter().any(|it| it.starts_with(&format!("{whose} was rolled back"))),
            "{branches:?}"
        );
        until_over(&bank).await;
        let damages = bank.setup().await.survey().await.unwrap().damages;
        let [damage] = &damages[..] else { panic!("{damages:?}") };
        assert_eq!((&damage.id, damage.participant.as_str()), (&id, whose));
        let (here, there, ..) = site.state(&bank).await;
        assert_ne!(here + there, 200, "this is what such a ruling costs, and it is told");
    }
}

/// Before anybody has promised there is nothing to rule about.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_rules_to_commit_what_nobody_has_promised() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let (office, mut gate) = gated(&bank, Point::Worked).await;
    let ruled = bank.clone();
    // In a task of its own: the caller's stands still.
    let person = tokio::spawn(async move {
        gate.arrived.recv().await.unwrap();
        let person = ruled.setup_with(&Locker::new(Memory::default())).await;
        let error = person.resolve(&gate.id().unwrap(), Ruling::Commit, false).await.unwrap_err();
        assert!(error.to_string().contains("nothing of"), "{error}");
        gate.open.send(()).unwrap();
    });
    let told = bank.transfer(&office, "a").await;
    person.await.unwrap();
    // The seat was taken all the same.
    assert!(matches!(told, Err(Error::Superseded { .. })), "{told:?}");
    until_over(&bank).await;
    assert!(!site.check(&bank, "nothing was promised").await);
}

/// A ruling by hand has no numbers, and a number may be too old for PostgreSQL to remember: the witness tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_of_postgres_without_a_number_is_known_by_its_witness() {
    let site = Site::start().await;
    for (word, whole) in [("COMMIT", true), ("ROLLBACK", false)] {
        let bank = site.bank().await;
        let orders = Orders { die: Some(("AllPrepared", "")), ..Orders::default() };
        let (killed, said) = Worker::start(&bank, &orders).end().await;
        assert!(killed, "{said:?}");
        let id: TransactionId = said.iter().find_map(|it| it.strip_prefix("id ")).unwrap().parse().unwrap();
        // As a ruling by hand leaves it if one branch could not follow.
        let log = rusqlite::Connection::open(bank.folder.join("2pc.db")).unwrap();
        log.execute(
            "INSERT INTO lockkeeper_2pc_verdict VALUES (?1, ?2, ?3, 'commit', 'by hand', '0.orders 1.stock', 1, 0)",
            params![id.as_str(), id.seat(), id.fence().cast_signed()],
        )
        .unwrap();
        site.postgres.sql(&format!("{word} PREPARED '{id}:0.orders'")).await.unwrap();
        assert_eq!(first_round(&bank).await, [], "{word}: it is known how it ended");
        let survey = bank.setup().await.survey().await.unwrap();
        assert_eq!(survey.transactions, [], "{word}: nothing is left to do");
        let damaged: Vec<&str> = survey.damages.iter().map(|it| it.participant.as_str()).collect();
        assert_eq!(damaged, if whole { vec![] } else { vec!["orders"] }, "{word}: {survey:?}");
        let (here, there, ..) = site.state(&bank).await;
        assert_eq!((here, there), (if whole { 90 } else { 100 }, 110), "{word}");
    }
}

/// Ruling to commit is refused, and against the log it leaves a damage.
async fn only_against_the_log(bank: &Bank, id: &TransactionId, name: &str) {
    let person = async || bank.setup_with(&Locker::new(Memory::default())).await;
    let refused = person().await.resolve(id, Ruling::Commit, false).await.unwrap_err();
    assert!(refused.to_string().contains("the log says abort"), "{name}: {refused}");
    assert_eq!(bank.verdict(id.as_str()).await, Verdict::Aborted, "{name}");
    let told = async {
        while !person().await.resolve(id, Ruling::Commit, true).await.unwrap().is_empty() {
            Clock::boot().sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, told).await.expect("who is left does as it is told");
    let damages = bank.setup().await.survey().await.unwrap().damages;
    assert!(
        damages.iter().any(|it| it.participant == "stock" && it.expected == Ruling::Abort),
        "{name}: {damages:?}"
    );
}

/// A sweep has rolled back one branch and cannot reach the other. That one alone is not committed any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_recovery_began_to_roll_back_is_committed_only_against_the_log() {
    let site = Site::start().await;
    for attached in [true, false] {
        let name = format!("attached: {attached}");
        let bank = site.bank().await;
        let (orders, stock) = (
            Proxy::start(site.postgres.port()).await.unwrap(),
            Proxy::start(site.mysql.port()).await.unwrap(),
        );
        let behind = bank.behind(&site, &orders, &stock);
        let task = Orders { die: Some(("AllPrepared", "")), stop: true, ..Orders::default() };
        let (worker, id) = Worker::start(&behind, &task).hear("id ").await;
        worker.until_stopped().await;
        stock.set_both(Rule::Drop);
        drop(worker);
        let left = if attached {
            first_round(&bank).await
        } else {
            // The server of the stock is away.
            stock.refuse().await.unwrap();
            stock.cut();
            first_round(&behind).await
        };
        assert!(!left.is_empty() && left.iter().all(|it| it.participant == "stock"), "{name}: {left:?}");
        assert_eq!(
            bank.here("SELECT count(*) FROM pg_prepared_xacts").await,
            "0",
            "{name}: this one is undone"
        );
        stock.cut();
        only_against_the_log(&bank, &id.parse().unwrap(), &name).await;
        let (here, there, ..) = site.state(&bank).await;
        assert_eq!((here, there), (100, 110), "{name}: this is what such a ruling costs");
    }
}

/// Nobody has rolled anything back; but somebody was told that it is aborted, or has ruled so about one branch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_called_aborted_is_committed_only_against_the_log() {
    let site = Site::start().await;
    for by_hand in [false, true] {
        let name = format!("by hand: {by_hand}");
        let bank = site.bank().await;
        let orders = Orders { die: Some(("AllPrepared", "")), ..Orders::default() };
        let (killed, said) = Worker::start(&bank, &orders).end().await;
        assert!(killed, "{said:?}");
        let id: TransactionId = said.iter().find_map(|it| it.strip_prefix("id ")).unwrap().parse().unwrap();
        let person = bank.setup_with(&Locker::new(Memory::default())).await;
        if by_hand {
            assert_eq!(person.resolve_branch(&id, "orders", Ruling::Abort, false).await.unwrap(), []);
        } else {
            // Does nothing but take the seat.
            person.resolve_branch(&id, "nobody", Ruling::Commit, false).await.unwrap_err();
            assert_eq!(bank.verdict(id.as_str()).await, Verdict::Aborted);
        }
        only_against_the_log(&bank, &id, &name).await;
    }
}
