//! A runtime that is dropped in the middle of calls leaves the locker whole, and nothing panics; one that stands still holds
//! nobody up.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use lockkeeper_core::Locker;
use lockkeeper_redis::Redis;
use lockkeeper_redlock::{Redlock, RedlockOptions};
use lockkeeper_servers::Redis as Server;
use lockkeeper_servers::runtime_drop::{Remote, TTL};

struct Three(Vec<Server>);

impl Remote for Three {
    async fn start() -> Self {
        Three(Server::masters(3).await.unwrap())
    }

    fn ports(&self) -> Vec<u16> {
        self.0.iter().map(|it| it.port()).collect()
    }

    async fn connect(&self, ports: &[u16]) -> Locker {
        let node = |port: &u16| {
            let url = format!("redis://127.0.0.1:{port}");
            Redis::lazy(lockkeeper_redis::RedisOptions::parse(&url).unwrap()).unwrap()
        };
        // The servers were started a moment ago, so with the guard nobody could vote.
        let options = RedlockOptions::new(ports.iter().map(node).collect()).without_restart_guard();
        let backend = Redlock::with(options).await.unwrap();
        Locker::builder(backend).ttl(TTL).build()
    }
}

lockkeeper_servers::runtime_drop!(three_nodes, Three);
lockkeeper_servers::runtime_still!(a_runtime_that_stands_still_holds_nobody_up, Three);
