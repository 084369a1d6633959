//! The conformance suite on session locks of a real MariaDB and a real MySQL, each process behind a network of its own.

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::shared::Shared;
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::kit::locked;
use lockkeeper_servers::proxy::{Proxy, Rule};
use lockkeeper_servers::{self as servers, Daemon, MariaDb, MariaDbOptions};
use lockkeeper_sql::{MysqlSessions, MysqlSessionsPlace};
use lockkeeper_testkit::suite::Harness;

static MARIADB: Shared<MariaDb> = Shared::new();
static MYSQL: Shared<servers::Mysql> = Shared::new();

struct Sessions<S> {
    server: Arc<S>,
    /// The network of each process, by what `Debug` shows of its store, which is the network's port.
    networks: Mutex<Vec<(String, Proxy)>>,
}

impl<S> Sessions<S> {
    fn on(server: Arc<S>) -> Self {
        Sessions { server, networks: Mutex::default() }
    }
}

impl<S: Deref<Target = Daemon> + Send + Sync + 'static> Harness for Sessions<S> {
    type Backend = MysqlSessions;

    async fn connect(&self) -> MysqlSessions {
        let network = Proxy::start(self.server.port()).await.unwrap();
        let url = format!("mysql://lockkeeper@{}/lockkeeper?mode=session", network.address());
        let store = MysqlSessions::connect(&url).await.unwrap();
        locked(&self.networks).push((format!("{store:?}"), network));
        store
    }

    async fn crash(&self, backend: MysqlSessions, places: Vec<MysqlSessionsPlace>) {
        let name = format!("{backend:?}");
        let networks = locked(&self.networks);
        let (_, network) = networks.iter().find(|it| it.0 == name).unwrap();
        // Beats go on, and nothing of them arrives any more.
        network.set_both(Rule::Drop);
        std::mem::forget((backend, places));
    }

    fn inspect<'b>(&self, backend: &'b MysqlSessions) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }
}

async fn on_mariadb() -> Sessions<MariaDb> {
    let options = MariaDbOptions::default().set("max-connections", "400");
    Sessions::on(MARIADB.get(MariaDb::start(options)).await)
}

async fn on_mysql() -> Sessions<servers::Mysql> {
    let options = servers::MysqlOptions::default().set("max-connections", "400");
    Sessions::on(MYSQL.get(servers::Mysql::start(options)).await)
}

lockkeeper_testkit::suite!(mariadb, on_mariadb().await);
lockkeeper_testkit::suite!(mysql, on_mysql().await);
