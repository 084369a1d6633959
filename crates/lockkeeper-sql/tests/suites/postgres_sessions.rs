//! The conformance suite on session locks of a real PostgreSQL, each process behind a network of its own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::shared::Shared;
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::kit::locked;
use lockkeeper_servers as servers;
use lockkeeper_servers::proxy::{Proxy, Rule};
use lockkeeper_sql::{PostgresSessions, PostgresSessionsPlace};
use lockkeeper_testkit::suite::Harness;

static SERVER: Shared<servers::Postgres> = Shared::new();

struct Sessions {
    server: Arc<servers::Postgres>,
    /// The network of each process, by what `Debug` shows of its store, which is the network's port.
    networks: Mutex<Vec<(String, Proxy)>>,
}

impl Sessions {
    async fn new() -> Self {
        let options = servers::PostgresOptions::default().set("max_connections", "200");
        let server = SERVER.get(servers::Postgres::start(options)).await;
        Sessions { server, networks: Mutex::default() }
    }
}

impl Harness for Sessions {
    type Backend = PostgresSessions;

    async fn connect(&self) -> PostgresSessions {
        let network = Proxy::start(self.server.port()).await.unwrap();
        let url = format!("postgres://postgres@{}/postgres?mode=session", network.address());
        let store = PostgresSessions::connect(&url).await.unwrap();
        locked(&self.networks).push((format!("{store:?}"), network));
        store
    }

    async fn crash(&self, backend: PostgresSessions, places: Vec<PostgresSessionsPlace>) {
        let name = format!("{backend:?}");
        let networks = locked(&self.networks);
        let (_, network) = networks.iter().find(|it| it.0 == name).unwrap();
        // Beats go on, and nothing of them arrives any more.
        network.set_both(Rule::Drop);
        std::mem::forget((backend, places));
    }

    fn inspect<'b>(&self, backend: &'b PostgresSessions) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }
}

lockkeeper_testkit::suite!(suite, Sessions::new().await);
