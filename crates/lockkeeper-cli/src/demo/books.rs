//! The shop's database: what is in stock, and who bought. Each call is one trip to it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};
use tokio::sync::Semaphore;

/// What can go wrong in a sale; it ends the demo.
pub(crate) type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// Connections of one process.
const POOL: usize = 4;
const FILE: &str = "stock.db";

/// The database, seen from one process.
pub(crate) struct Books {
    pool: Arc<Pool>,
    pub(crate) trips: AtomicU64,
}

struct Pool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    places: Semaphore,
}

/// What the database says after the sale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    pub(crate) left: i64,
    pub(crate) orders: u64,
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_mins(1))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

impl Books {
    /// Fresh books with this stock.
    pub(crate) fn make(folder: &Path, stock: u32) -> Result<(), crate::exit::Failure> {
        let make = || {
            connect(&folder.join(FILE))?.execute_batch(&format!(
                "CREATE TABLE product (id INTEGER PRIMARY KEY, stock INTEGER NOT NULL, version INTEGER NOT NULL);
                 CREATE TABLE orders (buyer INTEGER PRIMARY KEY);
                 INSERT INTO product VALUES (1, {stock}, 0);"
            ))
        };
        make().map_err(|it| crate::exit::Failure::system("the shop's database cannot be made", &it))
    }

    /// What was sold, from the database and not from the sellers.
    pub(crate) fn read_up(folder: &Path) -> Result<Balance, crate::exit::Failure> {
        let read = || {
            let connection = connect(&folder.join(FILE))?;
            let left = connection.query_row("SELECT stock FROM product WHERE id = 1", [], |it| it.get(0))?;
            let orders: i64 = connection.query_row("SELECT count(*) FROM orders", [], |it| it.get(0))?;
            Ok(Balance { left, orders: u64::try_from(orders).unwrap_or(0) })
        };
        read().map_err(|it: rusqlite::Error| {
            crate::exit::Failure::system("the shop's database cannot be read", &it)
        })
    }

    pub(crate) fn open(folder: &Path) -> Result<Self, Trouble> {
        let path = folder.join(FILE);
        let idle = Mutex::new(vec![connect(&path)?]);
        let pool = Arc::new(Pool { path, idle, places: Semaphore::new(POOL) });
        Ok(Books { pool, trips: AtomicU64::new(0) })
    }

    /// The stock and its version.
    pub(crate) async fn read(&self) -> Result<(i64, i64), Trouble> {
        self.trip(|it| read(it)).await
    }

    pub(crate) async fn write(&self, stock: i64) -> Result<(), Trouble> {
        self.trip(move |it| it.execute("UPDATE product SET stock = ?1 WHERE id = 1", [stock]).map(drop)).await
    }

    pub(crate) async fn order(&self, buyer: u32) -> Result<(), Trouble> {
        self.trip(move |it| order(it, buyer)).await
    }

    /// Sell a piece unless somebody changed the stock since it had this version.
    pub(crate) async fn sell_if_unchanged(&self, buyer: u32, version: i64) -> Result<bool, Trouble> {
        self.trip(move |it| {
            let sale = it.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let changed = sale.execute(
                "UPDATE product SET stock = stock - 1, version = version + 1 WHERE id = 1 AND version = ?1",
                [version],
            )?;
            if changed == 1 {
                order(&sale, buyer)?;
            }
            sale.commit()?;
            Ok(changed == 1)
        })
        .await
    }

    /// Keep others out of the database, then read and write.
    pub(crate) async fn sell_in_a_transaction(&self, buyer: u32) -> Result<bool, Trouble> {
        self.trip(move |it| {
            let sale = it.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let (stock, _) = read(&sale)?;
            if stock > 0 {
                sale.execute("UPDATE product SET stock = ?1 WHERE id = 1", [stock - 1])?;
                order(&sale, buyer)?;
            }
            sale.commit()?;
            Ok(stock > 0)
        })
        .await
    }

    /// Take a piece if there is one.
    pub(crate) async fn sell_by_one_statement(&self, buyer: u32) -> Result<bool, Trouble> {
        self.trip(move |it| {
            let sale = it.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let taken =
                sale.execute("UPDATE product SET stock = stock - 1 WHERE id = 1 AND stock > 0", [])?;
            if taken == 1 {
                order(&sale, buyer)?;
            }
            sale.commit()?;
            Ok(taken == 1)
        })
        .await
    }

    /// Work on one of the connections, on a thread where it may block.
    async fn trip<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Trouble> {
        self.trips.fetch_add(1, Ordering::Relaxed);
        let _place = self.pool.places.acquire().await?;
        let pool = self.pool.clone();
        let done = tokio::task::spawn_blocking(move || {
            let idle = pool.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = idle.map_or_else(|| connect(&pool.path), Ok)?;
            let done = work(&mut connection);
            pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            done
        });
        Ok(done.await??)
    }
}

fn read(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let row = connection
        .prepare_cached("SELECT stock, version FROM product WHERE id = 1")?
        .query_row([], |it| Ok((it.get(0)?, it.get(1)?)))
        .optional()?;
    Ok(row.unwrap_or((0, 0)))
}

fn order(connection: &Connection, buyer: u32) -> rusqlite::Result<()> {
    connection.prepare_cached("INSERT INTO orders VALUES (?1)")?.execute([buyer]).map(drop)
}
