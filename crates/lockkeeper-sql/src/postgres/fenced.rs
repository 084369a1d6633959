//! The checker of fences in PostgreSQL.

use lockkeeper_core::{Error, Fence, Key, SharedFence};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

use crate::fenced::FencedError;
use crate::name::hash;
use crate::options::is_plain_name;

/// An advisory lock for those who create the table at the same time; random, to disturb nobody else.
const CREATING: i64 = 0x6c6b_6665_6e63_6573;

/// A table that remembers the newest fence of each resource, and the newest of those who share. Keep it in the database of
/// the data it protects.
///
/// ```
/// use lockkeeper_core::Guard;
/// use lockkeeper_sql::fenced::FencedError;
/// use lockkeeper_sql::postgres::PostgresFences;
/// use tokio_postgres::{Client, Error};
///
/// /// Nobody whose lock is gone gets past the check.
/// async fn save(client: &mut Client, fences: &PostgresFences, guard: &Guard) -> Result<(), FencedError<Error>> {
///     let transaction = client.transaction().await.map_err(FencedError::Database)?;
///     fences.check(&transaction, guard.key(), guard.fence()).await?;
///     transaction.batch_execute("UPDATE orders SET paid = true WHERE id = 42").await.map_err(FencedError::Database)?;
///     transaction.commit().await.map_err(FencedError::Database)
/// }
///
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// let fences = PostgresFences::new("public")?;
/// assert!(fences.ddl().contains("public.lockkeeper_fence"));
/// # Ok(())
/// # }
/// ```
///
/// Those who share a lock check by [`PostgresFences::check_shared`], which no one who writes can do by mistake:
///
/// ```compile_fail,E0308
/// # use lockkeeper_sql::postgres::PostgresFences;
/// # async fn f(fences: PostgresFences, locker: lockkeeper_core::Locker, tx: tokio_postgres::Transaction<'_>) {
/// let reader = locker.read("orders/42").await.unwrap();
/// fences.check(&tx, reader.key(), reader.fence()).await.unwrap(); // expected `Fence`, found `SharedFence`
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresFences {
    schema: String,
}

impl PostgresFences {
    /// The checker in this schema, such as `public`.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless it consists of small letters, digits and `_`.
    pub fn new(schema: &str) -> Result<Self, Error> {
        if !is_plain_name(schema) {
            return Err(Error::invalid(format!(
                "the schema cannot be {schema:?}; use small letters, digits and `_`, at most 48"
            )));
        }
        Ok(PostgresFences { schema: schema.to_owned() })
    }

    /// The statements that make the table, and that make one of an earlier version into it. Safe to run again.
    pub fn ddl(&self) -> String {
        let (schema, column) = (&self.schema, "shared bigint NOT NULL DEFAULT 0");
        format!(
            "CREATE TABLE IF NOT EXISTS {schema}.lockkeeper_fence (\n    \
             resource bytea PRIMARY KEY,\n    name text NOT NULL,\n    fence bigint NOT NULL,\n    {column}\n);\n\
             ALTER TABLE {schema}.lockkeeper_fence ADD COLUMN IF NOT EXISTS {column};\n"
        )
    }

    /// Make the table if there is none, or if it is one of an earlier version.
    ///
    /// # Cancel safety
    /// If dropped, the table may or may not be made.
    ///
    /// # Errors
    /// The driver's, such as a lack of rights.
    pub async fn create(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let (schema, ddl) = (&self.schema, self.ddl());
        // One message, one transaction. `IF NOT EXISTS` alone fails if two do it at the same moment; and whoever may use
        // a table may not always alter it.
        let create = format!(
            "DO $create$ BEGIN PERFORM pg_advisory_xact_lock({CREATING}); IF NOT EXISTS (\
             SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('{schema}.lockkeeper_fence') \
             AND attname = 'shared' AND NOT attisdropped) THEN {ddl} END IF; END $create$"
        );
        client.batch_execute(&create).await
    }

    /// Refuse a stale fence; raise the resource's fence to ours; keep others out until the transaction ends.
    ///
    /// Call it before anything else in the transaction, also when you only read, and commit: a transaction that is
    /// rolled back has not raised the fence, and an older holder's write is still let through. Use the lock's name
    /// as the resource, unless one lock protects several.
    ///
    /// # Cancel safety
    /// If dropped, roll back.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer fence was here: roll back, nothing is to be raised. Otherwise the driver's error.
    pub async fn check(
        &self,
        transaction: &Transaction<'_>,
        resource: &Key,
        fence: Fence,
    ) -> Result<(), FencedError<tokio_postgres::Error>> {
        let (schema, number) = (&self.schema, FencedError::number_of(fence)?);
        // The row is locked by this statement whether or not the fence is raised.
        let sql = format!(
            "INSERT INTO {schema}.lockkeeper_fence AS f (resource, name, fence) VALUES ($1, $2, $3) \
             ON CONFLICT (resource) DO UPDATE SET fence = greatest(f.fence, $3) RETURNING fence, shared"
        );
        let (seen, shared) = raise(transaction, &sql, resource, number).await?;
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
    /// If dropped, roll back.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer lock wrote, or read alone: roll back. Otherwise the driver's error.
    pub async fn check_shared(
        &self,
        transaction: &Transaction<'_>,
        resource: &Key,
        fence: SharedFence,
    ) -> Result<(), FencedError<tokio_postgres::Error>> {
        let (schema, fence) = (&self.schema, Fence::from_u64(fence.get()));
        let sql = format!(
            "INSERT INTO {schema}.lockkeeper_fence AS f (resource, name, fence, shared) VALUES ($1, $2, 0, $3) \
             ON CONFLICT (resource) DO UPDATE SET shared = greatest(f.shared, $3) RETURNING fence, shared"
        );
        let (seen, _) = raise(transaction, &sql, resource, FencedError::number_of(fence)?).await?;
        FencedError::unless_newest(resource, fence, seen)
    }
}

/// Both fences of the resource after this statement.
async fn raise(
    transaction: &Transaction<'_>,
    sql: &str,
    resource: &Key,
    number: i64,
) -> Result<(i64, i64), FencedError<tokio_postgres::Error>> {
    let lock = hash(resource);
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
        [(&lock.as_slice(), Type::BYTEA), (&resource.as_str(), Type::TEXT), (&number, Type::INT8)];
    let row = transaction.query_typed_one(sql, &params).await.map_err(FencedError::Database)?;
    let number = |at: usize| row.try_get(at).map_err(FencedError::Database);
    Ok((number(0)?, number(1)?))
}
