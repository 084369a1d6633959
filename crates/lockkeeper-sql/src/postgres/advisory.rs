//! Locks that live exactly as long as a transaction of yours: PostgreSQL's advisory locks.
//!
//! They are not locks of a [`Locker`](lockkeeper_core::Locker) and do not exclude them: no ttl, no line that can
//! be looked at, no renewal. They have no fence and need none for what the same transaction writes, because lock
//! and write end together. What they protect outside the database they protect only as long as the connection
//! lives. They are lost in a failover, as the transaction is. Any user of the database can take any of them; two
//! names meet by accident once in 2⁶⁴. A pooler in transaction mode does them no harm.

use lockkeeper_core::Key;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Transaction};

use crate::name::hash;

/// The number under which a name is locked.
fn number(key: &Key) -> i64 {
    let bytes = hash(key);
    bytes.first_chunk().copied().map_or(0, i64::from_be_bytes)
}

/// Wait until this name is ours, and keep it until the transaction ends.
///
/// To bound the wait, `SET LOCAL lock_timeout` before; the error is then SQLSTATE 55P03.
///
/// ```no_run
/// # use lockkeeper_core::Key;
/// # use lockkeeper_sql::postgres::advisory;
/// # async fn example(client: &mut tokio_postgres::Client, key: &Key) -> Result<(), tokio_postgres::Error> {
/// let transaction = client.transaction().await?;
/// advisory::lock(&transaction, key).await?;
/// transaction.batch_execute("UPDATE orders SET paid = true WHERE id = 42").await?;
/// transaction.commit().await?; // ends the lock too
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// If dropped, roll back: the lock may or may not be taken.
///
/// # Errors
/// The driver's.
pub async fn lock(transaction: &Transaction<'_>, key: &Key) -> Result<(), Error> {
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 1] = [(&number(key), Type::INT8)];
    transaction.query_typed("SELECT pg_advisory_xact_lock($1)", &params).await?;
    Ok(())
}

/// Take this name until the transaction ends, if it is free. Answers at once.
///
/// ```no_run
/// # use lockkeeper_core::Key;
/// # use lockkeeper_sql::postgres::advisory;
/// # async fn example(client: &mut tokio_postgres::Client, key: &Key) -> Result<(), tokio_postgres::Error> {
/// let transaction = client.transaction().await?;
/// if advisory::try_lock(&transaction, key).await? {
///     transaction.batch_execute("INSERT INTO reports VALUES (CURRENT_DATE)").await?;
/// }
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// If dropped, roll back: the lock may or may not be taken.
///
/// # Errors
/// The driver's.
pub async fn try_lock(transaction: &Transaction<'_>, key: &Key) -> Result<bool, Error> {
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 1] = [(&number(key), Type::INT8)];
    let row = transaction.query_typed_one("SELECT pg_try_advisory_xact_lock($1)", &params).await?;
    row.try_get(0)
}
