//! The checker of fences in PostgreSQL.

use lockkeeper_core::{Error, Fence, Key};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

use crate::fenced::FencedError;
use crate::name::hash;
use crate::options::is_plain_name;

/// An advisory lock for those who create the table at the same time; random, to disturb nobody else.
const CREATING: i64 = 0x6c6b_6665_6e63_6573;

/// A table that remembers the newest fence of each resource. Keep it in the database of the data it protects.
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

    /// The statement that makes the table. Safe to run again.
    pub fn ddl(&self) -> String {
        let schema = &self.schema;
        format!(
            "CREATE TABLE IF NOT EXISTS {schema}.lockkeeper_fence (\n    \
             resource bytea PRIMARY KEY,\n    name text NOT NULL,\n    fence bigint NOT NULL\n)"
        )
    }

    /// Make the table if there is none.
    ///
    /// # Cancel safety
    /// If dropped, the table may or may not be made.
    ///
    /// # Errors
    /// The driver's, such as a lack of rights.
    pub async fn create(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        // One message, one transaction. `IF NOT EXISTS` alone fails if two do it at the same moment.
        let create = format!("SELECT pg_advisory_xact_lock({CREATING}); {}", self.ddl());
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
        let (schema, number, lock) = (&self.schema, FencedError::number_of(fence)?, hash(resource));
        // The row is locked by this statement whether or not the fence is raised.
        let sql = format!(
            "INSERT INTO {schema}.lockkeeper_fence AS f VALUES ($1, $2, $3) \
             ON CONFLICT (resource) DO UPDATE SET fence = greatest(f.fence, $3) RETURNING fence"
        );
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
            [(&lock.as_slice(), Type::BYTEA), (&resource.as_str(), Type::TEXT), (&number, Type::INT8)];
        let row = transaction.query_typed_one(&sql, &params).await.map_err(FencedError::Database)?;
        let seen: i64 = row.try_get(0).map_err(FencedError::Database)?;
        FencedError::unless_newest(resource, fence, seen)
    }
}
