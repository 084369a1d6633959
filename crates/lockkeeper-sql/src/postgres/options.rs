//! What can be chosen about a PostgreSQL store, in code or in a URL.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::kit::settings::Form;
use lockkeeper_core::kit::tls::Tls;
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::options::{Common, for_driver, is_plain_name};

const FORM: Form =
    Form::new("PostgreSQL", "postgres://user:password@host[:port],host…/database[?timeout=10s]");

/// The settings that the driver reads itself. We set the others that it knows.
const OF_THE_DRIVER: &[&str] = &[
    "application_name",
    "options",
    "channel_binding",
    "tcp_user_timeout",
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
];

/// How locks are kept. Locks of the two modes do not exclude each other, so a schema keeps those of one mode only.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_sql::PostgresOptions;
/// use lockkeeper_sql::postgres::PostgresMode;
///
/// let options = PostgresOptions::parse("postgres://locks@db-1/shop?mode=session")?;
/// assert_eq!(options.mode(PostgresMode::Session), PostgresOptions::parse("postgres://locks@db-1/shop?mode=session")?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostgresMode {
    /// In a table: [`Postgres`](super::Postgres). They survive connections, restarts and failovers.
    #[default]
    Durable,
    /// As advisory locks of sessions: [`PostgresSessions`](super::PostgresSessions). Quicker, and bound to connections.
    Session,
}

/// Everything needed to open the store. Made by [`PostgresOptions::parse`] and changed by its setters.
///
/// `Debug` shows no secret.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_sql::PostgresOptions;
///
/// let options = PostgresOptions::parse("postgres://locks:secret@db-1,db-2/shop?listen=no")?
///     .schema("shop_locks")
///     .timeout(Duration::from_secs(5));
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    pub(crate) config: Config,
    pub(crate) schema: String,
    pub(crate) listen: bool,
    pub(crate) mode: PostgresMode,
    pub(crate) waiting_max: usize,
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
            .field("mode", &self.mode)
            .field("waiting_max", &self.waiting_max)
            .field("common", &self.common)
            .field("connect_timeout", &self.config.get_connect_timeout())
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// Read a URL: `postgres://user:password@host:port/database?setting=value&setting=value`. Of several hosts, separated
    /// by commas, the one is used that takes writes.
    ///
    /// Settings: `schema` (default `lockkeeper`), `mode` (`durable`, `session`), `waiting_max` (of session locks), `listen`
    /// (`yes`, `no`), `timeout`, `connect_timeout` and `clean_every` (such
    /// as `10s`), `create` (`yes`, `no`), `password_file`, `tls` (`on`, `off`; `sslmode` is understood) with the files `ca`,
    /// `cert` and `key`. The driver reads `application_name`, `options`, `channel_binding`, `tcp_user_timeout`, `host`,
    /// `hostaddr`, `port`, `user`, `password` and `dbname`; all others are refused.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right. The message holds no secret.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = FORM.address(url)?;
        if !["postgres", "postgresql"].contains(&address.scheme) {
            return Err(FORM.wrong("it does not begin with postgres:// or postgresql://"));
        }
        let mut settings = FORM.settings(address.query)?;
        let (schema, listen) = (settings.text("schema")?, settings.flag("listen")?);
        let mode = settings.choice("mode", MODES)?;
        let waiting_max = settings.number("waiting_max")?;
        let common = Common::read(&mut settings)?;
        let connect_timeout = settings.span("connect_timeout")?;
        let (_, password) = settings.login(&address)?;
        let ssl = settings.read("sslmode", TLS_WORDS, tls_of_sslmode)?;
        let tls = settings.tls(ssl == Some(true))?;
        if ssl == Some(false) && tls.is_some() {
            return Err(FORM.wrong("`sslmode=disable` and `tls=on` contradict each other"));
        }
        settings.refused("target_session_attrs", "a session that cannot write is of no use")?;
        let rest = for_driver(url, &settings.passed(OF_THE_DRIVER));
        settings.finish()?;
        // The driver's error may quote what it could not read; a password is not for logs.
        let unread = "the driver cannot read it; escape odd characters as %XX, and look at its own settings";
        let mut config: Config = rest.parse().map_err(|_| FORM.wrong(unread))?;
        if let Some(password) = password {
            config.password(password.reveal());
        }
        let mut options = PostgresOptions { common, tls, ..PostgresOptions::of(config) };
        options.listen = listen.unwrap_or(options.listen);
        options.mode = mode.unwrap_or(options.mode);
        options.waiting_max = waiting_max.unwrap_or(options.waiting_max);
        options.schema = schema.unwrap_or(options.schema);
        if let Some(timeout) = connect_timeout {
            options = options.connect_timeout(timeout);
        }
        options.check()?;
        Ok(options)
    }

    fn of(mut config: Config) -> Self {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("lockkeeper");
        }
        config.connect_timeout(Duration::from_secs(5));
        // A dead peer must be noticed in seconds, not in the two hours of the system's default.
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(3));
        config.keepalives_retries(3);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(20));
        }
        PostgresOptions {
            config,
            schema: "lockkeeper".to_owned(),
            listen: true,
            mode: PostgresMode::Durable,
            waiting_max: 64,
            common: Common::default(),
            tls: None,
        }
    }

    /// Refuse what makes no sense.
    fn check(&self) -> Result<(), Error> {
        if !is_plain_name(&self.schema) {
            let what = format!(
                "the schema cannot be {:?}; use small letters, digits and `_`, at most 48",
                self.schema
            );
            return Err(FORM.wrong(what));
        }
        if self.waiting_max == 0 {
            return Err(
                FORM.wrong("with `waiting_max=0` nobody could wait for a session lock; use 1 or more")
            );
        }
        Ok(())
    }

    /// The same, if it can be obtained, with all that was chosen said to the driver.
    pub(crate) fn ready(mut self) -> Result<Self, Error> {
        self.check()?;
        if self.tls.is_some() && !cfg!(feature = "tls") {
            return Err(Tls::lacking(super::NAME, "lockkeeper-sql"));
        }
        self.config.ssl_mode(if self.tls.is_some() { SslMode::Require } else { SslMode::Disable });
        Ok(self)
    }

    /// The user.
    #[must_use]
    pub fn user(mut self, user: impl AsRef<str>) -> Self {
        self.config.user(user.as_ref());
        self
    }

    /// The password.
    #[must_use]
    pub fn password(mut self, password: impl AsRef<str>) -> Self {
        self.config.password(password.as_ref());
        self
    }

    /// Encrypt, and check the server's certificate. Default: off.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The schema for our tables and functions: small letters, digits and `_`. Default: `lockkeeper`.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Whether to hear of turns by `LISTEN`. Default: yes. Behind a pooler nobody listens, whatever is said here:
    /// whoever waits looks at the line instead.
    #[must_use]
    pub fn listen(mut self, listen: bool) -> Self {
        self.listen = listen;
        self
    }

    /// How locks are kept: in a table, or by sessions. Default: in a table.
    #[must_use]
    pub fn mode(mut self, mode: PostgresMode) -> Self {
        self.mode = mode;
        self
    }

    /// How locks are kept, as it was chosen.
    pub fn chosen_mode(&self) -> PostgresMode {
        self.mode
    }

    /// For session locks: how many connections may wait at once, each for one contended name. Default: 64. Names above it
    /// take turns, and are not first come first served.
    #[must_use]
    pub fn waiting_max(mut self, waiting_max: usize) -> Self {
        self.waiting_max = waiting_max;
        self
    }

    /// How long an answer is waited for before a silent server counts as unreachable. Default: 10 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.common.set_timeout(timeout);
        self
    }

    /// How long a connection to one host is waited for. Default: 5 seconds.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout(timeout.max(Duration::from_millis(1)));
        self
    }

    /// How often what dead processes left is removed, by whichever process comes first. Default: every minute. For session locks
    /// also after how long a session of a ttl that nobody uses is closed, if its ttl is not longer.
    #[must_use]
    pub fn clean_every(mut self, clean_every: Duration) -> Self {
        self.common.set_clean_every(clean_every);
        self
    }

    /// Whether to create the tables if there are none. Default: yes; the plain DDL is [`ddl`](super::ddl).
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.common.create = create;
        self
    }
}

