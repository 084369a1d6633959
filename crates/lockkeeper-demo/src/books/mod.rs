//! The shop's database: what is in stock, and who bought. Every strategy does the same reads and writes on it.
//!
//! A sale is one new amount of stock and one row for the order, in one transaction. What differs is how the
//! seller makes sure that the amount it read is still true when it writes.

mod mysql;
mod pool;
mod postgres;
mod sqlite;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper::spi::ClaimId;
use serde::{Deserialize, Serialize};

use pool::Pool;

/// What can go wrong in a sale; it ends the demo.
pub(crate) type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// The only product.
const PRODUCT: i64 = 1;

/// How a seller makes sure of what it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sale {
    /// Not at all: read, then write in a transaction. Right under a lock, wrong without.
    Careless,
    /// The write is refused if the version has changed since.
    IfUnchanged,
    /// The row is locked by the read.
    RowLocked,
    /// One statement checks and takes.
    OneStatement,
}

/// How an attempt to sell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sold,
    SoldOut,
    /// Somebody else changed the stock in between.
    Overtaken,
}

/// What the database says after the sale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    pub(crate) left: i64,
    pub(crate) orders: u64,
}

/// The tables of one sale. Their names are new for each, so that nothing of yours is touched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tables {
    product: String,
    orders: String,
}

impl Tables {
    pub(crate) fn new() -> Result<Self, Trouble> {
        let tag = ClaimId::random()?.to_hex();
        let name = |it| format!("lockkeeper_demo_{}_{it}", &tag[..12]);
        Ok(Tables { product: name("product"), orders: name("orders") })
    }

    /// Statements that make them, with this stock; all three databases understand them.
    fn make(&self, stock: u32) -> [String; 3] {
        let Tables { product, orders } = self;
        [
            format!(
                "CREATE TABLE {product} (id BIGINT PRIMARY KEY, stock BIGINT NOT NULL, version BIGINT NOT NULL)"
            ),
            format!("CREATE TABLE {orders} (buyer BIGINT PRIMARY KEY)"),
            format!("INSERT INTO {product} VALUES ({PRODUCT}, {stock}, 0)"),
        ]
    }

    fn remove(&self) -> [String; 2] {
        [&self.product, &self.orders].map(|it| format!("DROP TABLE IF EXISTS {it}"))
    }

    fn read(&self) -> String {
        format!("SELECT stock, version FROM {} WHERE id = {PRODUCT}", self.product)
    }

    /// What is left, and how many orders there are.
    fn balance(&self) -> String {
        let Tables { product, orders } = self;
        format!("SELECT stock, (SELECT count(*) FROM {orders}) FROM {product} WHERE id = {PRODUCT}")
    }

    /// Write an amount; the placeholder is the amount.
    fn write(&self, amount: &str) -> String {
        format!("UPDATE {} SET stock = {amount} WHERE id = {PRODUCT}", self.product)
    }

    /// Write an amount unless the version has changed; the placeholders are the amount and the version.
    fn write_if(&self, amount: &str, version: &str) -> String {
        format!(
            "UPDATE {} SET stock = {amount}, version = version + 1 WHERE id = {PRODUCT} AND version = {version}",
            self.product
        )
    }

    fn order(&self, buyer: &str) -> String {
        format!("INSERT INTO {} VALUES ({buyer})", self.orders)
    }
}

/// Statements sent to the database. Relaxed: read when all who count are done, and their tasks were awaited.
#[derive(Debug, Default)]
pub(crate) struct Statements(AtomicU64);

impl Statements {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// A database that can keep the books.
trait Database: Sized + Send + Sync + 'static {
    type Conn: Send;
    /// How many connections one process opens.
    const POOL: usize;

    fn open(url: &str, tables: Tables) -> Result<Self, Trouble>;
    fn connect(&self) -> impl Future<Output = Result<Self::Conn, Trouble>> + Send;
    /// Run statements that answer nothing.
    fn run(
        &self,
        conn: &mut Self::Conn,
        statements: &[String],
    ) -> impl Future<Output = Result<(), Trouble>> + Send;
    fn balance(&self, conn: &mut Self::Conn) -> impl Future<Output = Result<Balance, Trouble>> + Send;
    fn sell(
        &self,
        conn: &mut Self::Conn,
        sale: Sale,
        buyer: u32,
    ) -> impl Future<Output = Result<Outcome, Trouble>> + Send;
    fn tables(&self) -> &Tables;
    fn statements(&self) -> &Statements;
}

/// The books, seen from one process.
pub(crate) struct Books(Kind);

enum Kind {
    Sqlite(Pool<sqlite::Sqlite>),
    Mysql(Pool<mysql::Mysql>),
    Postgres(Box<Pool<postgres::Postgres>>),
}

/// The same call on whichever it is.
macro_rules! on {
    ($books:expr, $it:ident => $call:expr) => {
        match &$books.0 {
            Kind::Sqlite($it) => $call,
            Kind::Mysql($it) => $call,
            Kind::Postgres($it) => $call,
        }
    };
}

impl Books {
    /// The scheme chooses the database. Nothing is asked yet.
    pub(crate) fn open(url: &str, tables: Tables) -> Result<Self, Trouble> {
        let scheme = url.split_once(':').map_or("", |it| it.0);
        Ok(Books(match scheme {
            "sqlite" => Kind::Sqlite(Pool::open(url, tables)?),
            "mysql" | "mariadb" => Kind::Mysql(Pool::open(url, tables)?),
            "postgres" | "postgresql" => Kind::Postgres(Box::new(Pool::open(url, tables)?)),
            _ => {
                let scheme: String = scheme.escape_debug().take(40).collect();
                let text = format!(
                    "the shop cannot keep its books in `{scheme}:`; known are `sqlite:`, `sqlite:PATH`, \
                     `mysql://HOST/DATABASE` and `postgres://HOST/DATABASE`"
                );
                return Err(text.into());
            }
        }))
    }

    /// Fresh books with this stock.
    pub(crate) async fn make(&self, stock: u32) -> Result<(), Trouble> {
        on!(self, it => it.run(&it.database().tables().make(stock)).await)
    }

    /// What was sold, from the database and not from the sellers.
    pub(crate) async fn balance(&self) -> Result<Balance, Trouble> {
        on!(self, it => it.balance().await)
    }

    pub(crate) async fn remove(&self) -> Result<(), Trouble> {
        on!(self, it => it.run(&it.database().tables().remove()).await)
    }

    /// Try to sell one piece. `is_over` is asked when a connection is there: it may have taken a while.
    pub(crate) async fn sell(
        &self,
        sale: Sale,
        buyer: u32,
        is_over: impl Fn() -> bool + Send,
    ) -> Result<Outcome, Trouble> {
        on!(self, it => it.sell(sale, buyer, is_over).await)
    }

    /// Open a connection now rather than at the first buyer.
    pub(crate) async fn warm_up(&self) -> Result<(), Trouble> {
        on!(self, it => it.run(&[]).await)
    }

    /// How many statements this process has sent.
    pub(crate) fn statements(&self) -> u64 {
        on!(self, it => it.database().statements().0.load(Ordering::Relaxed))
    }
}
