//! Crowds on a real PostgreSQL: many names at once in one process, and many processes that wait for one lock.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]
#![allow(clippy::print_stdout, reason = "what was measured is worth a look")]

mod crowds;

use crowds::Crowded;
use lockkeeper_servers as servers;
use lockkeeper_sql::Postgres;

struct OnPostgres(servers::Postgres);

impl Crowded for OnPostgres {
    type Store = Postgres;

    async fn start() -> Self {
        let options = servers::PostgresOptions::default().set("max_connections", "900").set("fsync", "off");
        OnPostgres(servers::Postgres::start(options).await.unwrap())
    }

    async fn open(&self) -> Postgres {
        Postgres::connect(&self.0.url()).await.unwrap()
    }
}

crowds::cases!(OnPostgres);
