//! Row locks in MySQL and MariaDB: a section with `SELECT … FOR UPDATE`, and the conditional decrement.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, IsolationLevel, Transaction, TxOpts, Value};

use crate::rowlock::{Column, RowError};

type Error = RowError<mysql_async::Error>;

/// Run `work` in a transaction in which no wait for a locked row takes longer than `wait`, and commit.
///
/// `work` selects what it needs with `SELECT … FOR UPDATE`, decides and writes. If it fails, all is rolled back.
/// The server counts waits in whole seconds, so `wait` is rounded up; the setting stays on the connection. The
/// transaction is READ COMMITTED, because the default locks the gaps between rows as well.
///
/// ```no_run
/// # use std::time::Duration;
/// # use lockkeeper_sql::mysql::rowlock::section;
/// # use lockkeeper_sql::rowlock::RowError;
/// # use mysql_async::prelude::Queryable;
/// # async fn example(conn: &mut mysql_async::Conn) -> Result<(), RowError<mysql_async::Error>> {
/// let sold = section(conn, Duration::from_secs(1), async |transaction| {
///     let amount: Option<i64> =
///         transaction.query_first("SELECT amount FROM stock WHERE id = 42 FOR UPDATE").await?;
///     if amount.is_none_or(|it| it < 1) {
///         return Ok(false);
///     }
///     transaction.query_drop("UPDATE stock SET amount = amount - 1 WHERE id = 42").await?;
///     Ok(true)
/// })
/// .await?;
/// # let _ = sold;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// If dropped, close the connection: the driver cannot go on with it, and the server rolls back.
///
/// # Errors
/// [`RowError::TimedOut`] if others kept a row for longer than `wait`; otherwise the error of `work` or the driver.
pub async fn section<T>(
    conn: &mut Conn,
    wait: Duration,
    work: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, mysql_async::Error>,
) -> Result<T, Error> {
    let told = |error: mysql_async::Error| match &error {
        mysql_async::Error::Server(it) if it.code == 1205 => RowError::TimedOut { waited: wait },
        _ => RowError::Database(error),
    };
    let seconds = wait.as_secs() + u64::from(0 < wait.subsec_nanos());
    let set = format!("SET SESSION innodb_lock_wait_timeout = {}", seconds.clamp(1, 1_000_000));
    conn.query_drop(set).await.map_err(told)?;
    let mut options = TxOpts::new();
    options.with_isolation_level(IsolationLevel::ReadCommitted);
    let mut transaction = conn.start_transaction(options).await.map_err(told)?;
    match work(&mut transaction).await {
        Ok(value) => {
            transaction.commit().await.map_err(told)?;
            Ok(value)
        }
        Err(error) => {
            // Of the two errors the first one tells more.
            let _ = transaction.rollback().await;
            Err(told(error))
        }
    }
}

/// Take `count` from a row if it has that many, in one statement. `false` if it has not, or if there is no such row.
///
/// ```no_run
/// # use lockkeeper_sql::mysql::rowlock::take;
/// # use lockkeeper_sql::rowlock::{Column, RowError};
/// # async fn example(conn: &mut mysql_async::Conn) -> Result<(), RowError<mysql_async::Error>> {
/// let stock = Column::new("stock", "id", "amount")?;
/// let sold = take(conn, &stock, 42, 1).await.map_err(RowError::Database)?;
/// # let _ = sold;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// If dropped, close the connection; nobody can tell whether it was taken.
///
/// # Errors
/// The driver's.
pub async fn take(
    conn: &mut Conn,
    column: &Column,
    key: impl Into<Value>,
    count: u32,
) -> Result<bool, mysql_async::Error> {
    let sql = column.take_sql(&count.to_string(), "?");
    conn.exec_drop(sql, (key.into(),)).await?;
    Ok(conn.affected_rows() == 1)
}
