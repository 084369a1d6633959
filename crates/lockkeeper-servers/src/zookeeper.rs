//! ZooKeeper: one server, or an ensemble of three.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Daemon, KitError, Port, Tls, ask, folder, retry_ports, start_all, within};
use crate::between::{Door, Gates};
use crate::process::{Launch, chosen, eventually, missing};

const ASK_MAX: Duration = Duration::from_secs(10);
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// Where Debian keeps them, unless the setting names another folder.
const JARS_FOLDER: &str = "/usr/share/java";
const JARS: [(&str, &str); 6] = [
    // Before the one that names it: that takes it from the system, which may have another version.
    ("zookeeper-jute.jar", "zookeeper"),
    ("zookeeper.jar", "zookeeper"),
    ("slf4j-simple.jar", "libslf4j-java"),
    // For TLS; what the first names itself is not enough.
    ("netty-codec.jar", "libnetty-java"),
    ("netty-resolver.jar", "libnetty-java"),
    ("netty-transport-native-unix-common.jar", "libnetty-java"),
];

/// How a ZooKeeper server is set up. Sessions may be as short as 200 ms.
#[derive(Clone, Debug, Default)]
pub struct ZooKeeperOptions {
    settings: Vec<String>,
    java_flags: Vec<String>,
    gated: bool,
}

