//! Where the store is and how to speak to it: the URL, parsed and checked at once.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::Error;

const FORM: &str = "etcd://[user:password@]host[:port],host…[/prefix][?timeout=2s], or etcds:// for TLS";
const PORT: u16 = 2379;

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
    /// The nodes, `host:port`, tried in turn.
    pub endpoints: Vec<String>,
    /// The user, if the server asks for one.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// TLS, if the scheme is `etcds`.
    pub tls: Option<Tls>,
    /// What the name of every key begins with, without the slash that follows.
    pub prefix: String,
    /// How long to wait for an answer. After that its outcome is unknown and the next endpoint is tried.
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

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hide a text.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
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
        let tls = match url.split_once("://").map(|it| it.0) {
            Some("etcd") => None,
            Some("etcds") => Some(Tls::default()),
            _ => return Err(bad("it does not begin with etcd:// or etcds://")),
        };
        let rest = url.split_once("://").map_or("", |it| it.1);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) =
            authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
        let prefix = if prefix.is_empty() { "lockkeeper".to_owned() } else { decode(prefix)? };
        let (endpoints, timeout) = (endpoints(hosts)?, Duration::from_secs(2));
        let mut options = Options { endpoints, user: None, password: None, tls, prefix, timeout };
        if !login.is_empty() {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            options.user = Some(decode(user)?);
            options.password = Some(Secret(decode(password)?));
        }
        for pair in query.split('&').filter(|it| !it.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            options.set(name, &decode(value)?)?;
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
                let text = std::fs::read_to_string(value)
                    .map_err(|it| bad(&format!("the password file cannot be read: {it}")))?;
                self.password = Some(Secret::new(text.trim_end_matches(['\r', '\n'])));
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
            _ => {
                let known = "timeout, password_file, ca, cert, key, domain";
                return Err(bad(&format!(
                    "the option `{}` is unknown; known are {known}",
                    name.escape_debug()
                )));
            }
        }
        Ok(())
    }

    fn check(self) -> Result<Self, Error> {
        if self.timeout < Duration::from_millis(10) || Duration::from_mins(1) < self.timeout {
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
            return Err(Error::Unsupported { backend: crate::fault::NAME, what: what.to_owned() });
        }
        Ok(self)
    }
}

fn endpoints(hosts: &str) -> Result<Vec<String>, Error> {
    let hosts: Vec<&str> = hosts.split(',').collect();
    hosts
        .into_iter()
        .map(|host| {
            let (name, port) = match host.strip_prefix('[') {
                Some(it) => it.split_once(']').ok_or_else(|| bad("a bracket is not closed"))?,
                None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
            };
            let port = match port.strip_prefix(':') {
                Some(it) => it.parse().map_err(|_| bad("a port is not a number from 1 to 65535"))?,
                None => PORT,
            };
            let plain = |it: char| it.is_ascii_alphanumeric() || ".-_:".contains(it);
            if name.is_empty() || !name.chars().all(plain) {
                return Err(bad("a host is missing or holds characters that no host has"));
            }
            Ok(if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") })
        })
        .collect()
}

/// Turn `%41` into `A`.
fn decode(text: &str) -> Result<String, Error> {
    let broken = || bad("a `%` is not followed by two hexadecimal digits of UTF-8");
    let (mut out, mut bytes) = (Vec::new(), text.bytes());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digits = [bytes.next().ok_or_else(broken)?, bytes.next().ok_or_else(broken)?];
        let digits = std::str::from_utf8(&digits).map_err(|_| broken())?;
        out.push(u8::from_str_radix(digits, 16).map_err(|_| broken())?);
    }
    String::from_utf8(out).map_err(|_| broken())
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
