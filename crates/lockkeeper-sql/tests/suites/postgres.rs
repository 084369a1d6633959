//! The conformance suite on a real PostgreSQL: called by messages, and looking for itself.

use std::sync::Arc;

use crate::shared::Shared;
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_servers as servers;
use lockkeeper_sql::{Postgres, PostgresOptions};
use lockkeeper_testkit::suite::Harness;

static SERVER: Shared<servers::Postgres> = Shared::new();

struct OnPostgres {
    server: Arc<servers::Postgres>,
    listen: bool,
}

impl OnPostgres {
    async fn new(listen: bool) -> Self {
        let server = SERVER.get(servers::Postgres::start(servers::PostgresOptions::default())).await;
        OnPostgres { server, listen }
    }
}

impl Harness for OnPostgres {
    type Backend = Postgres;

    async fn connect(&self) -> Postgres {
        let options = PostgresOptions::parse(&self.server.url()).unwrap().listen(self.listen);
        Postgres::with(options).await.unwrap()
    }

    fn inspect<'b>(&self, backend: &'b Postgres) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }
}

lockkeeper_testkit::suite!(called_by_messages, OnPostgres::new(true).await);
lockkeeper_testkit::suite!(looking_for_itself, OnPostgres::new(false).await);
