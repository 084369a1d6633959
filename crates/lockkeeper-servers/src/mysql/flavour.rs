//! What differs between MySQL and MariaDB when one is started: programs, users, and how an empty database is made.

use std::fmt::Debug;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use super::{beside, data_in};
use crate::process::{KitError, Launch, find};
use crate::{Tls, give};

/// Which of the two servers.
pub trait Flavour: Clone + Debug + Default + Send + Sync + 'static {
    /// Its name, as a part of the name of its folder.
    const NAME: &'static str;

    /// Make an empty database in the folder.
    ///
    /// # Errors
    /// If it is not installed, or cannot.
    fn create(folder: &Path, settings: &[String]) -> impl Future<Output = Result<(), KitError>> + Send;

    /// The server's program, on the data in this folder.
    ///
    /// # Errors
    /// If it is not installed.
    fn server(folder: &Path) -> Result<Launch, KitError>;

    /// Certificates that the server can read.
    ///
    /// # Errors
    /// If they cannot be made or written.
    fn certificates(folder: &Path) -> Result<Tls, KitError>;
}

/// MySQL itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mysql;

impl Mysql {
    const PACKAGE: &'static str = "mysql-server-core";
    const INSTALL_MAX: Duration = Duration::from_secs(3 * 60);
}

impl Flavour for Mysql {
    const NAME: &'static str = "mysql";

    async fn create(folder: &Path, settings: &[String]) -> Result<(), KitError> {
        let made = find("mysqld", Mysql::PACKAGE)?.ancestors().nth(2).map(|it| it.join("empty-database"));
        // Made with the programs, because it takes seconds: see `cargo xtask servers`.
        if let Some(made) = made.filter(|it| it.is_dir() && settings.is_empty()) {
            let copy = Launch::new("cp", "coreutils", folder).args(["-r", "--sparse=always"]);
            return copy.arg(made).arg(folder.join("data")).run(Mysql::INSTALL_MAX).await;
        }
        let install = Mysql::server(folder)?.arg("--initialize-insecure").args(settings);
        install.run(Mysql::INSTALL_MAX).await
    }

    fn server(folder: &Path) -> Result<Launch, KitError> {
        let program = find("mysqld", Mysql::PACKAGE)?;
        let launch = Launch::new(&program.to_string_lossy(), Mysql::PACKAGE, folder)
            .args([
                "--no-defaults",
                "--innodb-redo-log-capacity=16M",
                "--mysqlx=OFF",
                "--secure-file-priv=NULL",
            ])
            .args(data_in(folder))
            .args(beside(&program));
        // Without this it refuses root. As another user it might not reach a program that is in our own folder.
        let root = rustix::process::geteuid().is_root();
        Ok(if root { launch.arg("--user=root") } else { launch })
    }

    fn certificates(folder: &Path) -> Result<Tls, KitError> {
        Tls::generate(folder)
    }
}

/// MariaDB.
#[derive(Clone, Copy, Debug, Default)]
pub struct MariaDb;

impl MariaDb {
    const USER: &'static str = "mysql";
    const PACKAGE: &'static str = "mariadb-server";
    const INSTALL_MAX: Duration = Duration::from_secs(60);
}

impl Flavour for MariaDb {
    const NAME: &'static str = "mariadb";

    async fn create(folder: &Path, settings: &[String]) -> Result<(), KitError> {
        give(folder, MariaDb::USER, MariaDb::PACKAGE)?;
        let install = Launch::new("mariadb-install-db", MariaDb::PACKAGE, folder)
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args(data_in(folder))
            .args(beside(&find("mariadbd", MariaDb::PACKAGE)?))
            .args(settings)
            .advice_from("Installation of system tables failed")
            .user(MariaDb::USER);
        install.run(MariaDb::INSTALL_MAX).await
    }

    fn server(folder: &Path) -> Result<Launch, KitError> {
        let launch = Launch::new("mariadbd", MariaDb::PACKAGE, folder)
            .arg("--no-defaults")
            .args(data_in(folder))
            .args(beside(&find("mariadbd", MariaDb::PACKAGE)?))
            // Started by root it would change its user itself, which clears the order to die with us.
            .user(MariaDb::USER);
        Ok(launch)
    }

    fn certificates(folder: &Path) -> Result<Tls, KitError> {
        Tls::generate_for(folder, MariaDb::USER, MariaDb::PACKAGE)
    }
}
