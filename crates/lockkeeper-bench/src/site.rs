//! The server of one store, with what it counts.

use std::path::PathBuf;

use lockkeeper_servers::{
    Etcd, EtcdOptions, MariaDb, MariaDbOptions, Mysql, MysqlOptions, Postgres, PostgresOptions, Redis,
    RedisOptions, ZooKeeper, ZooKeeperOptions,
};

use crate::Answer;

/// Sessions for 4 × 16 tasks of each, and for the next ones while the last go.
const SESSIONS_MAX: &str = "400";

/// A store on which locks are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Sqlite,
    Redis,
    ZooKeeper,
    Etcd,
    Postgres,
    MariaDb,
    Mysql,
}

impl Store {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Store::Sqlite => "sqlite",
            Store::Redis => "redis",
            Store::ZooKeeper => "zookeeper",
            Store::Etcd => "etcd",
            Store::Postgres => "postgres",
            Store::MariaDb => "mariadb",
            Store::Mysql => "mysql",
        }
    }

    /// The heading on the page.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Store::Sqlite => "SQLite",
            Store::Redis => "Redis",
            Store::ZooKeeper => "ZooKeeper",
            Store::Etcd => "etcd",
            Store::Postgres => "PostgreSQL",
            Store::MariaDb => "MariaDB",
            Store::Mysql => "MySQL",
        }
    }

    /// What its server counts as a request.
    pub(crate) fn requests(self) -> &'static str {
        match self {
            Store::Sqlite => "nothing",
            Store::Redis => "reads from sockets",
            Store::ZooKeeper => "packets",
            Store::Etcd => "messages of gRPC",
            Store::Postgres => "transactions",
            Store::MariaDb | Store::Mysql => "statements",
        }
    }
}

pub(crate) struct Site {
    server: Server,
}

enum Server {
    Sqlite(tempfile::TempDir),
    Redis(Redis),
    ZooKeeper(ZooKeeper),
    Etcd(Etcd),
    Postgres(Postgres),
    MariaDb(MariaDb),
    Mysql(Mysql),
}

impl Site {
    pub(crate) async fn start(store: Store) -> Answer<Self> {
        let server = match store {
            Store::Sqlite => Server::Sqlite(tempfile::tempdir()?),
            Store::Redis => Server::Redis(Redis::start(RedisOptions::default()).await?),
            Store::ZooKeeper => Server::ZooKeeper(ZooKeeper::start(ZooKeeperOptions::default()).await?),
            Store::Etcd => Server::Etcd(Etcd::start(EtcdOptions::default()).await?),
            Store::Postgres => {
                let options = PostgresOptions::default().set("max_connections", SESSIONS_MAX);
                Server::Postgres(Postgres::start(options).await?)
            }
            Store::MariaDb => {
                let options = MariaDbOptions::default().set("max_connections", SESSIONS_MAX);
                Server::MariaDb(MariaDb::start(options).await?)
            }
            Store::Mysql => {
                let options = MysqlOptions::default().set("max-connections", SESSIONS_MAX);
                Server::Mysql(Mysql::start(options).await?)
            }
        };
        Ok(Site { server })
    }

    /// Host and port, as clients that read no URL want it.
    pub(crate) fn address(&self) -> String {
        match &self.server {
            Server::Sqlite(folder) => folder.path().display().to_string(),
            Server::Redis(it) => it.address(),
            Server::ZooKeeper(it) => it.address(),
            Server::Etcd(it) => it.address(),
            Server::Postgres(it) => it.address(),
            Server::MariaDb(it) => it.address(),
            Server::Mysql(it) => it.address(),
        }
    }

    /// As ours is told.
    pub(crate) fn url(&self) -> String {
        match &self.server {
            Server::Sqlite(_) => format!("sqlite:{}", self.file().display()),
            Server::Redis(it) => it.url(),
            Server::ZooKeeper(_) => format!("zookeeper://{}", self.address()),
            Server::Etcd(_) => format!("etcd://{}", self.address()),
            Server::Postgres(it) => it.url(),
            Server::MariaDb(it) => it.url(),
            Server::Mysql(it) => it.url(),
        }
    }

    /// A database beside the one of the URL, on servers where one can be had: a database has durable locks or session locks.
    pub(crate) async fn second_database(&self, name: &str) -> Answer<()> {
        let make = format!("CREATE DATABASE {name}; GRANT ALL ON {name}.* TO lockkeeper@'127.0.0.1'");
        match &self.server {
            Server::MariaDb(it) => drop(it.sql(&make).await?),
            Server::Mysql(it) => drop(it.sql(&make).await?),
            _ => {}
        }
        Ok(())
    }

    fn file(&self) -> PathBuf {
        PathBuf::from(self.address()).join("locks.db")
    }

    /// The server's process; SQLite has none.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.server {
            Server::Sqlite(_) => None,
            Server::Redis(it) => it.pid(),
            Server::ZooKeeper(it) => it.pid(),
            Server::Etcd(it) => it.pid(),
            Server::Postgres(it) => it.pid(),
            Server::MariaDb(it) => it.pid(),
            Server::Mysql(it) => it.pid(),
        }
    }

    /// How many bytes the store uses: of memory, of SQLite's files, or of PostgreSQL's database, which has many processes. Redis says
    /// it itself: what its process has in memory moves in steps that hide a thousand names.
    pub(crate) async fn bytes(&self) -> Answer<u64> {
        match (&self.server, self.pid()) {
            (Server::Sqlite(folder), _) => {
                let files = std::fs::read_dir(folder.path()).into_iter().flatten().flatten();
                Ok(files.filter_map(|it| Some(it.metadata().ok()?.len())).sum())
            }
            (Server::Postgres(it), _) => {
                let said = it.sql("SELECT pg_database_size(current_database())").await?;
                Ok(said.trim().parse()?)
            }
            (Server::Redis(it), _) => {
                let said = it.command(&["INFO", "memory"]).await?.field("used_memory");
                Ok(said.ok_or("the server does not say how much it uses")?.parse()?)
            }
            (_, Some(pid)) => Ok(resident(pid)),
            (_, None) => Ok(0),
        }
    }

    /// How many requests the server has seen so far, in its own words.
    pub(crate) async fn requests(&self) -> Answer<u64> {
        let last = |text: &str| {
            text.split(|it: char| !it.is_ascii_digit()).rfind(|it| !it.is_empty()).map(str::to_owned)
        };
        let said = match &self.server {
            Server::Sqlite(_) => return Ok(0),
            Server::Redis(it) => it.command(&["INFO", "stats"]).await?.field("total_reads_processed"),
            Server::ZooKeeper(it) => return Ok(it.figure("zk_packets_received").await?),
            Server::Etcd(it) => return Ok(it.figure("grpc_server_msg_received_total{").await?),
            Server::Postgres(it) => {
                // The server's counters lag behind by up to a second.
                let asked =
                    "SELECT pg_sleep(1.1), sum(xact_commit) FROM pg_stat_database WHERE datname = 'postgres'";
                last(&it.sql(asked).await?)
            }
            Server::MariaDb(it) => last(&it.sql("SHOW GLOBAL STATUS LIKE 'Questions'").await?),
            Server::Mysql(it) => last(&it.sql("SHOW GLOBAL STATUS LIKE 'Questions'").await?),
        };
        Ok(said.ok_or("the server does not say how many requests it saw")?.parse()?)
    }
}

/// Bytes of memory that a process has, from `/proc`.
pub(crate) fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|it| it.parse::<u64>().ok()).unwrap_or(0);
    pages * 4096
}
