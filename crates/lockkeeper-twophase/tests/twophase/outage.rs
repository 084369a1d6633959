//! The network and the lock store fail at the wrong moment: connections that are reset or half open, and no lock store at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_servers::proxy::{Proxy, Rule};
use lockkeeper_twophase::{Error, Point, Verdict};

use crate::protocol::gated;
use crate::site::{Bank, HANG, Site, until_nothing_is_left};
use crate::worker::{Orders, Worker};

/// Both connections are reset when everybody has promised, or when it is decided. New ones do the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reset_between_prepare_and_commit_changes_nothing() {
    let site = Site::start().await;
    for point in [Point::AllPrepared, Point::Decided] {
        let bank = site.bank().await;
        let orders = Proxy::start(site.postgres.port()).await.unwrap();
        let stock = Proxy::start(site.mysql.port()).await.unwrap();
        let (office, mut gate) = gated(&bank.behind(&site, &orders, &stock), point).await;
        let cut = async {
            gate.arrived.recv().await.unwrap();
            for proxy in [&orders, &stock] {
                proxy.cut();
                proxy.wait_for(|it| it.open == 0 && it.cut > 0).await.unwrap();
            }
            gate.open.send(()).unwrap();
        };
        let (told, ()) = tokio::join!(bank.transfer(&office, "a"), cut);
        let done = told.unwrap_or_else(|it| panic!("{point:?}: {it}"));
        until_nothing_is_left(&office).await;
        assert!(site.check(&bank, &format!("{point:?}")).await, "{point:?}: all had promised");
        assert_eq!(office.verdict(&done.id).await.unwrap(), Verdict::Committed);
    }
}

/// The coordinator dies and the network does not tell: MariaDB believes that the session lives, and lets nobody end its branch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_of_a_half_open_session_is_left_until_the_session_ends() {
    let site = Site::start().await;
    for (at, moved) in [("Decided", true), ("AllPrepared", false)] {
        let bank = site.bank().await;
        let orders = Proxy::start(site.postgres.port()).await.unwrap();
        let stock = Proxy::start(site.mysql.port()).await.unwrap();
        let task = Orders { die: Some((at, "")), stop: true, ..Orders::default() };
        let (worker, id) = Worker::start(&bank.behind(&site, &orders, &stock), &task).hear("id ").await;
        worker.until_stopped().await;
        stock.set_both(Rule::Drop);
        drop(worker);
        let attached = async {
            loop {
                let (left, busy) = bank.setup().await.recover().await.unwrap();
                if busy.is_empty() {
                    return left;
                }
                Clock::boot().sleep(Duration::from_millis(50)).await;
            }
        };
        let left = tokio::time::timeout(HANG, attached).await.expect("the seat is lost by its ttl");
        let [one] = &left[..] else { panic!("{at}: {left:?}") };
        assert!(one.participant == "stock" && one.why.contains("still connected"), "{at}: {one:?}");
        assert_eq!(one.id.as_ref().unwrap().as_str(), id);
        let survey = bank.setup().await.survey().await.unwrap();
        assert_eq!(
            (survey.transactions.len(), survey.damages.len()),
            (1, 0),
            "{at}: not finished, not damaged"
        );
        // The server notices at last, here because the proxy resets what was left.
        stock.cut();
        bank.recover().await;
        assert_eq!(site.check(&bank, at).await, moved);
    }
}

/// What is left of the seats of others is looked at seldom, and told all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_left_is_told_until_it_is_looked_at_again() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let (orders, stock) =
        (Proxy::start(site.postgres.port()).await.unwrap(), Proxy::start(site.mysql.port()).await.unwrap());
    let task = Orders { die: Some(("Decided", "")), stop: true, ..Orders::default() };
    let (worker, id) = Worker::start(&bank.behind(&site, &orders, &stock), &task).hear("id ").await;
    worker.until_stopped().await;
    let rounds = Arc::new(AtomicU32::new(0));
    let seen = rounds.clone();
    let setup = bank.setup().await.sweep_every(Duration::from_secs(2)).observer(move |step| {
        seen.fetch_add(u32::from(step.point == Point::Listed), Ordering::SeqCst);
    });
    let office = setup.start().await.unwrap();
    stock.set_both(Rule::Drop);
    drop(worker);
    let is_left = || office.left().iter().any(|it| it.id.as_ref().is_some_and(|it| it.as_str() == id));
    let told = async {
        while !is_left() {
            Clock::boot().sleep(Duration::from_millis(5)).await;
        }
        let before = rounds.load(Ordering::SeqCst);
        while rounds.load(Ordering::SeqCst) < before + 3 {
            Clock::boot().sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, told).await.expect("the office looks at the seat of the dead, and goes on");
    assert!(is_left(), "it is still attached: {:?}", office.left());
    stock.cut();
    until_nothing_is_left(&office).await;
    assert!(site.check(&bank, "the session has ended").await);
}

