//! Verdicts for callers that lost the answer, where a hasty look would be wrong.

use lockkeeper_core::{Clock, Locker, Memory};
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_twophase::{Error, Participant, Point, TwoPhase, Verdict};

use crate::protocol::gated;
use crate::site::{Bank, HANG, Place, Site, until_nothing_is_left};

/// What the rows of a log in PostgreSQL say.
async fn rows(bank: &Bank) -> String {
    let log = Bank { postgres: bank.log.clone(), ..bank.clone() };
    log.here("SELECT verdict FROM lockkeeper_2pc_verdict").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_names_not_all_participants_does_not_hear_aborted_of_one_that_is_committed() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = bank.office().await;
    let done = bank.take(&office, "a").await.unwrap();
    office.close().await.unwrap();
    // A later fence, so that the first one's transactions are over.
    bank.recover().await;
    let setup = async || TwoPhase::open(&bank.log, &Locker::new(Memory::default())).await.unwrap();
    let (orders, stock) =
        (Participant::postgres(&bank.postgres).unwrap(), Participant::mysql(&bank.mysql).unwrap());
    for some in [setup().await, setup().await.participant("stock", stock)] {
        let verdict = some.verdict(&done.id).await.unwrap();
        assert!(matches!(&verdict, Verdict::Unknown(why) if why.contains("\"orders\"")), "{verdict:?}");
    }
    let whole = setup().await.participant("orders", orders);
    assert_eq!(whole.verdict(&done.id).await.unwrap(), Verdict::Committed);
}

/// Between two looks at the log the coordinator decides, ends, and is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_decision_between_two_looks_is_not_called_aborted() {
    let site = Site::start().await;
    let bank = site.bank_with(Place::BesideOrders).await;
    let proxy = Proxy::start(site.postgres.port()).await.unwrap();
    let (office, mut gate) = gated(&bank, Point::AllPrepared).await;
    let mut transfer = Box::pin(bank.transfer(&office, "a"));
    tokio::select! {
        answer = &mut transfer => panic!("{answer:?}"),
        _ = gate.arrived.recv() => {}
    }
    let id = gate.id().unwrap();
    let log = bank.log.replace(&site.postgres.address(), &proxy.address());
    let asker = Bank { log, ..bank.clone() }.setup().await;
    proxy.keep_request(b"FROM lockkeeper_2pc_seat");
    let asked = id.clone();
    let asked = tokio::spawn(async move { asker.verdict(&asked).await });
    let kept = async {
        while proxy.counters().kept == 0 {
            Clock::boot().sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, kept).await.expect("it looks who has the seat");
    gate.open.send(()).unwrap();
    transfer.await.unwrap();
    bank.setup_with(&Locker::new(Memory::default())).await.recover().await.unwrap();
    proxy.let_go();
    assert_eq!(asked.await.unwrap().unwrap(), Verdict::Committed);
    assert!(site.check(&bank, "between two looks").await);
}

/// The log goes away with the decision on its way: the caller hears that nobody knows, and the office finds it out.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_is_told_unknown_learns_the_verdict_when_the_log_is_back() {
    let site = Site::start().await;
    // Whether the decision arrives, and whether the log's server dies with its answer on the way.
    for (arrives, dies) in [(true, false), (false, false), (true, true)] {
        let bank = site.bank_with(Place::BesideOrders).await;
        let proxy = Proxy::start(site.postgres.port()).await.unwrap();
        let log = bank.log.replace(&site.postgres.address(), &proxy.address());
        let (office, mut gate) = gated(&Bank { log, ..bank.clone() }, Point::AllPrepared).await;
        let mut transfer = Box::pin(bank.transfer(&office, "a"));
        tokio::select! {
            answer = &mut transfer => panic!("{answer:?}"),
            _ = gate.arrived.recv() => {}
        }
        if arrives {
            proxy.lose_reply(b"INTO lockkeeper_2pc_verdict");
        } else {
            proxy.lose_request(b"INTO lockkeeper_2pc_verdict");
        }
        proxy.refuse().await.unwrap();
        gate.open.send(()).unwrap();
        let told = transfer.await;
        let Err(Error::Unknown { id, .. }) = &told else { panic!("nobody can know it: {told:?}") };
        assert_eq!(rows(&bank).await, if arrives { "commit" } else { "" });
        if dies {
            site.postgres.kill().unwrap();
            site.postgres.start().await.unwrap();
        }
        proxy.accept().await.unwrap();
        let settled = async {
            while rows(&bank).await.is_empty()
                || !bank.setup().await.survey().await.unwrap().transactions.is_empty()
            {
                Clock::boot().sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(HANG, settled).await.expect("the office asks until the log has answered");
        // Ruled, so that the decision is refused if it arrives now.
        assert_eq!(rows(&bank).await, if arrives { "commit" } else { "abort" });
        until_nothing_is_left(&office).await;
        assert_eq!(office.verdict(id).await.unwrap() == Verdict::Committed, arrives);
        assert_eq!(site.check(&bank, &format!("unknown, it arrives: {arrives}, {dies}")).await, arrives);
    }
}
