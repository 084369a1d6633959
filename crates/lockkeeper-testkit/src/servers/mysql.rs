//! MySQL itself: one server.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use super::{Daemon, KitError, Port, Tls, ask, beside, folder, retry_ports};
use crate::process::{Launch, find};

const PACKAGE: &str = "mysql-server-core";
/// The database and the user that tests use.
const NAME: &str = "lockkeeper";
const INSTALL_MAX: Duration = Duration::from_secs(3 * 60);
const SQL_MAX: Duration = Duration::from_secs(30);

/// How a MySQL server is set up.
#[derive(Clone, Debug, Default)]
pub struct MysqlOptions {
    settings: Vec<String>,
    created_with: Vec<String>,
    tls: bool,
}

impl MysqlOptions {
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

    /// Offer TLS with fresh certificates: [`Mysql::tls`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }
}

/// One MySQL server. Stop, kill, pause and restart it by the methods of [`Daemon`].
#[derive(Debug)]
pub struct Mysql {
    daemon: Daemon,
    tls: Option<Tls>,
}

impl Deref for Mysql {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl Mysql {
    /// Make an empty database and start a server on it.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// If it is not installed or does not become ready; the text holds the end of its log.
    pub async fn start(options: MysqlOptions) -> Result<Mysql, KitError> {
        retry_ports(async || {
            let server = Mysql::prepare(&options).await?;
            server.daemon.start().await?;
            Ok(server)
        })
        .await
    }

    /// The address of the database: `mysql://lockkeeper@127.0.0.1:12345/lockkeeper`. No password.
    pub fn url(&self) -> String {
        format!("mysql://{NAME}@{}/{NAME}", self.address())
    }

    /// The certificates, if the server was started with [`MysqlOptions::tls`].
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
        // The client of MariaDB, which is here anyway, speaks to both.
        let client = Launch::new("mariadb", "mariadb-client", self.folder())
            .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root"])
            .args(["--batch", "--skip-column-names", "--skip-ssl-verify-server-cert"])
            .args([NAME, "--execute", statements])
            .arg(format!("--port={}", self.port()));
        client.output(SQL_MAX).await
    }

    async fn prepare(options: &MysqlOptions) -> Result<Mysql, KitError> {
        let (folder, port) = (folder("mysql")?, Port::claim()?);
        let number = port.number();
        create(options, folder.path()).await?;
        // Read before the port opens, at each start. Root comes from this machine, by TCP.
        let first = folder.path().join("first.sql");
        fs::write(
            &first,
            format!(
                "CREATE DATABASE IF NOT EXISTS {NAME};\nCREATE USER IF NOT EXISTS {NAME}@'127.0.0.1';\n\
                 GRANT ALL ON *.* TO {NAME}@'127.0.0.1';\nCREATE USER IF NOT EXISTS root@'127.0.0.1';\n\
                 GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
            ),
        )?;
        let tls = options.tls.then(|| Tls::generate(folder.path())).transpose()?;
        let files = tls.iter().flat_map(|it| {
            [("ca", &it.ca), ("cert", &it.server_cert), ("key", &it.server_key)]
                .map(|(name, file)| format!("--ssl-{name}={}", file.display()))
        });
        let launch = server(folder.path())?
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--mysqlx=OFF"])
            .args([format!("--port={number}"), format!("--init-file={}", first.display())])
            .args(files)
            .args(&options.settings);
        let daemon = Daemon::new(launch, folder, vec![port], move || ask::mysql(number));
        Ok(Mysql { daemon, tls })
    }
}

/// Make an empty database in the folder.
async fn create(options: &MysqlOptions, folder: &Path) -> Result<(), KitError> {
    let made = find("mysqld", PACKAGE)?.ancestors().nth(2).map(|it| it.join("empty-database"));
    // Made with the programs, because it takes seconds: see `cargo xtask servers`.
    if let Some(made) = made.filter(|it| it.is_dir() && options.created_with.is_empty()) {
        let copy = Launch::new("cp", "coreutils", folder).args(["-r", "--sparse=always"]);
        return copy.arg(made).arg(folder.join("data")).run(INSTALL_MAX).await;
    }
    let install = server(folder)?.arg("--initialize-insecure").args(&options.created_with);
    install.run(INSTALL_MAX).await
}

/// The server's program, on the data in this folder.
fn server(folder: &Path) -> Result<Launch, KitError> {
    let program = find("mysqld", PACKAGE)?;
    let launch = Launch::new(&program.to_string_lossy(), PACKAGE, folder)
        .args(["--no-defaults", "--innodb-buffer-pool-size=64M", "--innodb-redo-log-capacity=16M"])
        .arg(format!("--datadir={}", folder.join("data").display()))
        // Not the folder that all servers of the machine share.
        .arg(format!("--tmpdir={}", folder.display()))
        // Relative to the data: the path of a socket must be short.
        .args(["--socket=socket", "--pid-file=pid", "--secure-file-priv=NULL"])
        .args(beside(&program));
    // Without this it refuses root. As another user it might not reach a program that is in our own folder.
    let root = rustix::process::geteuid().is_root();
    Ok(if root { launch.arg("--user=root") } else { launch })
}
