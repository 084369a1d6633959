//! What can be chosen about a PostgreSQL store, in code or in a URL.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::Error;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::options::{self, Common, is_plain_name, split_query};
use crate::tls::{Tls, Words};

/// Which server, and how.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_sql::PostgresOptions;
///
/// let options = PostgresOptions::from_url("postgres://locks:secret@db-1,db-2/shop?listen=no")?
///     .schema("shop_locks")?
///     .answer_within(Duration::from_secs(5));
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    pub(crate) config: tokio_postgres::Config,
    pub(crate) schema: String,
    pub(crate) listen: bool,
    pub(crate) common: Common,
    pub(crate) tls: Option<Tls>,
}

/// Shows no password.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("hosts", &self.config.get_hosts())
            .field("ports", &self.config.get_ports())
            .field("database", &self.config.get_dbname())
            .field("schema", &self.schema)
            .field("listen", &self.listen)
            .field("common", &self.common)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// A server described by the driver's own configuration, with everything else as usual.
    ///
    /// Sessions that cannot write are passed over, so that of several hosts the primary is found. If it requires
    /// TLS the server's certificate is checked; otherwise nothing is encrypted.
    pub fn new(mut config: tokio_postgres::Config) -> Self {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("lockkeeper");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        // A dead peer must be noticed in seconds, not in the two hours of the system's default.
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(3));
        config.keepalives_retries(3);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(20));
        }
        let tls = (config.get_ssl_mode() == SslMode::Require).then(Tls::default);
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        PostgresOptions {
            config,
            schema: "lockkeeper".to_owned(),
            listen: true,
            common: Common::default(),
            tls,
        }
    }

    /// Read a URL: `postgres://user:password@host:port/database?key=value&key=value`.
    ///
    /// Keys of ours: `schema` (usually `lockkeeper`), `listen` (`yes`, `no`), `answer_within` (such as `10s`),
    /// `clean_every` (such as `1m`), `create` (`yes`, `no`), `tls` (`on`, `off`) with the files `ca`, `cert` and
    /// `key`. All others are the driver's: `connect_timeout`, `options`, … Several hosts may be given, separated by
    /// commas.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no such URL or holds an unknown key or value.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(Error::invalid(
                "this is no PostgreSQL URL; write `postgres://user:password@host:port/database`",
            ));
        }
        let (mut common, mut tls, mut schema, mut listen) = (Common::default(), Words::default(), None, true);
        let rest = split_query(url, |key, value| {
            match key {
                "schema" => schema = Some(value.to_owned()),
                "listen" => listen = yes_or_no(key, value)?,
                "sslmode" => drop(tls.set("tls", tls_of_sslmode(value)?)?),
                _ => return Ok(tls.set(key, value)? || common.set(key, value)?),
            }
            Ok(true)
        })?;
        // The driver's error may quote what it could not read; a password is not for logs.
        let config: tokio_postgres::Config = rest.parse().map_err(|_| {
            let keys = options::KEYS;
            Error::invalid(format!(
                "the driver cannot read this PostgreSQL URL; write `postgres://user:password@host:port/database`, \
                 escape odd characters as %XX, and use the driver's keys or ours: schema, listen, {keys}"
            ))
        })?;
        let mut options = PostgresOptions { listen, common, ..PostgresOptions::new(config) };
        if let Some(tls) = tls.finish()? {
            options = options.tls(tls);
        }
        schema.map_or(Ok(options.clone()), |it| options.schema(&it))
    }

    /// Encrypt, and check the server's certificate. Usually off.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.config.ssl_mode(SslMode::Require);
        self.tls = Some(tls);
        self
    }

    /// The schema for our tables and functions. Usually `lockkeeper`.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless it consists of small letters, digits and `_`.
    pub fn schema(mut self, schema: &str) -> Result<Self, Error> {
        if !is_plain_name(schema) {
            return Err(Error::invalid(format!(
                "the schema cannot be {schema:?}; use small letters, digits and `_`, at most 48"
            )));
        }
        schema.clone_into(&mut self.schema);
        Ok(self)
    }

    /// Whether to hear of turns by `LISTEN`. Usually yes. Behind a pooler nobody listens, whatever is said here:
    /// whoever waits looks at the line instead.
    #[must_use]
    pub fn listen(mut self, listen: bool) -> Self {
        self.listen = listen;
        self
    }

    /// After how long a silent server counts as unreachable. Usually 10 seconds.
    #[must_use]
    pub fn answer_within(mut self, answer_within: Duration) -> Self {
        self.common.answer_within = answer_within.max(Duration::from_millis(1));
        self
    }

    /// How often what dead processes left is removed, by whichever process comes first. Usually every minute.
    #[must_use]
    pub fn clean_every(mut self, clean_every: Duration) -> Self {
        self.common.clean_every = clean_every.max(Duration::from_millis(10));
        self
    }

    /// Whether to create the tables if there are none. Usually yes; the plain DDL is [`ddl`](super::ddl).
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.common.create = create;
        self
    }
}

/// What is said in the words of libpq.
fn tls_of_sslmode(value: &str) -> Result<&'static str, Error> {
    match value {
        "disable" => Ok("off"),
        "require" | "verify-ca" | "verify-full" => Ok("on"),
        _ => Err(Error::invalid(format!(
            "`sslmode` cannot be {value:?}: encryption that an attacker can switch off is none; \
             write `tls=on`, which always checks the server's certificate, or `tls=off`"
        ))),
    }
}

fn yes_or_no(key: &str, value: &str) -> Result<bool, Error> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(Error::invalid(format!("`{key}` cannot be {value:?}; it is `yes` or `no`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_sets_what_can_be_chosen() {
        let url = "postgres://me:secret@a:1,b:2/db?schema=locks&listen=no&create=no&sslmode=disable";
        let options = PostgresOptions::from_url(url).unwrap();
        assert_eq!(options.schema, "locks");
        assert!(!options.listen && !options.common.create);
        assert_eq!(options.config.get_ports(), [1, 2]);
        assert_eq!(options.config.get_dbname(), Some("db"));
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for url in [
            "mysql://h/d",
            "postgres://me:secret@h/d?schma=x",
            "postgres://me:secret@h/d?schema=a-b",
            "postgres://me:secret@h/d?listen=maybe",
            "postgres://me:secret@h:port/d",
            "postgres://me:secret@h/d?answer_within=soon",
            "postgres://me:secret@h/d?tls=perhaps",
            "postgres://me:secret@h/d?ca=ca.pem",
            "postgres://me:secret@h/d?sslmode=prefer",
        ] {
            let error = PostgresOptions::from_url(url).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{url}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}
