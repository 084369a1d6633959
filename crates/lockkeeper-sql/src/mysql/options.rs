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
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl MysqlOptions {
    /// Read a URL: `mysql://user:password@host:port/database?setting=value&setting=value`. `mariadb://` is the same.
    ///
    /// Settings: `timeout`, `connect_timeout` and `clean_every` (such as `10s`), `create` (`yes`, `no`), `password_file`, `tls`
    /// (`on`, `off`) with the files `ca`, `cert` and `key`. The driver reads `compression`, `enable_cleartext_plugin`,
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
        Ok(MysqlOptions { opts: opts.into(), common, connect_timeout, tls })
    }

    /// The same, if it can be had, with all that was chosen about TLS said to the driver.
    pub(crate) fn ready(self) -> Result<Self, Error> {
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

    /// Encrypt, and check the server's certificate. Usually off.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How long an answer is waited for before a silent server counts as unreachable. Usually 10 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.common.set_timeout(timeout);
        self
    }

    /// How long a connection is waited for. Usually as long as an answer.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout.max(Duration::from_millis(1)));
        self
    }

    /// How often what dead processes left is removed, by whichever process comes first. Usually every minute.
    #[must_use]
    pub fn clean_every(mut self, clean_every: Duration) -> Self {
        self.common.set_clean_every(clean_every);
        self
    }

    /// Whether to create the tables if there are none. Usually yes; the plain DDL is [`ddl`](super::ddl).
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
        ] {
            let error = MysqlOptions::parse(url).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{url}");
            assert!(error.to_string().contains(said), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}
