//! PgBouncer: a pooler before a PostgreSQL server, which breaks whatever relies on a session.

use std::fs;
use std::ops::Deref;

use super::postgres::{Postgres, USER};
use super::{Daemon, KitError, Port, ask, folder, give, retry_ports};
use crate::process::Launch;

/// When a connection to the server goes back to the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolMode {
    /// When the client leaves.
    Session,
    /// After each transaction.
    #[default]
    Transaction,
    /// After each statement.
    Statement,
}

/// How a PgBouncer is set up.
#[derive(Clone, Debug, Default)]
pub struct PgBouncerOptions {
    mode: PoolMode,
    settings: Vec<String>,
}

impl PgBouncerOptions {
    /// When a connection goes back to the pool; after each transaction unless told.
    #[must_use]
    pub fn mode(mut self, mode: PoolMode) -> Self {
        self.mode = mode;
        self
    }

    /// Add a line to the configuration file, such as `("default_pool_size", "1")`. Later lines win.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("{name} = {value}"));
        self
    }
}

/// One PgBouncer. Stop, kill, pause and restart it by the methods of [`Daemon`].
#[derive(Debug)]
pub struct PgBouncer {
    daemon: Daemon,
}

impl Deref for PgBouncer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl PgBouncer {
    /// Start a pooler before `server`.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    ///
    /// # Errors
    /// If it is not installed or does not become ready; the text holds the end of its log.
    pub async fn start(server: &Postgres, options: PgBouncerOptions) -> Result<PgBouncer, KitError> {
        retry_ports(async || {
            let pooler = PgBouncer::prepare(server, &options)?;
            pooler.daemon.start().await?;
            Ok(pooler)
        })
        .await
    }

    /// The address of the database through the pooler, which lets everybody in.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }

    fn prepare(server: &Postgres, options: &PgBouncerOptions) -> Result<PgBouncer, KitError> {
        let (folder, port) = (folder("pgbouncer")?, Port::claim()?);
        let (number, upstream) = (port.number(), server.port());
        let password = server
            .password()
            .map_or_else(String::new, |it| format!(" password='{}'", it.replace('\'', "''")));
        let mode = match options.mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
            PoolMode::Statement => "statement",
        };
        let mut config = vec![
            "[databases]".to_owned(),
            format!("* = host=127.0.0.1 port={upstream} user=postgres{password}"),
            "[pgbouncer]".to_owned(),
            format!("listen_addr = 127.0.0.1\nlisten_port = {number}\nunix_socket_dir ="),
            // Drivers send this one at once, and a pooler refuses what it does not know.
            format!("auth_type = any\npool_mode = {mode}\nignore_startup_parameters = extra_float_digits"),
        ];
        config.extend(options.settings.iter().cloned());
        let file = folder.path().join("pgbouncer.ini");
        fs::write(&file, config.join("\n") + "\n")?;
        give(folder.path(), USER, "postgresql")?;
        give(&file, USER, "postgresql")?;
        let launch = Launch::new("pgbouncer", "pgbouncer", folder.path()).arg(&file).user(USER);
        let daemon = Daemon::new(launch, folder, vec![port], move || ask::postgres(number, "postgres"));
        Ok(PgBouncer { daemon })
    }
}
