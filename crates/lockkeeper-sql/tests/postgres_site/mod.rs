//! PostgreSQL, as the shared cases want it.

use std::ops::Deref;
use std::time::Duration;

use lockkeeper_core::{Fence, Key};
use lockkeeper_servers::{self as servers, Daemon, KitError};
use lockkeeper_sql::postgres::PostgresFences;
use lockkeeper_sql::{Postgres, PostgresOptions};
use tokio_postgres::NoTls;

use crate::faults::Site;

/// A PostgreSQL.
pub(crate) struct OnPostgres(pub(crate) servers::Postgres);

impl Deref for OnPostgres {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.0
    }
}

impl Site for OnPostgres {
    type Store = Postgres;

    async fn start(settings: &[(&str, &str)]) -> Self {
        let options = servers::PostgresOptions::default();
        let options = settings.iter().fold(options, |it, (name, value)| it.set(name, value));
        OnPostgres(servers::Postgres::start(options).await.unwrap())
    }

    async fn open_url(url: &str) -> Postgres {
        let options = PostgresOptions::parse(url).unwrap().timeout(Duration::from_secs(5));
        Postgres::with(options).await.unwrap()
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn try_sql(&self, statements: &str) -> Result<String, KitError> {
        self.0.sql(statements).await
    }

    async fn write(url: &str, fence: u64) -> bool {
        let (mut client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        let fences = PostgresFences::new("public").unwrap();
        fences.create(&client).await.unwrap();
        let tx = client.transaction().await.unwrap();
        let resource = Key::new("process").unwrap();
        let checked = fences.check(&tx, &resource, Fence::from_u64(fence)).await;
        tx.commit().await.unwrap();
        checked.is_ok()
    }

    fn marks(hash: &[u8]) -> [Vec<u8>; 2] {
        [hash.to_vec(), hash.to_vec()]
    }

    const IDLE_TIME_OUT: (&'static str, &'static str) = ("idle_session_timeout", "300ms");
    const ISOLATION: (&'static str, [&'static str; 2]) =
        ("default_transaction_isolation", ["repeatable read", "serializable"]);
    const DROP_TABLES: &'static str = "DROP SCHEMA lockkeeper CASCADE";
    const SCHEMA: &'static str = "lockkeeper.";
    const KILL_CONNECTIONS: &'static str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
         AND backend_type = 'client backend'";
}
