//! Row locks, named locks and fenced writes on a real MariaDB: sixty-four buyers and one stock.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod shared;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Fence, Key};
use lockkeeper_sql::fenced::FencedError;
use lockkeeper_sql::mysql::{MysqlFences, named, rowlock};
use lockkeeper_sql::rowlock::{Attempts, Column, Retry, RowError};
use lockkeeper_testkit::servers::{MariaDb, MariaDbOptions};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, TxOpts};
use shared::Shared;
use tokio::task::JoinSet;

const BUYERS: i32 = 64;
const STOCK: i64 = 40;

static SERVER: Shared<MariaDb> = Shared::new();

async fn server() -> Arc<MariaDb> {
    SERVER.get(MariaDb::start(MariaDbOptions::default())).await
}

async fn conn(server: &MariaDb) -> Conn {
    Conn::new(Opts::from_url(&server.url()).unwrap()).await.unwrap()
}

/// A stock of its own for each test, so that tests do not meet.
async fn stock(server: &MariaDb, table: &str) -> Conn {
    let mut conn = conn(server).await;
    let make = format!(
        "CREATE TABLE {table} (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL CHECK (0 <= amount), \
         version BIGINT NOT NULL); INSERT INTO {table} VALUES (7, {STOCK}, 0)"
    );
    conn.query_drop(make).await.unwrap();
    conn
}

async fn amount(conn: &mut Conn, table: &str) -> i64 {
    let amount = conn.query_first(format!("SELECT amount FROM {table} WHERE id = 7")).await;
    amount.unwrap().unwrap()
}

/// All buyers at once; how many bought, and how many retries it took them.
async fn sell<F>(server: &MariaDb, buy: impl Fn(Conn) -> F) -> (i64, u32)
where
    F: Future<Output = (bool, u32)> + Send + 'static,
{
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        buyers.spawn(buy(conn(server).await));
    }
    let (mut sold, mut retries) = (0, 0);
    while let Some(bought) = buyers.join_next().await {
        let (bought, more) = bought.unwrap();
        sold += i64::from(bought);
        retries += more;
    }
    (sold, retries)
}

#[tokio::test]
async fn sixty_four_buyers_take_the_stock_by_one_statement_each() {
    let server = server().await;
    let mut owner = stock(&server, "stock_taken").await;
    let column = Column::new::<()>("stock_taken", "id", "amount").unwrap();
    let (sold, _) = sell(&server, |mut conn| {
        let column = column.clone();
        async move { (rowlock::take(&mut conn, &column, 7, 1).await.unwrap(), 0) }
    })
    .await;
    assert_eq!((sold, amount(&mut owner, "stock_taken").await), (STOCK, 0));
}

#[tokio::test]
async fn sixty_four_buyers_compare_and_set_a_version() {
    let server = server().await;
    let mut owner = stock(&server, "stock_versioned").await;
    let (sold, retries) = sell(&server, |mut conn| async move {
        let mut attempts = Attempts::new(Retry { attempts_max: 1000, ..Retry::default() });
        loop {
            let read = "SELECT amount, version FROM stock_versioned WHERE id = 7";
            let row: Option<(i64, i64)> = conn.query_first(read).await.unwrap();
            let (amount, version) = row.unwrap();
            if amount == 0 {
                return (false, attempts.retries());
            }
            let write =
                "UPDATE stock_versioned SET amount = ?, version = version + 1 WHERE id = 7 AND version = ?";
            conn.exec_drop(write, (amount - 1, version)).await.unwrap();
            if conn.affected_rows() == 1 {
                return (true, attempts.retries());
            }
            attempts.lost().await.unwrap();
        }
    })
    .await;
    assert_eq!((sold, amount(&mut owner, "stock_versioned").await), (STOCK, 0));
    let version: Option<i64> = owner.query_first("SELECT version FROM stock_versioned").await.unwrap();
    assert_eq!(version, Some(STOCK), "every sale has its version");
    println!("{sold} sales took {retries} retries");
}

