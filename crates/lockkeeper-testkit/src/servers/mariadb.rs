//! MariaDB: one server.

use std::fs;
use std::ops::Deref;
use std::time::Duration;

use super::{Daemon, KitError, Port, Tls, ask, beside, folder, give, retry_ports};
use crate::process::{Launch, find};

const USER: &str = "mysql";
const PACKAGE: &str = "mariadb-server";
/// The database and the user that tests use.
const NAME: &str = "lockkeeper";
const INSTALL_MAX: Duration = Duration::from_secs(60);
const SQL_MAX: Duration = Duration::from_secs(30);

/// How a MariaDB server is set up.
#[derive(Clone, Debug, Default)]
pub struct MariaDbOptions {
    settings: Vec<String>,
    created_with: Vec<String>,
    tls: bool,
}

impl MariaDbOptions {
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

    /// Offer TLS with fresh certificates: [`MariaDb::tls`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }
}

/// One MariaDB server. Stop, kill, pause and restart it by the methods of [`Daemon`].
#[derive(Debug)]
pub struct MariaDb {
    daemon: Daemon,
    tls: Option<Tls>,
}

impl Deref for MariaDb {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl MariaDb {
    /// Make an empty database and start a server on it.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// If it is not installed or does not become ready; the text holds the end of its log.
    pub async fn start(options: MariaDbOptions) -> Result<MariaDb, KitError> {
        retry_ports(async || {
            let server = MariaDb::prepare(&options).await?;
            server.daemon.start().await?;
            Ok(server)
        })
        .await
    }

    /// The address of the database: `mysql://lockkeeper@127.0.0.1:12345/lockkeeper`. No password.
    pub fn url(&self) -> String {
        format!("mysql://{NAME}@{}/{NAME}", self.address())
    }

    /// The certificates, if the server was started with [`MariaDbOptions::tls`].
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
        let client = Launch::new("mariadb", "mariadb-client", self.folder())
            .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root"])
            .args(["--batch", "--skip-column-names", "--skip-ssl-verify-server-cert"])
            .args([NAME, "--execute", statements])
            .arg(format!("--port={}", self.port()));
        client.output(SQL_MAX).await
    }

    async fn prepare(options: &MariaDbOptions) -> Result<MariaDb, KitError> {
        let (folder, port) = (folder("mariadb")?, Port::claim()?);
        let number = port.number();
        give(folder.path(), USER, PACKAGE)?;
        let data = format!("--datadir={}", folder.path().join("data").display());
        // A server that starts removes what it finds of temporary tables, also those of others in the same folder.
        let temporary = format!("--tmpdir={}", folder.path().display());
        let own_files = beside(&find("mariadbd", PACKAGE)?);
        let install = Launch::new("mariadb-install-db", PACKAGE, folder.path())
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args([&data, &temporary])
            .args(&own_files)
            .args(&options.created_with)
            .advice_from("Installation of system tables failed")
            .user(USER);
        install.run(INSTALL_MAX).await?;
        // Read before the port opens, at each start.
        let first = folder.path().join("first.sql");
        fs::write(
            &first,
            format!(
                "CREATE DATABASE IF NOT EXISTS {NAME};\nCREATE USER IF NOT EXISTS {NAME}@'127.0.0.1';\n\
                 GRANT ALL ON *.* TO {NAME}@'127.0.0.1';\n"
            ),
        )?;
        let tls = options.tls.then(|| Tls::generate_for(folder.path(), USER, PACKAGE)).transpose()?;
        let files = tls.iter().flat_map(|it| {
            [("ca", &it.ca), ("cert", &it.server_cert), ("key", &it.server_key)]
                .map(|(name, file)| format!("--ssl-{name}={}", file.display()))
        });
        let launch = Launch::new("mariadbd", PACKAGE, folder.path())
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"])
            // Relative to the data: the path of a socket must be short.
            .args(["--socket=socket", "--pid-file=pid", "--innodb-buffer-pool-size=64M"])
            .args([
                &data,
                &temporary,
                &format!("--port={number}"),
                &format!("--init-file={}", first.display()),
            ])
            .args(files)
            .args(&own_files)
            .args(&options.settings)
            // Started by root it would change its user itself, which clears the order to die with us.
            .user(USER);
        let daemon = Daemon::new(launch, folder, vec![port], move || ask::mysql(number));
        Ok(MariaDb { daemon, tls })
    }
}
