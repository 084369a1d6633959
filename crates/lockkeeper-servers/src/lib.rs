//! What the tests and benchmarks of this repository need around them: real servers, other processes, a bad network.
//!
//! Servers are throw-away children: each on free loopback ports, in a folder of its own, gone on drop. [`process`] starts
//! any program so, [`proxy`] stands between a server and its client and breaks what passes, [`mod@quorum`] holds the faults
//! and prices that stores with a quorum share, and [`mod@runtime_drop`] drops the runtime of a caller in the middle of calls.

mod ask;
mod between;
mod daemon;
mod etcd;
mod mysql;
mod mysql_pool;
mod pgbouncer;
mod ports;
mod postgres;
pub mod process;
pub mod proxy;
pub mod quorum;
mod redis;
mod resp;
pub mod rooms;
pub mod runtime_drop;
mod tls;
mod wall_clock;
mod zookeeper;

use std::fs::{self, Permissions};
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use lockkeeper_core::Clock;
use tempfile::TempDir;

pub use crate::process::KitError;
use crate::process::ids_of;
pub use daemon::Daemon;
pub(crate) use daemon::{retry_ports, start_all};
pub use etcd::{Etcd, EtcdCluster, EtcdOptions};
pub use mysql::{
    Flavour, MariaDb, MariaDbOptions, Mysql, MysqlOptions, MysqlServer, MysqlServerOptions, flavour,
};
pub use mysql_pool::MysqlPool;
pub use pgbouncer::{PgBouncer, PgBouncerOptions, PoolMode};
pub use ports::Port;
pub use postgres::{Postgres, PostgresOptions};
pub use redis::{Redis, RedisCluster, RedisOptions, RedisSentinel};
pub use resp::{RespClient, Value};
pub use tls::Tls;
pub use zookeeper::{ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions};

/// The Debian packages whose programs the kit and its own tests start.
pub const DEBIAN_PACKAGES: &[&str] = &[
    "util-linux",
    "procps",
    "redis-server",
    "mariadb-server",
    "postgresql",
    "pgbouncer",
    "etcd-server",
    "zookeeper",
    "libslf4j-java",
    "libnetty-java",
    "default-jre-headless",
];

/// A folder for one server, deleted with it. Open to other users: some servers run as their own.
fn folder(name: &str) -> Result<TempDir, KitError> {
    let folder = tempfile::Builder::new().prefix(&format!("lockkeeper-{name}-")).tempdir()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// Give `path` to the system user that a server of `package` runs as; nothing to do unless we are root.
fn give(path: &Path, user: &str, package: &str) -> Result<(), KitError> {
    if rustix::process::geteuid().is_root() {
        let (user, group) = ids_of(user, package)?;
        std::os::unix::fs::chown(path, Some(user), Some(group))?;
    }
    Ok(())
}

/// Wait for `answer`, but not for ever.
async fn within<T>(span: Duration, answer: impl Future<Output = Result<T, KitError>>) -> Result<T, KitError> {
    tokio::select! {
        answer = answer => answer,
        () = Clock::boot().sleep(span) => Err(KitError::new(format!("no answer within {span:?}"))),
    }
}

/// Text as a part of an address.
fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|it| if plain(it) { char::from(it).to_string() } else { format!("%{it:02X}") }).collect()
}
