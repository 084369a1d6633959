//! A few connections for many buyers, lent one at a time. One that failed or was left half-way is not used again.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::{Balance, Database, Outcome, Sale, Tables, Trouble};

pub(super) struct Pool<D: Database> {
    database: D,
    idle: Mutex<Vec<D::Conn>>,
    places: Semaphore,
}

impl<D: Database> Pool<D> {
    pub(super) fn open(url: &str, tables: Tables) -> Result<Self, Trouble> {
        let database = D::open(url, tables)?;
        Ok(Pool { database, idle: Mutex::default(), places: Semaphore::new(D::POOL) })
    }

    pub(super) fn database(&self) -> &D {
        &self.database
    }

    pub(super) async fn run(&self, statements: &[String]) -> Result<(), Trouble> {
        let mut conn = self.lend().await?;
        self.database.run(&mut conn, statements).await?;
        self.take_back(conn);
        Ok(())
    }

    pub(super) async fn balance(&self) -> Result<Balance, Trouble> {
        let mut conn = self.lend().await?;
        let balance = self.database.balance(&mut conn).await?;
        self.take_back(conn);
        Ok(balance)
    }

    pub(super) async fn sell(
        &self,
        sale: Sale,
        buyer: u32,
        is_over: impl Fn() -> bool + Send,
    ) -> Result<Outcome, Trouble> {
        let _place = self.places.acquire().await?;
        if is_over() {
            return Ok(Outcome::SoldOut);
        }
        let mut conn = self.lend().await?;
        // Dropped here, the connection is closed, and the database undoes what was begun.
        let outcome = self.database.sell(&mut conn, sale, buyer).await?;
        self.take_back(conn);
        Ok(outcome)
    }

    async fn lend(&self) -> Result<D::Conn, Trouble> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(conn) => Ok(conn),
            None => self.database.connect().await,
        }
    }

    fn take_back(&self, conn: D::Conn) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
    }
}
