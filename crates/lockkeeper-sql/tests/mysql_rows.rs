//! Row locks, named locks and fenced writes on a real MariaDB and a real MySQL: sixty-four buyers and one stock.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod rows;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Fence, Key, SharedFence};
use lockkeeper_servers::{self as servers, MariaDb, MariaDbOptions};
use lockkeeper_sql::fenced::FencedError;
use lockkeeper_sql::mysql::{MysqlFences, named, rowlock};
use lockkeeper_sql::rowlock::{Column, RowError};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, TxOpts};
use rows::Shop;
use shared::Shared;

/// The same shop on each server.
macro_rules! shop {
    ($module:ident, $server:ty, $options:ty) => {
        impl Shop for $server {
            type Conn = Conn;
            type Error = Error;

            async fn shared() -> Arc<Self> {
                {
                    static SERVER: Shared<$server> = Shared::new();
                    SERVER.get(<$server>::start(<$options>::default())).await
                }
            }

            async fn conn(&self) -> Conn {
                Conn::new(Opts::from_url(&self.url()).unwrap()).await.unwrap()
            }

            async fn run(conn: &mut Conn, sql: String) -> u64 {
                conn.query_drop(sql).await.unwrap();
                conn.affected_rows()
            }

            async fn number(conn: &mut Conn, sql: String) -> i64 {
                conn.query_first(sql).await.unwrap().unwrap()
            }

            async fn take(conn: &mut Conn, column: &Column) -> bool {
                rowlock::take(conn, column, 7, 1).await.unwrap()
            }

            async fn buy(conn: &mut Conn) -> bool {
                let bought = rowlock::section(conn, Duration::from_secs(60), async |tx| {
                    let read = "SELECT amount FROM stock_locked WHERE id = 7 FOR UPDATE";
                    let amount: Option<i64> = tx.query_first(read).await?;
                    let amount = amount.unwrap();
                    if amount == 0 {
                        return Ok(false);
                    }
                    tx.exec_drop("UPDATE stock_locked SET amount = ? WHERE id = 7", (amount - 1,)).await?;
                    Ok(true)
                });
                bought.await.unwrap()
            }

            async fn section(conn: &mut Conn, wait: Duration, sql: &str) -> Result<(), RowError<Error>> {
                rowlock::section(conn, wait, async |tx| tx.query_drop(sql).await).await
            }

            async fn create_fences(conn: &mut Conn) {
                MysqlFences.create(conn).await.unwrap();
            }

            async fn check(conn: &mut Conn, key: &Key, fence: Fence) -> Result<(), FencedError<Error>> {
                let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
                let checked = MysqlFences.check(&mut tx, key, fence).await;
                let ended = if checked.is_ok() { tx.commit().await } else { tx.rollback().await };
                ended.unwrap();
                checked
            }

            async fn check_shared(
                conn: &mut Conn,
                key: &Key,
                fence: SharedFence,
            ) -> Result<(), FencedError<Error>> {
                let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
                let checked = MysqlFences.check_shared(&mut tx, key, fence).await;
                let ended = if checked.is_ok() { tx.commit().await } else { tx.rollback().await };
                ended.unwrap();
                checked
            }

            const HEADING: &'static str = "MySQL and MariaDB";

            async fn run_printed(
                conn: &mut Conn,
                sql: &str,
                is_writer: bool,
                name: &str,
                fence: i64,
            ) -> bool {
                let (raise, look) = sql.split_once(";\n").unwrap();
                let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
                tx.exec_drop(raise, (name, name, fence)).await.unwrap();
                let let_in: Option<bool> = if is_writer {
                    tx.exec_first(look, (fence, fence, name)).await.unwrap()
                } else {
                    tx.exec_first(look, (fence, name)).await.unwrap()
                };
                tx.commit().await.unwrap();
                let_in.unwrap()
            }
        }

        mod $module {
            use super::*;

            rows::cases!($server);

            #[tokio::test]
            async fn a_named_lock_keeps_others_out_until_its_work_ends() {
                named_lock::<$server>().await;
            }
        }
    };
}

shop!(mariadb, MariaDb, MariaDbOptions);
shop!(mysql, servers::Mysql, servers::MysqlOptions);

async fn named_lock<S: Shop<Conn = Conn>>() {
    let server = S::shared().await;
    let (mut one, mut other) = (server.conn().await, server.conn().await);
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
