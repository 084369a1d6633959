//! What can be chosen about a MySQL or MariaDB store, in code or in a URL.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::kit::settings::Form;
use lockkeeper_core::kit::tls::Tls;
use mysql_async::{Opts, OptsBuilder};

use crate::options::{Common, for_driver};

const FORM: Form = Form::new("MySQL", "mysql://user:password@host[:port]/database[?timeout=10s]");

/// The settings that the driver reads itself. The others that it knows are about pools and its own TLS.
const OF_THE_DRIVER: &[&str] = &[
    "compression",
    "enable_cleartext_plugin",
    "max_allowed_packet",
    "secure_auth",
    "socket",
    "stmt_cache_size",
    "tcp_keepalive",
    "tcp_nodelay",
    "wait_timeout",
];

/// How locks are kept. Locks of the two modes do not exclude each other, so a database keeps those of one mode only.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_sql::MysqlOptions;
/// use lockkeeper_sql::mysql::MysqlMode;
///
/// let options = MysqlOptions::parse("mysql://locks@db-1/shop?mode=session")?;
/// assert_eq!(options.chosen_mode(), MysqlMode::Session);
/// assert_eq!(MysqlOptions::parse("mysql://locks@db-1/shop")?.mode(MysqlMode::Session), options);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MysqlMode {
    /// In a table: [`Mysql`](super::Mysql). They survive connections, restarts and failovers.
    #[default]
    Durable,
    /// As named locks of sessions: [`MysqlSessions`](super::MysqlSessions). Quicker, and bound to connections.
    Session,
}

const MODES: &[(&str, MysqlMode)] = &[("durable", MysqlMode::Durable), ("session", MysqlMode::Session)];

/// Everything needed to open the store. Made by [`MysqlOptions::parse`] and changed by its setters.
///
/// `Debug` shows no secret.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_sql::MysqlOptions;
///
/// let options = MysqlOptions::parse("mysql://locks:secret@db-1/shop?create=no")?
///     .timeout(Duration::from_secs(5))
///     .clean_every(Duration::from_secs(300));
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct MysqlOptions {
    pub(crate) opts: Opts,
    pub(crate) common: Common,
    connect_timeout: Option<Duration>,
    mode: MysqlMode,
    pub(crate) waiting_max: usize,
    pub(crate) tls: Option<Tls>,
}

