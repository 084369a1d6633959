//! The conformance suite through PgBouncer in transaction mode: no session to rely on.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod shared;

use std::sync::Arc;

use lockkeeper_core::inspect::DynInspect;
use lockkeeper_servers::{self as servers, PgBouncer, PgBouncerOptions};
use lockkeeper_sql::{Postgres, PostgresOptions};
use lockkeeper_testkit::suite::Harness;
use shared::Shared;

static SERVER: Shared<Pooled> = Shared::new();

struct Pooled {
    // Dropped first.
    pooler: PgBouncer,
    _server: servers::Postgres,
}

async fn start() -> Result<Pooled, servers::KitError> {
    let server = servers::Postgres::start(servers::PostgresOptions::default()).await?;
    let options = PgBouncerOptions::default().set("default_pool_size", "4");
    let pooler = PgBouncer::start(&server, options).await?;
    Ok(Pooled { pooler, _server: server })
}

struct BehindPooler(Arc<Pooled>);

impl Harness for BehindPooler {
    type Backend = Postgres;

    async fn connect(&self) -> Postgres {
        let options = PostgresOptions::parse(&self.0.pooler.url()).unwrap();
        Postgres::with(options).await.unwrap()
    }

    fn inspect<'b>(&self, backend: &'b Postgres) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }
}

lockkeeper_testkit::suite!(behind_a_pooler, BehindPooler(SERVER.get(start()).await));
