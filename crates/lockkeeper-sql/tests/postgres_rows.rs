//! Row locks, advisory locks and fenced writes on a real PostgreSQL: sixty-four buyers and one stock.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod shared;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Fence, Key};
use lockkeeper_sql::fenced::FencedError;
use lockkeeper_sql::postgres::{PostgresFences, advisory, rowlock};
use lockkeeper_sql::rowlock::{Attempts, Column, Retry, RowError};
use lockkeeper_testkit::servers;
use shared::Shared;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

const BUYERS: i32 = 64;
const STOCK: i64 = 40;

static SERVER: Shared<servers::Postgres> = Shared::new();

async fn server() -> Arc<servers::Postgres> {
    SERVER.get(servers::Postgres::start(servers::PostgresOptions::default())).await
}

async fn client(server: &servers::Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

/// A stock of its own for each test, so that tests do not meet.
async fn stock(server: &servers::Postgres, table: &str) -> Client {
    let client = client(server).await;
    let make = format!(
        "CREATE TABLE {table} (id bigint PRIMARY KEY, amount bigint NOT NULL CHECK (0 <= amount), \
         version bigint NOT NULL); INSERT INTO {table} VALUES (7, {STOCK}, 0)"
    );
    client.batch_execute(&make).await.unwrap();
    client
}

async fn amount(client: &Client, table: &str) -> i64 {
    let row = client.query_one(&format!("SELECT amount FROM {table} WHERE id = 7"), &[]).await;
    row.unwrap().get(0)
}

/// All buyers at once; how many bought, and how many retries it took them.
async fn sell<F>(server: &servers::Postgres, buy: impl Fn(Client) -> F) -> (i64, u32)
where
    F: Future<Output = (bool, u32)> + Send + 'static,
{
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        buyers.spawn(buy(client(server).await));
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
    let owner = stock(&server, "stock_taken").await;
    let column = Column::new::<()>("stock_taken", "id", "amount").unwrap();
    let (sold, _) = sell(&server, |client| {
        let column = column.clone();
        async move { (rowlock::take(&client, &column, &7_i64, 1).await.unwrap(), 0) }
    })
    .await;
    assert_eq!((sold, amount(&owner, "stock_taken").await), (STOCK, 0));
}

#[tokio::test]
async fn sixty_four_buyers_compare_and_set_a_version() {
    let server = server().await;
    let owner = stock(&server, "stock_versioned").await;
    let (sold, retries) = sell(&server, |client| async move {
        let mut attempts = Attempts::new(Retry { attempts_max: 1000, ..Retry::default() });
        loop {
            let read = "SELECT amount, version FROM stock_versioned WHERE id = 7";
            let row = client.query_one(read, &[]).await.unwrap();
            let (amount, version): (i64, i64) = (row.get(0), row.get(1));
            if amount == 0 {
                return (false, attempts.retries());
            }
            let write =
                "UPDATE stock_versioned SET amount = $1, version = version + 1 WHERE id = 7 AND version = $2";
            if client.execute(write, &[&(amount - 1), &version]).await.unwrap() == 1 {
                return (true, attempts.retries());
            }
            attempts.lost().await.unwrap();
        }
    })
    .await;
    assert_eq!((sold, amount(&owner, "stock_versioned").await), (STOCK, 0));
    let row = owner.query_one("SELECT version FROM stock_versioned", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), STOCK, "every sale has its version");
    println!("{sold} sales took {retries} retries");
}

#[tokio::test]
async fn sixty_four_buyers_wait_for_the_row() {
    let server = server().await;
    let owner = stock(&server, "stock_locked").await;
    let (sold, _) = sell(&server, |mut client| async move {
        let bought = rowlock::section(&mut client, Duration::from_mins(1), async |tx| {
            let row = tx.query_one("SELECT amount FROM stock_locked WHERE id = 7 FOR UPDATE", &[]).await?;
            let amount: i64 = row.get(0);
            if amount == 0 {
                return Ok(false);
            }
            tx.execute("UPDATE stock_locked SET amount = $1 WHERE id = 7", &[&(amount - 1)]).await?;
            Ok(true)
        });
        (bought.await.unwrap(), 0)
    })
    .await;
    assert_eq!((sold, amount(&owner, "stock_locked").await), (STOCK, 0));
}

#[tokio::test]
async fn a_row_that_others_keep_is_given_up_in_time_and_nothing_is_changed() {
    let server = server().await;
    let mut owner = stock(&server, "stock_kept").await;
    let mut late = client(&server).await;
    let keeping = owner.transaction().await.unwrap();
    keeping.execute("UPDATE stock_kept SET amount = 1", &[]).await.unwrap();
    let kept = rowlock::section(&mut late, Duration::from_millis(50), async |tx| {
        tx.execute("UPDATE stock_kept SET amount = 2", &[]).await.map(drop)
    });
    assert!(matches!(kept.await, Err(RowError::TimedOut { .. })));
    keeping.rollback().await.unwrap();
    assert_eq!(amount(&late, "stock_kept").await, STOCK);
}

#[tokio::test]
async fn an_advisory_lock_lives_as_long_as_its_transaction() {
    let server = server().await;
    let (mut one, mut other) = (client(&server).await, client(&server).await);
    let (key, elsewhere) = (Key::new("nightly").unwrap(), Key::new("Nightly").unwrap());
    let holding = one.transaction().await.unwrap();
    advisory::lock(&holding, &key).await.unwrap();
    let trying = other.transaction().await.unwrap();
    assert!(!advisory::try_lock(&trying, &key).await.unwrap());
    assert!(advisory::try_lock(&trying, &elsewhere).await.unwrap());
    holding.rollback().await.unwrap();
    assert!(advisory::try_lock(&trying, &key).await.unwrap());
}

#[tokio::test]
async fn a_stale_fence_is_refused_and_a_read_raises_it() {
    let server = server().await;
    let (mut old, mut new) = (client(&server).await, client(&server).await);
    let fences = PostgresFences::new("public").unwrap();
    fences.create(&old).await.unwrap();
    fences.create(&new).await.unwrap();
    let key = Key::new("orders/42").unwrap();
    let at = |it| Fence::from_u64(it);

    let tx = old.transaction().await.unwrap();
    fences.check(&tx, &key, at(10)).await.unwrap();
    tx.commit().await.unwrap();
    let tx = old.transaction().await.unwrap();
    fences.check(&tx, &key, at(10)).await.unwrap();
    tx.commit().await.unwrap();

    // The new holder has only read, and the old one is already refused.
    let reading = new.transaction().await.unwrap();
    fences.check(&reading, &key, at(11)).await.unwrap();
    reading.commit().await.unwrap();
    let tx = old.transaction().await.unwrap();
    let refused = fences.check(&tx, &key, at(10)).await.unwrap_err();
    assert!(matches!(refused, FencedError::Stale { seen, .. } if seen == at(11)), "{refused}");
    tx.rollback().await.unwrap();
    let tx = old.transaction().await.unwrap();
    let refused = fences.check(&tx, &key, at(u64::MAX)).await.unwrap_err();
    assert!(matches!(refused, FencedError::TooLarge { .. }), "{refused}");
}
