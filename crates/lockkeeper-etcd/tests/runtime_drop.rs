//! A runtime that is dropped in the middle of calls leaves the locker whole, and nothing panics; one that stands still holds
//! nobody up.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use lockkeeper_core::Locker;
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::runtime_drop::{Remote, TTL};
use lockkeeper_servers::{Etcd as Server, EtcdOptions};

struct One(Server);

impl Remote for One {
    async fn start() -> Self {
        One(Server::start(EtcdOptions::default()).await.unwrap())
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.0.port()]
    }

    async fn connect(&self, ports: &[u16]) -> Locker {
        let backend = Etcd::connect(&format!("etcd://127.0.0.1:{}", ports[0])).await.unwrap();
        Locker::builder(backend).ttl(TTL).build()
    }
}

lockkeeper_servers::runtime_drop!(one_server, One);
lockkeeper_servers::runtime_still!(a_runtime_that_stands_still_holds_nobody_up, One);
