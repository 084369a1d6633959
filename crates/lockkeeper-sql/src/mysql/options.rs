//! What can be chosen about a MySQL or MariaDB store, in code or in a URL.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::Error;
use mysql_async::{Opts, OptsBuilder};

use crate::options::{self, Common, split_query};
use crate::tls::{Tls, Words};

/// Which server, and how.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_sql::MysqlOptions;
///
/// let options = MysqlOptions::from_url("mysql://locks:secret@db-1/shop?create=no")?
///     .answer_within(Duration::from_secs(5))
///     .clean_every(Duration::from_secs(300));
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct MysqlOptions {
    pub(crate) opts: Opts,
    pub(crate) common: Common,
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
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl MysqlOptions {
    /// A server described by the driver's own options, with everything else as usual.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they name no database.
    pub fn new(opts: Opts) -> Result<Self, Error> {
        if opts.db_name().is_none_or(str::is_empty) {
            return Err(Error::invalid(
                "no database is named; write `mysql://user:password@host:port/database`",
            ));
        }
        // A dead peer must be noticed in seconds, not in the two hours of the system's default.
        let keepalive = opts.tcp_keepalive().unwrap_or(Duration::from_secs(10));
        let opts = OptsBuilder::from_opts(opts).tcp_keepalive(Some(keepalive)).prefer_socket(false);
        Ok(MysqlOptions { opts: opts.into(), common: Common::default(), tls: None })
    }

    /// Read a URL: `mysql://user:password@host:port/database?key=value&key=value`.
    ///
    /// Keys of ours: `answer_within` (such as `10s`), `clean_every` (such as `1m`), `create` (`yes`, `no`), `tls`
    /// (`on`, `off`) with the files `ca`, `cert` and `key`. All others are the driver's.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no such URL, names no database, or holds an unknown key or value.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let Some(rest) = url.strip_prefix("mysql://").or_else(|| url.strip_prefix("mariadb://")) else {
            return Err(Error::invalid(
                "this is no MySQL URL; write `mysql://user:password@host:port/database`",
            ));
        };
        let (mut common, mut tls) = (Common::default(), Words::default());
        let rest = split_query(&format!("mysql://{rest}"), |key, value| match key {
            "require_ssl" | "verify_ca" | "verify_identity" | "built_in_roots" => {
                Err(Error::invalid(format!(
                    "`{key}` is not used here; write `tls=on`, which always checks the server's certificate"
                )))
            }
            _ => Ok(tls.set(key, value)? || common.set(key, value)?),
        })?;
        // The driver's error may quote what it could not read; a password is not for logs.
        let opts = Opts::from_url(&rest).map_err(|_| {
            let keys = options::KEYS;
            Error::invalid(format!(
                "the driver cannot read this MySQL URL; write `mysql://user:password@host:port/database`, \
                 escape odd characters as %XX, and use the driver's keys or ours: {keys}"
            ))
        })?;
        Ok(MysqlOptions { common, tls: tls.finish()?, ..MysqlOptions::new(opts)? })
    }

    /// Encrypt, and check the server's certificate. Usually off.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Whether the connection is encrypted, by our choice or by that of the driver's options.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.opts.ssl_opts().is_some()
    }

    /// Make the driver's options say what was chosen about TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn secured(mut self) -> Result<Self, Error> {
        use mysql_async::{ClientIdentity, SslOpts};

        let Some(tls) = &self.tls else {
            return Ok(self);
        };
        let authorities = tls.authorities()?.into_iter().map(|it| it.to_vec().into()).collect();
        let identity = tls.identity()?.map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
        let ssl = SslOpts::default()
            .with_disable_built_in_roots(true)
            .with_root_certs(authorities)
            .with_client_identity(identity);
        self.opts = OptsBuilder::from_opts(self.opts).ssl_opts(ssl).into();
        Ok(self)
    }

    /// Refuse what was not compiled in.
    #[cfg(not(feature = "tls"))]
    pub(crate) fn secured(self) -> Result<Self, Error> {
        crate::tls::refuse(self.tls.as_ref()).map(|()| self)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_sets_what_can_be_chosen() {
        let url = "mariadb://me:secret@h:3307/db?create=no&answer_within=2s";
        let options = MysqlOptions::from_url(url).unwrap();
        assert!(!options.common.create);
        assert_eq!(options.common.answer_within, Duration::from_secs(2));
        assert_eq!((options.opts.tcp_port(), options.opts.db_name()), (3307, Some("db")));
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for url in [
            "postgres://h/d",
            "mysql://me:secret@h",
            "mysql://me:secret@h/d?creat=no",
            "mysql://me:secret@h/d?create=maybe",
            "mysql://me:secret@h:port/d",
            "mysql://me:secret@h/d?tls=perhaps",
            "mysql://me:secret@h/d?ca=ca.pem",
            "mysql://me:secret@h/d?require_ssl=true",
        ] {
            let error = MysqlOptions::from_url(url).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{url}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}