#[tokio::test]
async fn sixty_four_buyers_wait_for_the_row() {
    let server = server().await;
    let mut owner = stock(&server, "stock_locked").await;
    let (sold, _) = sell(&server, |mut conn| async move {
        let bought = rowlock::section(&mut conn, Duration::from_mins(1), async |tx| {
            let read = "SELECT amount FROM stock_locked WHERE id = 7 FOR UPDATE";
            let amount: Option<i64> = tx.query_first(read).await?;
            let amount = amount.unwrap();
            if amount == 0 {
                return Ok(false);
            }
            tx.exec_drop("UPDATE stock_locked SET amount = ? WHERE id = 7", (amount - 1,)).await?;
            Ok(true)
        });
        (bought.await.unwrap(), 0)
    })
    .await;
    assert_eq!((sold, amount(&mut owner, "stock_locked").await), (STOCK, 0));
}

#[tokio::test]
async fn a_row_that_others_keep_is_given_up_in_time_and_nothing_is_changed() {
    let server = server().await;
    let mut owner = stock(&server, "stock_kept").await;
    let mut late = conn(&server).await;
    let mut keeping = owner.start_transaction(TxOpts::new()).await.unwrap();
    keeping.query_drop("UPDATE stock_kept SET amount = 1").await.unwrap();
    let kept = rowlock::section(&mut late, Duration::from_millis(50), async |tx| {
        tx.query_drop("UPDATE stock_kept SET amount = 2").await
    });
    assert!(matches!(kept.await, Err(RowError::TimedOut { .. })));
    keeping.rollback().await.unwrap();
    assert_eq!(amount(&mut late, "stock_kept").await, STOCK);
}

#[tokio::test]
async fn a_named_lock_keeps_others_out_until_its_work_ends() {
    let server = server().await;
    let (mut one, mut other) = (conn(&server).await, conn(&server).await);
    let (key, elsewhere) = (Key::new("nightly").unwrap(), Key::new("Nightly").unwrap());
    let held = named::with_named_lock(&mut one, &key, Duration::ZERO, async |_| {
        let refused = named::with_named_lock(&mut other, &key, Duration::ZERO, async |_| Ok(())).await?;
        let beside = named::with_named_lock(&mut other, &elsewhere, Duration::ZERO, async |_| Ok(())).await?;
        Ok((refused, beside))
    });
    assert_eq!(held.await.unwrap(), Some((None, Some(()))));
    let after = named::with_named_lock(&mut other, &key, Duration::ZERO, async |_| Ok(())).await;
    assert_eq!(after.unwrap(), Some(()));
}

#[tokio::test]
async fn a_stale_fence_is_refused_and_a_read_raises_it() {
    let server = server().await;
    let (mut old, mut new) = (conn(&server).await, conn(&server).await);
    MysqlFences.create(&mut old).await.unwrap();
    MysqlFences.create(&mut new).await.unwrap();
    let key = Key::new("orders/42").unwrap();
    let at = |it| Fence::from_u64(it);

    for _ in 0..2 {
        let mut tx = old.start_transaction(TxOpts::new()).await.unwrap();
        MysqlFences.check(&mut tx, &key, at(10)).await.unwrap();
        tx.commit().await.unwrap();
    }
    // The new holder has only read, and the old one is already refused.
    let mut reading = new.start_transaction(TxOpts::new()).await.unwrap();
    MysqlFences.check(&mut reading, &key, at(11)).await.unwrap();
    reading.commit().await.unwrap();
    let mut tx = old.start_transaction(TxOpts::new()).await.unwrap();
    let refused = MysqlFences.check(&mut tx, &key, at(10)).await.unwrap_err();
    assert!(matches!(refused, FencedError::Stale { seen, .. } if seen == at(11)), "{refused}");
    tx.rollback().await.unwrap();
    let mut tx = old.start_transaction(TxOpts::new()).await.unwrap();
    let refused = MysqlFences.check(&mut tx, &key, at(u64::MAX)).await.unwrap_err();
    assert!(matches!(refused, FencedError::TooLarge { .. }), "{refused}");
    tx.rollback().await.unwrap();
}
