//! The checker of fences in MySQL and MariaDB.

use lockkeeper_core::{Fence, Key};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Transaction};

use super::text::{bytes, text};
use crate::fenced::FencedError;
use crate::name::hash;

/// A table that remembers the newest fence of each resource. It lives in the database of the data it protects.
///
/// ```no_run
/// use lockkeeper_core::Guard;
/// use lockkeeper_sql::fenced::FencedError;
/// use lockkeeper_sql::mysql::MysqlFences;
/// use mysql_async::prelude::Queryable;
/// use mysql_async::{Conn, Error, TxOpts};
///
/// /// Nobody whose lock is gone gets past the check.
/// async fn save(conn: &mut Conn, guard: &Guard) -> Result<(), FencedError<Error>> {
///     let mut transaction = conn.start_transaction(TxOpts::new()).await.map_err(FencedError::Database)?;
///     MysqlFences.check(&mut transaction, guard.key(), guard.fence()).await?;
///     transaction.query_drop("UPDATE orders SET paid = 1 WHERE id = 42").await.map_err(FencedError::Database)?;
///     transaction.commit().await.map_err(FencedError::Database)
/// }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MysqlFences;

impl MysqlFences {
    /// The statement that makes the table in the current database. Safe to run again.
    pub const DDL: &'static str = "CREATE TABLE IF NOT EXISTS lockkeeper_fence (\n    \
        resource BINARY(32) NOT NULL PRIMARY KEY,\n    \
        name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,\n    \
        fence BIGINT NOT NULL\n) ENGINE = InnoDB";

    /// Make the table if there is none.
    ///
    /// # Cancel safety
    /// If dropped, close the connection: the driver cannot go on with it.
    ///
    /// # Errors
    /// The driver's, such as a lack of rights.
    pub async fn create(self, conn: &mut Conn) -> Result<(), mysql_async::Error> {
        conn.query_drop(MysqlFences::DDL).await
    }

    /// Refuse a stale fence; raise the resource's fence to ours; keep others out until the transaction ends.
    ///
    /// Call it before anything else in the transaction, also when you only read: a transaction that is
    /// REPEATABLE READ sees the data as they are at its first read, which must come after the check. Use the
    /// lock's name as the resource, unless one lock protects several.
    ///
    /// Commit, also when you only read: a transaction that is rolled back has not raised the fence, and an old
    /// holder's late write is then not refused.
    ///
    /// # Cancel safety
    /// If dropped, close the connection: the driver cannot go on with it.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer fence was here: roll back. Otherwise the driver's error.
    pub async fn check(
        self,
        transaction: &mut Transaction<'_>,
        resource: &Key,
        fence: Fence,
    ) -> Result<(), FencedError<mysql_async::Error>> {
        let (number, lock) = (FencedError::number_of(fence)?, bytes(&hash(resource)));
        // The row is locked by the first statement whether or not the fence is raised.
        let sql = format!(
            "INSERT INTO lockkeeper_fence VALUES ({lock}, {}, {number}) \
             ON DUPLICATE KEY UPDATE fence = GREATEST(fence, {number}); \
             SELECT fence FROM lockkeeper_fence WHERE resource = {lock} FOR UPDATE",
            text(resource.as_str())
        );
        let mut results = transaction.query_iter(sql).await.map_err(FencedError::Database)?;
        let mut seen = None;
        while !results.is_empty() {
            let rows: Vec<i64> = results.collect().await.map_err(FencedError::Database)?;
            seen = rows.into_iter().next().or(seen);
        }
        // No answer where there must be one is no leave to write.
        FencedError::unless_newest(resource, fence, seen.unwrap_or(i64::MAX))
    }
}