/// Shows no password.
impl fmt::Debug for MysqlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlOptions")
            .field("host", &self.opts.ip_or_hostname())
            .field("port", &self.opts.tcp_port())
            .field("database", &self.opts.db_name())
            .field("common", &self.common)
            .field("connect_timeout", &self.connect_timeout)
            .field("mode", &self.mode)
            .field("waiting_max", &self.waiting_max)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl MysqlOptions {
    /// Read a URL: `mysql://user:password@host:port/database?setting=value&setting=value`. `mariadb://` is the same.
    ///
    /// Settings: `mode` (`durable`, `session`), `waiting_max` (of session locks), `timeout`, `connect_timeout` and `clean_every`
    /// (such as `10s`), `create` (`yes`, `no`), `password_file`, `tls` (`on`, `off`) with the files `ca`, `cert` and `key`. The driver reads `compression`, `enable_cleartext_plugin`,
    /// `max_allowed_packet`, `secure_auth`, `socket`, `stmt_cache_size`, `tcp_keepalive`, `tcp_nodelay` and `wait_timeout`; all
    /// others are refused.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right. The message holds no secret.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = FORM.address(url)?;
        if !["mysql", "mariadb"].contains(&address.scheme) {
            return Err(FORM.wrong("it does not begin with mysql:// or mariadb://"));
        }
        let mut settings = FORM.settings(address.query)?;
        let mode = settings.choice("mode", MODES)?.unwrap_or_default();
        let waiting_max = settings.number("waiting_max")?.unwrap_or(64);
        let common = Common::read(&mut settings)?;
        let connect_timeout = settings.span("connect_timeout")?;
        let (_, password) = settings.login(&address)?;
        let tls = settings.tls(false)?;
        for name in ["require_ssl", "verify_ca", "verify_identity", "built_in_roots"] {
            settings.refused(name, "write `tls=on`, which always checks the server's certificate")?;
        }
        for name in ["pool_min", "pool_max"] {
            settings.refused(name, "there is no pool: locks share a few connections")?;
        }
        let plain = url.replacen("mariadb://", "mysql://", 1);
        let rest = for_driver(&plain, &settings.passed(OF_THE_DRIVER));
        settings.finish()?;
        // The driver's error may quote what it could not read; a password is not for logs.
        let unread = "the driver cannot read it; escape odd characters as %XX, and look at its own settings";
        let opts = Opts::from_url(&rest).map_err(|_| FORM.wrong(unread))?;
        if opts.db_name().is_none_or(str::is_empty) {
            return Err(FORM.wrong("it names no database"));
        }
        // A dead peer must be noticed in seconds, not in the two hours of the system's default.
        let keepalive = opts.tcp_keepalive().unwrap_or(Duration::from_secs(10));
        let mut opts = OptsBuilder::from_opts(opts).tcp_keepalive(Some(keepalive)).prefer_socket(false);
        if let Some(password) = password {
            opts = opts.pass(Some(password.reveal()));
        }
        let options = MysqlOptions { opts: opts.into(), common, connect_timeout, mode, waiting_max, tls };
        options.check()?;
        Ok(options)
    }

    /// Refuse what makes no sense.
    fn check(&self) -> Result<(), Error> {
        if self.waiting_max == 0 {
            return Err(
                FORM.wrong("with `waiting_max=0` nobody could wait for a session lock; use 1 or more")
            );
        }
        Ok(())
    }

    /// The same, if it can be obtained, with all that was chosen about TLS said to the driver.
    pub(crate) fn ready(self) -> Result<Self, Error> {
        self.check()?;
        if self.tls.is_some() && !cfg!(feature = "tls") {
            return Err(Tls::lacking(super::NAME, "lockkeeper-sql"));
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            use mysql_async::{ClientIdentity, SslOpts};

            let authorities =
                crate::tls::authorities(tls)?.into_iter().map(|it| it.to_vec().into()).collect();
            let identity = tls.read_identity()?;
            let identity = identity.map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
            let ssl = SslOpts::default()
                .with_disable_built_in_roots(true)
                .with_root_certs(authorities)
                .with_client_identity(identity);
            let opts = OptsBuilder::from_opts(self.opts).ssl_opts(ssl).into();
            return Ok(MysqlOptions { opts, ..self });
        }
        Ok(self)
    }

    /// What to tell the driver for connections of your own: the same server, password file and TLS. It holds the password.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a file for TLS cannot be used; [`Error::Unsupported`] if TLS is not built in.
    pub fn driver(self) -> Result<Opts, Error> {
        Ok(self.ready()?.opts)
    }

    /// How long opening a connection may take.
    pub(crate) fn connect_patience(&self) -> Duration {
        self.connect_timeout.unwrap_or(self.common.timeout)
    }

    /// The user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.opts = OptsBuilder::from_opts(self.opts).user(Some(user)).into();
        self
    }

    /// The password.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.opts = OptsBuilder::from_opts(self.opts).pass(Some(password)).into();
        self
    }

    /// Encrypt, and check the server's certificate. Default: off.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How locks are kept: in a table, or by sessions. Default: in a table.
    #[must_use]
    pub fn mode(mut self, mode: MysqlMode) -> Self {
        self.mode = mode;
        self
    }

    /// How locks are kept, as it was chosen.
    pub fn chosen_mode(&self) -> MysqlMode {
        self.mode
    }

    /// For session locks: how many connections may wait at once, each for one contended name. Default: 64.
    /// Names above it take turns, and are not first come first served.
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

    /// How long a connection is waited for. Default: as long as an answer.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout.max(Duration::from_millis(1)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_sets_what_can_be_chosen() {
        let url = "mariadb://me:secret@h:3307/db?create=no&timeout=2s&connect_timeout=3s&tcp_nodelay=false";
        let options = MysqlOptions::parse(url).unwrap();
        assert!(!options.common.create && !options.opts.tcp_nodelay());
        assert_eq!(options.common.timeout, Duration::from_secs(2));
        assert_eq!(options.connect_patience(), Duration::from_secs(3));
        assert_eq!((options.opts.tcp_port(), options.opts.db_name()), (3307, Some("db")));
        assert!(!format!("{options:?}").contains("secret"));
        let options = options.user("you").password("other");
        assert_eq!((options.opts.user(), options.opts.pass()), (Some("you"), Some("other")));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for (url, said) in [
            ("postgres://h/d", "mysql://"),
            ("mysql://me:secret@h", "names no database"),
            ("mysql://me:secret@h/d?creat=no", "did you mean `create`?"),
            ("mysql://me:secret@h/d?tcp_nodelai=no", "did you mean `tcp_nodelay`?"),
            ("mysql://me:secret@h/d?answer_within=5s", "it is called `timeout`"),
            ("mysql://me:secret@h/d?create=maybe", "`yes` or `no`"),
            ("mysql://me:secret@h:port/d", "the driver cannot read"),
            ("mysql://me:secret@h/d?tls=perhaps", "`on` or `off`"),
            ("mysql://me:secret@h/d?ca=ca.pem", "add `tls=on`"),
            ("mysql://me:secret@h/d?require_ssl=true", "write `tls=on`"),
            ("mysql://me:secret@h/d?pool_max=5", "no pool"),
            ("mysql://me:secret@h/d?mode=fast", "`durable` or `session`"),
            ("mysql://me:secret@h/d?mode=session&waiting_max=0", "1 or more"),
        ] {
            let error = MysqlOptions::parse(url).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{url}");
            assert!(error.to_string().contains(said), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }

    #[test]
    fn what_the_url_may_not_say_the_program_may_not_either() {
        let options = MysqlOptions::parse("mysql://h/d?mode=session").unwrap().waiting_max(0);
        let refused = options.ready().unwrap_err().to_string();
        assert!(refused.contains("1 or more"), "{refused}");
    }
}
