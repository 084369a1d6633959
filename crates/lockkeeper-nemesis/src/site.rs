//! The servers of one store, each behind a proxy where clients keep to the addresses they were given.

use std::time::Duration;

use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{
    Daemon, EtcdCluster, EtcdOptions, MariaDb, MariaDbOptions, Mysql, MysqlOptions, Postgres,
    PostgresOptions, Redis, RedisCluster, RedisOptions, RedisSentinel, ZooKeeperEnsemble, ZooKeeperOptions,
};
use lockkeeper_torture::Trouble;
use tempfile::TempDir;

/// A store and how it is deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreName {
    /// One file.
    Sqlite,
    /// One server that keeps what it confirmed, with a clock of its own.
    Redis,
    /// A primary, two replicas, three sentinels.
    Sentinel,
    /// Three primaries, three replicas.
    Cluster,
    /// Five servers that forget everything when they die.
    Redlock,
    /// One server.
    Postgres,
    /// One server.
    MariaDb,
    /// One server.
    Mysql,
    /// One server, with locks that end with their connections.
    PostgresSession,
    /// The same.
    MariaDbSession,
    /// The same.
    MysqlSession,
    /// Three servers.
    Etcd,
    /// Three servers.
    ZooKeeper,
}

impl StoreName {
    /// All.
    pub const ALL: [StoreName; 13] = [
        StoreName::Sqlite,
        StoreName::Redis,
        StoreName::Sentinel,
        StoreName::Cluster,
        StoreName::Redlock,
        StoreName::Postgres,
        StoreName::MariaDb,
        StoreName::Mysql,
        StoreName::PostgresSession,
        StoreName::MariaDbSession,
        StoreName::MysqlSession,
        StoreName::Etcd,
        StoreName::ZooKeeper,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            StoreName::Sqlite => "sqlite",
            StoreName::Redis => "redis",
            StoreName::Sentinel => "sentinel",
            StoreName::Cluster => "cluster",
            StoreName::Redlock => "redlock",
            StoreName::Postgres => "postgres",
            StoreName::MariaDb => "mariadb",
            StoreName::Mysql => "mysql",
            StoreName::PostgresSession => "postgres-session",
            StoreName::MariaDbSession => "mariadb-session",
            StoreName::MysqlSession => "mysql-session",
            StoreName::Etcd => "etcd",
            StoreName::ZooKeeper => "zookeeper",
        }
    }

    /// Whether its locks end with their connections.
    pub(crate) fn by_session(self) -> bool {
        matches!(self, StoreName::PostgresSession | StoreName::MariaDbSession | StoreName::MysqlSession)
    }

    /// The store that is written so.
    pub fn named(name: &str) -> Option<Self> {
        StoreName::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// The servers, their proxies, and where clients find them.
pub(crate) struct Site {
    pub(crate) store: StoreName,
    pub(crate) servers: Servers,
    pub(crate) proxies: Vec<Proxy>,
    /// By way of the proxies.
    pub(crate) url: String,
    /// The way of one process alone, so that it can be cut off while the others go on.
    pub(crate) aside: Vec<Proxy>,
    pub(crate) url_aside: Option<String>,
    /// Past them.
    pub(crate) direct: String,
    /// How far the clock of a server that has one of its own is off by now, in milliseconds.
    pub(crate) clock: i64,
}

pub(crate) enum Servers {
    File(TempDir),
    Redis(Redis),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
    Redlock(Vec<Redis>),
    Postgres(Postgres),
    MariaDb(MariaDb),
    Mysql(Mysql),
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperEnsemble),
}

/// Enough for all connections of session locks.
const CONNECTIONS: &str = "400";

/// Longer than any ttl of the torture on Redlock.
pub(crate) const RESTART_GUARD: Duration = Duration::from_secs(6);

impl Servers {
    async fn start(store: StoreName) -> Result<Self, Trouble> {
        Ok(match store {
            StoreName::Sqlite => Servers::File(tempfile::tempdir()?),
            StoreName::Redis => {
                Servers::Redis(Redis::start(RedisOptions::default().append_only().own_clock()).await?)
            }
            StoreName::Sentinel => Servers::Sentinel(Redis::sentinel().await?),
            StoreName::Cluster => Servers::Cluster(Redis::cluster().await?),
            StoreName::Redlock => Servers::Redlock(Redis::masters(5).await?),
            StoreName::Postgres => {
                Servers::Postgres(Postgres::start(PostgresOptions::default().own_clock()).await?)
            }
            StoreName::MariaDb => {
                Servers::MariaDb(MariaDb::start(MariaDbOptions::default().own_clock()).await?)
            }
            StoreName::Mysql => Servers::Mysql(Mysql::start(MysqlOptions::default().own_clock()).await?),
            // A connection for each name that is waited for, and some of processes that were killed.
            StoreName::PostgresSession => {
                let options = PostgresOptions::default().set("max_connections", CONNECTIONS);
                Servers::Postgres(Postgres::start(options).await?)
            }
            StoreName::MariaDbSession => {
                let options = MariaDbOptions::default().set("max-connections", CONNECTIONS);
                Servers::MariaDb(MariaDb::start(options).await?)
            }
            StoreName::MysqlSession => {
                let options = MysqlOptions::default().set("max-connections", CONNECTIONS);
                Servers::Mysql(Mysql::start(options).await?)
            }
            StoreName::Etcd => Servers::Etcd(EtcdCluster::start(EtcdOptions::default().gated()).await?),
            StoreName::ZooKeeper => {
                Servers::ZooKeeper(ZooKeeperEnsemble::start(ZooKeeperOptions::default().gated()).await?)
            }
        })
    }

