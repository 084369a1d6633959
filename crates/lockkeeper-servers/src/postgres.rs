//! PostgreSQL: one server, and a standby that streams from it and can be promoted.

use std::fmt;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Daemon, KitError, Port, Tls, ask, folder, give, percent, retry_ports};
use crate::process::{Launch, chosen, eventually, find, missing};
use crate::wall_clock::WallClock;

pub(super) const USER: &str = "postgres";
const PACKAGE: &str = "postgresql";
const INSTALL_MAX: Duration = Duration::from_secs(60);
const SQL_MAX: Duration = Duration::from_secs(30);
const FOLLOW_MAX: Duration = Duration::from_secs(30);

/// How a PostgreSQL server is set up.
#[derive(Clone, Default)]
pub struct PostgresOptions {
    settings: Vec<String>,
    password: Option<String>,
    tls: bool,
    own_clock: bool,
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("settings", &self.settings)
            .field("password", &self.password.is_some())
            .field("tls", &self.tls)
            .field("own_clock", &self.own_clock)
            .finish()
    }
}

impl PostgresOptions {
    /// Set a parameter of the server, such as `("max_prepared_transactions", "10")`. Later settings win.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("{name}={value}"));
        self
    }

    /// Demand this password, by SCRAM. Without it everybody on this machine is let in.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Give the server a wall clock of its own, which [`Postgres::set_clock`] sets.
    #[must_use]
    pub fn own_clock(mut self) -> Self {
        self.own_clock = true;
        self
    }

    /// Offer TLS with fresh certificates: [`Postgres::tls`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }
}

/// One PostgreSQL server. Stop, kill, pause and restart it by the methods of [`Daemon`].
#[derive(Debug)]
pub struct Postgres {
    daemon: Daemon,
    options: PostgresOptions,
    tls: Option<Tls>,
    clock: Option<WallClock>,
}

impl Deref for Postgres {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.daemon.end();
        // A server that was killed leaves a segment of shared memory, of which a system has only so many. Its
        // number is the last in line 7 of the file that an orderly end deletes.
        let Ok(left) = fs::read_to_string(self.data().join("postmaster.pid")) else {
            return;
        };
        let segment = left.lines().nth(6).and_then(|it| it.split_whitespace().nth(1));
        if let Some(segment) = segment {
            // It may be gone already; either way there is nobody to tell.
            let remove = Launch::new("ipcrm", "util-linux", self.folder()).args(["--shmem-id", segment]);
            drop(remove.spawn().map(|mut it| it.wait()));
        }
    }
}

impl Postgres {
    /// Make an empty database and start a server on it.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// If it is not installed or does not become ready; the text holds the end of its log.
    pub async fn start(options: PostgresOptions) -> Result<Postgres, KitError> {
        retry_ports(async || {
            let folder = folder("postgres")?;
            give(folder.path(), USER, PACKAGE)?;
            let mut init = tool("initdb", folder.path())?
                .args(["--username=postgres", "--no-locale", "--encoding=UTF8", "--no-sync"])
                .arg(format!("--pgdata={}", folder.path().join("data").display()));
            let file = folder.path().join("password");
            if let Some(password) = &options.password {
                fs::write(&file, password)?;
                give(&file, USER, PACKAGE)?;
                init = init.arg("--auth=scram-sha-256").arg(format!("--pwfile={}", file.display()));
            } else {
                init = init.arg("--auth=trust");
            }
            init.run(INSTALL_MAX).await?;
            let server = Postgres::prepare(&options, folder)?;
            server.daemon.start().await?;
            Ok(server)
        })
        .await
    }

    /// Start a standby that follows this server, and wait until it streams.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// As for [`Postgres::start`].
    pub async fn standby(&self) -> Result<Postgres, KitError> {
        retry_ports(async || {
            let folder = folder("standby")?;
            give(folder.path(), USER, PACKAGE)?;
            let copy = tool("pg_basebackup", folder.path())?
                .args(["--host=127.0.0.1", "--username=postgres", "--checkpoint=fast", "--no-sync"])
                .args(["--write-recovery-conf", &format!("--port={}", self.port())])
                .arg(format!("--pgdata={}", folder.path().join("data").display()));
            self.with_password(copy).run(INSTALL_MAX).await?;
            let standby = Postgres::prepare(&self.options, folder)?;
            standby.daemon.start().await?;
            eventually(FOLLOW_MAX, async || {
                let receiver = "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'";
                match standby.sql(receiver).await?.as_str() {
                    "1" => Ok(()),
                    _ => Err(KitError::new("the standby does not stream from its primary")),
                }
            })
            .await?;
            Ok(standby)
        })
        .await
    }

    /// Make this standby a primary, and wait until it takes writes.
    ///
    /// # Cancel safety
    /// If dropped the promotion may or may not happen.
    ///
    /// # Errors
    /// If it is no standby, or does not follow within thirty seconds.
    pub async fn promote(&self) -> Result<(), KitError> {
        match self.sql("SELECT pg_promote(true, 30)").await?.as_str() {
            "t" => Ok(()),
            _ => Err(KitError::new("the standby was not promoted within 30 s")),
        }
    }

