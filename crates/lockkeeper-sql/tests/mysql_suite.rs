//! The conformance suite on a real MariaDB.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod shared;

use std::sync::Arc;

use lockkeeper_core::inspect::DynInspect;
use lockkeeper_sql::{Mysql, MysqlOptions};
use lockkeeper_testkit::servers::{MariaDb, MariaDbOptions};
use lockkeeper_testkit::suite::Harness;
use shared::Shared;

static SERVER: Shared<MariaDb> = Shared::new();

struct OnMariaDb(Arc<MariaDb>);

impl Harness for OnMariaDb {
    type Backend = Mysql;

    async fn connect(&self) -> Mysql {
        let options = MysqlOptions::from_url(&self.0.url()).unwrap();
        Mysql::connect(options).await.unwrap()
    }

    fn inspect<'b>(&self, backend: &'b Mysql) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }
}

lockkeeper_testkit::suite!(mariadb, OnMariaDb(SERVER.get(MariaDb::start(MariaDbOptions::default())).await));
