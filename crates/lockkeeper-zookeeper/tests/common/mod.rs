//! The servers of the tests, as the shared cases want them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_servers::process::KitError;
use lockkeeper_servers::quorum::Quorum;
use lockkeeper_servers::{Daemon, ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;
use zookeeper_client::Client;

/// One server or three, which tick every 100 ms.
#[derive(Debug)]
pub(crate) struct Servers {
    deployment: Deployment,
    /// How often the server was asked for a figure: each question is a packet that it counts.
    asked: AtomicU64,
}

#[derive(Debug)]
enum Deployment {
    One(Box<Server>),
    Three(lockkeeper_servers::ZooKeeperEnsemble),
}

impl Servers {
    pub(crate) fn first(&self) -> &Server {
        &self.all()[0]
    }

    fn all(&self) -> &[Server] {
        match &self.deployment {
            Deployment::One(it) => std::slice::from_ref(it),
            Deployment::Three(it) => it.nodes(),
        }
    }

    async fn figure(&self, name: &str) -> (u64, u64) {
        let figure = self.first().figure(name).await.unwrap();
        (figure, self.asked.fetch_add(1, Ordering::Relaxed))
    }

    /// An administrator's connection.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.first().address()).await.unwrap()
    }
}

impl Quorum for Servers {
    type Backend = ZooKeeper;

    // A look and a write go out together: one trip, but two requests.
    const HAND_OFF_IN_A_LONG_LINE: u64 = 3;

    const TOLD_OF_A_RELEASE: u64 = 1;

    async fn start(nodes: usize) -> Self {
        let deployment = if nodes == 1 {
            Deployment::One(Box::new(Server::start(ZooKeeperOptions::default()).await.unwrap()))
        } else {
            Deployment::Three(Server::ensemble().await.unwrap())
        };
        Servers { deployment, asked: AtomicU64::new(0) }
    }

    fn nodes(&self) -> Vec<&Daemon> {
        self.all().iter().map(|it| &**it).collect()
    }

    async fn leads(&self, node: usize) -> Result<bool, KitError> {
        self.all()[node].leads().await
    }

    fn url(hosts: &[String], ttl: Duration) -> String {
        format!("zookeeper://{}?session={}ms&tick=100ms", hosts.join(","), ttl.as_millis())
    }

    async fn connect(url: &str) -> ZooKeeper {
        ZooKeeper::connect(url).await.unwrap()
    }

    async fn end_sessions(&self, key: &str) -> Result<(), KitError> {
        self.first().end_sessions(&format!("/lockkeeper/{key}/")).await
    }

    async fn delete_first(&self, key: &str) -> Result<(), KitError> {
        let (client, folder) = (self.client().await, format!("/lockkeeper/{key}"));
        let names = client.list_children(&folder).await.unwrap();
        let first = names.iter().min_by_key(|it| it.rsplit('-').next().map(str::to_owned));
        let first = first.ok_or_else(|| KitError::new("nobody is in line"))?;
        client.delete(&format!("{folder}/{first}"), None).await.map_err(|it| KitError::new(it.to_string()))
    }

    async fn requests(&self) -> u64 {
        let (packets, questions) = self.figure("zk_packets_received").await;
        packets - questions
    }

    async fn events(&self) -> u64 {
        // Lines are watched as well, for those who hold, but nobody has renewed yet.
        self.figure("zk_sum_node_deleted_watch_count").await.0
    }
}
