//! The servers' own locks as they are: no lease, no fence, no loss told. Each on a session of its own, for one task.

use std::sync::Arc;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use sqlx::Connection as _;
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgConnection};
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls, Statement};

use crate::Answer;
use crate::rival::Rival;

/// A bare advisory lock of PostgreSQL, prepared beforehand.
#[derive(Clone)]
pub(crate) struct Advisory(Arc<(Client, Statement, Statement)>);

impl Advisory {
    pub(crate) async fn open(url: &str) -> Answer<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(async move { drop(connection.await) });
        let lock = client.prepare("SELECT pg_advisory_lock(hashtextextended($1, 0))").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock(hashtextextended($1, 0))").await?;
        Ok(Advisory(Arc::new((client, lock, unlock))))
    }
}

impl Rival for Advisory {
    type Taken = String;

    async fn take(&mut self, key: &str) -> Answer<String> {
        let (client, lock, _) = &*self.0;
        client.query_one(lock, &[&key]).await?;
        Ok(key.to_owned())
    }

    async fn give_back(&mut self, key: String) -> Answer<()> {
        let (client, _, unlock) = &*self.0;
        client.query_one(unlock, &[&key]).await?;
        Ok(())
    }
}

/// sqlx's own advisory lock, as its documentation shows it: the lock is made once, its connection is lent to each guard.
#[derive(Clone)]
pub(crate) struct Sqlx(Arc<(PgAdvisoryLock, Mutex<Option<PgConnection>>)>);

impl Sqlx {
    pub(crate) async fn open(url: &str, key: &str) -> Answer<Self> {
        let conn = Mutex::new(Some(PgConnection::connect(url).await?));
        Ok(Sqlx(Arc::new((PgAdvisoryLock::new(key), conn))))
    }

    /// Take it and give it back.
    pub(crate) async fn cycle(&self) -> Answer<()> {
        let mut conn = self.0.1.lock().await;
        self.0.0.acquire(conn.as_mut().ok_or(LENT)?).await?.release_now().await?;
        Ok(())
    }
}

const LENT: &str = "its connection is with a guard already";

impl Rival for Sqlx {
    type Taken = PgAdvisoryLockGuard<PgConnection>;

    /// Its lock is the one for which it was opened.
    async fn take(&mut self, _key: &str) -> Answer<Self::Taken> {
        let conn = self.0.1.lock().await.take().ok_or(LENT)?;
        Ok(self.0.0.acquire(conn).await?)
    }

    async fn give_back(&mut self, taken: Self::Taken) -> Answer<()> {
        let conn = taken.release_now().await?;
        *self.0.1.lock().await = Some(conn);
        Ok(())
    }
}

/// A bare named lock of MySQL or MariaDB.
#[derive(Clone)]
pub(crate) struct Named(Arc<Mutex<Conn>>);

impl Named {
    pub(crate) async fn open(url: &str) -> Answer<Self> {
        Ok(Named(Arc::new(Mutex::new(Conn::new(Opts::from_url(url)?).await?))))
    }
}

impl Rival for Named {
    type Taken = String;

    async fn take(&mut self, key: &str) -> Answer<String> {
        let sql = format!("SELECT GET_LOCK('{key}', 3600)");
        let taken: Option<i64> = self.0.lock().await.query_first(sql).await?;
        if taken == Some(1) { Ok(key.to_owned()) } else { Err("the named lock was not ours".into()) }
    }

    async fn give_back(&mut self, key: String) -> Answer<()> {
        Ok(self.0.lock().await.query_drop(format!("DO RELEASE_LOCK('{key}')")).await?)
    }
}
