//! The books in an `SQLite` file, which needs no server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::{Balance, Database, Outcome, Sale, Statements, Tables, Trouble};

pub(super) struct Sqlite {
    path: PathBuf,
    tables: Tables,
    statements: Statements,
}

impl Database for Sqlite {
    /// Taken out while a thread works on it.
    type Conn = Option<Connection>;
    const POOL: usize = 4;

    fn open(url: &str, tables: Tables) -> Result<Self, Trouble> {
        let path = url.strip_prefix("sqlite:").unwrap_or_default();
        if path.is_empty() {
            return Err("a database file is named by `sqlite:PATH`".into());
        }
        Ok(Sqlite { path: path.into(), tables, statements: Statements::default() })
    }

    async fn connect(&self) -> Result<Self::Conn, Trouble> {
        let path = self.path.clone();
        Ok(Some(tokio::task::spawn_blocking(move || connect(&path)).await??))
    }

    async fn run(&self, conn: &mut Self::Conn, statements: &[String]) -> Result<(), Trouble> {
        let statements = statements.join(";");
        work(conn, move |it| it.execute_batch(&statements)).await
    }

    async fn balance(&self, conn: &mut Self::Conn) -> Result<Balance, Trouble> {
        let read = self.tables.balance();
        let (left, orders): (i64, i64) =
            work(conn, move |it| it.query_row(&read, [], |row| Ok((row.get(0)?, row.get(1)?)))).await?;
        Ok(Balance { left, orders: u64::try_from(orders).unwrap_or(0) })
    }

    async fn sell(&self, conn: &mut Self::Conn, sale: Sale, buyer: u32) -> Result<Outcome, Trouble> {
        let tables = self.tables.clone();
        let (outcome, sent) = match sale {
            Sale::Careless | Sale::IfUnchanged => {
                // Two trips, as with a server: others get their chance in between.
                let seen = work(conn, {
                    let tables = tables.clone();
                    move |it| read(it, &tables)
                })
                .await?;
                work(conn, move |it| write(it, &tables, buyer, sale, seen)).await?
            }
            Sale::RowLocked => work(conn, move |it| all_in_one(it, &tables, buyer)).await?,
            Sale::OneStatement => work(conn, move |it| take(it, &tables, buyer)).await?,
        };
        self.statements.add(sent);
        Ok(outcome)
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn statements(&self) -> &Statements {
        &self.statements
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

/// Work on a thread where it may block. After a failure the connection is not used again.
async fn work<T: Send + 'static>(
    conn: &mut Option<Connection>,
    work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, Trouble> {
    let mut connection = conn.take().ok_or("the connection is in use")?;
    let done = tokio::task::spawn_blocking(move || {
        let done = work(&mut connection);
        (connection, done)
    });
    let (connection, done) = done.await?;
    *conn = Some(connection);
    Ok(done?)
}

type Sold = rusqlite::Result<(Outcome, u64)>;

/// Write what follows from what was seen: stock and version.
fn write(conn: &mut Connection, tables: &Tables, buyer: u32, sale: Sale, seen: (i64, i64)) -> Sold {
    let (stock, version) = seen;
    if stock <= 0 {
        return Ok((Outcome::SoldOut, 1));
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let changed = if sale == Sale::IfUnchanged {
        tx.prepare_cached(&tables.write_if("?1", "?2"))?.execute([stock - 1, version])?
    } else {
        tx.prepare_cached(&tables.write("?1"))?.execute([stock - 1])?
    };
    if changed == 0 {
        tx.rollback()?;
        return Ok((Outcome::Overtaken, 4));
    }
    order(&tx, tables, buyer)?;
    tx.commit()?;
    Ok((Outcome::Sold, 5))
}

/// The file has one lock, not one per row: whoever begins to write keeps all other writers out.
fn all_in_one(conn: &mut Connection, tables: &Tables, buyer: u32) -> Sold {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (stock, _) = read(&tx, tables)?;
    if stock <= 0 {
        tx.rollback()?;
        return Ok((Outcome::SoldOut, 3));
    }
    tx.prepare_cached(&tables.write("?1"))?.execute([stock - 1])?;
    order(&tx, tables, buyer)?;
    tx.commit()?;
    Ok((Outcome::Sold, 5))
}

fn take(conn: &mut Connection, tables: &Tables, buyer: u32) -> Sold {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let take = format!("{} AND stock > 0", tables.write("stock - 1"));
    if tx.prepare_cached(&take)?.execute([])? == 0 {
        tx.rollback()?;
        return Ok((Outcome::SoldOut, 3));
    }
    order(&tx, tables, buyer)?;
    tx.commit()?;
    Ok((Outcome::Sold, 4))
}

fn read(conn: &Connection, tables: &Tables) -> rusqlite::Result<(i64, i64)> {
    conn.prepare_cached(&tables.read())?.query_row([], |it| Ok((it.get(0)?, it.get(1)?)))
}

fn order(conn: &Connection, tables: &Tables, buyer: u32) -> rusqlite::Result<()> {
    conn.prepare_cached(&tables.order("?1"))?.execute([buyer]).map(drop)
}
