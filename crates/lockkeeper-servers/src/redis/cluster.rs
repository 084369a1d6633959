//! A Redis cluster of three primaries with one replica each.

use std::time::Duration;

use tempfile::TempDir;

use super::{Redis, RedisOptions, Value};
use crate::process::{KitError, eventually};
use crate::{retry_ports, start_all, within};

/// Six servers: the first three start as primaries, the others as their replicas in the same order.
///
/// A failover takes three to five seconds after a kill.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
    _certificates: Option<TempDir>,
}

const SETTLE_MAX: Duration = Duration::from_secs(30);
const ANSWER_MAX: Duration = Duration::from_millis(500);
const SLOTS: [(&str, &str); 3] = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];

impl RedisCluster {
    /// Start all six, join them and wait until every one sees a whole cluster.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`Redis::start`].
    pub async fn start(options: RedisOptions) -> Result<RedisCluster, KitError> {
        let mut lines = "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-node-timeout 2000\n\
                     cluster-announce-ip 127.0.0.1\ncluster-replica-validity-factor 0"
            .to_owned();
        if options.tls {
            lines += "\ntls-cluster yes\ntls-replication yes";
        }
        retry_ports(async || {
            let (options, certificates) = options.clone().with_shared_certificates()?;
            let nodes = (0..6).map(|_| Redis::prepare(&options, "cluster", &lines, false));
            let cluster =
                RedisCluster { nodes: nodes.collect::<Result<_, _>>()?, _certificates: certificates };
            start_all(cluster.nodes.iter().map(|it| &**it)).await?;
            cluster.join().await?;
            cluster.wait_whole().await?;
            Ok(cluster)
        })
        .await
    }

    /// The six servers.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The addresses of all servers.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// The primary that serves `key`, as most of the servers that answer see it.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If no majority agrees (yet).
    pub async fn primary_of(&self, key: &str) -> Result<&Redis, KitError> {
        let mut votes = Vec::new();
        for node in &self.nodes {
            // A paused server does not answer, and does not count.
            votes.extend(within(ANSWER_MAX, node_serving(node, key)).await.ok().flatten());
        }
        let majority = |it: &&Redis| {
            votes.iter().filter(|vote| **vote == i64::from(it.port())).count() * 2 > self.nodes.len()
        };
        let node = self.nodes.iter().find(majority);
        node.ok_or_else(|| KitError::new(format!("the servers do not agree who serves {key:?}: {votes:?}")))
    }

    /// Wait until a server other than `old` serves `key`.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If that does not happen within thirty seconds.
    pub async fn wait_failover(&self, key: &str, old: &Redis) -> Result<&Redis, KitError> {
        let primary = eventually(SETTLE_MAX, async || match self.primary_of(key).await? {
            it if it.port() == old.port() => Err(KitError::new("the old server still serves the key")),
            it => Ok(it),
        });
        primary.await
    }

    /// Wait until all six run and see a whole cluster with every replica linked.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If that does not happen within thirty seconds.
    pub async fn wait_whole(&self) -> Result<(), KitError> {
        eventually(SETTLE_MAX, || self.whole()).await
    }

    async fn join(&self) -> Result<(), KitError> {
        let mut names = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            // Different epochs from the start: otherwise the servers first have to settle who gives way.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).await?;
            names.push(node.command(&["CLUSTER", "MYID"]).await?.text());
        }
        for (node, (first, last)) in self.nodes.iter().zip(SLOTS) {
            node.command(&["CLUSTER", "ADDSLOTSRANGE", first, last]).await?;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[index + 1..] {
                let port = other.peer_port().to_string();
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port]).await?;
            }
        }
        for (node, primary) in self.nodes[3..].iter().zip(&names) {
            // Refused until the two have met.
            eventually(SETTLE_MAX, async || node.command(&["CLUSTER", "REPLICATE", primary]).await).await?;
        }
        Ok(())
    }

    async fn whole(&self) -> Result<(), KitError> {
        for node in &self.nodes {
            let not = |what: &str| Err(KitError::new(format!("the cluster node {}: {what}", node.address())));
            let info = node.command(&["CLUSTER", "INFO"]).await?;
            let state = info.field("cluster_state").unwrap_or_default();
            if state != "ok" {
                return not(&format!("the cluster is in state {state:?}"));
            }
            // One range per primary, each with its bounds, the primary and the replica.
            let slots = node.command(&["CLUSTER", "SLOTS"]).await?;
            if slots.items().len() != 3 || slots.items().iter().any(|it| it.items().len() != 4) {
                return not("does not know all servers yet");
            }
            let replication = node.command(&["INFO", "replication"]).await?;
            if replication.field("master_link_status").is_some_and(|it| it != "up") {
                return not("the replica is not linked to its primary yet");
            }
        }
        Ok(())
    }
}

/// The port of the server that serves `key`, as `node` sees it.
async fn node_serving(node: &Redis, key: &str) -> Result<Option<i64>, KitError> {
    let slot = node.command(&["CLUSTER", "KEYSLOT", key]).await?.int().unwrap_or_default();
    let ranges = node.command(&["CLUSTER", "SLOTS"]).await?;
    let holds = |range: &&Value| match range.items() {
        [first, last, ..] => first.int() <= Some(slot) && Some(slot) <= last.int(),
        _ => false,
    };
    let range = ranges.items().iter().find(holds);
    Ok(range.and_then(|it| it.items().get(2)?.items().get(1)?.int()))
}
