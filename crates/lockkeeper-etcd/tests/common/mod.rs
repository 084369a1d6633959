//! The servers of the tests, as the shared cases want them.

use std::time::Duration;

use lockkeeper_etcd::Etcd;
use lockkeeper_servers::process::KitError;
use lockkeeper_servers::quorum::Quorum;
use lockkeeper_servers::{Daemon, Etcd as Server, EtcdCluster, EtcdOptions};

/// One server or three.
#[derive(Debug)]
pub(crate) enum Servers {
    One(Box<Server>),
    Three(EtcdCluster),
}

impl Servers {
    pub(crate) fn first(&self) -> &Server {
        match self {
            Servers::One(it) => it,
            Servers::Three(it) => &it.nodes()[0],
        }
    }

    fn all(&self) -> &[Server] {
        match self {
            Servers::One(it) => std::slice::from_ref(it),
            Servers::Three(it) => it.nodes(),
        }
    }
}

/// What the keys of a line begin with. The names of the tests need no encoding.
fn line(key: &str) -> String {
    format!("lockkeeper/locks/{key}/")
}

impl Quorum for Servers {
    type Backend = Etcd;

    const HAND_OFF_IN_A_LONG_LINE: u64 = 2;

    // The two watches that stand for the line, and the two of whoever is far behind and watches the one that left.
    const TOLD_OF_A_RELEASE: u64 = 4;

    async fn start(nodes: usize) -> Self {
        if nodes == 1 {
            // The shortest lease is then one second.
            let options =
                EtcdOptions::default().set("heartbeat-interval", "50").set("election-timeout", "250");
            return Servers::One(Box::new(Server::start(options).await.unwrap()));
        }
        Servers::Three(Server::cluster().await.unwrap())
    }

    fn nodes(&self) -> Vec<&Daemon> {
        self.all().iter().map(|it| &**it).collect()
    }

    async fn leads(&self, node: usize) -> Result<bool, KitError> {
        self.all()[node].leads().await
    }

    fn url(hosts: &[String], _ttl: Duration) -> String {
        format!("etcd://{}", hosts.join(","))
    }

    async fn connect(url: &str) -> Etcd {
        Etcd::connect(url).await.unwrap()
    }

    async fn end_sessions(&self, key: &str) -> Result<(), KitError> {
        self.first().revoke_leases(&line(key)).await
    }

    async fn delete_first(&self, key: &str) -> Result<(), KitError> {
        self.first().delete_oldest(&line(key)).await
    }

    async fn requests(&self) -> u64 {
        self.first().figure("grpc_server_handled_total{").await.unwrap()
    }

    async fn events(&self) -> u64 {
        self.first().figure("etcd_debugging_mvcc_events_total ").await.unwrap()
    }
}
