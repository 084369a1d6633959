//! The bare statements: insert a unique row, delete it, by the same drivers and prepared beforehand.

use std::error::Error;
use std::future::Future;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use tokio_postgres::{Client, NoTls, Statement};

const LOCK: [u8; 32] = [7; 32];
const ID: [u8; 16] = [9; 16];

/// A lock without a line, a fence or an expiry that anybody judges.
pub(crate) trait Bare {
    /// Take it and give it back this often.
    fn cycles(&self, count: u32) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;
}

pub(crate) struct BarePostgres {
    client: Client,
    insert: Statement,
    delete: Statement,
}

impl BarePostgres {
    pub(crate) async fn open(url: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(async move { drop(connection.await) });
        client
            .batch_execute("CREATE TABLE IF NOT EXISTS bare (lock bytea PRIMARY KEY, id bytea, expires bigint, host text)")
            .await?;
        let insert =
            client.prepare("INSERT INTO bare VALUES ($1, $2, 0, 'host') ON CONFLICT DO NOTHING").await?;
        let delete = client.prepare("DELETE FROM bare WHERE lock = $1 AND id = $2").await?;
        Ok(BarePostgres { client, insert, delete })
    }
}

impl Bare for BarePostgres {
    async fn cycles(&self, count: u32) -> Result<(), Box<dyn Error + Send + Sync>> {
        for _ in 0..count {
            self.client.execute(&self.insert, &[&LOCK.as_slice(), &ID.as_slice()]).await?;
            self.client.execute(&self.delete, &[&LOCK.as_slice(), &ID.as_slice()]).await?;
        }
        Ok(())
    }
}

pub(crate) struct BareMysql(tokio::sync::Mutex<Conn>);

impl BareMysql {
    pub(crate) async fn open(url: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut conn = Conn::new(Opts::from_url(url)?).await?;
        let make = "CREATE TABLE IF NOT EXISTS bare (`lock` BINARY(32) PRIMARY KEY, id BINARY(16), expires BIGINT, host TEXT)";
        conn.query_drop(make).await?;
        Ok(BareMysql(tokio::sync::Mutex::new(conn)))
    }
}

impl Bare for BareMysql {
    async fn cycles(&self, count: u32) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut conn = self.0.lock().await;
        for _ in 0..count {
            let (lock, id) = (LOCK.to_vec(), ID.to_vec());
            conn.exec_drop("INSERT IGNORE INTO bare VALUES (?, ?, 0, 'host')", (&lock, &id)).await?;
            conn.exec_drop("DELETE FROM bare WHERE `lock` = ? AND id = ?", (&lock, &id)).await?;
        }
        Ok(())
    }
}