impl ZooKeeperOptions {
    /// Add a line to the configuration file, such as `("maxSessionTimeout", "5000")`. Later lines win.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("{name}={value}"));
        self
    }

    /// Serve TLS on a second port, to clients with a certificate of the same authority.
    ///
    /// # Errors
    /// If certificate and key cannot be put into one file beside them, which the server wants.
    pub fn secure(self, port: &Port, tls: &Tls) -> Result<Self, KitError> {
        let both = tls.server_key.with_extension("both.pem");
        fs::write(&both, fs::read_to_string(&tls.server_key)? + &fs::read_to_string(&tls.server_cert)?)?;
        let secure = self
            .set("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory")
            .set("secureClientPort", &port.number().to_string())
            .set("secureClientPortAddress", "127.0.0.1")
            .set("ssl.keyStore.location", &both.display().to_string())
            .set("ssl.trustStore.location", &tls.ca.display().to_string());
        Ok(secure)
    }

    /// Add a flag for the Java machine, such as `-Dznode.container.checkIntervalMs=500`.
    #[must_use]
    pub fn java_flag(mut self, flag: &str) -> Self {
        self.java_flags.push(flag.to_owned());
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

/// One ZooKeeper server. Stop, kill, pause and restart it by the methods of [`Daemon`].
#[derive(Debug)]
pub struct ZooKeeper {
    daemon: Daemon,
}

impl Deref for ZooKeeper {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl ZooKeeper {
    /// Start one server.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// If it is not installed or does not become ready; the text holds the end of its log.
    pub async fn start(options: ZooKeeperOptions) -> Result<ZooKeeper, KitError> {
        retry_ports(async || {
            let server = ZooKeeper::prepare(&options, vec![Port::claim()?], None)?;
            server.daemon.start().await?;
            Ok(server)
        })
        .await
    }

    /// Start an ensemble of three.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`ZooKeeper::start`].
    pub async fn ensemble() -> Result<ZooKeeperEnsemble, KitError> {
        ZooKeeperEnsemble::start(ZooKeeperOptions::default()).await
    }

    /// The address for clients: `zookeeper://127.0.0.1:12345`.
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.address())
    }

    /// Send a four-letter word, such as `srvr`, `mntr`, `cons`, `dump`, `wchs`.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If the server does not answer within ten seconds.
    pub async fn word(&self, word: &str) -> Result<String, KitError> {
        within(ASK_MAX, ask::zookeeper(self.port(), word)).await
    }

    /// Whether it says of itself that it leads.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If the server does not answer within ten seconds.
    pub async fn leads(&self) -> Result<bool, KitError> {
        Ok(self.word("srvr").await?.contains("Mode: leader"))
    }

    /// One figure of `mntr`, such as `zk_packets_received`. The question is a packet of its own.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If the server does not answer, or knows no such figure.
    pub async fn figure(&self, name: &str) -> Result<u64, KitError> {
        let figures = self.word("mntr").await?;
        let figure = figures.lines().filter_map(|it| it.split_once('\t')).find(|it| it.0 == name);
        let figure = figure.and_then(|it| it.1.parse().ok());
        figure.ok_or_else(|| KitError::new(format!("`mntr` shows no number {name}")))
    }

    /// Its version as it says itself, such as `3.8.0`.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If the server does not answer, or does not say.
    pub async fn version(&self) -> Result<String, KitError> {
        let said = self.word("srvr").await?;
        let version = said.lines().find_map(|it| it.strip_prefix("Zookeeper version: "));
        let version = version.and_then(|it| it.split(['-', ',', ' ']).next()).map(str::to_owned);
        version.ok_or_else(|| KitError::new(format!("`srvr` tells no version: {said}")))
    }

    /// As an administrator would: end every session that has an ephemeral node whose path begins with `path`.
    ///
    /// # Cancel safety
    /// If dropped, some sessions may have ended.
    ///
    /// # Errors
    /// If there is none, or the server does not let it be ended.
    pub async fn end_sessions(&self, path: &str) -> Result<(), KitError> {
        let ids = self.sessions(path).await?;
        if ids.is_empty() {
            return Err(KitError::new(format!("no session has a node below {path}")));
        }
        // The true client comes back at once, and may take its session from us before we have closed it.
        let ended = eventually(SETTLE_MAX, async || {
            let alive = self.sessions(path).await?;
            let alive: Vec<&i64> = alive.iter().filter(|it| ids.contains(it)).collect();
            for id in &alive {
                within(ASK_MAX, ask::end_zookeeper_session(self.port(), **id)).await?;
            }
            if alive.is_empty() { Ok(()) } else { Err(KitError::new("the session is still alive")) }
        });
        ended.await
    }

    /// The sessions that have an ephemeral node whose path begins with `path`.
    async fn sessions(&self, path: &str) -> Result<Vec<i64>, KitError> {
        let dump = self.word("dump").await?;
        let (mut id, mut ids) = (None, Vec::new());
        for line in dump.lines() {
            if let Some(text) = line.strip_prefix("0x").and_then(|it| it.strip_suffix(':')) {
                id = u64::from_str_radix(text, 16).ok().map(u64::cast_signed);
            } else if line.trim_start().starts_with(path) {
                ids.extend(id.take());
            }
        }
        Ok(ids)
    }

    /// `peers` is the number of this server and the lines that describe all.
    fn prepare(
        options: &ZooKeeperOptions,
        ports: Vec<Port>,
        peers: Option<(usize, &str)>,
    ) -> Result<ZooKeeper, KitError> {
        let folder = folder("zookeeper")?;
        let (data, file) = (folder.path().join("data"), folder.path().join("zoo.cfg"));
        fs::create_dir(&data)?;
        let port = ports.first().map_or(0, Port::number);
        let mut config = vec![
            "tickTime=100\nminSessionTimeout=200\nmaxSessionTimeout=60000".to_owned(),
            // In ticks: ten seconds to join, five to follow.
            "initLimit=100\nsyncLimit=50\nmaxClientCnxns=0".to_owned(),
            format!("clientPort={port}\nclientPortAddress=127.0.0.1\ndataDir={}", data.display()),
            "admin.enableServer=false\n4lw.commands.whitelist=*".to_owned(),
        ];
        if let Some((number, lines)) = peers {
            fs::write(data.join("myid"), number.to_string())?;
            config.push(lines.to_owned());
        }
        config.extend(options.settings.iter().cloned());
        fs::write(&file, config.join("\n") + "\n")?;
        let jars = jars()?;
        let launch = Launch::new("java", "default-jre-headless", folder.path())
            // Small and quick to start; the last one writes nothing outside our folder.
            .args(["-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
            .args(["-cp", &jars.join(":")])
            // Who dials is looked up among connections of this kind.
            .arg("-Djava.net.preferIPv4Stack=true")
            .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.jmx.log4j.disable=true"])
            .args(&options.java_flags)
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&file);
        let ready = move || async move {
            // Not `ruok`, which says `imok` without a quorum.
            match ask::zookeeper(port, "srvr").await? {
                answer if answer.contains("Mode: ") => Ok(()),
                answer => Err(KitError::new(answer)),
            }
        };
        let daemon = Daemon::new(launch, folder, ports, ready);
        Ok(ZooKeeper { daemon })
    }
}

/// The files that the server consists of.
fn jars() -> Result<Vec<String>, KitError> {
    let setting = chosen("zookeeper");
    let folder = setting.as_ref().map_or(Path::new(JARS_FOLDER), |it| &it.1);
    let found = JARS.map(|(name, package)| {
        let file = folder.join(name).display().to_string();
        match &setting {
            _ if Path::new(&file).is_file() => Ok(file),
            None => Err(missing(&file, package)),
            Some((setting, _)) => Err(KitError::new(format!("{setting} names a folder without {name}"))),
        }
    });
    found.into_iter().collect()
}

/// The lines that describe all servers, for one of them: itself at its own ports, the others at their gates. Where there are gates its own
/// address is not a certain one: else it would tell the others to dial it there, past the gate, when they elect.
fn as_seen_by(own: usize, doors: &[Door]) -> String {
    let lines = doors.chunks(2).map(|it| {
        let (host, port): (&str, fn(&Door) -> u16) = if it[0].number == own && it[0].is_gated() {
            ("0.0.0.0", |it| it.server)
        } else {
            ("127.0.0.1", |it| it.gate)
        };
        format!("server.{}={host}:{}:{}", it[0].number + 1, port(&it[0]), port(&it[1]))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Three ZooKeeper servers.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    nodes: Arc<Vec<ZooKeeper>>,
    gates: Option<Gates>,
}

impl ZooKeeperEnsemble {
    /// Start three servers and wait until each serves.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`ZooKeeper::start`].
    pub async fn start(options: ZooKeeperOptions) -> Result<ZooKeeperEnsemble, KitError> {
        retry_ports(async || {
            // One for clients, one to follow the leader, one to elect it, and one for a gate before each of the last two.
            let (count, behind) = if options.gated { (5, 2) } else { (3, 0) };
            let ports = (0..3).map(|_| (0..count).map(|_| Port::claim()).collect());
            let ports: Vec<Vec<Port>> = ports.collect::<Result<_, KitError>>()?;
            let doors = ports.iter().enumerate().flat_map(|(number, it)| {
                [1, 2].map(|at| Door { number, server: it[at].number(), gate: it[at + behind].number() })
            });
            let doors: Vec<Door> = doors.collect();
            let nodes = ports.into_iter().enumerate();
            let nodes = nodes.map(|(number, it)| {
                ZooKeeper::prepare(&options, it, Some((number + 1, &as_seen_by(number, &doors))))
            });
            let nodes: Arc<Vec<ZooKeeper>> = Arc::new(nodes.collect::<Result<_, _>>()?);
            let gates = if options.gated { Some(Gates::open(&nodes, &doors).await?) } else { None };
            start_all(nodes.iter().map(|it| &it.daemon)).await?;
            Ok(ZooKeeperEnsemble { nodes, gates })
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
    pub fn nodes(&self) -> &[ZooKeeper] {
        &self.nodes
    }

    /// The address for clients: `zookeeper://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3`.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.nodes.iter().map(|it| it.address()).collect();
        format!("zookeeper://{}", addresses.join(","))
    }

    /// The server that leads; waits for an election if there is none.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If there is none within thirty seconds.
    pub async fn leader(&self) -> Result<&ZooKeeper, KitError> {
        eventually(SETTLE_MAX, async || {
            for node in self.nodes.iter() {
                if node.leads().await.unwrap_or(false) {
                    return Ok(node);
                }
            }
            Err(KitError::new("no ZooKeeper server leads"))
        })
        .await
    }
}
