//! Fenced writes: a checker beside your data that refuses whoever comes with an old fence.

use lockkeeper_core::{Fence, FencedError, Key};
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
/// # use lockkeeper_core::{Fence, FencedError, Key};
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
#[derive(Clone, Copy, Debug, Default)]
pub struct SqliteFences;

const CHECK: &str = "INSERT INTO lockkeeper_fence VALUES (?1, ?2) \
    ON CONFLICT (resource) DO UPDATE SET fence = max(fence, excluded.fence) RETURNING fence";

impl SqliteFences {
    /// The statement that makes the table. Safe to run again.
    pub const DDL: &'static str = "CREATE TABLE IF NOT EXISTS lockkeeper_fence (\n    \
        resource TEXT NOT NULL PRIMARY KEY COLLATE BINARY,\n    \
        fence INTEGER NOT NULL\n) STRICT, WITHOUT ROWID";

    /// Make the table if there is none. The first check does so by itself.
    ///
    /// # Errors
    /// The driver's, such as a lack of rights.
    pub fn create(self, connection: &Connection) -> rusqlite::Result<()> {
        connection.execute_batch(SqliteFences::DDL)
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
        let mut seen = raise(transaction, resource, number);
        if seen.as_ref().is_err_and(|it| lacks_table(transaction, it)) {
            seen = self.create(transaction).and_then(|()| raise(transaction, resource, number));
        }
        FencedError::unless_newest(resource, fence, seen.map_err(FencedError::Database)?)
    }
}

/// Raise the fence to ours if it is smaller. Tells what it is now. Takes the file's write lock either way.
fn raise(connection: &Connection, resource: &Key, number: i64) -> rusqlite::Result<i64> {
    connection.prepare_cached(CHECK)?.query_one(params![resource.as_str(), number], |row| row.get(0))
}

/// SQLite has no code of its own for a table that is not there.
fn lacks_table(connection: &Connection, error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::Unknown)
        && matches!(connection.table_exists(None, "lockkeeper_fence"), Ok(false))
}
