//! Row locks in PostgreSQL: a section with `SELECT … FOR UPDATE`, and the conditional decrement.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Transaction};

use crate::rowlock::{Column, RowError};

type Error = RowError<tokio_postgres::Error>;

/// Run `work` in a transaction in which no wait for a locked row takes longer than `wait`, and commit.
///
/// `work` selects what it needs with `SELECT … FOR UPDATE`, decides and writes. If it fails, all is rolled back.
///
/// ```no_run
/// # use std::time::Duration;
/// # use lockkeeper_sql::postgres::rowlock::section;
/// # use lockkeeper_sql::rowlock::RowError;
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), RowError<tokio_postgres::Error>> {
/// let sold = section(client, Duration::from_secs(1), async |transaction| {
///     let row = transaction.query_one("SELECT amount FROM stock WHERE id = 42 FOR UPDATE", &[]).await?;
///     if row.try_get::<_, i64>(0)? < 1 {
///         return Ok(false);
///     }
///     transaction.batch_execute("UPDATE stock SET amount = amount - 1 WHERE id = 42").await?;
///     Ok(true)
/// })
/// .await?;
/// # let _ = sold;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// If dropped before the commit is sent, everything is rolled back; while it is under way, nobody can tell.
///
/// # Errors
/// [`RowError::TimedOut`] if others kept a row for longer than `wait`; otherwise the error of `work` or the driver.
pub async fn section<T>(
    client: &mut Client,
    wait: Duration,
    work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, tokio_postgres::Error>,
) -> Result<T, Error> {
    let told = |error: tokio_postgres::Error| match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => RowError::TimedOut { waited: wait },
        _ => RowError::Database(error),
    };
    let transaction = client.transaction().await.map_err(told)?;
    // Zero would mean without end.
    let millis = wait.as_millis().clamp(1, 2_000_000_000);
    transaction.batch_execute(&format!("SET LOCAL lock_timeout = {millis}")).await.map_err(told)?;
    let value = work(&transaction).await.map_err(told)?;
    transaction.commit().await.map_err(told)?;
    Ok(value)
}

/// Take `count` from a row if it has that many, in one statement. `false` if it has not, or if there is no such row.
///
/// ```no_run
/// # use lockkeeper_sql::postgres::rowlock::take;
/// # use lockkeeper_sql::rowlock::{Column, RowError};
/// # async fn example(client: &tokio_postgres::Client) -> Result<(), RowError<tokio_postgres::Error>> {
/// let stock = Column::new("stock", "id", "amount")?;
/// let sold = take(client, &stock, &42_i64, 1).await.map_err(RowError::Database)?;
/// # let _ = sold;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// If dropped, nobody can tell whether it was taken.
///
/// # Errors
/// The driver's.
pub async fn take(
    client: &Client,
    column: &Column,
    key: &(dyn ToSql + Sync),
    count: i64,
) -> Result<bool, tokio_postgres::Error> {
    let taken = client.execute(&column.take_sql("$1", "$2"), &[&count, key]).await?;
    Ok(taken == 1)
}
