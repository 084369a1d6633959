//! The books of the shop, in `SQLite` or MySQL/MariaDB. Nothing in here knows of locks, but a stale fence is refused.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::Fence;
use mysql_async::prelude::Queryable;
use mysql_async::{Pool, TxOpts};
use rusqlite::{Connection, TransactionBehavior};

use crate::Trouble;

/// Both databases understand these. `fence` is the largest one that has written.
const PRODUCT: &str = "CREATE TABLE IF NOT EXISTS product \
    (id BIGINT PRIMARY KEY, begun BIGINT NOT NULL, stock BIGINT NOT NULL, fence BIGINT NOT NULL)";
const ORDERS: &str =
    "CREATE TABLE IF NOT EXISTS orders (buyer VARCHAR(64) PRIMARY KEY, fence BIGINT NOT NULL)";
const READ: &str = "SELECT stock, (SELECT count(*) FROM orders WHERE buyer = ?) FROM product WHERE id = 1";
const WRITE: &str = "UPDATE product SET stock = ?, fence = ? WHERE id = 1 AND fence < ?";
const ORDER: &str = "INSERT INTO orders VALUES (?, ?)";
const BOOKS: &str = "SELECT begun, stock, (SELECT count(*) FROM orders) FROM product WHERE id = 1";

/// Who wrote after us had a newer turn: ours was over before we knew.
const STALE: &str = "a newer turn has written; nothing was sold";

pub(crate) enum Shop {
    Sqlite(Arc<Mutex<Connection>>),
    Mysql(Pool),
}

/// How it went.
pub(crate) enum Sold {
    Yes,
    Out,
    TwiceToOne,
}

/// What the database says.
pub(crate) struct Books {
    begun: i64,
    pub(crate) left: i64,
    orders: i64,
}

impl fmt::Display for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Books { begun, left, orders } = self;
        let verdict = if begun - left == *orders && 0 <= *left { "right" } else { "WRONG" };
        write!(f, "begun {begun}, left {left}, orders {orders}: {verdict}")
    }
}

impl Shop {
    /// Open the books, and make them if there are none.
    pub(crate) async fn open(url: &str, stock: u32) -> Result<Self, Trouble> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            let conn = Connection::open(path)?;
            conn.busy_timeout(Duration::from_secs(30))?;
            conn.pragma_update(None, "journal_mode", "WAL")?;
            let first = format!("INSERT INTO product VALUES (1, {stock}, {stock}, 0) ON CONFLICT DO NOTHING");
            conn.execute_batch(&[PRODUCT, ORDERS, &first].join(";"))?;
            return Ok(Shop::Sqlite(Arc::new(Mutex::new(conn))));
        }
        // The driver's error may quote what it could not read; a password is not for logs.
        let pool =
            Pool::from_url(url).map_err(|_| "LOCKKEEPER_DB is neither `sqlite:PATH` nor `mysql://…`")?;
        let mut conn = pool.get_conn().await?;
        let first = format!("INSERT IGNORE INTO product VALUES (1, {stock}, {stock}, 0)");
        for statement in [PRODUCT, ORDERS, &first] {
            conn.query_drop(statement).await?;
        }
        Ok(Shop::Mysql(pool))
    }

    pub(crate) async fn books(&self) -> Result<Books, Trouble> {
        let (begun, left, orders) = match self {
            Shop::Sqlite(conn) => {
                on(conn, |it| {
                    it.query_row(BOOKS, [], |it| Ok((it.get(0)?, it.get(1)?, it.get(2)?))).map_err(Into::into)
                })
                .await?
            }
            Shop::Mysql(pool) => {
                pool.get_conn().await?.query_first(BOOKS).await?.ok_or("there is no product")?
            }
        };
        Ok(Books { begun, left, orders })
    }

    /// Read, decide, write. Right only while nobody else does the same, which is what the lock is for.
    pub(crate) async fn sell(&self, buyer: &str, fence: Fence) -> Result<Sold, Trouble> {
        let fence = i64::try_from(fence.get())?;
        match self {
            Shop::Sqlite(conn) => {
                let buyer = buyer.to_owned();
                on(conn, move |it| sell_in_sqlite(it, &buyer, fence)).await
            }
            Shop::Mysql(pool) => {
                let mut conn = pool.get_conn().await?;
                let seen: Option<(i64, i64)> = conn.exec_first(READ, (buyer,)).await?;
                let stock = match decide(seen.ok_or("there is no product")?) {
                    Ok(stock) => stock,
                    Err(no) => return Ok(no),
                };
                let mut tx = conn.start_transaction(TxOpts::new()).await?;
                tx.exec_drop(WRITE, (stock, fence, fence)).await?;
                if tx.affected_rows() == 0 {
                    return Err(STALE.into());
                }
                tx.exec_drop(ORDER, (buyer, fence)).await?;
                tx.commit().await?;
                Ok(Sold::Yes)
            }
        }
    }
}

/// From stock and earlier orders of this buyer to the new stock, or to what the buyer is told.
fn decide((stock, ordered): (i64, i64)) -> Result<i64, Sold> {
    match (stock, ordered) {
        (..=0, _) => Err(Sold::Out),
        (_, 1..) => Err(Sold::TwiceToOne),
        _ => Ok(stock - 1),
    }
}

fn sell_in_sqlite(conn: &mut Connection, buyer: &str, fence: i64) -> Result<Sold, Trouble> {
    let stock = match decide(conn.query_row(READ, [buyer], |it| Ok((it.get(0)?, it.get(1)?)))?) {
        Ok(stock) => stock,
        Err(no) => return Ok(no),
    };
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if tx.execute(WRITE, (stock, fence, fence))? == 0 {
        return Err(STALE.into());
    }
    tx.execute(ORDER, (buyer, fence))?;
    tx.commit()?;
    Ok(Sold::Yes)
}

/// Work on a thread where it may block.
async fn on<T: Send + 'static>(
    conn: &Arc<Mutex<Connection>>,
    work: impl FnOnce(&mut Connection) -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let conn = conn.clone();
    let work = move || work(&mut conn.lock().unwrap_or_else(PoisonError::into_inner));
    tokio::task::spawn_blocking(work).await?
}
