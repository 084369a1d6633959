//! etcd: one server, or three that elect a leader.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::{Daemon, KitError, Port, ask, folder, retry_ports, start_all, within};
use crate::between::{Door, Gates};
use crate::process::{Launch, eventually};

const ASK_MAX: Duration = Duration::from_secs(10);
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// How an etcd server is set up.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    settings: Vec<String>,
    gated: bool,
}

impl EtcdOptions {
    /// Set a flag of the server, such as `("auto-compaction-retention", "1h")`. Later settings win.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("--{name}={value}"));
        self
    }

    /// Put gates between the servers of a cluster, so that they can be parted. The gates are tasks of the runtime that starts
    /// it: where that stands still, the servers hear nothing of each other.
    #[must_use]
    pub fn gated(mut self) -> Self {
        self.gated = true;
        self
    }
}

/// One etcd server. Stop, kill, pause and restart it by the methods of [`Daemon`].
#[derive(Debug)]
pub struct Etcd {
    daemon: Daemon,
}

impl Deref for Etcd {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl Etcd {
    /// Start one server.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// If it is not installed or does not become ready; the text holds the end of its log.
    pub async fn start(options: EtcdOptions) -> Result<Etcd, KitError> {
        retry_ports(async || {
            let (client, peer) = (Port::claim()?, Port::claim()?);
            let number = peer.number();
            let peers = format!("e0=http://127.0.0.1:{number}");
            let server = Etcd::prepare(0, vec![client, peer], number, &peers, &options)?;
            server.daemon.start().await?;
            Ok(server)
        })
        .await
    }

    /// Start a cluster of three.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`Etcd::start`].
    pub async fn cluster() -> Result<EtcdCluster, KitError> {
        EtcdCluster::start(EtcdOptions::default()).await
    }

    /// The address for clients: `http://127.0.0.1:12345`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Ask over the JSON gateway: `etcd.post("/v3/kv/put", r#"{"key": "Zm9v", "value": "YmFy"}"#)`. Keys and
    /// values are base64.
    ///
    /// # Cancel safety
    /// If dropped the server may or may not have executed the request.
    ///
    /// # Errors
    /// What the server says, if it refuses, or if it does not answer within ten seconds.
    pub async fn post(&self, path: &str, json: &str) -> Result<String, KitError> {
        within(ASK_MAX, ask::http(self.port(), "POST", path, json)).await
    }

    /// Whether it says of itself that it leads.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If the server does not answer within ten seconds.
    pub async fn leads(&self) -> Result<bool, KitError> {
        let status = self.post("/v3/maintenance/status", "{}").await?;
        let me = text_field(&status, "member_id");
        Ok(me.is_some() && me == text_field(&status, "leader"))
    }

