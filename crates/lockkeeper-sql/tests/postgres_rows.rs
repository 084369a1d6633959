//! Row locks, advisory locks and fenced writes on a real PostgreSQL: sixty-four buyers and one stock.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod rows;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Fence, Key, SharedFence};
use lockkeeper_servers::{Postgres, PostgresOptions};
use lockkeeper_sql::fenced::FencedError;
use lockkeeper_sql::postgres::{PostgresFences, advisory, rowlock};
use lockkeeper_sql::rowlock::{Column, RowError};
use rows::Shop;
use shared::Shared;
use tokio_postgres::{Client, Error, NoTls};

static SERVER: Shared<Postgres> = Shared::new();

fn fences() -> PostgresFences {
    PostgresFences::new("public").unwrap()
}

impl Shop for Postgres {
    type Conn = Client;
    type Error = Error;

    async fn shared() -> Arc<Self> {
        SERVER.get(Postgres::start(PostgresOptions::default())).await
    }

    async fn conn(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        client
    }

    async fn run(client: &mut Client, sql: String) -> u64 {
        client.execute(&sql, &[]).await.unwrap()
    }

    async fn number(client: &mut Client, sql: String) -> i64 {
        client.query_one(&sql, &[]).await.unwrap().get(0)
    }

    async fn take(client: &mut Client, column: &Column) -> bool {
        rowlock::take(client, column, &7_i64, 1).await.unwrap()
    }

    async fn buy(client: &mut Client) -> bool {
        let bought = rowlock::section(client, Duration::from_secs(60), async |tx| {
            let row = tx.query_one("SELECT amount FROM stock_locked WHERE id = 7 FOR UPDATE", &[]).await?;
            let amount: i64 = row.get(0);
            if amount == 0 {
                return Ok(false);
            }
            tx.execute("UPDATE stock_locked SET amount = $1 WHERE id = 7", &[&(amount - 1)]).await?;
            Ok(true)
        });
        bought.await.unwrap()
    }

    async fn section(client: &mut Client, wait: Duration, sql: &str) -> Result<(), RowError<Error>> {
        rowlock::section(client, wait, async |tx| tx.execute(sql, &[]).await.map(drop)).await
    }

    async fn create_fences(client: &mut Client) {
        fences().create(client).await.unwrap();
    }

    async fn check(client: &mut Client, key: &Key, fence: Fence) -> Result<(), FencedError<Error>> {
        let tx = client.transaction().await.unwrap();
        let checked = fences().check(&tx, key, fence).await;
        let ended = if checked.is_ok() { tx.commit().await } else { tx.rollback().await };
        ended.unwrap();
        checked
    }

    async fn check_shared(
        client: &mut Client,
        key: &Key,
        fence: SharedFence,
    ) -> Result<(), FencedError<Error>> {
        let tx = client.transaction().await.unwrap();
        let checked = fences().check_shared(&tx, key, fence).await;
        let ended = if checked.is_ok() { tx.commit().await } else { tx.rollback().await };
        ended.unwrap();
        checked
    }

    const HEADING: &'static str = "PostgreSQL";

    async fn run_printed(client: &mut Client, sql: &str, _: bool, name: &str, fence: i64) -> bool {
        let tx = client.transaction().await.unwrap();
        let let_in = tx.query_opt(sql, &[&name, &fence]).await.unwrap().is_some();
        tx.commit().await.unwrap();
        let_in
    }
}

rows::cases!(Postgres);

#[tokio::test]
async fn an_advisory_lock_lives_as_long_as_its_transaction() {
    let server = Postgres::shared().await;
    let (mut one, mut other) = (server.conn().await, server.conn().await);
    let (key, elsewhere) = (Key::new("nightly").unwrap(), Key::new("Nightly").unwrap());
    let holding = one.transaction().await.unwrap();
    advisory::lock(&holding, &key).await.unwrap();
    let trying = other.transaction().await.unwrap();
    assert!(!advisory::try_lock(&trying, &key).await.unwrap());
    assert!(advisory::try_lock(&trying, &elsewhere).await.unwrap());
    holding.rollback().await.unwrap();
    assert!(advisory::try_lock(&trying, &key).await.unwrap());
}
