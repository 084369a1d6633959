//! Where the store is and how to speak to it: the URL, parsed and checked at once.

use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::address::{Address, Host, decoded, hosts, unknown_setting};

pub use lockkeeper_core::address::Secret;

const FORM: &str = "etcd://[user:password@]host[:port],host…[/prefix][?timeout=2s], or etcds:// for TLS";
const PORT: u16 = 2379;
/// What may stand after `?`.
const KNOWN: [&str; 6] = ["timeout", "password_file", "ca", "cert", "key", "domain"];

/// Everything needed to open the store. Made by [`Options::parse`]; fields may be changed afterwards.
///
/// `Debug` shows no secret.
///
/// ```no_run
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_etcd::{Options, Secret, Tls};
///
/// let mut options = Options::parse("etcds://one,two:2390/shop?timeout=500ms")?;
/// assert_eq!(options.endpoints, ["one:2379", "two:2390"]);
/// assert_eq!((options.prefix.as_str(), options.timeout), ("shop", Duration::from_millis(500)));
/// options.tls = Some(Tls { ca: Some("/etc/ssl/shop.pem".into()), ..Tls::default() });
/// options.password = Some(Secret::new("sesame"));
/// assert!(!format!("{options:?}").contains("sesame"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The nodes, `host:port`. Name all: any minority of them may be out of reach.
    pub endpoints: Vec<String>,
    /// The user, if the server asks for one.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// TLS, if the scheme is `etcds`.
    pub tls: Option<Tls>,
    /// What the name of every key begins with, without the slash that follows.
    pub prefix: String,
    /// Patience with an answer. After half of it the next endpoint is asked as well; after twice this the outcome is
    /// unknown.
    pub timeout: Duration,
}

/// Files for TLS. Without `ca` the system's own list of authorities counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authority that signed the servers' certificates, PEM.
    pub ca: Option<String>,
    /// Our own certificate, PEM.
    pub cert: Option<String>,
    /// The key to our certificate, PEM.
    pub key: Option<String>,
    /// The name in the servers' certificates, if it is not the host's.
    pub domain: Option<String>,
}

impl Options {
    /// Read a URL: `etcd://[user:password@]host[:port],host…[/prefix][?timeout=2s]`.
    ///
    /// `etcds://` means TLS and takes the files `ca`, `cert` and `key` and the name `domain`. A password may
    /// also come from the file `password_file`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right. The message holds no secret.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = Address::read(url).map_err(|it| bad(&it))?;
        let tls = match address.scheme {
            "etcd" => None,
            "etcds" => Some(Tls::default()),
            _ => return Err(bad("it does not begin with etcd:// or etcds://")),
        };
        let prefix = match address.path {
            "" => "lockkeeper".to_owned(),
            it => decoded(it).map_err(|it| bad(&it))?,
        };
        let endpoints = hosts(address.hosts, PORT).map_err(|it| bad(&it))?;
        let mut options = Options {
            endpoints: endpoints.iter().map(Host::to_string).collect(),
            user: address.user.clone(),
            password: address.password.clone(),
            tls,
            prefix,
            timeout: Duration::from_secs(2),
        };
        for (name, value) in address.settings().map_err(|it| bad(&it))? {
            options.set(name, &value)?;
        }
        options.check()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        match name {
            "timeout" => {
                let timeout = humantime::parse_duration(value);
                self.timeout = timeout.map_err(|_| bad("`timeout` is no duration such as 2s"))?;
            }
            "password_file" => {
                self.password = Some(Secret::from_file(value).map_err(|it| bad(&it))?);
            }
            "ca" | "cert" | "key" | "domain" => {
                let Some(tls) = &mut self.tls else {
                    return Err(bad(&format!("`{name}` needs etcds://")));
                };
                let field = match name {
                    "ca" => &mut tls.ca,
                    "cert" => &mut tls.cert,
                    "key" => &mut tls.key,
                    _ => &mut tls.domain,
                };
                *field = Some(value.to_owned());
            }
            _ => return Err(bad(&unknown_setting(name, &KNOWN))),
        }
        Ok(())
    }

    fn check(self) -> Result<Self, Error> {
        if self.timeout < Duration::from_millis(10) || Duration::from_secs(60) < self.timeout {
            return Err(bad("`timeout` must be from 10ms to 1m"));
        }
        if self.prefix.chars().any(char::is_control) || self.prefix.ends_with('/') {
            return Err(bad("the prefix holds a control character or ends with a slash"));
        }
        if self.user.is_some() && self.password.as_ref().is_none_or(|it| it.reveal().is_empty()) {
            return Err(bad("there is a user and no password"));
        }
        if self.tls.as_ref().is_some_and(|it| it.cert.is_some() != it.key.is_some()) {
            return Err(bad("`cert` and `key` belong together"));
        }
        if self.tls.is_some() && !cfg!(feature = "tls") {
            let what =
                "this program was built without TLS; add the feature `tls` of the crate `lockkeeper-etcd`";
            return Err(Error::unsupported(crate::fault::NAME, what));
        }
        Ok(self)
    }
}

/// The URL is not repeated: it may hold a password.
fn bad(what: &str) -> Error {
    Error::invalid(format!("the etcd URL cannot be used: {what}; it should look like {FORM}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_url_is_read() {
        let options = Options::parse("etcd://me:p%40ss@one,two:99,[::1]:7/team/a?timeout=500ms").unwrap();
        assert_eq!(options.endpoints, ["one:2379", "two:99", "[::1]:7"]);
        assert_eq!((options.user.as_deref(), options.prefix.as_str()), (Some("me"), "team/a"));
        assert_eq!(options.password.as_ref().unwrap().reveal(), "p@ss");
        assert_eq!(options.timeout, Duration::from_millis(500));
        assert!(!format!("{options:?}").contains("p@ss"));
        assert_eq!(Options::parse("etcd://h").unwrap().prefix, "lockkeeper");
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
        ];
        for url in urls {
            let error = Options::parse(url).unwrap_err().to_string();
            assert!(!error.contains("canary"), "{url}: {error}");
        }
    }
}
