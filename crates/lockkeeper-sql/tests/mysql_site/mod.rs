//! The servers that speak MySQL's language, as the shared cases want them.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::ops::Deref;
use std::time::Duration;

use lockkeeper_core::{Fence, Key};
use lockkeeper_servers::{self as servers, Daemon, KitError, MariaDb, MariaDbOptions};
use lockkeeper_sql::mysql::MysqlFences;
use lockkeeper_sql::{Mysql, MysqlOptions};
use mysql_async::{Conn, Opts, TxOpts};

use crate::faults::Site;

/// A user without special rights, to whom `init_connect` and `max_connections` apply.
pub(crate) const WORKER: &str =
    "CREATE USER worker@'127.0.0.1'; GRANT ALL ON lockkeeper.* TO worker@'127.0.0.1'";

/// The address for another user.
pub(crate) fn url_of(site: &impl Site, user: &str) -> String {
    site.url().replacen("lockkeeper@", &format!("{user}@"), 1)
}

/// The file of a server whose disk is soon full, and of one that has room again.
const FILE: &str = "innodb-data-file-path";
const SMALL: &str = "ibdata1:12M:autoextend:max:40M";
const WITH_ROOM: &str = "ibdata1:12M:autoextend:max:200M";

/// A MariaDB.
pub(crate) struct OnMariaDb(MariaDb);

/// A MySQL.
pub(crate) struct OnMysql(servers::Mysql);

/// What a site of ours offers beside.
pub(crate) trait Ours: Site<Store = Mysql> {
    /// A server whose disk is soon full.
    async fn small() -> Self;
    /// It has ended: start it again with more room.
    async fn start_with_room(&self);
    /// A server that writes a binary log, and one that follows it.
    async fn pair() -> (Self, Self);
    /// Statements that let a server follow the one on this port.
    fn follow(port: u16) -> String;
    /// A mode in which quotes, operators and blanks mean something else.
    const MODE: &'static str;
}

macro_rules! site {
    ($site:ident, $server:ty, $options:ty) => {
        impl Deref for $site {
            type Target = Daemon;

            fn deref(&self) -> &Daemon {
                &self.0
            }
        }

        impl Site for $site {
            type Store = Mysql;

            async fn start(settings: &[(&str, &str)]) -> Self {
                let options = <$options>::default();
                let options = settings.iter().fold(options, |it, (name, value)| it.set(name, value));
                $site(<$server>::start(options).await.unwrap())
            }

            async fn open_url(url: &str) -> Mysql {
                let options = MysqlOptions::parse(url).unwrap().timeout(Duration::from_secs(5));
                Mysql::with(options).await.unwrap()
            }

            fn url(&self) -> String {
                self.0.url()
            }

            async fn try_sql(&self, statements: &str) -> Result<String, KitError> {
                self.0.sql(statements).await
            }

            async fn write(url: &str, fence: u64) -> bool {
                write(url, fence).await
            }

            /// A free lock is taken by a prepared statement, whose parameters are bytes; the procedures hear digits.
            fn marks(hash: &[u8]) -> [Vec<u8>; 2] {
                let digits = hash.iter().flat_map(|it| [it >> 4, it & 15]);
                [hash.to_vec(), digits.map(|it| b"0123456789abcdef"[usize::from(it)]).collect()]
            }

            /// One after the other, because only MariaDB can end all connections of a user at once.
            async fn kill_connections(&self) {
                let mine =
                    "SELECT id FROM information_schema.processlist WHERE user IN ('lockkeeper', 'worker')";
                for id in self.sql(mine).await.split_whitespace() {
                    // It may have gone meanwhile.
                    let _ = self.try_sql(&format!("KILL {id}")).await;
                }
            }

            const IDLE_TIME_OUT: (&'static str, &'static str) = ("wait-timeout", "1");
            const ISOLATION: (&'static str, [&'static str; 2]) =
                ("transaction-isolation", ["READ-UNCOMMITTED", "SERIALIZABLE"]);
            const DROP_TABLES: &'static str =
                "DROP TABLE lockkeeper_claim, lockkeeper_lock, lockkeeper_store";
            const SCHEMA: &'static str = "";
            const KILL_CONNECTIONS: &'static str = "";
        }
    };
}

site!(OnMariaDb, MariaDb, MariaDbOptions);
site!(OnMysql, servers::Mysql, servers::MysqlOptions);

impl Ours for OnMariaDb {
    async fn small() -> Self {
        OnMariaDb::start(&[(FILE, SMALL), ("innodb-file-per-table", "0")]).await
    }

    async fn start_with_room(&self) {
        self.0.start_with(FILE, WITH_ROOM).await.unwrap();
    }

    async fn pair() -> (Self, Self) {
        let source = OnMariaDb::start(&[("log-bin", "log"), ("server-id", "1")]).await;
        (source, OnMariaDb::start(&[("server-id", "2")]).await)
    }

    fn follow(port: u16) -> String {
        format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'lockkeeper'; START SLAVE"
        )
    }

    const MODE: &'static str = "ORACLE";
}

impl Ours for OnMysql {
    async fn small() -> Self {
        let options = servers::MysqlOptions::default()
            .create_with(FILE, SMALL)
            .set(FILE, SMALL)
            .set("innodb-file-per-table", "0");
        OnMysql(servers::Mysql::start(options).await.unwrap())
    }

    async fn start_with_room(&self) {
        self.0.start_with(FILE, WITH_ROOM).await.unwrap();
    }

    async fn pair() -> (Self, Self) {
        (OnMysql::start(&[("server-id", "1")]).await, OnMysql::start(&[("server-id", "2")]).await)
    }

    fn follow(port: u16) -> String {
        format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = 'lockkeeper', \
             GET_SOURCE_PUBLIC_KEY = 1; START REPLICA"
        )
    }

    const MODE: &'static str = "ANSI,HIGH_NOT_PRECEDENCE,NO_BACKSLASH_ESCAPES";
}

async fn write(url: &str, fence: u64) -> bool {
    let mut conn = Conn::new(Opts::from_url(url).unwrap()).await.unwrap();
    MysqlFences.create(&mut conn).await.unwrap();
    let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
    let resource = Key::new("process").unwrap();
    let checked = MysqlFences.check(&mut tx, &resource, Fence::from_u64(fence)).await;
    tx.commit().await.unwrap();
    checked.is_ok()
}
