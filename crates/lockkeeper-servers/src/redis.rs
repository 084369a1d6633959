//! Redis: one server, several independent ones, a primary watched by sentinels, a cluster.

use std::fmt;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::{Daemon, KitError, Port, RespClient, Tls, Value, folder, percent, retry_ports, start_all};
use crate::process::Launch;
use crate::wall_clock::WallClock;

mod cluster;
mod sentinel;

pub use cluster::RedisCluster;
pub use sentinel::RedisSentinel;

/// How a Redis server is set up. The default keeps nothing on disk and asks for no password.
#[derive(Clone, Default)]
pub struct RedisOptions {
    settings: Vec<(String, String)>,
    password: Option<String>,
    acl: Option<String>,
    sentinel_acl: Option<String>,
    tls: bool,
    own_clock: bool,
    /// Certificates that several servers share, instead of some of their own.
    certificates: Option<Tls>,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Settings, passwords and ACL lines may hold secrets; their names do not.
        let names: Vec<&String> = self.settings.iter().map(|it| &it.0).collect();
        f.debug_struct("RedisOptions")
            .field("settings", &names)
            .field("password", &self.password.is_some())
            .field("acl", &self.acl.is_some())
            .field("sentinel_acl", &self.sentinel_acl.is_some())
            .field("tls", &self.tls)
            .field("own_clock", &self.own_clock)
            .finish_non_exhaustive()
    }
}

impl RedisOptions {
    /// Add a line to the configuration file, such as `("maxmemory", "10mb")`. Later lines win.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Keep an append-only file, flushed before every answer, so that data survive a kill.
    #[must_use]
    pub fn append_only(self) -> Self {
        self.set("appendonly", "yes").set("appendfsync", "always")
    }

    /// Demand this password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Use an ACL file with these lines. The kit adds a user of its own, so that it can still ask.
    #[must_use]
    pub fn acl(mut self, lines: &str) -> Self {
        self.acl = Some(lines.to_owned());
        self
    }

    /// Give the sentinels an ACL file with these lines. The kit adds a user, for itself and for them.
    #[must_use]
    pub fn sentinel_acl(mut self, lines: &str) -> Self {
        self.sentinel_acl = Some(lines.to_owned());
        self
    }

    /// Give each server a wall clock of its own, which [`Redis::set_clock`] sets.
    #[must_use]
    pub fn own_clock(mut self) -> Self {
        self.own_clock = true;
        self
    }

    /// Listen on a second port with TLS and fresh certificates: [`Redis::tls`], [`Redis::tls_url`].
    ///
    /// The servers of one deployment share the certificates and use TLS among themselves as well.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }
}

impl RedisOptions {
    /// With certificates for all servers of one deployment, and the folder that keeps them.
    fn with_shared_certificates(mut self) -> Result<(Self, Option<TempDir>), KitError> {
        if !self.tls {
            return Ok((self, None));
        }
        let folder = folder("redis-tls")?;
        self.certificates = Some(Tls::generate(folder.path())?);
        Ok((self, Some(folder)))
    }
}

/// One Redis server. Stop, kill, pause and restart it by the methods of [`Daemon`].
#[derive(Debug)]
pub struct Redis {
    daemon: Daemon,
    login: Login,
    tls: Option<(Tls, u16)>,
    clock: Option<WallClock>,
}

impl Deref for Redis {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl Redis {
    /// Start one server.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// If it is not installed or does not become ready; the text holds the end of its log.
    pub async fn start(options: RedisOptions) -> Result<Redis, KitError> {
        retry_ports(async || {
            let redis = Redis::prepare(&options, "redis", "", false)?;
            redis.daemon.start().await?;
            Ok(redis)
        })
        .await
    }

    /// Start `count` servers that know nothing of each other.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`Redis::start`].
    pub async fn masters(count: usize) -> Result<Vec<Redis>, KitError> {
        Redis::masters_with(count, RedisOptions::default()).await
    }

