//! The way of a URL for connections of your own: the same hosts, password file and TLS, and none of our locks on them.

use std::fmt;

use lockkeeper_core::Error;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config};

use super::options::PostgresOptions;
use super::wire::Wire;

/// Makes connections to one PostgreSQL database, as its [`PostgresOptions`] say. `Debug` shows no secret.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_sql::PostgresOptions;
///
/// let clients = PostgresOptions::parse("postgres://shop@db-1/orders?tls=on&ca=/etc/ssl/shop.pem")?.clients()?;
/// let client = clients.connect().await?;
/// client.batch_execute("INSERT INTO orders VALUES (42)").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresClients {
    config: Config,
    wire: Wire,
}

impl fmt::Debug for PostgresClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresClients")
            .field("hosts", &self.config.get_hosts())
            .field("database", &self.config.get_dbname())
            .finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// Connections of your own by these options. What they say about locks does not matter there.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a file for TLS cannot be used; [`Error::Unsupported`] if TLS is not built in.
    pub fn clients(self) -> Result<PostgresClients, Error> {
        let options = self.ready()?;
        let wire = Wire::new(options.tls.as_ref())?;
        let mut config = options.config;
        if config.get_hosts().len().max(config.get_hostaddrs().len()) < 2 {
            // Where there is nothing to choose the driver need not ask.
            config.target_session_attrs(TargetSessionAttrs::Any);
        }
        Ok(PostgresClients { config, wire })
    }
}

impl PostgresClients {
    /// What the driver is told. It holds the password.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// One connection, driven by the present runtime until its client is dropped.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Cancel safety
    /// Safe to drop; a half-open connection is closed.
    pub async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = self.config.connect(self.wire.tls()).await?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(client)
    }
}
