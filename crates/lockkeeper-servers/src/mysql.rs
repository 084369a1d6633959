//! MySQL and MariaDB: one server of either flavour.

pub mod flavour;

use std::fs;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use super::{Daemon, KitError, Port, Tls, ask, folder, retry_ports};
use crate::process::Launch;
use crate::wall_clock::WallClock;
pub use flavour::Flavour;

/// The database and the user that tests use.
const NAME: &str = "lockkeeper";
const SQL_MAX: Duration = Duration::from_secs(30);

/// One MySQL server.
pub type Mysql = MysqlServer<flavour::Mysql>;
/// How a MySQL server is set up.
pub type MysqlOptions = MysqlServerOptions<flavour::Mysql>;
/// One MariaDB server.
pub type MariaDb = MysqlServer<flavour::MariaDb>;
/// How a MariaDB server is set up.
pub type MariaDbOptions = MysqlServerOptions<flavour::MariaDb>;

/// How a server is set up.
#[derive(Clone, Debug, Default)]
pub struct MysqlServerOptions<F> {
    settings: Vec<String>,
    created_with: Vec<String>,
    tls: bool,
    own_clock: bool,
    flavour: PhantomData<F>,
}

impl<F: Flavour> MysqlServerOptions<F> {
    /// Give the server a wall clock of its own, which [`MysqlServer::set_clock`] sets.
    #[must_use]
    pub fn own_clock(mut self) -> Self {
        self.own_clock = true;
        self
    }

    /// Set a variable of the server, such as `("wait-timeout", "5")`. Later settings win.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("--{name}={value}"));
        self
    }

    /// Set a variable for the moment in which the database is made, where some are fixed for ever.
    #[must_use]
    pub fn create_with(mut self, name: &str, value: &str) -> Self {
        self.created_with.push(format!("--{name}={value}"));
        self
    }

    /// Offer TLS with fresh certificates: [`MysqlServer::tls`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }
}

/// One server. Stop, kill, pause and restart it by the methods of [`Daemon`].
#[derive(Debug)]
pub struct MysqlServer<F> {
    daemon: Daemon,
    tls: Option<Tls>,
    clock: Option<WallClock>,
    flavour: PhantomData<F>,
}

impl<F> Deref for MysqlServer<F> {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl<F: Flavour> MysqlServer<F> {
    /// Make an empty database and start a server on it.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// If it is not installed or does not become ready; the text holds the end of its log.
    pub async fn start(options: MysqlServerOptions<F>) -> Result<Self, KitError> {
        retry_ports(async || {
            let server = Self::prepare(&options).await?;
            server.daemon.start().await?;
            Ok(server)
        })
        .await
    }

    /// The address of the database: `mysql://lockkeeper@127.0.0.1:12345/lockkeeper`. No password.
    pub fn url(&self) -> String {
        format!("mysql://{NAME}@{}/{NAME}", self.address())
    }

    /// Start it again with another setting, after it has ended by itself or was stopped.
    ///
    /// # Cancel safety
    /// As for [`Daemon::start`].
    ///
    /// # Errors
    /// As for [`Daemon::start`].
    pub async fn start_with(&self, name: &str, value: &str) -> Result<(), KitError> {
        self.daemon.start_with(&[format!("--{name}={value}")]).await
    }

    /// Let the server's wall clock differ by so many milliseconds from the machine's, from now on. For a server that
    /// was started with [`MysqlServerOptions::own_clock`].
    ///
    /// # Errors
    /// If it has the machine's clock, or the system refuses.
    pub fn set_clock(&self, millis: i64) -> Result<(), KitError> {
        let clock =
            self.clock.as_ref().ok_or_else(|| KitError::new("this server has the machine's clock"))?;
        clock.set(millis)
    }

    /// The certificates, if the server was started with [`MysqlServerOptions::tls`].
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Run statements as root and return what they print, a line per row with tabs between columns.
    ///
    /// # Cancel safety
    /// If dropped the statements may or may not have been executed.
    ///
    /// # Errors
    /// What the server says, if it refuses, or if it takes longer than thirty seconds.
    pub async fn sql(&self, statements: &str) -> Result<String, KitError> {
        // The client of MariaDB speaks to both.
        let client = Launch::new("mariadb", "mariadb-client", self.folder())
            .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root"])
            .args(["--batch", "--skip-column-names", "--skip-ssl-verify-server-cert"])
            .args([NAME, "--execute", statements])
            .arg(format!("--port={}", self.port()));
        client.output(SQL_MAX).await
    }

    async fn prepare(options: &MysqlServerOptions<F>) -> Result<Self, KitError> {
        let (folder, port) = (folder(F::NAME)?, Port::claim()?);
        let number = port.number();
        F::create(folder.path(), &options.created_with).await?;
        let first = folder.path().join("first.sql");
        fs::write(&first, first_statements())?;
        let tls = options.tls.then(|| F::certificates(folder.path())).transpose()?;
        let files = tls.iter().flat_map(|it| {
            [("ca", &it.ca), ("cert", &it.server_cert), ("key", &it.server_key)]
                .map(|(name, file)| format!("--ssl-{name}={}", file.display()))
        });
        let launch = F::server(folder.path())?
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
            // Relative to the data: the path of a socket must be short.
            .args(["--socket=socket", "--pid-file=pid", "--innodb-buffer-pool-size=64M"])
            .args([format!("--port={number}"), format!("--init-file={}", first.display())])
            .args(files)
            .args(&options.settings);
        let clock = options.own_clock.then(|| WallClock::new(folder.path())).transpose()?;
        let launch = clock.iter().fold(launch, |launch, it| it.rule(launch));
        let daemon = Daemon::new(launch, folder, vec![port], move || ask::mysql(number));
        Ok(MysqlServer { daemon, tls, clock, flavour: PhantomData })
    }
}

/// Read before the port opens, at each start. Root comes from this machine, by TCP.
fn first_statements() -> String {
    format!(
        "CREATE DATABASE IF NOT EXISTS {NAME};\nCREATE USER IF NOT EXISTS {NAME}@'127.0.0.1';\n\
         GRANT ALL ON *.* TO {NAME}@'127.0.0.1';\nCREATE USER IF NOT EXISTS root@'127.0.0.1';\n\
         GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
    )
}

/// Where the data is, and what is temporary: not in the folder that all servers of the machine share, because one that
/// starts removes what it finds of temporary tables, also those of others.
fn data_in(folder: &Path) -> [String; 2] {
    let data = format!("--datadir={}", folder.join("data").display());
    [data, format!("--tmpdir={}", folder.display())]
}

/// Where a server finds its own files, if it is not installed where it was built for.
fn beside(program: &Path) -> Vec<String> {
    let home = fs::canonicalize(program).ok().and_then(|it| it.ancestors().nth(2).map(Path::to_owned));
    let Some(home) = home.filter(|it| it != Path::new("/usr")) else { return Vec::new() };
    let share = ["mariadb", "mysql"].map(|it| home.join("share").join(it));
    let share = if share[0].is_dir() { &share[0] } else { &share[1] };
    vec![
        format!("--basedir={}", home.display()),
        format!("--lc-messages-dir={}", share.display()),
        format!("--character-sets-dir={}", share.join("charsets").display()),
        format!("--plugin-dir={}", home.join("lib/mysql/plugin").display()),
    ]
}
