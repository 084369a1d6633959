//! How often each server is waited for in a transaction, which is most of what one takes where servers are far away; and that a
//! session which was opened ahead of its turn, and has ended before it, is replaced.

use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{Flavour, MysqlOptions};
use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Office, WorkError};

use crate::site::{Bank, HANG, Place, Site};

/// An office whose sweeps disturb nobody.
async fn calm(bank: &Bank) -> Office {
    bank.setup().await.sweep_every(Duration::from_secs(3600)).start().await.unwrap()
}

/// What a transaction waits for at each participant, with one statement of work in PostgreSQL and two in the other.
async fn journeys<F: Flavour>(site: &Site<F>, place: Place) -> (usize, usize) {
    let bank = site.bank_with(place).await;
    let (orders, stock) =
        (Proxy::start(site.postgres.port()).await.unwrap(), Proxy::start(site.mysql.port()).await.unwrap());
    // What is said to the log is not said to a participant.
    let behind = Bank { log: bank.log.clone(), ..bank.behind(site, &orders, &stock) };
    let office = calm(&behind).await;
    bank.transfer(&office, "first").await.unwrap();
    let so_far = || (orders.counters().round_trips, stock.counters().round_trips);
    let before = so_far();
    bank.transfer(&office, "second").await.unwrap();
    let after = so_far();
    assert!(site.check(&bank, "counted").await);
    (after.0 - before.0, after.1 - before.1)
}

/// Each connects, begins, works and promises or is asked whether it can; then it is told. Besides, PostgreSQL says whether it
/// wrote before it promises; and a branch of MariaDB or MySQL ends before it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_waits_for_its_servers_no_more_often_than_it_must() {
    let site = Site::start().await;
    for (place, expected) in [
        // Connect, begin, work, look, promise, commit; connect, begin, two of work, end, promise, commit.
        (Place::File, (6, 7)),
        // It is asked whether it can, and its commit is the decision.
        (Place::WithOrders, (5, 7)),
        (Place::WithStock, (6, 6)),
    ] {
        assert_eq!(journeys(&site, place).await, expected, "{place:?}");
    }
    let site = Site::of(MysqlOptions::default()).await;
    assert_eq!(journeys(&site, Place::File).await, (6, 7), "MySQL");
}

/// Until this has happened.
async fn until<T>(what: &str, mut happened: impl AsyncFnMut() -> Option<T>) -> T {
    let waited = async {
        loop {
            if let Some(it) = happened().await {
                return it;
            }
            Clock::boot().sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(HANG, waited).await.unwrap_or_else(|_| panic!("waiting until {what}"))
}

/// As a server does with sessions that are idle, or a firewall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ended_before_its_turn_is_replaced() {
    let site = Site::start().await;
    let bank = site.bank().await;
    let office = calm(&bank).await;
    let (take, give) = bank.statements("there");
    let work = office.transaction().within(HANG);
    let work = work.on("orders", async |db: &Client| {
        db.batch_execute(&take).await?;
        until("MariaDB has ended the session that waits for its turn", async || {
            let idle = "SELECT id FROM information_schema.processlist WHERE user = 'lockkeeper' AND command = 'Sleep'";
            let idle = site.mysql.sql(idle).await.unwrap();
            site.mysql.sql(&format!("KILL {}", idle.lines().next()?)).await.ok()
        })
        .await;
        Ok(())
    });
    let work = work.on("stock", async |db: &mut Conn| {
        for it in give {
            db.query_drop(it).await?;
        }
        Ok(())
    });
    work.commit().await.unwrap();
    assert!(site.check(&bank, "ended by MariaDB").await);

    let bank = site.bank().await;
    let office = calm(&bank).await;
    let (take, give) = bank.statements("here");
    let work = office.transaction().within(HANG);
    let work = work.on("stock", async |db: &mut Conn| {
        for it in give {
            db.query_drop(it).await?;
        }
        until("PostgreSQL has ended the session that waits for its turn", async || {
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' \
                       AND pid <> pg_backend_pid() AND state = 'idle'";
            (!bank.here(end).await.is_empty()).then_some(())
        })
        .await;
        Ok::<_, WorkError>(())
    });
    let work = work.on("orders", async |db: &Client| Ok(db.batch_execute(&take).await?));
    work.commit().await.unwrap();
    assert!(site.check(&bank, "ended by PostgreSQL").await);
}