    /// Start `count` servers that know nothing of each other, all set up in the same way.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`Redis::start`].
    pub async fn masters_with(count: usize, options: RedisOptions) -> Result<Vec<Redis>, KitError> {
        retry_ports(async || {
            let servers = (0..count).map(|_| Redis::prepare(&options, "redis", "", false));
            let servers: Vec<Redis> = servers.collect::<Result<_, _>>()?;
            start_all(servers.iter().map(|it| &it.daemon)).await?;
            Ok(servers)
        })
        .await
    }

    /// Start a primary with two replicas and three sentinels.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`Redis::start`].
    pub async fn sentinel() -> Result<RedisSentinel, KitError> {
        RedisSentinel::start(RedisOptions::default()).await
    }

    /// Start a cluster of three primaries with a replica each.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`Redis::start`].
    pub async fn cluster() -> Result<RedisCluster, KitError> {
        RedisCluster::start(RedisOptions::default()).await
    }

    /// The address with the password, if there is one: `redis://:secret@127.0.0.1:12345`.
    pub fn url(&self) -> String {
        match &self.login {
            Login::Password(it) => format!("redis://:{}@{}", percent(it), self.address()),
            Login::None | Login::Control => format!("redis://{}", self.address()),
        }
    }

    /// The certificates, if the server was started with [`RedisOptions::tls`].
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref().map(|it| &it.0)
    }

    /// The address of the port with TLS: `rediss://127.0.0.1:12345`.
    pub fn tls_url(&self) -> Option<String> {
        let (_, port) = self.tls.as_ref()?;
        Some(match &self.login {
            Login::Password(it) => format!("rediss://:{}@127.0.0.1:{port}", percent(it)),
            Login::None | Login::Control => format!("rediss://127.0.0.1:{port}"),
        })
    }

    /// The port with TLS, if the server was started with [`RedisOptions::tls`].
    pub fn tls_port(&self) -> Option<u16> {
        self.tls.as_ref().map(|it| it.1)
    }

    /// Let the server's wall clock differ by so many milliseconds from the machine's, from now on. For a server that
    /// was started with [`RedisOptions::own_clock`].
    ///
    /// # Errors
    /// If it was not, or the file that tells it cannot be written.
    pub fn set_clock(&self, millis: i64) -> Result<(), KitError> {
        let clock =
            self.clock.as_ref().ok_or_else(|| KitError::new("this server has the machine's clock"))?;
        clock.set(millis)
    }

    /// The port by which servers know each other.
    fn peer_port(&self) -> u16 {
        self.tls_port().unwrap_or_else(|| self.port())
    }

    /// A new connection that may do everything.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If the server does not run or refuses.
    pub async fn client(&self) -> Result<RespClient, KitError> {
        self.login.connect(self.port()).await
    }

    /// Send one command over a new connection: `redis.command(&["CONFIG", "SET", "hz", "100"])`.
    ///
    /// # Cancel safety
    /// If dropped the server may or may not have executed the command.
    ///
    /// # Errors
    /// What the server answered, if that is an error, or if it does not answer within ten seconds.
    pub async fn command(&self, words: &[&str]) -> Result<Value, KitError> {
        let answer = async { self.client().await?.command(words).await };
        super::within(COMMAND_MAX, answer).await
    }

    /// Stop the server, delete what it saved, and start it: it comes back without its memory.
    ///
    /// # Cancel safety
    /// As for [`Daemon::restart`].
    ///
    /// # Errors
    /// As for [`Daemon::restart`].
    pub async fn restart_empty(&self) -> Result<(), KitError> {
        self.stop().await?;
        // Not the whole folder: a cluster node keeps its name and its slots there.
        for saved in ["dump.rdb", "appendonlydir"].map(|it| self.data().join(it)) {
            if saved.is_dir() {
                fs::remove_dir_all(saved)?;
            } else if saved.exists() {
                fs::remove_file(saved)?;
            }
        }
        self.daemon.start().await
    }

