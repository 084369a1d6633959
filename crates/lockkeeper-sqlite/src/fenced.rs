//! Fenced writes: a checker beside your data that refuses whoever comes with an old fence.

use lockkeeper_core::{Fence, FencedError, Key, SharedFence};
use rusqlite::{Connection, ErrorCode, Transaction, params};

/// A table that remembers the newest fence of each resource. It lives in the file of the data it protects.
///
/// Check first thing in the transaction, also before you only read: the first access of a new holder must raise
/// the fence, or an old holder's late write slips in between its read and its write. From the check to the
/// transaction's end nobody else can write to the file, so check and write are one step.
///
/// Commit, also when you only read: a transaction that is rolled back leaves the fence where it was.
///
/// ```
/// # use lockkeeper_core::{Fence, FencedError, Key, SharedFence};
/// # use lockkeeper_sqlite::SqliteFences;
/// # let mut shop = rusqlite::Connection::open_in_memory()?;
/// # shop.execute_batch("CREATE TABLE stock (id INTEGER PRIMARY KEY, amount INTEGER)")?;
/// # let (order, fence) = (Key::new("stock/7").unwrap(), Fence::from_u64(1));
/// let write = shop.transaction()?;
/// SqliteFences.check(&write, &order, fence)?;
/// write.execute("UPDATE stock SET amount = amount - 1 WHERE id = 7", [])?;
/// write.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Those who share a lock check by [`SqliteFences::check_shared`], which no one who writes can do by mistake:
///
/// ```compile_fail,E0308
/// # use lockkeeper_sqlite::SqliteFences;
/// # async fn f(locker: lockkeeper_core::Locker, tx: rusqlite::Transaction<'_>) {
/// let reader = locker.read("stock/7").await.unwrap();
/// SqliteFences.check(&tx, reader.key(), reader.fence()).unwrap(); // expected `Fence`, found `SharedFence`
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SqliteFences;

const CHECK: &str = "INSERT INTO lockkeeper_fence (resource, fence, shared) VALUES (?1, ?2, 0) \
    ON CONFLICT (resource) DO UPDATE SET fence = max(fence, excluded.fence) RETURNING fence, shared";

const CHECK_SHARED: &str = "INSERT INTO lockkeeper_fence (resource, fence, shared) VALUES (?1, 0, ?2) \
    ON CONFLICT (resource) DO UPDATE SET shared = max(shared, excluded.shared) RETURNING fence, shared";

impl SqliteFences {
    /// The statement that makes the table. Safe to run again.
    pub const DDL: &'static str = "CREATE TABLE IF NOT EXISTS lockkeeper_fence (\n    \
        resource TEXT NOT NULL PRIMARY KEY COLLATE BINARY,\n    \
        fence INTEGER NOT NULL,\n    \
        shared INTEGER NOT NULL DEFAULT 0\n) STRICT, WITHOUT ROWID";

    /// The statement that makes a table of an earlier version, which has no column `shared`, into this one.
    pub const UPGRADE: &'static str =
        "ALTER TABLE lockkeeper_fence ADD COLUMN shared INTEGER NOT NULL DEFAULT 0";

    /// Make the table if there is none, or if it is one of an earlier version. The first check does so by itself.
    ///
    /// # Errors
    /// The driver's, such as a lack of rights.
    pub fn create(self, connection: &Connection) -> rusqlite::Result<()> {
        if !connection.is_autocommit() {
            // First the write lock: a transaction that has only read may find that others have written since, and is
            // refused at once while another waits for its readers to go. Without a table this fails, and making it locks.
            let _ = connection.execute_batch("DELETE FROM lockkeeper_fence WHERE false");
        }
        connection.execute_batch(SqliteFences::DDL)?;
        if has_both(connection) {
            return Ok(());
        }
        // Others may have been quicker.
        let upgraded = connection.execute_batch(SqliteFences::UPGRADE);
        if upgraded.is_err() && has_both(connection) { Ok(()) } else { upgraded }
    }

    /// Refuse a stale fence; raise the resource's fence to ours; keep others out until the transaction ends.
    ///
    /// Call it before anything else in the transaction, also when you only read: a transaction sees the file as
    /// it is at its first read, which must come after the check, and one that has read may find that it cannot
    /// write any more. Use the lock's name as the resource, unless one lock protects several.
    ///
    /// The fence is raised when the transaction commits. One that is rolled back, or dropped, raises nothing: what was
    /// read in it may be written by an older holder afterwards.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer fence was here: roll back. Otherwise the driver's error.
    pub fn check(
        self,
        transaction: &Transaction<'_>,
        resource: &Key,
        fence: Fence,
    ) -> Result<(), FencedError<rusqlite::Error>> {
        let number = FencedError::number_of(fence)?;
        let (seen, shared) = self.raise(transaction, CHECK, resource, number)?;
        FencedError::unless_newest(resource, fence, seen)?;
        // Whoever shares came after us: our lock was over by then.
        if number <= shared {
            let seen = Fence::from_u64(shared.unsigned_abs());
            return Err(FencedError::Stale { resource: resource.clone(), fence, seen });
        }
        Ok(())
    }

    /// The same for one who shares the lock and only reads: whoever wrote under an older lock is refused from now on,
    /// others who share are not. The check takes the file's write lock all the same, until the transaction ends.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer lock wrote, or read alone: roll back. Otherwise the driver's error.
    pub fn check_shared(
        self,
        transaction: &Transaction<'_>,
        resource: &Key,
        fence: SharedFence,
    ) -> Result<(), FencedError<rusqlite::Error>> {
        let fence = Fence::from_u64(fence.get());
        let number = FencedError::number_of(fence)?;
        let (seen, _) = self.raise(transaction, CHECK_SHARED, resource, number)?;
        FencedError::unless_newest(resource, fence, seen)
    }

    /// Both fences of the resource after this statement, in a table that is made or upgraded if need be.
    fn raise(
        self,
        transaction: &Transaction<'_>,
        sql: &str,
        resource: &Key,
        number: i64,
    ) -> Result<(i64, i64), FencedError<rusqlite::Error>> {
        let mut seen = raise(transaction, sql, resource, number);
        if seen.as_ref().is_err_and(lacks_table) {
            seen = self.create(transaction).and_then(|()| raise(transaction, sql, resource, number));
        }
        seen.map_err(FencedError::Database)
    }
}

/// Raise a fence to ours if it is smaller. Tells what both are now. Takes the file's write lock either way.
fn raise(connection: &Connection, sql: &str, resource: &Key, number: i64) -> rusqlite::Result<(i64, i64)> {
    let both = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    connection.prepare_cached(sql)?.query_row(params![resource.as_str(), number], both)
}

/// SQLite has no code of its own for a table or a column that is not there, only words. To look for it would begin a
/// read, after which the transaction may not be able to write.
fn lacks_table(error: &rusqlite::Error) -> bool {
    let said = error.to_string();
    error.sqlite_error_code() == Some(ErrorCode::Unknown)
        && ["no such table: lockkeeper_fence", "has no column named shared", "no such column: shared"]
            .iter()
            .any(|it| said.contains(it))
}

/// Whether there is a table with both fences.
fn has_both(connection: &Connection) -> bool {
    let look = "SELECT count(*) FROM pragma_table_info('lockkeeper_fence') WHERE name = 'shared'";
    matches!(connection.query_row(look, [], |row| row.get(0)), Ok(1_i64))
}