/// A bank whose seats are locks in PostgreSQL, behind a proxy.
async fn with_locks_behind(site: &Site) -> (Bank, Proxy) {
    let proxy = Proxy::start(site.postgres.port()).await.unwrap();
    let locks = site.postgres.url().replace(&site.postgres.address(), &proxy.address());
    (Bank { locks: Some(locks + "?timeout=1s&connect_timeout=1s"), ..site.bank().await }, proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_lock_store_nothing_is_taken_over() {
    let site = Site::start().await;
    let (bank, locks) = with_locks_behind(&site).await;
    let task = Orders { die: Some(("Decided", "")), ..Orders::default() };
    assert!(Worker::start(&bank, &task).end().await.0);
    let setup = bank.setup().await;
    locks.refuse().await.unwrap();
    locks.cut();
    let error = setup.recover().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("lock store"), "it says which: {error}");
    let prepared = format!("SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE '%{}%'", "orders");
    assert_eq!(bank.here(&prepared).await, "1", "nobody touched it");
    locks.accept().await.unwrap();
    bank.recover().await;
    assert!(site.check(&bank, "the lock store is back").await);
}

/// The fence is in the log by then, so nobody else can decide, and the rest needs no lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_store_that_goes_away_in_the_middle_of_recovery_stops_nothing() {
    let site = Site::start().await;
    for (at, moved) in [("Decided", true), ("AllPrepared", false)] {
        let (bank, locks) = with_locks_behind(&site).await;
        let task = Orders { die: Some((at, "")), ..Orders::default() };
        assert!(Worker::start(&bank, &task).end().await.0);
        let locks = Arc::new(locks);
        let taken = async {
            loop {
                let cut = locks.clone();
                let setup = bank.setup().await.observer(move |step| {
                    if step.point == Point::FenceRaised {
                        cut.set_both(Rule::Drop);
                        cut.cut();
                    }
                });
                let (left, busy) = setup.recover().await.unwrap();
                if busy.is_empty() {
                    return left;
                }
                Clock::boot().sleep(Duration::from_millis(50)).await;
            }
        };
        let left = tokio::time::timeout(HANG, taken).await.expect("the seat is lost by its ttl");
        assert_eq!(left, [], "{at}");
        locks.set_both(Rule::Pass);
        bank.recover().await;
        assert_eq!(site.check(&bank, at).await, moved);
    }
}

/// An office outlives an outage of the lock store: it says so, and then finishes what the dead left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_office_finishes_the_rest_when_the_lock_store_is_back() {
    let site = Site::start().await;
    let (bank, locks) = with_locks_behind(&site).await;
    let task = Orders { die: Some(("Decided", "")), stop: true, ..Orders::default() };
    let (worker, id) = Worker::start(&bank, &task).hear("id ").await;
    worker.until_stopped().await;
    let office = bank.office().await;
    locks.refuse().await.unwrap();
    locks.cut();
    drop(worker);
    let told = async {
        while !office.left().iter().any(|it| it.participant.contains("lock store")) {
            Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, told).await.expect("the office says that the lock store is gone");
    locks.accept().await.unwrap();
    let finished = async {
        while !bank.setup().await.survey().await.unwrap().transactions.is_empty() {
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(HANG, finished).await.expect("the sweep goes on");
    assert_eq!(bank.verdict(&id).await, Verdict::Committed);
    assert!(site.check(&bank, "after the outage").await);
}
