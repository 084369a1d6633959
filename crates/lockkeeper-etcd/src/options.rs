//! Where the store is and how to speak to it: the URL, parsed and checked at once.

use std::ops::RangeInclusive;
use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::address::{Host, Secret, decoded, hosts};
use lockkeeper_core::kit::settings::Form;
use lockkeeper_core::kit::tls::Tls;

const FORM: Form =
    Form::new("etcd", "etcd://[user:password@]host[:port],host…[/prefix][?timeout=2s], or etcds:// for TLS");
const PORT: u16 = 2379;
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// Everything needed to open the store. Made by [`EtcdOptions::parse`] and changed by its setters.
///
/// `Debug` shows no secret.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_etcd::EtcdOptions;
///
/// let options = EtcdOptions::parse("etcd://one,two:2390/shop?timeout=500ms")?
///     .connect_timeout(Duration::from_secs(1))
///     .user("locks")
///     .password("sesame");
/// assert_eq!(options.endpoints(), ["one:2379", "two:2390"]);
/// assert!(!format!("{options:?}").contains("sesame"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// The nodes, `host:port`.
    pub(crate) endpoints: Vec<String>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) tls: Option<Tls>,
    /// The name in the servers' certificates, if it is not the host's.
    pub(crate) domain: Option<String>,
    /// What the name of every key begins with, without the slash that follows.
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    connect_timeout: Option<Duration>,
}

impl EtcdOptions {
    /// Read a URL: `etcd://[user:password@]host[:port],host…[/prefix][?timeout=2s]`. Name all nodes: any minority of them
    /// may be out of reach.
    ///
    /// Settings: `timeout`, `connect_timeout`, `password_file`, `tls` with the files `ca`, `cert` and `key` and the name
    /// `domain`. `etcds://` means TLS, too.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right. The message holds no secret.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = FORM.address(url)?;
        let secure = match address.scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(FORM.wrong("it does not begin with etcd:// or etcds://")),
        };
        let prefix = match address.path {
            "" => "lockkeeper".to_owned(),
            it => decoded(it).map_err(|it| FORM.wrong(it))?,
        };
        let endpoints = hosts(address.hosts, PORT).map_err(|it| FORM.wrong(it))?;
        let mut settings = FORM.settings(address.query)?;
        let timeout = settings.span("timeout")?.unwrap_or(Duration::from_secs(2));
        let connect_timeout = settings.span("connect_timeout")?;
        let (user, password) = settings.login(&address)?;
        let (tls, domain) = (settings.tls(secure)?, settings.text("domain")?);
        settings.finish()?;
        let endpoints = endpoints.iter().map(Host::to_string).collect();
        let options =
            EtcdOptions { endpoints, user, password, tls, domain, prefix, timeout, connect_timeout };
        options.check()?;
        Ok(options)
    }

    /// The same, if it can be obtained.
    pub(crate) fn ready(self) -> Result<Self, Error> {
        self.check()?;
        if self.tls.is_some() && !cfg!(feature = "tls") {
            return Err(Tls::lacking(crate::fault::NAME, "lockkeeper-etcd"));
        }
        Ok(self)
    }

    /// Refuse what makes no sense.
    fn check(&self) -> Result<(), Error> {
        if [self.timeout, self.connect_patience()].iter().any(|it| !TIMEOUTS.contains(it)) {
            return Err(FORM.wrong("`timeout` and `connect_timeout` must be from 10ms to 1m"));
        }
        if self.prefix.chars().any(char::is_control) || self.prefix.ends_with('/') {
            return Err(FORM.wrong("the prefix holds a control character or ends with a slash"));
        }
        if self.user.is_some() && self.password.as_ref().is_none_or(|it| it.reveal().is_empty()) {
            return Err(FORM.wrong("there is a user and no password"));
        }
        if self.domain.is_some() && self.tls.is_none() {
            return Err(FORM.wrong("`domain` is for TLS; add `tls=on`"));
        }
        Ok(())
    }

    /// The user, if the servers ask for one. It needs a password.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(Secret::new(password));
        self
    }

    /// Encrypt, and check the servers' certificates. Default: off.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The name in the servers' certificates. Default: that of the host.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// What the name of every key begins with, without the slash that follows. Default: `lockkeeper`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long an answer is waited for, from 10 ms to a minute. After half of it the next node is asked as well; after
    /// twice this the outcome is unknown. Default: 2 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a connection is waited for, from 10 ms to a minute. Default: as long as an answer.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The nodes, `host:port`.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    pub(crate) fn connect_patience(&self) -> Duration {
        self.connect_timeout.unwrap_or(self.timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_url_is_read() {
        let options = EtcdOptions::parse("etcd://me:p%40ss@one,two:99,[::1]:7/team/a?timeout=500ms").unwrap();
        assert_eq!(options.endpoints, ["one:2379", "two:99", "[::1]:7"]);
        assert_eq!((options.user.as_deref(), options.prefix.as_str()), (Some("me"), "team/a"));
        assert_eq!(options.password.as_ref().unwrap().reveal(), "p@ss");
        assert_eq!(options.timeout, Duration::from_millis(500));
        assert!(!format!("{options:?}").contains("p@ss"));
        let plain = EtcdOptions::parse("etcd://h?connect_timeout=3s").unwrap();
        assert_eq!((plain.prefix.as_str(), plain.connect_patience()), ("lockkeeper", Duration::from_secs(3)));
        assert_eq!(options.connect_patience(), Duration::from_millis(500), "as `timeout` if nothing is said");
        assert!(plain.timeout(Duration::ZERO).check().is_err());
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_its_secrets() {
        let urls = [
            "http://h",
            "etcd://",
            "etcd://h,",
            "etcd://h:x",
            "etcd://h:70000",
            "etcd://me:canary@h?colour=blue",
            "etcd://me:canary@h?timeout=soon",
            "etcd://me:canary@h?timeout=1h",
            "etcd://me:canary@h/%zz",
            "etcd://me@h",
            "etcd://me:canary@h?ca=file",
            "etcd://h h",
            "etcds://h?cert=a",
            "etcds://h?tls=off",
            "etcd://h?domain=x",
            "etcd://me:canary@h?password_file=x",
        ];
        for url in urls {
            let error = EtcdOptions::parse(url).unwrap_err().to_string();
            assert!(!error.contains("canary"), "{url}: {error}");
        }
    }
}