    /// The sum of all figures on the page `/metrics` whose names, with their labels, begin with `name`.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If the server does not answer within ten seconds.
    pub async fn figure(&self, name: &str) -> Result<u64, KitError> {
        let page = within(ASK_MAX, ask::http(self.port(), "GET", "/metrics", "")).await?;
        let lines = page.lines().filter(|it| it.starts_with(name));
        Ok(lines.filter_map(|it| it.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// As an administrator would: revoke the leases of all keys that begin with `prefix`.
    ///
    /// # Cancel safety
    /// If dropped, some may have been revoked.
    ///
    /// # Errors
    /// If there is none, or the server refuses.
    pub async fn revoke_leases(&self, prefix: &str) -> Result<(), KitError> {
        let keys = self.oldest(prefix, 0).await?;
        let mut leases: Vec<&str> = keys.split("\"lease\":\"").skip(1).filter_map(first_text).collect();
        leases.sort_unstable();
        leases.dedup();
        if leases.is_empty() {
            return Err(KitError::new(format!("no key below {prefix} has a lease")));
        }
        for lease in leases {
            self.post("/v3/lease/revoke", &format!(r#"{{"ID": "{lease}"}}"#)).await?;
        }
        Ok(())
    }

    /// As an administrator would: delete the oldest key that begins with `prefix`.
    ///
    /// # Cancel safety
    /// If dropped the key may or may not have been deleted.
    ///
    /// # Errors
    /// If there is none, or the server refuses.
    pub async fn delete_oldest(&self, prefix: &str) -> Result<(), KitError> {
        let keys = self.oldest(prefix, 1).await?;
        let key = text_field(&keys, "key").ok_or_else(|| KitError::new(format!("no key below {prefix}")))?;
        self.post("/v3/kv/deleterange", &format!(r#"{{"key": "{key}"}}"#)).await?;
        Ok(())
    }

    /// The names of all keys that begin with `prefix`, oldest first, in base64.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If the server does not answer within ten seconds.
    pub async fn keys(&self, prefix: &str) -> Result<Vec<String>, KitError> {
        let keys = self.oldest(prefix, 0).await?;
        Ok(keys.split("\"key\":\"").skip(1).filter_map(first_text).map(str::to_owned).collect())
    }

    /// The oldest keys that begin with `prefix`, as the gateway shows them; 0 means all.
    async fn oldest(&self, prefix: &str, limit: u32) -> Result<String, KitError> {
        let mut end = prefix.as_bytes().to_vec();
        end.extend_from_slice(&[0xFF; 4]);
        let (key, end) = (base64(prefix.as_bytes()), base64(&end));
        let order = r#""sort_order": "ASCEND", "sort_target": "CREATE""#;
        let query = format!(r#"{{"key": "{key}", "range_end": "{end}", "limit": "{limit}", {order}}}"#);
        self.post("/v3/kv/range", &query).await
    }

    /// One server, not running yet. Its ports are for clients and for its peers, who dial `known`.
    fn prepare(
        index: usize,
        ports: Vec<Port>,
        known: u16,
        peers: &str,
        options: &EtcdOptions,
    ) -> Result<Etcd, KitError> {
        let folder = folder("etcd")?;
        let at = |number: u16| format!("http://127.0.0.1:{number}");
        let (number, peer) = (ports[0].number(), ports[1].number());
        let (here, there) = (at(number), at(peer));
        let launch = Launch::new("etcd", "etcd-server", folder.path())
            .arg(format!("--name=e{index}"))
            .arg(format!("--data-dir={}", folder.path().join("data").display()))
            .args([format!("--listen-client-urls={here}"), format!("--advertise-client-urls={here}")])
            .args([format!("--listen-peer-urls={there}")])
            .args([format!("--initial-advertise-peer-urls={}", at(known))])
            .args([format!("--initial-cluster={peers}"), "--initial-cluster-state=new".to_owned()])
            .args(["--heartbeat-interval=100", "--election-timeout=1000"])
            .args(["--logger=zap", "--log-level=warn", "--log-outputs=stderr"])
            .args(&options.settings);
        let ready = move || async move {
            // Healthy means that it can commit: the cluster has a leader.
            match ask::http(number, "GET", "/health", "").await? {
                answer if answer.contains("\"true\"") => Ok(()),
                answer => Err(KitError::new(answer)),
            }
        };
        let daemon = Daemon::new(launch, folder, ports, ready);
        Ok(Etcd { daemon })
    }
}

/// Three etcd servers.
#[derive(Debug)]
pub struct EtcdCluster {
    nodes: Arc<Vec<Etcd>>,
    gates: Option<Gates>,
}

impl EtcdCluster {
    /// Start three servers and wait until each can commit.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`Etcd::start`].
    pub async fn start(options: EtcdOptions) -> Result<EtcdCluster, KitError> {
        retry_ports(async || {
            // One for clients, one for peers, and one for the gate before it.
            let count = if options.gated { 3 } else { 2 };
            let ports = (0..3).map(|_| (0..count).map(|_| Port::claim()).collect());
            let ports: Vec<Vec<Port>> = ports.collect::<Result<_, KitError>>()?;
            let doors = ports.iter().enumerate().map(|(number, it)| Door {
                number,
                server: it[1].number(),
                gate: it[count - 1].number(),
            });
            let doors: Vec<Door> = doors.collect();
            let peers = doors.iter().map(|it| format!("e{}=http://127.0.0.1:{}", it.number, it.gate));
            let peers = peers.collect::<Vec<_>>().join(",");
            let nodes = ports.into_iter().zip(&doors);
            let nodes = nodes.map(|(it, door)| Etcd::prepare(door.number, it, door.gate, &peers, &options));
            let nodes: Arc<Vec<Etcd>> = Arc::new(nodes.collect::<Result<_, _>>()?);
            let gates = if options.gated { Some(Gates::open(&nodes, &doors).await?) } else { None };
            start_all(nodes.iter().map(|it| &it.daemon)).await?;
            Ok(EtcdCluster { nodes, gates })
        })
        .await
    }

    /// Let those with different numbers hear nothing of each other; clients reach all of them. One number for each server. Only
    /// where they are `gated`.
    pub fn part(&self, sides: &[u8]) {
        debug_assert!(self.gates.is_some(), "there are no gates between these servers");
        self.gates.iter().for_each(|it| it.part(sides));
    }

    /// Let all hear each other again.
    pub fn join(&self) {
        self.gates.iter().for_each(Gates::join);
    }

    /// The three servers.
    pub fn nodes(&self) -> &[Etcd] {
        &self.nodes
    }

    /// The addresses for clients.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Etcd::url).collect()
    }

    /// The server that says of itself that it leads; waits for an election if there is none.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If there is none within thirty seconds.
    pub async fn leader(&self) -> Result<&Etcd, KitError> {
        eventually(SETTLE_MAX, async || {
            for node in self.nodes.iter() {
                if node.leads().await.unwrap_or(false) {
                    return Ok(node);
                }
            }
            Err(KitError::new("no etcd server leads"))
        })
        .await
    }
}

/// The value of `"name":"value"`. Enough for numbers, which the gateway writes as text.
fn text_field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{name}\":\""))?;
    first_text(rest)
}

/// All up to the next quotation mark.
fn first_text(json: &str) -> Option<&str> {
    json.split_once('"').map(|it| it.0)
}

/// Keys and values as the gateway wants them.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let three = [0, 1, 2].map(|at| chunk.get(at).copied().unwrap_or(0));
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_as_the_gateway_wants_them() {
        let texts = ["", "f", "fo", "foo", "foob", "lockkeeper/locks/"].map(|it| base64(it.as_bytes()));
        assert_eq!(texts, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "bG9ja2tlZXBlci9sb2Nrcy8="]);
    }
}
