//! A Redis primary with two replicas, watched by three sentinels that agree on a new primary by majority.

use std::time::Duration;

use tempfile::TempDir;

use super::{CONTROL, Redis, RedisOptions, Value, quote};
use crate::process::{KitError, eventually};
use crate::{retry_ports, start_all};

/// Three servers and three sentinels. A failover takes two to four seconds after a kill.
#[derive(Debug)]
pub struct RedisSentinel {
    nodes: Vec<Redis>,
    sentinels: Vec<Redis>,
    _certificates: Option<TempDir>,
}

/// The name under which the sentinels know the primary.
const NAME: &str = "mymaster";
const TLS_AMONG_THEMSELVES: &str = "tls-replication yes";
const SETTLE_MAX: Duration = Duration::from_secs(30);

impl RedisSentinel {
    /// Start all six and wait until every sentinel knows all the others and both replicas.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`Redis::start`].
    pub async fn start(options: RedisOptions) -> Result<RedisSentinel, KitError> {
        retry_ports(async || {
            let (options, certificates) = options.clone().with_shared_certificates()?;
            let nodes = start_nodes(&options).await?;
            let sentinels = start_sentinels(&options, nodes[0].peer_port()).await?;
            let all = RedisSentinel { nodes, sentinels, _certificates: certificates };
            eventually(SETTLE_MAX, || all.settled()).await?;
            Ok(all)
        })
        .await
    }

    /// The name to ask the sentinels for.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// The three servers; at the start the first is the primary.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The three sentinels.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// The addresses of the sentinels: `redis://127.0.0.1:12345`.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|it| format!("redis://{}", it.address())).collect()
    }

    /// The primary, as the majority of the sentinels that answer sees it and as it sees itself.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If the sentinels do not agree, or the server does not see itself as primary (yet).
    pub async fn primary(&self) -> Result<&Redis, KitError> {
        let mut votes = Vec::new();
        for sentinel in &self.sentinels {
            if let Ok(answer) = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).await {
                votes.extend(answer.items().get(1).and_then(Value::int));
            }
        }
        let majority = |it: &&Redis| {
            votes.iter().filter(|vote| **vote == i64::from(it.peer_port())).count() * 2 > self.sentinels.len()
        };
        let node = self.nodes.iter().find(majority);
        let node = node.ok_or_else(|| KitError::new(format!("the sentinels do not agree: {votes:?}")))?;
        let role = node.command(&["ROLE"]).await?;
        match role.items().first().map(Value::text).as_deref() {
            Some("master") => Ok(node),
            role => Err(KitError::new(format!("{} has the role {role:?}", node.address()))),
        }
    }

    /// Wait until a server other than `old` is the primary.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If that does not happen within thirty seconds.
    pub async fn wait_failover(&self, old: &Redis) -> Result<&Redis, KitError> {
        let primary = eventually(SETTLE_MAX, async || match self.primary().await? {
            it if it.port() == old.port() => Err(KitError::new("the old server is still the primary")),
            it => Ok(it),
        });
        primary.await
    }

    async fn settled(&self) -> Result<(), KitError> {
        for sentinel in &self.sentinels {
            let seen = sentinel.command(&["INFO", "sentinel"]).await?.field("master0").unwrap_or_default();
            if !seen.contains("status=ok") || !seen.ends_with("slaves=2,sentinels=3") {
                return Err(KitError::new(format!("a sentinel sees only: {seen}")));
            }
        }
        Ok(())
    }
}

async fn start_nodes(options: &RedisOptions) -> Result<Vec<Redis>, KitError> {
    let tls = if options.tls { TLS_AMONG_THEMSELVES } else { "" };
    let mut nodes = vec![Redis::prepare(options, "redis", tls, false)?];
    let follow = format!("replicaof 127.0.0.1 {}\n{tls}", nodes[0].peer_port());
    for _ in 0..2 {
        nodes.push(Redis::prepare(options, "redis", &follow, false)?);
    }
    // The primary first: a replica that finds nobody tries again only a second later.
    nodes[0].start().await?;
    start_all(nodes[1..].iter().map(|it| &**it)).await?;
    // A sentinel looks for replicas when it starts and then every ten seconds: let them be there.
    eventually(SETTLE_MAX, async || {
        let seen = nodes[0].command(&["INFO", "replication"]).await?;
        let online = seen.text().matches("state=online").count();
        (online == 2).then_some(()).ok_or_else(|| KitError::new(format!("{online} of 2 replicas are online")))
    })
    .await?;
    Ok(nodes)
}

async fn start_sentinels(options: &RedisOptions, primary: u16) -> Result<Vec<Redis>, KitError> {
    let auth = match &options.password {
        _ if options.acl.is_some() => {
            format!("sentinel auth-user {NAME} {CONTROL}\nsentinel auth-pass {NAME} {CONTROL}")
        }
        Some(password) => format!("sentinel auth-pass {NAME} {}", quote(password)),
        None => String::new(),
    };
    let mut among = Vec::new();
    if options.tls {
        among.push(TLS_AMONG_THEMSELVES.to_owned());
    }
    if options.sentinel_acl.is_some() {
        among.push(format!("sentinel sentinel-user {CONTROL}\nsentinel sentinel-pass {CONTROL}"));
    }
    let among = among.join("\n");
    let (acl, tls) = (options.sentinel_acl.clone(), options.tls);
    let certificates = options.certificates.clone();
    let plain = RedisOptions { acl, tls, certificates, ..RedisOptions::default() };
    let lines = format!(
        "sentinel monitor {NAME} 127.0.0.1 {primary} 2\nsentinel down-after-milliseconds {NAME} 1000\n\
         sentinel failover-timeout {NAME} 3000\nsentinel parallel-syncs {NAME} 1\n{auth}\n{among}"
    );
    let sentinels = (0..3).map(|_| Redis::prepare(&plain, "sentinel", &lines, true));
    let sentinels: Vec<Redis> = sentinels.collect::<Result<_, _>>()?;
    start_all(sentinels.iter().map(|it| &**it)).await?;
    Ok(sentinels)
}
