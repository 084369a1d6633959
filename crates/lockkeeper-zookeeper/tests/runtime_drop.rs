//! A runtime that is dropped in the middle of calls leaves the locker whole, and nothing panics; one that stands still holds
//! nobody up.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use lockkeeper_core::Locker;
use lockkeeper_servers::runtime_drop::{Remote, TTL};
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;

struct One(Server);

impl Remote for One {
    async fn start() -> Self {
        One(Server::start(ZooKeeperOptions::default()).await.unwrap())
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.0.port()]
    }

    async fn connect(&self, ports: &[u16]) -> Locker {
        let (port, ttl) = (ports[0], TTL.as_millis());
        let url = format!("zookeeper://127.0.0.1:{port}?session={ttl}ms&tick=100ms");
        Locker::builder(ZooKeeper::connect(&url).await.unwrap()).ttl(TTL).build()
    }
}

lockkeeper_servers::runtime_drop!(one_server, One);
lockkeeper_servers::runtime_still!(a_runtime_that_stands_still_holds_nobody_up, One);
