//! Where the ensemble is and how to speak to it: the URL, parsed and checked at once.

use std::ops::RangeInclusive;
use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::address::{Host, Secret, decoded, hosts};
use lockkeeper_core::kit::settings::Form;
use lockkeeper_core::kit::tls::Tls;

const FORM: Form = Form::new(
    "ZooKeeper",
    "zookeeper://[user:password@]host[:port],host…[/path][?session=30s], or zookeepers:// for TLS",
);
const PORT: u16 = 2181;
/// Servers that speak TLS have a port of their own; this one is a custom.
const SECURE_PORT: u16 = 2281;
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);
/// Shorter sessions are over before a server was missed.
pub(crate) const TTL_MIN: Duration = Duration::from_millis(200);
pub(crate) const TTL_MAX: Duration = Duration::from_secs(3600);

/// Everything needed to open the store. Made by [`ZooKeeperOptions::parse`] and changed by its setters.
///
/// `Debug` shows no secret.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_zookeeper::ZooKeeperOptions;
///
/// let options = ZooKeeperOptions::parse("zookeeper://one,two:2182/shop?tick=2s")?
///     .session(Duration::from_secs(30))
///     .user("locks")
///     .password("sesame");
/// assert_eq!(options.servers(), ["one:2181", "two:2182"]);
/// assert!(!format!("{options:?}").contains("sesame"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    /// The servers, `host:port`.
    pub(crate) servers: Vec<String>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) tls: Option<Tls>,
    /// The node below which all locks lie. It is made if it is not there.
    pub(crate) path: String,
    pub(crate) session: Option<Duration>,
    pub(crate) tick: Option<Duration>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) idle_timeout: Option<Duration>,
}