    /// The address of the database: `postgres://postgres@127.0.0.1:12345/postgres`.
    pub fn url(&self) -> String {
        let password = self.options.password.as_deref();
        let password = password.map_or_else(String::new, |it| format!(":{}", percent(it)));
        format!("postgres://postgres{password}@{}/postgres", self.address())
    }

    /// The certificates, if the server was started with [`PostgresOptions::tls`].
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Let the server's wall clock differ by so many milliseconds from the machine's, from now on. For a server that
    /// was started with [`PostgresOptions::own_clock`].
    ///
    /// # Errors
    /// If it was not, or the file that tells it cannot be written.
    pub fn set_clock(&self, millis: i64) -> Result<(), KitError> {
        let clock =
            self.clock.as_ref().ok_or_else(|| KitError::new("this server has the machine's clock"))?;
        clock.set(millis)
    }

    /// Let no file of the server grow beyond this many bytes, as on a full disk; `None` gives the space back.
    /// Sessions inherit the limit when they begin. A segment of the log has 16 MiB and must not hit it.
    ///
    /// # Cancel safety
    /// If dropped the limit may or may not be set.
    ///
    /// # Errors
    /// If the server does not run or `prlimit` is not installed.
    pub async fn limit_files(&self, bytes: Option<u64>) -> Result<(), KitError> {
        let pid = self.pid().ok_or_else(|| KitError::new("the server does not run"))?;
        let bytes = bytes.map_or_else(|| "unlimited".to_owned(), |it| it.to_string());
        // As the server's own user: that needs no rights at all, not even root's. Only the soft limit.
        let limit = Launch::new("prlimit", "util-linux", self.folder()).user(USER);
        limit.args([format!("--pid={pid}"), format!("--fsize={bytes}:")]).run(SQL_MAX).await
    }

    /// Run statements as superuser and return what they print, a line per row with `|` between columns.
    ///
    /// # Cancel safety
    /// If dropped the statements may or may not have been executed.
    ///
    /// # Errors
    /// What the server says, if it refuses, or if it takes longer than thirty seconds.
    pub async fn sql(&self, statements: &str) -> Result<String, KitError> {
        let client = tool("psql", self.folder())?
            .args(["--host=127.0.0.1", "--username=postgres", "--dbname=postgres"])
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"])
            .args([&format!("--port={}", self.port()), "--command", statements])
            .env("PGOPTIONS", "-c client_min_messages=warning");
        self.with_password(client).output(SQL_MAX).await
    }

    pub(super) fn password(&self) -> Option<&str> {
        self.options.password.as_deref()
    }

    fn with_password(&self, launch: Launch) -> Launch {
        match &self.options.password {
            Some(password) => launch.env("PGPASSWORD", password),
            None => launch,
        }
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// A server on the data in `folder`, not running yet.
    fn prepare(options: &PostgresOptions, folder: TempDir) -> Result<Postgres, KitError> {
        let port = Port::claim()?;
        let number = port.number();
        let mut launch = tool("postgres", folder.path())?
            .arg("-D")
            .arg(folder.path().join("data"))
            .args(["-p", &number.to_string(), "-h", "127.0.0.1"])
            // No socket, whose path would have to be short; no shared memory outside our folder but one
            // segment; connections enough for a crowd of tests.
            .args(["-c", "unix_socket_directories=", "-c", "dynamic_shared_memory_type=mmap"])
            .args(["-c", "max_connections=300"])
            // SIGTERM would wait for clients to leave.
            .stop_signal(Signal::INT)
            .end_signal(Signal::QUIT);
        let tls = options.tls.then(|| Tls::generate_for(folder.path(), USER, PACKAGE)).transpose()?;
        if let Some(tls) = &tls {
            let (cert, key) = (tls.server_cert.display(), tls.server_key.display());
            launch = launch.args(["-c", "ssl=on", "-c", &format!("ssl_cert_file={cert}")]);
            launch = launch.args(["-c", &format!("ssl_key_file={key}")]);
        }
        for setting in &options.settings {
            launch = launch.args(["-c", setting]);
        }
        let clock = options.own_clock.then(|| WallClock::new(folder.path())).transpose()?;
        if let Some(clock) = &clock {
            launch = clock.rule(launch);
        }
        let daemon = Daemon::new(launch, folder, vec![port], move || ask::postgres(number, "postgres"));
        Ok(Postgres { daemon, options: options.clone(), tls, clock })
    }
}

/// A program of the newest PostgreSQL, run as its user: the server refuses root.
fn tool(name: &str, folder: &Path) -> Result<Launch, KitError> {
    let path = program(name)?;
    Ok(Launch::new(&path.to_string_lossy(), PACKAGE, folder).user(USER))
}

/// Debian keeps the programs of each version in a folder of their own, outside `PATH`.
fn program(name: &str) -> Result<PathBuf, KitError> {
    if chosen(PACKAGE).is_some() {
        return find(name, PACKAGE);
    }
    let version = |path: &PathBuf| -> Option<u32> { path.file_name()?.to_str()?.parse().ok() };
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> =
        versions.map(|it| it.path()).filter(|it| version(it).is_some()).collect();
    versions.sort_by_key(version);
    let found = versions.into_iter().rev().map(|it| it.join("bin").join(name)).find(|it| it.is_file());
    found.map_or_else(|| find(name, PACKAGE).map_err(|_| missing(name, PACKAGE)), Ok)
}