    /// Those that keep the locks.
    pub(crate) fn nodes(&self) -> Vec<&Daemon> {
        match self {
            Servers::File(_) => Vec::new(),
            Servers::Redis(it) => vec![it],
            Servers::Sentinel(it) => it.nodes().iter().map(|it| &**it).collect(),
            Servers::Cluster(it) => it.nodes().iter().map(|it| &**it).collect(),
            Servers::Redlock(all) => all.iter().map(|it| &**it).collect(),
            Servers::Postgres(it) => vec![it],
            Servers::MariaDb(it) => vec![it],
            Servers::Mysql(it) => vec![it],
            Servers::Etcd(it) => it.nodes().iter().map(|it| &**it).collect(),
            Servers::ZooKeeper(it) => it.nodes().iter().map(|it| &**it).collect(),
        }
    }

    /// Let the server's clock be off by so many milliseconds.
    pub(crate) fn set_clock(&self, millis: i64) -> Result<(), Trouble> {
        match self {
            Servers::Redis(it) => Ok(it.set_clock(millis)?),
            Servers::Postgres(it) => Ok(it.set_clock(millis)?),
            Servers::MariaDb(it) => Ok(it.set_clock(millis)?),
            Servers::Mysql(it) => Ok(it.set_clock(millis)?),
            _ => Err("these servers have no clock of their own".into()),
        }
    }

    /// Let servers with different numbers hear nothing of each other, or let all hear each other.
    pub(crate) fn part(&self, sides: Option<&[u8]>) {
        match (self, sides) {
            (Servers::Etcd(it), Some(sides)) => it.part(sides),
            (Servers::Etcd(it), None) => it.join(),
            (Servers::ZooKeeper(it), Some(sides)) => it.part(sides),
            (Servers::ZooKeeper(it), None) => it.join(),
            _ => {}
        }
    }

    /// The URL of servers at these addresses.
    fn url(&self, at: &[String]) -> String {
        let hosts = at.join(",");
        match self {
            Servers::File(folder) => format!("sqlite:{}", folder.path().join("locks.db").display()),
            Servers::Redis(_) => format!("redis://{hosts}"),
            Servers::Sentinel(it) => {
                let sentinels: Vec<String> = it.sentinels().iter().map(|it| it.address()).collect();
                format!("redis+sentinel://{}/{}", sentinels.join(","), it.name())
            }
            Servers::Cluster(_) => format!("redis+cluster://{hosts}"),
            Servers::Redlock(_) => format!("redlock://{hosts}?restart_guard={}s", RESTART_GUARD.as_secs()),
            Servers::Postgres(it) => it.url().replace(&it.address(), &hosts),
            Servers::MariaDb(it) => it.url().replace(&it.address(), &hosts),
            Servers::Mysql(it) => it.url().replace(&it.address(), &hosts),
            Servers::Etcd(_) => format!("etcd://{hosts}"),
            Servers::ZooKeeper(_) => format!("zookeeper://{hosts}/torture"),
        }
    }

    /// Sentinel and Cluster tell their clients where to go, past any proxy.
    fn can_be_behind_proxies(&self) -> bool {
        !matches!(self, Servers::File(_) | Servers::Sentinel(_) | Servers::Cluster(_))
    }
}

impl Site {
    pub(crate) async fn start(store: StoreName) -> Result<Self, Trouble> {
        let servers = Servers::start(store).await?;
        let mode = if store.by_session() { "?mode=session" } else { "" };
        let addresses: Vec<String> = servers.nodes().iter().map(|it| it.address()).collect();
        let direct = servers.url(&addresses) + mode;
        if !servers.can_be_behind_proxies() {
            let (proxies, aside) = (Vec::new(), Vec::new());
            let url = direct.clone();
            return Ok(Site { store, servers, proxies, url, aside, url_aside: None, direct, clock: 0 });
        }
        let (mut proxies, mut aside) = (Vec::new(), Vec::new());
        for node in servers.nodes() {
            proxies.push(Proxy::start(node.port()).await?);
            aside.push(Proxy::start(node.port()).await?);
        }
        let by =
            |proxies: &[Proxy]| servers.url(&proxies.iter().map(Proxy::address).collect::<Vec<_>>()) + mode;
        let (url, url_aside) = (by(&proxies), Some(by(&aside)));
        Ok(Site { store, servers, proxies, url, aside, url_aside, direct, clock: 0 })
    }
}