impl ZooKeeperOptions {
    /// Read a URL: `zookeeper://[user:password@]host[:port],host…[/path][?session=30s&tick=2s&timeout=2s]`.
    ///
    /// Settings: `session`, `tick`, `timeout`, `connect_timeout`, `idle_timeout`, `password_file`, `tls` with the files
    /// `ca`, `cert` and `key`. `zookeepers://` means TLS, too.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right. The message holds no secret.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = FORM.address(url)?;
        let secure = match address.scheme {
            "zookeeper" => false,
            "zookeepers" => true,
            _ => return Err(FORM.wrong("it does not begin with zookeeper:// or zookeepers://")),
        };
        let path = match address.path {
            "" => "/lockkeeper".to_owned(),
            it => format!("/{}", decoded(it).map_err(|it| FORM.wrong(it))?),
        };
        let mut settings = FORM.settings(address.query)?;
        let (session, tick) = (settings.span("session")?, settings.span("tick")?);
        let timeout = settings.span("timeout")?.unwrap_or(Duration::from_secs(2));
        let (connect_timeout, idle_timeout) =
            (settings.span("connect_timeout")?, settings.span("idle_timeout")?);
        let (user, password) = settings.login(&address)?;
        let tls = settings.tls(secure)?;
        settings.finish()?;
        let port = if tls.is_some() { SECURE_PORT } else { PORT };
        let servers = hosts(address.hosts, port).map_err(|it| FORM.wrong(it))?;
        let servers = servers.iter().map(Host::to_string).collect();
        let options = ZooKeeperOptions {
            servers,
            user,
            password,
            tls,
            path,
            session,
            tick,
            timeout,
            connect_timeout,
            idle_timeout,
        };
        options.check()?;
        Ok(options)
    }

    /// The same, if it can be obtained.
    pub(crate) fn ready(self) -> Result<Self, Error> {
        self.check()?;
        if self.tls.is_some() && !cfg!(feature = "tls") {
            return Err(Tls::lacking(crate::fault::NAME, "lockkeeper-zookeeper"));
        }
        Ok(self)
    }

    /// Refuse what makes no sense.
    fn check(&self) -> Result<(), Error> {
        let timeouts = [Some(self.timeout), self.connect_timeout];
        if timeouts.iter().flatten().any(|it| !TIMEOUTS.contains(it)) {
            return Err(FORM.wrong("`timeout` and `connect_timeout` must be from 10ms to 1m"));
        }
        if self.session.is_some_and(|it| !(TTL_MIN..=TTL_MAX).contains(&it)) {
            return Err(FORM.wrong("`session` must be from 200ms to 1h"));
        }
        if self.tick.is_some_and(|it| it.is_zero() || self.session.unwrap_or(TTL_MAX) < session_min(it)) {
            return Err(FORM.wrong("`tick` must be greater than 0 and at most two fifths of `session`"));
        }
        let plain = |it: char| !it.is_control() && (it.is_ascii() || it.is_alphanumeric());
        let broken = |it: &str| it.is_empty() || it == "." || it == ".." || it == "zookeeper";
        if !self.path.starts_with('/')
            || self.path[1..].split('/').any(broken)
            || !self.path.chars().all(plain)
        {
            return Err(FORM.wrong("the path has an empty, reserved or unprintable part"));
        }
        if self.user.is_some() && self.password.as_ref().is_none_or(|it| it.reveal().is_empty()) {
            return Err(FORM.wrong("there is a user and no password"));
        }
        if self.tls.as_ref().is_some_and(|it| it.ca_file().is_none()) {
            return Err(FORM.wrong("`ca` is missing: the authority that signed the servers' certificates"));
        }
        Ok(())
    }

    /// The user of the scheme `digest`. Nodes then belong to it alone. It needs a password.
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

    /// Encrypt, and check the servers' certificates; [`Tls::ca`] must be named. Default: off.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The node below which all locks lie, with the slash that it begins with. It is made if it is not there. Default:
    /// `/lockkeeper`.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// The session that is opened with the store, before any lock asks for one: best the ttl that most locks have. Default:
    /// 10 s, the ttl of locks that name none. Locks of another ttl have a session of their own.
    #[must_use]
    pub fn session(mut self, session: Duration) -> Self {
        self.session = Some(session);
        self
    }

    /// What is taken off every deadline, because a follower tells the leader of us only every half tick: the ensemble's
    /// `tickTime`. Default: 2 s, which is the default of ZooKeeper, or three tenths of the session if that is less; that is
    /// more than half a tick, since no session is shorter than two ticks unless the servers were told so.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// How long an answer is waited for, from 10 ms to a minute. After that its outcome is unknown. Default: 2 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a session is waited for, from 10 ms to a minute, however many servers are tried. Default: until each of
    /// them was.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// How long a session that nobody uses is kept, so that the next lock of its ttl need not wait for one. Default: a
    /// minute, or twice the session if that is longer. The next lock opens a new one.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// The servers, `host:port`.
    pub fn servers(&self) -> &[String] {
        &self.servers
    }

    /// What is taken off every deadline, with this session timeout.
    pub(crate) fn tick_of(&self, session: Duration) -> Duration {
        self.tick.unwrap_or(Duration::from_secs(2).min(session * 3 / 10))
    }

    /// How long a session with this timeout is kept while nobody uses it.
    pub(crate) fn idle_of(&self, session: Duration) -> Duration {
        self.idle_timeout.unwrap_or(Duration::from_secs(60).max(session * 2))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_url_is_read() {
        let url = "zookeeper://me:p%40ss@one,two:99,[::1]:7/team/a?session=4s&tick=500ms&timeout=1s";
        let options = ZooKeeperOptions::parse(url).unwrap();
        assert_eq!(options.servers, ["one:2181", "two:99", "[::1]:7"]);
        assert_eq!((options.user.as_deref(), options.path.as_str()), (Some("me"), "/team/a"));
        assert_eq!(options.password.as_ref().unwrap().reveal(), "p@ss");
        assert_eq!(
            (options.session, options.tick),
            (Some(Duration::from_secs(4)), Some(Duration::from_millis(500)))
        );
        assert_eq!(options.usual_session(), Duration::from_secs(4));
        assert!(!format!("{options:?}").contains("p@ss"));
        let plain = ZooKeeperOptions::parse("zookeeper://h").unwrap();
        assert_eq!((plain.path.as_str(), plain.session), ("/lockkeeper", None));
        assert_eq!(plain.usual_session(), Duration::from_secs(10));
        for (session, tick) in [(10_000, 2000), (4000, 1200), (1000, 300)] {
            assert_eq!(plain.tick_of(Duration::from_millis(session)), Duration::from_millis(tick));
        }
        for (session, idle) in [(4, 60), (30, 60), (40, 80)] {
            assert_eq!(plain.idle_of(Duration::from_secs(session)), Duration::from_secs(idle));
        }
        let quick = ZooKeeperOptions::parse("zookeeper://h?idle_timeout=1s").unwrap();
        assert_eq!(quick.idle_of(Duration::from_secs(40)), Duration::from_secs(1));
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
            "zookeepers://me:canary@h?tls=off",
            "zookeeper://me:canary@h?tls=on",
        ];
        for url in urls {
            let error = ZooKeeperOptions::parse(url).unwrap_err().to_string();
            assert!(!error.contains("canary"), "{url}: {error}");
        }
    }
}
