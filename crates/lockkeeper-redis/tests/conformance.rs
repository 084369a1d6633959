//! The conformance suite on every deployment. The servers of a deployment are shared by its cases.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use lockkeeper_core::inspect::DynInspect;
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisCluster, RedisOptions, RedisSentinel};
use lockkeeper_testkit::suite::Harness;
use tokio::sync::OnceCell;

struct On(String);

impl Harness for On {
    type Backend = Redis;

    async fn connect(&self) -> Redis {
        Redis::connect(&self.0).await.unwrap()
    }

    fn inspect<'b>(&self, backend: &'b Redis) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }
}

async fn single() -> On {
    static SERVER: OnceCell<servers::Redis> = OnceCell::const_new();
    let server = SERVER.get_or_init(async || servers::Redis::start(RedisOptions::default()).await.unwrap());
    On(server.await.url())
}

/// A primary with two replicas, both of which must confirm; nobody promotes them by himself.
async fn replicated() -> On {
    let servers = sentinels().await;
    On(format!("{}?replicas=2", servers.primary().await.unwrap().url()))
}

async fn sentinels() -> &'static RedisSentinel {
    static SERVERS: OnceCell<RedisSentinel> = OnceCell::const_new();
    SERVERS.get_or_init(async || servers::Redis::sentinel().await.unwrap()).await
}

async fn sentinel() -> On {
    let servers = sentinels().await;
    let hosts: Vec<_> = servers.sentinels().iter().map(|it| it.address()).collect();
    On(format!("redis+sentinel://{}/{}", hosts.join(","), servers.name()))
}

async fn cluster() -> On {
    static SERVERS: OnceCell<RedisCluster> = OnceCell::const_new();
    let servers = SERVERS.get_or_init(async || servers::Redis::cluster().await.unwrap());
    let hosts: Vec<_> = servers.await.nodes().iter().map(|it| it.address()).collect();
    On(format!("redis+cluster://{}", hosts.join(",")))
}

lockkeeper_testkit::suite!(on_a_single_server, single().await);
lockkeeper_testkit::suite!(on_a_primary_with_replicas_that_confirm, replicated().await);
lockkeeper_testkit::suite!(behind_sentinels, sentinel().await);
lockkeeper_testkit::suite!(on_a_cluster, cluster().await);
