//! Recovery of much at once: each branch is told once, over several connections, and what cannot be told is left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::{Clock, Locker, Memory};
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_twophase::{Left, Office, Participant, Point, Result, TwoPhase};
use tokio::task::JoinSet;

use crate::site::{Bank, HANG, Place, Site};
use crate::worker::{Orders, Worker};

/// Transactions that are left behind at once.
const MANY: usize = 40;

/// Recover until the seats of the dead are free. What the round left in which they were.
pub(crate) async fn first_round(bank: &Bank) -> Vec<Left> {
    let round = async {
        loop {
            let (left, busy) = bank.setup().await.recover().await.unwrap();
            if busy.is_empty() {
                return left;
            }
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(HANG, round).await.expect("the seat is lost by its ttl")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_recovered_is_not_told_again_nor_reported_as_left() {
    let site = Site::start().await;
    for place in [Place::File, Place::BesideOrders, Place::WithStock] {
        let bank = site.bank_with(place).await;
        let orders = Orders { die: Some(("Decided", "")), ..Orders::default() };
        assert!(Worker::start(&bank, &orders).end().await.0);
        assert_eq!(first_round(&bank).await, [], "{place:?}: one round is enough");
        assert!(site.check(&bank, &format!("{place:?}")).await);
    }
}

/// An office whose every transaction stops at this point and is then forgotten with it.
async fn abandon(bank: &Bank, at: Point, tags: std::ops::Range<usize>) {
    let setup = TwoPhase::open(&bank.log, &Locker::new(Memory::default())).await.unwrap();
    let setup = setup.participant("orders", Participant::postgres(&bank.postgres).unwrap());
    let setup = setup.participant("stock", Participant::mysql(&bank.mysql).unwrap());
    let setup = setup.sweep_every(Duration::from_secs(3600)).observer(move |step| {
        assert!(step.point != at, "the coordinator ends here, as it was told to");
    });
    let office = Arc::new(setup.start().await.unwrap());
    let mut tasks = JoinSet::new();
    for tag in tags {
        let (bank, office) = (bank.clone(), office.clone());
        tasks.spawn(async move { drop(insert(&bank, &office, tag).await) });
    }
    while tasks.join_next().await.is_some() {}
}

/// A row in both, which no other one waits for.
async fn insert(bank: &Bank, office: &Office, tag: usize) -> Result<()> {
    use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
    use lockkeeper_twophase::tokio_postgres::Client;
    let sql = format!("INSERT INTO move VALUES ('{}-{tag}')", bank.account);
    let (first, second) = (sql.clone(), sql);
    let work = office.transaction().within(HANG);
    let work = work.on("orders", async move |db: &Client| Ok(db.batch_execute(&first).await?));
    let work = work.on("stock", async move |db: &mut Conn| Ok(db.query_drop(second).await?));
    work.commit().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn much_that_was_left_is_finished_over_several_connections_and_each_branch_once() {
    let site = Site::start().await;
    for connections in [1, 4] {
        let bank = site.bank().await;
        abandon(&bank, Point::Decided, 0..MANY).await;
        abandon(&bank, Point::AllPrepared, MANY..2 * MANY).await;
        let (orders, stock) = (
            Proxy::start(site.postgres.port()).await.unwrap(),
            Proxy::start(site.mysql.port()).await.unwrap(),
        );
        let behind = bank.behind(&site, &orders, &stock);
        let told: Arc<Mutex<HashMap<_, usize>>> = Arc::default();
        let seen = told.clone();
        let setup = behind.setup().await.connections(connections).observer(move |step| {
            if step.point == Point::Recovered {
                let branch = (step.id.cloned(), step.participant.map(str::to_owned));
                *seen.lock().unwrap().entry(branch).or_default() += 1;
            }
        });
        let (left, busy) = setup.recover().await.unwrap();
        assert_eq!((left, busy), (vec![], vec![]));
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert!(told.values().all(|it| *it == 1), "each branch is told once: {told:?}");
        // The first office's were finished when the second took its seat.
        assert_eq!(told.len(), 2 * MANY);
        // One to meet, one to list, and those that gave orders, of which the lister was the first.
        for (name, proxy) in [("orders", &orders), ("stock", &stock)] {
            let accepted = proxy.counters().accepted;
            assert!(accepted <= 1 + connections, "{name}: {accepted} connections for {connections}");
            assert!(connections == 1 || accepted > 2, "{name}: several at once, not {accepted}");
        }
        let (_, _, here, there) = site.state(&bank).await;
        assert_eq!(here, there, "a row is here if and only if it is there");
        assert_eq!(here.lines().count(), MANY, "what was decided, and nothing else");
        let survey = bank.setup().await.survey().await.unwrap();
        assert_eq!((survey.transactions, survey.damages), (vec![], vec![]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_answer_is_left_with_all_its_branches_and_the_others_are_told() {
    let site = Site::start().await;
    let bank = site.bank().await;
    abandon(&bank, Point::Decided, 0..MANY).await;
    let (orders, stock) =
        (Proxy::start(site.postgres.port()).await.unwrap(), Proxy::start(site.mysql.port()).await.unwrap());
    let behind = bank.behind(&site, &orders, &stock);
    let setup = behind.setup().await;
    stock.refuse().await.unwrap();
    let (left, _) = setup.recover().await.unwrap();
    assert!(left.iter().all(|it| it.participant == "stock"), "{left:?}");
    let named = left.iter().filter(|it| it.id.is_some()).count();
    assert_eq!((named, left.len()), (MANY, MANY + 1), "each, and that it could not be asked: {left:?}");
    let prepared = bank.here("SELECT count(*) FROM pg_prepared_xacts").await;
    assert_eq!(prepared, "0", "the other one is free");
    stock.accept().await.unwrap();
    bank.recover().await;
    let (_, _, here, there) = site.state(&bank).await;
    assert_eq!((here.lines().count(), here == there), (MANY, true));
}

/// Dead, and not yet started again: it is named, nothing is taken for damaged, and what it has to do is done when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_names_a_participant_that_is_still_down_and_finishes_when_it_is_back() {
    let site = Site::start().await;
    for (at, moved) in [("Decided", true), ("AllPrepared", false)] {
        for whose in ["orders", "stock"] {
            let name = format!("{at}, {whose} is down");
            let bank = site.bank().await;
            let orders = Orders { die: Some((at, "")), ..Orders::default() };
            assert!(Worker::start(&bank, &orders).end().await.0, "{name}");
            if whose == "orders" { site.postgres.kill() } else { site.mysql.kill() }.unwrap();
            let left = first_round(&bank).await;
            assert!(!left.is_empty() && left.iter().all(|it| it.participant == whose), "{name}: {left:?}");
            let survey = bank.setup().await.survey().await.unwrap();
            assert_eq!(survey.damages, [], "{name}");
            assert!(survey.unreachable.iter().any(|it| it.participant == whose), "{name}: {survey:?}");
            let started =
                if whose == "orders" { site.postgres.start().await } else { site.mysql.start().await };
            started.unwrap();
            bank.recover().await;
            assert_eq!(site.check(&bank, &name).await, moved);
        }
    }
}

/// The textbook says that nothing follows from it. After the decision its part is lost, and that stays known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_participant_that_is_lost_for_good_stays_listed_until_somebody_gives_it_up() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let orders = Orders { die: Some(("Decided", "")), ..Orders::default() };
    let (killed, said) = Worker::start(&bank, &orders).end().await;
    assert!(killed, "{said:?}");
    let id = said.iter().find_map(|it| it.strip_prefix("id ")).unwrap().parse().unwrap();
    site.mysql.kill().unwrap();
    let left = first_round(&bank).await;
    assert!(left.iter().any(|it| it.id.as_ref() == Some(&id) && it.participant == "stock"), "{left:?}");
    assert_eq!(bank.here("SELECT count(*) FROM move").await, "1", "the other one has committed");
    let survey = async || bank.setup().await.survey().await.unwrap();
    assert_eq!(survey().await.transactions.len(), 1, "it stays listed");
    bank.setup().await.forget(&id).await.unwrap_err();
    assert_eq!(bank.setup().await.give_up(&id).await.unwrap(), ["stock"]);
    let after = survey().await;
    assert_eq!((after.transactions.len(), after.damages.len()), (0, 1), "{after:?}");
    assert!(after.damages[0].found.contains("given up by hand"), "{after:?}");
    bank.setup().await.give_up(&id).await.unwrap_err();
    // It comes back all the same, and is told: the log still knows.
    site.mysql.start().await.unwrap();
    bank.recover().await;
    let (here, there, ..) = site.state(&bank).await;
    assert_eq!((here, there), (90, 110));
}
