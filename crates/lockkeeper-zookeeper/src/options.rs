//! Where the ensemble is and how to speak to it: the URL, parsed and checked at once.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::Error;

const FORM: &str = "zookeeper://[user:password@]host[:port],host…[/path][?session=10s]";
const PORT: u16 = 2181;

/// Everything needed to open the store. Made by [`Options::parse`]; fields may be changed afterwards.
///
/// `Debug` shows no secret.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_zookeeper::{Options, Secret};
///
/// let mut options = Options::parse("zookeeper://one,two:2182/shop?session=30s&tick=2s")?;
/// assert_eq!(options.servers, ["one:2181", "two:2182"]);
/// assert_eq!((options.path.as_str(), options.session), ("/shop", Duration::from_secs(30)));
/// (options.user, options.password) = (Some("locks".into()), Some(Secret::new("sesame")));
/// assert!(!format!("{options:?}").contains("sesame"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The servers, `host:port`.
    pub servers: Vec<String>,
    /// The user of the scheme `digest`, if there is one. Nodes then belong to it alone.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The node below which all locks lie. It is made if it is not there.
    pub path: String,
    /// The session time-out to ask for. The ensemble may give another.
    pub session: Duration,
    /// The ensemble's `tickTime`, or more. A follower tells the leader of us only every half tick, so this is
    /// taken off every deadline. `None` means 2 s, which is the default of ZooKeeper, or a quarter of the session
    /// if that is less.
    pub tick: Option<Duration>,
    /// How long to wait for an answer. After that its outcome is unknown.
    pub timeout: Duration,
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
    /// Read a URL: `zookeeper://[user:password@]host[:port],host…[/path][?session=10s&tick=2s&timeout=2s]`.
    ///
    /// A password may also come from the file `password_file`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right. The message holds no secret.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let rest =
            url.strip_prefix("zookeeper://").ok_or_else(|| bad("it does not begin with zookeeper://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) =
            authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
        let path = if path.is_empty() { "/lockkeeper".to_owned() } else { format!("/{}", decode(path)?) };
        let mut options = Options {
            servers: servers(hosts)?,
            user: None,
            password: None,
            path,
            session: Duration::from_secs(10),
            tick: None,
            timeout: Duration::from_secs(2),
        };
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
        let duration = || {
            humantime::parse_duration(value).map_err(|_| bad(&format!("`{name}` is no duration such as 2s")))
        };
        match name {
            "session" => self.session = duration()?,
            "tick" => self.tick = Some(duration()?),
            "timeout" => self.timeout = duration()?,
            "password_file" => {
                let text = std::fs::read_to_string(value)
                    .map_err(|it| bad(&format!("the password file cannot be read: {it}")))?;
                self.password = Some(Secret::new(text.trim_end_matches(['\r', '\n'])));
            }
            _ => {
                let known = "session, tick, timeout, password_file";
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
        if self.session < Duration::from_millis(200) || Duration::from_hours(1) < self.session {
            return Err(bad("`session` must be from 200ms to 1h"));
        }
        if self.tick.is_some_and(|it| it.is_zero() || self.session / 2 < it) {
            return Err(bad("`tick` must be more than nothing and at most half of `session`"));
        }
        let plain = |it: char| !it.is_control() && (it.is_ascii() || it.is_alphanumeric());
        let broken = |it: &str| it.is_empty() || it == "." || it == ".." || it == "zookeeper";
        if self.path[1..].split('/').any(broken) || !self.path.chars().all(plain) {
            return Err(bad("the path has an empty, reserved or unprintable part"));
        }
        if self.user.is_some() && self.password.as_ref().is_none_or(|it| it.reveal().is_empty()) {
            return Err(bad("there is a user and no password"));
        }
        Ok(self)
    }

    /// What is taken off every deadline, with this session time-out.
    pub(crate) fn tick_of(&self, session: Duration) -> Duration {
        self.tick.unwrap_or(Duration::from_secs(2).min(session / 4))
    }
}

fn servers(hosts: &str) -> Result<Vec<String>, Error> {
    let hosts: Vec<&str> = hosts.split(',').collect();
    hosts
        .into_iter()
        .map(|host| {
            let (name, port) = match host.strip_prefix('[') {
                Some(it) => it.split_once(']').ok_or_else(|| bad("a bracket is not closed"))?,
                None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
            };
            let port: u16 = match port.strip_prefix(':') {
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
    Error::invalid(format!("the ZooKeeper URL cannot be used: {what}; it should look like {FORM}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_url_is_read() {
        let url = "zookeeper://me:p%40ss@one,two:99,[::1]:7/team/a?session=4s&tick=500ms&timeout=1s";
        let options = Options::parse(url).unwrap();
        assert_eq!(options.servers, ["one:2181", "two:99", "[::1]:7"]);
        assert_eq!((options.user.as_deref(), options.path.as_str()), (Some("me"), "/team/a"));
        assert_eq!(options.password.as_ref().unwrap().reveal(), "p@ss");
        assert_eq!(options.tick_of(options.session), Duration::from_millis(500));
        assert!(!format!("{options:?}").contains("p@ss"));
        let plain = Options::parse("zookeeper://h").unwrap();
        assert_eq!(
            (plain.path.as_str(), plain.tick_of(plain.session)),
            ("/lockkeeper", Duration::from_secs(2))
        );
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_its_secrets() {
        let urls = [
            "zk://h",
            "zookeeper://",
            "zookeeper://h,",
            "zookeeper://h:x",
            "zookeeper://me:canary@h?colour=blue",
            "zookeeper://me:canary@h?session=soon",
            "zookeeper://me:canary@h?session=2h",
            "zookeeper://me:canary@h?session=1s&tick=1s",
            "zookeeper://me:canary@h/%zz",
            "zookeeper://me:canary@h/a//b",
            "zookeeper://me:canary@h/a/..",
            "zookeeper://me:canary@h/zookeeper/quota",
            "zookeeper://me@h",
        ];
        for url in urls {
            let error = Options::parse(url).unwrap_err().to_string();
            assert!(!error.contains("canary"), "{url}: {error}");
        }
    }
}
