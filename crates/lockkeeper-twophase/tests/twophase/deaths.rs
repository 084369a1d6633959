//! Servers are killed at every step of a transaction, one or both, with a coordinator that lives or that dies with them.

use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{Flavour, MysqlOptions};
use lockkeeper_twophase::Verdict;

use crate::servers::crash;
use crate::site::Site;
use crate::worker::{At, Orders, Worker};

/// A crash point.
#[derive(Clone, Copy)]
struct Death {
    /// Its number.
    number: u32,
    /// Where the coordinator is.
    at: At,
    /// What it has not done by then, whichever thread is faster.
    hold: Option<At>,
    /// The answer that it lost there.
    lose: Option<(&'static str, &'static str)>,
}

const fn death(number: u32, point: &'static str, whose: &'static str) -> Death {
    Death { number, at: (point, whose), hold: None, lose: None }
}

const STEPS: [Death; 11] = [
    death(4, "Begun", "stock"),
    death(5, "Worked", ""),
    Death { lose: Some(("orders", "PREPARE TRANSACTION")), ..death(6, "RollingBack", "orders") },
    death(7, "Prepared", "orders"),
    Death { lose: Some(("stock", "XA PREPARE")), ..death(9, "RollingBack", "stock") },
    death(10, "AllPrepared", ""),
    death(13, "Decided", ""),
    Death { lose: Some(("orders", "COMMIT PREPARED")), ..death(14, "Unanswered", "orders") },
    Death { hold: Some(("Committing", "stock")), ..death(15, "Committed", "orders") },
    Death { hold: Some(("Committing", "orders")), ..death(15, "Committed", "stock") },
    Death { lose: Some(("stock", "XA COMMIT")), ..death(16, "Unanswered", "stock") },
];

/// Stand still there, kill the servers, start them again; then the coordinator goes on, or is dead as well.
async fn die<F: Flavour>(site: &Site<F>, (orders, stock): (bool, bool), dies: bool, steps: &[Death]) {
    for &Death { number, at, hold, lose } in steps {
        let name = format!("{number} {at:?}, orders {orders}, stock {stock}, coordinator {dies}");
        let bank = site.bank().await;
        let (here, there) = (
            Proxy::start(site.postgres.port()).await.unwrap(),
            Proxy::start(site.mysql.port()).await.unwrap(),
        );
        if let Some((server, request)) = lose {
            if server == "orders" { &here } else { &there }.lose_reply(request.as_bytes());
        }
        let task = Orders { die: Some(at), hold, stop: true, ..Orders::default() };
        let (worker, id) = Worker::start(&bank.behind(site, &here, &there), &task).hear("id ").await;
        worker.until_stopped().await;
        crash(site, orders, stock).await.unwrap();
        let told = if dies {
            drop(worker);
            None
        } else {
            worker.go_on(&bank);
            let (worker, told) = worker.hear("told ").await;
            drop(worker.end().await);
            Some(told)
        };
        bank.recover().await;
        let moved = site.check(&bank, &name).await;
        let verdict = bank.verdict(&id).await;
        let happened = if moved { Verdict::Committed } else { Verdict::Aborted };
        assert_eq!(verdict, happened, "{name}: who asks later is told what happened");
        let decided = number >= 13;
        assert!(!decided || moved, "{name}: what was decided is done");
        match told {
            Some(told) => assert_eq!(told.starts_with("committed"), moved, "{name}: told {told}"),
            None => assert_eq!(moved, decided, "{name}: who dies before the decision has decided nothing"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_may_die_at_every_step() {
    let site = Site::start().await;
    die(&site, (true, false), false, &STEPS).await;
    die(&site, (true, false), true, &STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_may_die_at_every_step() {
    let site = Site::start().await;
    die(&site, (false, true), false, &STEPS).await;
    die(&site, (false, true), true, &STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_may_die_at_every_step() {
    let site = Site::start().await;
    die(&site, (true, true), false, &STEPS).await;
    die(&site, (true, true), true, &STEPS).await;
}

/// MySQL itself, where a crash in the middle of `XA COMMIT` with a binary log is a known trouble (its bug 109434).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_may_die_where_it_differs() {
    let site = Site::of(MysqlOptions::default()).await;
    let some: Vec<Death> = STEPS.into_iter().filter(|it| [9, 13, 16].contains(&it.number)).collect();
    die(&site, (false, true), false, &some).await;
    die(&site, (false, true), true, &some).await;
}
