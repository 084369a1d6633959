//! The checker of fences in MySQL and MariaDB.

use lockkeeper_core::{Fence, Key, SharedFence};
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
///
/// Those who share a lock check by [`MysqlFences::check_shared`], which no one who writes can do by mistake:
///
/// ```compile_fail,E0308
/// # use lockkeeper_sql::mysql::MysqlFences;
/// # async fn f(locker: lockkeeper_core::Locker, mut tx: mysql_async::Transaction<'_>) {
/// let reader = locker.read("orders/42").await.unwrap();
/// MysqlFences.check(&mut tx, reader.key(), reader.fence()).await.unwrap(); // expected `Fence`, found `SharedFence`
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MysqlFences;

/// What the server says to whoever adds a column that is there.
const DUPLICATE_COLUMN: u16 = 1060;

impl MysqlFences {
    /// The statement that makes the table in the current database. Safe to run again.
    pub const DDL: &'static str = "CREATE TABLE IF NOT EXISTS lockkeeper_fence (\n    \
        resource BINARY(32) NOT NULL PRIMARY KEY,\n    \
        name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,\n    \
        fence BIGINT NOT NULL,\n    \
        shared BIGINT NOT NULL DEFAULT 0\n) ENGINE = InnoDB";

    /// The statement that makes a table of an earlier version, which has no column `shared`, into this one.
    pub const UPGRADE: &'static str =
        "ALTER TABLE lockkeeper_fence ADD COLUMN shared BIGINT NOT NULL DEFAULT 0";

    /// Make the table if there is none, or if it is one of an earlier version.
    ///
    /// # Cancel safety
    /// If dropped, close the connection: the driver cannot go on with it.
    ///
    /// # Errors
    /// The driver's, such as a lack of rights.
    pub async fn create(self, conn: &mut Conn) -> Result<(), mysql_async::Error> {
        conn.query_drop(MysqlFences::DDL).await?;
        let find = "SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE() \
                    AND table_name = 'lockkeeper_fence' AND column_name = 'shared'";
        if conn.query_first::<u8, _>(find).await?.is_some() {
            return Ok(());
        }
        match conn.query_drop(MysqlFences::UPGRADE).await {
            // Others were quicker.
            Err(mysql_async::Error::Server(error)) if error.code == DUPLICATE_COLUMN => Ok(()),
            upgraded => upgraded,
        }
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
        let number = FencedError::number_of(fence)?;
        let raise =
            format!("VALUES (@, {number}, 0) ON DUPLICATE KEY UPDATE fence = GREATEST(fence, {number})");
        let (seen, shared) = raised(transaction, resource, &raise).await?;
        FencedError::unless_newest(resource, fence, seen)?;
        // Whoever shares came after us: our lock was over by then.
        if number <= shared {
            let seen = Fence::from_u64(shared.unsigned_abs());
            return Err(FencedError::Stale { resource: resource.clone(), fence, seen });
        }
        Ok(())
    }

    /// The same for one who shares the lock and only reads: whoever wrote under an older lock is refused from now on,
    /// others who share are not. Readers of one resource still check one after the other, each until its transaction ends.
    ///
    /// # Cancel safety
    /// If dropped, close the connection: the driver cannot go on with it.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer lock wrote, or read alone: roll back. Otherwise the driver's error.
    pub async fn check_shared(
        self,
        transaction: &mut Transaction<'_>,
        resource: &Key,
        fence: SharedFence,
    ) -> Result<(), FencedError<mysql_async::Error>> {
        let fence = Fence::from_u64(fence.get());
        let number = FencedError::number_of(fence)?;
        let raise =
            format!("VALUES (@, 0, {number}) ON DUPLICATE KEY UPDATE shared = GREATEST(shared, {number})");
        let (seen, _) = raised(transaction, resource, &raise).await?;
        FencedError::unless_newest(resource, fence, seen)
    }
}

/// Both fences of the resource after one was raised. The row is locked by the first statement, whether or not that changes it.
async fn raised(
    transaction: &mut Transaction<'_>,
    resource: &Key,
    raise: &str,
) -> Result<(i64, i64), FencedError<mysql_async::Error>> {
    let lock = bytes(&hash(resource));
    let raise = raise.replace('@', &format!("{lock}, {}", text(resource.as_str())));
    let sql = format!(
        "INSERT INTO lockkeeper_fence (resource, name, fence, shared) {raise}; \
         SELECT fence, shared FROM lockkeeper_fence WHERE resource = {lock} FOR UPDATE"
    );
    let mut results = transaction.query_iter(sql).await.map_err(FencedError::Database)?;
    let mut seen = None;
    while !results.is_empty() {
        let rows: Vec<(i64, i64)> = results.collect().await.map_err(FencedError::Database)?;
        seen = rows.into_iter().next().or(seen);
    }
    // No answer where there must be one is no leave to write.
    Ok(seen.unwrap_or((i64::MAX, i64::MAX)))
}
