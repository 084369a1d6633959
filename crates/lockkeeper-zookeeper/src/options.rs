//! Where the ensemble is and how to speak to it: the URL, parsed and checked at once.

use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::address::{Address, Host, decoded, hosts, unknown_setting};

pub use lockkeeper_core::address::Secret;

const FORM: &str =
    "zookeeper://[user:password@]host[:port],host…[/path][?session=30s], or zookeepers:// for TLS";
const PORT: u16 = 2181;
/// Servers that speak TLS have a port of their own; this one is a custom.
const SECURE_PORT: u16 = 2281;
/// Shorter sessions are over before a server was missed.
pub(crate) const TTL_MIN: Duration = Duration::from_millis(200);
pub(crate) const TTL_MAX: Duration = Duration::from_secs(3600);
/// What may stand after `?`.
const KNOWN: [&str; 7] = ["session", "tick", "timeout", "password_file", "ca", "cert", "key"];

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
/// assert_eq!((options.path.as_str(), options.session), ("/shop", Some(Duration::from_secs(30))));
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
    /// TLS, if the scheme is `zookeepers`.
    pub tls: Option<Tls>,
    /// The node below which all locks lie. It is made if it is not there.
    pub path: String,
    /// The session that is opened with the store, before any lock asks for one: best the ttl that most locks have. `None`
    /// means 10 s, the ttl of locks that name none. Locks of another ttl have a session of their own.
    pub session: Option<Duration>,
    /// What is taken off every deadline, because a follower tells the leader of us only every half tick: the ensemble's
    /// `tickTime`. `None` means 2 s, which is the default of ZooKeeper, or three tenths of the session if that is less;
    /// that is more than half a tick, since no session is shorter than two ticks unless the servers were told so.
    pub tick: Option<Duration>,
    /// How long to wait for an answer. After that its outcome is unknown.
    pub timeout: Duration,
}

/// Files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authority that signed the servers' certificates, PEM. There must be one.
    pub ca: Option<String>,
    /// Our own certificate, PEM.
    pub cert: Option<String>,
    /// The key to our certificate, PEM.
    pub key: Option<String>,
}

impl Options {
    /// Read a URL: `zookeeper://[user:password@]host[:port],host…[/path][?session=30s&tick=2s&timeout=2s]`.
    ///
    /// `zookeepers://` means TLS and takes the files `ca`, `cert` and `key`. A password may also come from the file
    /// `password_file`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right. The message holds no secret.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = Address::read(url).map_err(|it| bad(&it))?;
        let (tls, port) = match address.scheme {
            "zookeeper" => (None, PORT),
            "zookeepers" => (Some(Tls::default()), SECURE_PORT),
            _ => return Err(bad("it does not begin with zookeeper:// or zookeepers://")),
        };
        let path = match address.path {
            "" => "/lockkeeper".to_owned(),
            it => format!("/{}", decoded(it).map_err(|it| bad(&it))?),
        };
        let servers = hosts(address.hosts, port).map_err(|it| bad(&it))?;
        let mut options = Options {
            servers: servers.iter().map(Host::to_string).collect(),
            user: address.user.clone(),
            password: address.password.clone(),
            tls,
            path,
            session: None,
            tick: None,
            timeout: Duration::from_secs(2),
        };
        for (name, value) in address.settings().map_err(|it| bad(&it))? {
            options.set(name, &value)?;
        }
        options.check()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let duration = || {
            humantime::parse_duration(value).map_err(|_| bad(&format!("`{name}` is no duration such as 2s")))
        };
        match name {
            "session" => self.session = Some(duration()?),
            "tick" => self.tick = Some(duration()?),
            "timeout" => self.timeout = duration()?,
            "password_file" => {
                self.password = Some(Secret::from_file(value).map_err(|it| bad(&it))?);
            }
            "ca" | "cert" | "key" => {
                let Some(tls) = &mut self.tls else {
                    return Err(bad(&format!("`{name}` needs zookeepers://")));
                };
                let field = match name {
                    "ca" => &mut tls.ca,
                    "cert" => &mut tls.cert,
                    _ => &mut tls.key,
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
        if self.session.is_some_and(|it| !(TTL_MIN..=TTL_MAX).contains(&it)) {
            return Err(bad("`session` must be from 200ms to 1h"));
        }
        if self.tick.is_some_and(|it| it.is_zero() || self.session.unwrap_or(TTL_MAX) < session_min(it)) {
            return Err(bad("`tick` must be more than nothing and at most two fifths of `session`"));
        }
        let plain = |it: char| !it.is_control() && (it.is_ascii() || it.is_alphanumeric());
        let broken = |it: &str| it.is_empty() || it == "." || it == ".." || it == "zookeeper";
        if self.path[1..].split('/').any(broken) || !self.path.chars().all(plain) {
            return Err(bad("the path has an empty, reserved or unprintable part"));
        }
        if self.user.is_some() && self.password.as_ref().is_none_or(|it| it.reveal().is_empty()) {
            return Err(bad("there is a user and no password"));
        }
        if let Some(tls) = &self.tls {
            if tls.ca.is_none() {
                return Err(bad("`ca` is missing: the authority that signed the servers' certificates"));
            }
            if tls.cert.is_some() != tls.key.is_some() {
                return Err(bad("`cert` and `key` belong together"));
            }
            if !cfg!(feature = "tls") {
                let what = "this program was built without TLS; add the feature `tls` of the crate \
                            `lockkeeper-zookeeper`";
                return Err(Error::unsupported(crate::fault::NAME, what));
            }
        }
        Ok(self)
    }

    /// What is taken off every deadline, with this session time-out.
    pub(crate) fn tick_of(&self, session: Duration) -> Duration {
        self.tick.unwrap_or(Duration::from_secs(2).min(session * 3 / 10))
    }

    /// Which session to ask for at first: that of `session`, or of locks that name no ttl.
    pub(crate) fn usual_session(&self) -> Duration {
        self.session.unwrap_or(Duration::from_secs(10))
    }
}

/// The shortest session that can be kept if so much is taken off: a third must be left from one renewal to the next, and
/// pulses take their time.
pub(crate) fn session_min(tick: Duration) -> Duration {
    tick * 5 / 2
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
        assert_eq!(
            (options.session, options.tick),
            (Some(Duration::from_secs(4)), Some(Duration::from_millis(500)))
        );
        assert_eq!(options.usual_session(), Duration::from_secs(4));
        assert!(!format!("{options:?}").contains("p@ss"));
        let plain = Options::parse("zookeeper://h").unwrap();
        assert_eq!((plain.path.as_str(), plain.session), ("/lockkeeper", None));
        assert_eq!(plain.usual_session(), Duration::from_secs(10));
        for (session, tick) in [(10_000, 2000), (4000, 1200), (1000, 300)] {
            assert_eq!(plain.tick_of(Duration::from_millis(session)), Duration::from_millis(tick));
        }
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
            "zookeeper://me:canary@h?session=1s&tick=401ms",
            "zookeeper://me:canary@h/%zz",
            "zookeeper://me:canary@h/a//b",
            "zookeeper://me:canary@h/a/..",
            "zookeeper://me:canary@h/zookeeper/quota",
            "zookeeper://me@h",
            "zookeeper://me:canary@h?ca=file",
            "zookeepers://me:canary@h",
            "zookeepers://me:canary@h?ca=file&cert=file",
        ];
        for url in urls {
            let error = Options::parse(url).unwrap_err().to_string();
            assert!(!error.contains("canary"), "{url}: {error}");
        }
    }
}