    /// The same for a node of a cluster that forgets its cluster, too: it comes back as a stranger at the old address.
    ///
    /// # Cancel safety
    /// As for [`Daemon::restart`].
    ///
    /// # Errors
    /// As for [`Daemon::restart`].
    pub async fn restart_wiped(&self) -> Result<(), KitError> {
        self.stop().await?;
        fs::remove_dir_all(self.data())?;
        fs::create_dir(self.data())?;
        self.daemon.start().await
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// A server that is set up but does not run yet. `extra` are lines before those of `options`.
    fn prepare(options: &RedisOptions, name: &str, extra: &str, sentinel: bool) -> Result<Redis, KitError> {
        let folder = folder(name)?;
        let (data, file) = (folder.path().join("data"), folder.path().join("redis.conf"));
        fs::create_dir(&data)?;
        let mut ports = vec![Port::claim()?];
        let port = ports[0].number();
        let mut config = vec![
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            "protected-mode no".to_owned(),
            format!("dir \"{}\"", data.display()),
            extra.to_owned(),
        ];
        if !sentinel {
            config.push(SERVER_LINES.to_owned());
        }
        let login = Login::new(options, folder.path(), &mut config)?;
        let mut tls = None;
        if options.tls {
            let files = options.certificates.clone().map_or_else(|| Tls::generate(folder.path()), Ok)?;
            ports.push(Port::claim()?);
            let tls_port = ports[1].number();
            config.push(format!("tls-port {tls_port}\ntls-auth-clients no"));
            config.push(format!("tls-cert-file \"{}\"", files.server_cert.display()));
            config.push(format!("tls-key-file \"{}\"", files.server_key.display()));
            config.push(format!("tls-ca-cert-file \"{}\"", files.ca.display()));
            tls = Some((files, tls_port));
        }
        config.extend(options.settings.iter().map(|(name, value)| format!("{name} {value}")));
        fs::write(&file, config.join("\n"))?;
        let mut launch = Launch::new("redis-server", "redis-server", folder.path()).arg(&file);
        if sentinel {
            launch = launch.arg("--sentinel");
        }
        let clock = options.own_clock.then(|| WallClock::new(folder.path())).transpose()?;
        if let Some(clock) = &clock {
            launch = clock.rule(launch);
        }
        let asking = login.clone();
        let daemon = Daemon::new(launch, folder, ports, move || {
            let login = asking.clone();
            async move { login.connect(port).await?.command(&["PING"]).await.map(drop) }
        });
        Ok(Redis { daemon, login, tls, clock })
    }
}

const COMMAND_MAX: Duration = Duration::from_secs(10);

/// Nothing on disk; a first copy to a replica at once; DEBUG allowed, because tests use it.
const SERVER_LINES: &str = "save \"\"\nappendonly no\nenable-debug-command yes\n\
    repl-diskless-sync-delay 0\nrepl-ping-replica-period 1";

/// The user that the kit adds to an ACL file, and its password: no secret, the server is ours for a minute.
const CONTROL: &str = "lockkeeper-kit";

/// How the kit itself logs in.
#[derive(Clone)]
enum Login {
    None,
    Password(String),
    Control,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Login::None => "None",
            Login::Password(_) => "Password",
            Login::Control => "Control",
        })
    }
}

impl Login {
    /// Choose the login that `options` call for and add the lines that allow it.
    fn new(options: &RedisOptions, folder: &Path, config: &mut Vec<String>) -> Result<Self, KitError> {
        if let Some(lines) = &options.acl {
            let file = folder.join("users.acl");
            fs::write(&file, format!("{lines}\nuser {CONTROL} on >{CONTROL} ~* &* +@all\n"))?;
            config.push(format!("aclfile \"{}\"", file.display()));
            return Ok(Login::Control);
        }
        let Some(password) = &options.password else {
            return Ok(Login::None);
        };
        let quoted = quote(password);
        config.push(format!("requirepass {quoted}\nmasterauth {quoted}"));
        Ok(Login::Password(password.clone()))
    }

    async fn connect(&self, port: u16) -> Result<RespClient, KitError> {
        let mut client = RespClient::connect(port).await?;
        match self {
            Login::None => {}
            Login::Password(it) => drop(client.command(&["AUTH", it]).await?),
            Login::Control => drop(client.command(&["AUTH", CONTROL, CONTROL]).await?),
        }
        Ok(client)
    }
}

/// As the configuration file wants it: in quotes, with quotes and backslashes escaped.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