const MODES: &[(&str, PostgresMode)] =
    &[("durable", PostgresMode::Durable), ("session", PostgresMode::Session)];

const TLS_WORDS: &str = "`tls=on`, which always checks the server's certificate, or `tls=off`: encryption that an attacker \
                         can switch off is none";

/// What is said in the words of libpq.
fn tls_of_sslmode(value: &str) -> Option<bool> {
    match value {
        "disable" => Some(false),
        "require" | "verify-ca" | "verify-full" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_sets_what_can_be_chosen() {
        let url = "postgres://me:secret@a:1,b:2/db?schema=locks&listen=no&create=no&sslmode=disable\
                   &connect_timeout=3s&application_name=my%20shop";
        let options = PostgresOptions::parse(url).unwrap();
        assert_eq!(options.schema, "locks");
        assert!(!options.listen && !options.common.create);
        assert_eq!(options.config.get_ports(), [1, 2]);
        assert_eq!(options.config.get_dbname(), Some("db"));
        assert_eq!(options.config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(options.config.get_application_name(), Some("my shop"));
        assert!(!format!("{options:?}").contains("secret"));
        assert!(options.schema("a-b").check().is_err(), "what is set in code is checked as well");
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for (url, said) in [
            ("mysql://h/d", "postgres://"),
            ("postgres://me:secret@h/d?schma=x", "did you mean `schema`?"),
            ("postgres://me:secret@h/d?timeuot=5s", "did you mean `timeout`?"),
            ("postgres://me:secret@h/d?aplication_name=x", "did you mean `application_name`?"),
            ("postgres://me:secret@h/d?answer_within=5s", "it is called `timeout`"),
            ("postgres://me:secret@h/d?connect_timeout=5", "such as `500ms`"),
            ("postgres://me:secret@h/d?target_session_attrs=any", "cannot write"),
            ("postgres://me:secret@h/d?schema=a-b", "small letters"),
            ("postgres://me:secret@h/d?listen=maybe", "`yes` or `no`"),
            ("postgres://me:secret@h/d?mode=fast", "`durable` or `session`"),
            ("postgres://me:secret@h/d?mode=session&waiting_max=0", "1 or more"),
            ("postgres://me:secret@h:port/d", "the driver cannot read"),
            ("postgres://me:secret@h/d?timeout=soon", "such as `500ms`"),
            ("postgres://me:secret@h/d?tls=perhaps", "`on` or `off`"),
            ("postgres://me:secret@h/d?ca=ca.pem", "add `tls=on`"),
            ("postgres://me:secret@h/d?sslmode=prefer", "write `tls=on`"),
            ("postgres://me:secret@h/d?sslmode=disable&tls=on", "contradict"),
        ] {
            let error = PostgresOptions::parse(url).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{url}");
            assert!(error.to_string().contains(said), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}
