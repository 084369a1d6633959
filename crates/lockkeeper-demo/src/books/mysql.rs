//! The books in MySQL or MariaDB, with the row locks of the library.

use std::time::Duration;

use lockkeeper::sql::mysql::rowlock;
use lockkeeper::sql::rowlock::Column;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, TxOpts};

use super::{Balance, Database, Outcome, PRODUCT, Sale, Statements, Tables, Trouble};

/// How long a seller waits for the row.
const ROW_WAIT: Duration = Duration::from_secs(2 * 60);

pub(super) struct Mysql {
    opts: Opts,
    tables: Tables,
    column: Column,
    statements: Statements,
}

impl Database for Mysql {
    type Conn = Conn;
    /// What connection pools usually have; four shops stay far below the 151 that the server allows.
    const POOL: usize = 10;

    fn open(url: &str, tables: Tables) -> Result<Self, Trouble> {
        let rest = url.split_once(':').map_or("", |it| it.1);
        // The driver's error may quote what it could not read; a password is not for logs.
        let opts = Opts::from_url(&format!("mysql:{rest}")).map_err(|_| FORM)?;
        if opts.db_name().is_none_or(str::is_empty) {
            return Err(FORM.into());
        }
        let opts = OptsBuilder::from_opts(opts).prefer_socket(false).into();
        let column = Column::new::<mysql_async::Error>(&tables.product, "id", "stock")?;
        Ok(Mysql { opts, tables, column, statements: Statements::default() })
    }

    async fn connect(&self) -> Result<Conn, Trouble> {
        Ok(Conn::new(self.opts.clone()).await?)
    }

    async fn run(&self, conn: &mut Conn, statements: &[String]) -> Result<(), Trouble> {
        for statement in statements {
            conn.query_drop(statement).await?;
        }
        Ok(())
    }

    async fn balance(&self, conn: &mut Conn) -> Result<Balance, Trouble> {
        let row: Option<(i64, u64)> = conn.query_first(self.tables.balance()).await?;
        let (left, orders) = row.ok_or("the product is gone")?;
        Ok(Balance { left, orders })
    }

    async fn sell(&self, conn: &mut Conn, sale: Sale, buyer: u32) -> Result<Outcome, Trouble> {
        match sale {
            Sale::Careless | Sale::IfUnchanged => self.read_then_write(conn, sale, buyer).await,
            Sale::RowLocked => self.row_locked(conn, buyer).await,
            Sale::OneStatement => self.one_statement(conn, buyer).await,
        }
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn statements(&self) -> &Statements {
        &self.statements
    }
}

const FORM: &str = "this is no MySQL URL; write `mysql://user:password@host:port/database`";

impl Mysql {
    async fn read_then_write(&self, conn: &mut Conn, sale: Sale, buyer: u32) -> Result<Outcome, Trouble> {
        self.statements.add(1);
        let row: Option<(i64, i64)> = conn.exec_first(self.tables.read(), ()).await?;
        let (stock, version) = row.ok_or("the product is gone")?;
        if stock <= 0 {
            return Ok(Outcome::SoldOut);
        }
        self.statements.add(4);
        let mut tx = conn.start_transaction(TxOpts::new()).await?;
        if sale == Sale::IfUnchanged {
            tx.exec_drop(self.tables.write_if("?", "?"), (stock - 1, version)).await?;
            if tx.affected_rows() == 0 {
                tx.rollback().await?;
                return Ok(Outcome::Overtaken);
            }
        } else {
            // Nobody asks how many rows this changed: without a lock the same amount may be there already.
            tx.exec_drop(self.tables.write("?"), (stock - 1,)).await?;
        }
        tx.exec_drop(self.tables.order("?"), (buyer,)).await?;
        tx.commit().await?;
        Ok(Outcome::Sold)
    }

    async fn row_locked(&self, conn: &mut Conn, buyer: u32) -> Result<Outcome, Trouble> {
        let tables = &self.tables;
        self.statements.add(5);
        let sold = rowlock::section(conn, ROW_WAIT, async |tx| {
            let row: Option<(i64, i64)> = tx.exec_first(format!("{} FOR UPDATE", tables.read()), ()).await?;
            let stock = row.map_or(0, |it| it.0);
            if stock <= 0 {
                return Ok(Outcome::SoldOut);
            }
            tx.exec_drop(tables.write("?"), (stock - 1,)).await?;
            tx.exec_drop(tables.order("?"), (buyer,)).await?;
            Ok(Outcome::Sold)
        });
        let sold = sold.await?;
        self.statements.add(if sold == Outcome::Sold { 2 } else { 0 });
        Ok(sold)
    }

    async fn one_statement(&self, conn: &mut Conn, buyer: u32) -> Result<Outcome, Trouble> {
        self.statements.add(3);
        conn.query_drop("START TRANSACTION").await?;
        if !rowlock::take(conn, &self.column, PRODUCT, 1).await? {
            conn.query_drop("ROLLBACK").await?;
            return Ok(Outcome::SoldOut);
        }
        self.statements.add(1);
        conn.exec_drop(self.tables.order("?"), (buyer,)).await?;
        conn.query_drop("COMMIT").await?;
        Ok(Outcome::Sold)
    }
}
