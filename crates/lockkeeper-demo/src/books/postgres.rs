//! The books in `PostgreSQL`, with the row locks of the library.

use std::str::FromStr as _;
use std::time::Duration;

use lockkeeper::sql::postgres::rowlock;
use lockkeeper::sql::rowlock::Column;
use tokio_postgres::{Client, Config, NoTls, Statement};

use super::{Balance, Database, Outcome, PRODUCT, Sale, Statements, Tables, Trouble};

/// How long a seller waits for the row.
const ROW_WAIT: Duration = Duration::from_secs(2 * 60);

pub(super) struct Postgres {
    config: Config,
    tables: Tables,
    column: Column,
    statements: Statements,
}

/// A connection, and what was prepared on it when first needed.
pub(super) struct Conn {
    client: Client,
    prepared: Option<Prepared>,
}

#[derive(Clone)]
struct Prepared {
    read: Statement,
    read_locked: Statement,
    write: Statement,
    write_if: Statement,
    order: Statement,
}

impl Database for Postgres {
    type Conn = Conn;
    /// As with MySQL; the server usually allows 100.
    const POOL: usize = 10;

    fn open(url: &str, tables: Tables) -> Result<Self, Trouble> {
        // The driver's error may quote what it could not read; a password is not for logs.
        let config = Config::from_str(url)
            .map_err(|_| "this is no PostgreSQL URL; write `postgres://user:password@host:port/database`")?;
        let column = Column::new::<tokio_postgres::Error>(&tables.product, "id", "stock")?;
        Ok(Postgres { config, tables, column, statements: Statements::default() })
    }

    async fn connect(&self) -> Result<Conn, Trouble> {
        let (client, driver) = self.config.connect(NoTls).await?;
        // It ends with the client, and tells its errors through the client's answers.
        tokio::spawn(driver);
        Ok(Conn { client, prepared: None })
    }

    async fn run(&self, conn: &mut Conn, statements: &[String]) -> Result<(), Trouble> {
        Ok(conn.client.batch_execute(&statements.join(";")).await?)
    }

    async fn balance(&self, conn: &mut Conn) -> Result<Balance, Trouble> {
        let row = conn.client.query_one(&self.tables.balance(), &[]).await?;
        Ok(Balance { left: row.try_get(0)?, orders: u64::try_from(row.try_get::<_, i64>(1)?).unwrap_or(0) })
    }

    async fn sell(&self, conn: &mut Conn, sale: Sale, buyer: u32) -> Result<Outcome, Trouble> {
        let prepared = self.prepare(conn).await?;
        let client = &mut conn.client;
        match sale {
            Sale::Careless | Sale::IfUnchanged => {
                self.read_then_write(client, &prepared, sale, buyer.into()).await
            }
            Sale::RowLocked => self.row_locked(client, &prepared, buyer.into()).await,
            Sale::OneStatement => self.one_statement(client, &prepared, buyer.into()).await,
        }
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn statements(&self) -> &Statements {
        &self.statements
    }
}

impl Postgres {
    async fn prepare(&self, conn: &mut Conn) -> Result<Prepared, Trouble> {
        if let Some(prepared) = &conn.prepared {
            return Ok(prepared.clone());
        }
        let (client, tables) = (&conn.client, &self.tables);
        let prepared = Prepared {
            read: client.prepare(&tables.read()).await?,
            read_locked: client.prepare(&format!("{} FOR UPDATE", tables.read())).await?,
            write: client.prepare(&tables.write("$1")).await?,
            write_if: client.prepare(&tables.write_if("$1", "$2")).await?,
            order: client.prepare(&tables.order("$1")).await?,
        };
        conn.prepared = Some(prepared.clone());
        Ok(prepared)
    }

    async fn read_then_write(
        &self,
        client: &mut Client,
        prepared: &Prepared,
        sale: Sale,
        buyer: i64,
    ) -> Result<Outcome, Trouble> {
        self.statements.add(1);
        let row = client.query_one(&prepared.read, &[]).await?;
        let (stock, version): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        if stock <= 0 {
            return Ok(Outcome::SoldOut);
        }
        self.statements.add(4);
        let tx = client.transaction().await?;
        let changed = if sale == Sale::IfUnchanged {
            tx.execute(&prepared.write_if, &[&(stock - 1), &version]).await?
        } else {
            tx.execute(&prepared.write, &[&(stock - 1)]).await?
        };
        if changed == 0 {
            tx.rollback().await?;
            return Ok(Outcome::Overtaken);
        }
        tx.execute(&prepared.order, &[&buyer]).await?;
        tx.commit().await?;
        Ok(Outcome::Sold)
    }

    async fn row_locked(
        &self,
        client: &mut Client,
        prepared: &Prepared,
        buyer: i64,
    ) -> Result<Outcome, Trouble> {
        self.statements.add(4);
        let sold = rowlock::section(client, ROW_WAIT, async |tx| {
            let row = tx.query_one(&prepared.read_locked, &[]).await?;
            let stock: i64 = row.try_get(0)?;
            if stock <= 0 {
                return Ok(Outcome::SoldOut);
            }
            tx.execute(&prepared.write, &[&(stock - 1)]).await?;
            tx.execute(&prepared.order, &[&buyer]).await?;
            Ok(Outcome::Sold)
        });
        let sold = sold.await?;
        self.statements.add(if sold == Outcome::Sold { 2 } else { 0 });
        Ok(sold)
    }

    async fn one_statement(
        &self,
        client: &mut Client,
        prepared: &Prepared,
        buyer: i64,
    ) -> Result<Outcome, Trouble> {
        self.statements.add(3);
        client.batch_execute("BEGIN").await?;
        if !rowlock::take(client, &self.column, &PRODUCT, 1).await? {
            client.batch_execute("ROLLBACK").await?;
            return Ok(Outcome::SoldOut);
        }
        self.statements.add(1);
        client.execute(&prepared.order, &[&buyer]).await?;
        client.batch_execute("COMMIT").await?;
        Ok(Outcome::Sold)
    }
}
