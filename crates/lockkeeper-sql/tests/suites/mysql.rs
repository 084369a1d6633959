//! The conformance suite on a real MariaDB and on a real MySQL.

use std::sync::Arc;

use crate::shared::Shared;
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_servers::{self as servers, MariaDb, MariaDbOptions};
use lockkeeper_sql::{Mysql, MysqlOptions};
use lockkeeper_testkit::suite::Harness;

static MARIADB: Shared<MariaDb> = Shared::new();
static MYSQL: Shared<servers::Mysql> = Shared::new();

/// A server that lives as long as the case, and its address.
struct On<S>(#[expect(dead_code, reason = "it is only kept")] Arc<S>, String);

impl<S: Send + Sync + 'static> Harness for On<S> {
    type Backend = Mysql;

    async fn connect(&self) -> Mysql {
        let options = MysqlOptions::parse(&self.1).unwrap();
        Mysql::with(options).await.unwrap()
    }

    fn inspect<'b>(&self, backend: &'b Mysql) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }
}

async fn on_mariadb() -> On<MariaDb> {
    let server = MARIADB.get(MariaDb::start(MariaDbOptions::default())).await;
    let url = server.url();
    On(server, url)
}

async fn on_mysql() -> On<servers::Mysql> {
    let server = MYSQL.get(servers::Mysql::start(servers::MysqlOptions::default())).await;
    let url = server.url();
    On(server, url)
}

lockkeeper_testkit::suite!(mariadb, on_mariadb().await);
lockkeeper_testkit::suite!(mysql, on_mysql().await);
