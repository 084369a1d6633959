//! Servers are killed at every step of a transaction, one or both, with a coordinator that lives or that dies with them.

use lockkeeper_servers::proxy::Proxy;
use lockkeeper_twophase::Verdict;

use crate::servers::crash;
use crate::site::Site;
use crate::worker::{At, Orders, Worker};

/// The number of the crash point, where the coordinator is, and the answer that it lost there.
type Death = (&'static str, At, Option<(&'static str, &'static str)>);

const STEPS: [Death; 9] = [
    ("4", ("Begun", "stock"), None),
    ("5", ("Worked", ""), None),
    ("6", ("RollingBack", "orders"), Some(("orders", "PREPARE TRANSACTION"))),
    ("7", ("Prepared", "orders"), None),
    ("9", ("RollingBack", "stock"), Some(("stock", "XA PREPARE"))),
    ("10", ("AllPrepared", ""), None),
    ("13", ("Decided", ""), None),
    ("14", ("Unanswered", "orders"), Some(("orders", "COMMIT PREPARED"))),
    ("16", ("Unanswered", "stock"), Some(("stock", "XA COMMIT"))),
];

/// Stand still there, kill the servers, start them again; then the coordinator goes on, or is dead as well.
async fn die(site: &Site, (orders, stock): (bool, bool), dies: bool) {
    for (number, at, lose) in STEPS {
        let name = format!("{number} {at:?}, orders {orders}, stock {stock}, coordinator {dies}");
        let bank = site.bank().await;
        let (here, there) = (
            Proxy::start(site.postgres.port()).await.unwrap(),
            Proxy::start(site.mysql.port()).await.unwrap(),
        );
        if let Some((server, request)) = lose {
            if server == "orders" { &here } else { &there }.lose_reply(request.as_bytes());
        }
        let task = Orders { die: Some(at), stop: true, ..Orders::default() };
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
        assert_eq!(verdict == Verdict::Committed, moved, "{name}: who asks later is told {verdict:?}");
        let decided = number.parse::<u32>().unwrap() >= 13;
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
    die(&site, (true, false), false).await;
    die(&site, (true, false), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_may_die_at_every_step() {
    let site = Site::start().await;
    die(&site, (false, true), false).await;
    die(&site, (false, true), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_may_die_at_every_step() {
    let site = Site::start().await;
    die(&site, (true, true), false).await;
    die(&site, (true, true), true).await;
}
