//! The books: a row per product that carries the newest fence it has seen, and a row per order.

use lockkeeper::Fence;
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::failure::Failure;

/// The fence stands in the row that it protects. Plain SQL: any driver can do it.
const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS stock (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0)",
    "CREATE TABLE IF NOT EXISTS orders (id BIGSERIAL PRIMARY KEY, product BIGINT NOT NULL)",
];

/// The first access of a holder raises the fence, also if it only reads. No row comes back if a newer one was here.
const RAISE: &str = "UPDATE stock SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING amount";
const TAKE: &str = "UPDATE stock SET amount = amount - 1 WHERE id = $1";
const PUT: &str =
    "UPDATE stock SET amount = amount + 10, fence = $2 WHERE id = $1 AND fence <= $2 RETURNING amount";
const ORDER: &str = "INSERT INTO orders (product) VALUES ($1)";

#[derive(Clone)]
pub(crate) struct Books(PgPool);

impl Books {
    pub(crate) async fn open(url: &str) -> Result<Self, sqlx::Error> {
        Ok(Books(PgPoolOptions::new().max_connections(8).connect(url).await?))
    }

    pub(crate) async fn create(&self) -> Result<(), sqlx::Error> {
        for table in TABLES {
            sqlx::query(table).execute(&self.0).await?;
        }
        Ok(())
    }

    /// Sell one piece: how many are left. All of it in one transaction, which is rolled back if this is dropped.
    pub(crate) async fn sell(&self, product: i64, fence: Fence) -> Result<i64, Failure> {
        let fence = i64::try_from(fence.get()).map_err(|_| Failure::Stale)?;
        let mut tx = self.0.begin().await?;
        let amount: Option<i64> =
            sqlx::query_scalar(RAISE).bind(product).bind(fence).fetch_optional(&mut *tx).await?;
        let left = match amount {
            None => return Err(self.why_not(product).await?),
            Some(0) => return Err(Failure::SoldOut),
            Some(amount) => amount - 1,
        };
        sqlx::query(TAKE).bind(product).execute(&mut *tx).await?;
        sqlx::query(ORDER).bind(product).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(left)
    }

    /// Put ten pieces on the shelf: how many there are then.
    pub(crate) async fn restock(&self, product: i64, fence: Fence) -> Result<i64, Failure> {
        let fence = i64::try_from(fence.get()).map_err(|_| Failure::Stale)?;
        let put = sqlx::query_scalar(PUT).bind(product).bind(fence);
        let amount: Option<i64> = put.fetch_optional(&self.0).await?;
        match amount {
            None => Err(self.why_not(product).await?),
            Some(amount) => Ok(amount),
        }
    }

    /// No row was changed: there is none, or a newer holder was here.
    async fn why_not(&self, product: i64) -> Result<Failure, Failure> {
        let query = sqlx::query_scalar("SELECT fence FROM stock WHERE id = $1");
        let seen: Option<i64> = query.bind(product).fetch_optional(&self.0).await?;
        Ok(if seen.is_some() { Failure::Stale } else { Failure::NoSuchProduct })
    }

    /// Pieces left, and orders.
    pub(crate) async fn count(&self, product: i64) -> Result<(i64, i64), Failure> {
        let left = sqlx::query_scalar("SELECT amount FROM stock WHERE id = $1");
        let left: Option<i64> = left.bind(product).fetch_optional(&self.0).await?;
        let orders = sqlx::query_scalar("SELECT count(*) FROM orders WHERE product = $1");
        let orders: i64 = orders.bind(product).fetch_one(&self.0).await?;
        Ok((left.ok_or(Failure::NoSuchProduct)?, orders))
    }
}
