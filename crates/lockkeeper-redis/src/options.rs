//! Where the store is and how to speak to it: the URLs of all deployments, parsed and checked at once.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::address::{Address, decoded, hosts};
use lockkeeper_core::kit::settings::{Form, Settings};
use lockkeeper_core::kit::tls::Tls;

pub(crate) use lockkeeper_core::address::{Host, Secret};

const FORM: Form = Form::new(
    "Redis",
    "redis://[user:password@]host[:port][/db], redis+sentinel://host[:port],host…/service[/db] or \
     redis+cluster://host[:port],host…, with rediss for TLS",
);

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The settings that nodes of Redlock share.
pub(crate) const OF_NODES: &[&str] = &[
    "prefix",
    "timeout",
    "connect_timeout",
    "replicas",
    "replicas_timeout",
    "password_file",
    "tls",
    "ca",
    "cert",
    "key",
];

/// Everything needed to open the store. Made by [`RedisOptions::parse`] and changed by its setters.
///
/// `Debug` and `Display` show no secret.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_redis::{RedisOptions, Replicas};
///
/// let options = RedisOptions::parse("redis+sentinel://one,two:26380/shop?timeout=500ms")?
///     .replicas(Replicas::Majority)
///     .restart_guard(Duration::from_secs(60))
///     .password("sesame");
/// assert_eq!(options.to_string(), "redis+sentinel://one:26379,two:26380/shop");
/// assert!(!format!("{options:?}").contains("sesame"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisOptions {
    /// How the servers are deployed.
    pub(crate) deployment: Deployment,
    /// The hosts named in the URL: the server, the sentinels, or some nodes of the cluster.
    pub(crate) hosts: Vec<Host>,
    /// The database number. Always 0 on a cluster.
    pub(crate) db: i64,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<Secret>,
    pub(crate) tls: Option<Tls>,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) replicas: Replicas,
    pub(crate) replicas_timeout: Duration,
    pub(crate) restart_guard: Option<Duration>,
}

/// How the servers are deployed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// One server, perhaps with replicas that nobody promotes by himself.
    Single,
    /// Sentinels say which server is the primary of this service.
    Sentinel {
        /// The name under which the sentinels know the primary.
        service: String,
    },
    /// Redis Cluster.
    Cluster,
}

/// How many replicas must confirm a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replicas {
    /// None: the primary alone decides.
    None,
    /// At least this many.
    Count(u32),
    /// So many that primary and confirming replicas are more than half of the servers.
    Majority,
}

impl RedisOptions {
    /// Read a URL: `redis://[user:password@]host[:port][/db]`, `redis+sentinel://host,host/service[/db]` or
    /// `redis+cluster://host,host`, each with `rediss` or `?tls=on` for TLS.
    ///
    /// Settings: `prefix`, `timeout`, `connect_timeout`, `replicas`, `replicas_timeout`, `restart_guard`, `password_file`,
    /// `sentinel_user`, `sentinel_password`, `tls` with the files `ca`, `cert` and `key`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right. The message holds no secret.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = FORM.address(url)?;
        let (base, kind) = address.scheme.split_once('+').unwrap_or((address.scheme, ""));
        if !["redis", "rediss"].contains(&base) || !["", "sentinel", "cluster"].contains(&kind) {
            return Err(FORM.wrong(format!("the scheme {:?} is unknown", address.scheme)));
        }
        let mut options = RedisOptions::new(kind, address.path, address.hosts)?;
        options.set(&address, FORM.settings(address.query)?, base == "rediss")?;
        options.check()?;
        Ok(options)
    }

    fn new(kind: &str, path: &str, named: &str) -> Result<Self, Error> {
        let (deployment, db, port) = match kind {
            "sentinel" => {
                let (service, db) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(FORM.wrong("the service is missing"));
                }
                let service = decoded(service).map_err(|it| FORM.wrong(it))?;
                (Deployment::Sentinel { service }, db, SENTINEL_PORT)
            }
            "cluster" => (Deployment::Cluster, path, PORT),
            _ => (Deployment::Single, path, PORT),
        };
        let db = match db {
            "" => 0,
            it => it
                .parse()
                .ok()
                .filter(|it| *it >= 0)
                .ok_or_else(|| FORM.wrong("the database is not a number"))?,
        };
        if deployment == Deployment::Cluster && db != 0 {
            return Err(FORM.wrong("a cluster has database 0 only"));
        }
        let hosts = hosts(named, port).map_err(|it| FORM.wrong(it))?;
        if deployment == Deployment::Single && hosts.len() != 1 {
            return Err(
                FORM.wrong("it names several hosts, which redis+sentinel, redis+cluster and redlock do")
            );
        }
        Ok(RedisOptions {
            deployment,
            hosts,
            db,
            user: None,
            password: None,
            sentinel_user: None,
            sentinel_password: None,
            tls: None,
            prefix: "lk".to_owned(),
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            replicas: Replicas::None,
            replicas_timeout: Duration::from_millis(500),
            restart_guard: None,
        })
    }

    fn set(&mut self, address: &Address<'_>, mut it: Settings<'_>, secure: bool) -> Result<(), Error> {
        self.prefix = it.text("prefix")?.unwrap_or(std::mem::take(&mut self.prefix));
        self.timeout = it.span("timeout")?.unwrap_or(self.timeout);
        self.connect_timeout = it.span("connect_timeout")?.unwrap_or(self.connect_timeout);
        self.replicas = it.read("replicas", "a number or `majority`", replicas_of)?.unwrap_or(self.replicas);
        self.replicas_timeout = it.span("replicas_timeout")?.unwrap_or(self.replicas_timeout);
        self.restart_guard = it.span("restart_guard")?;
        (self.user, self.password) = it.login(address)?;
        if matches!(self.deployment, Deployment::Sentinel { .. }) {
            self.sentinel_user = it.text("sentinel_user")?;
            self.sentinel_password = it.text("sentinel_password")?.map(Secret::new);
        } else {
            for name in ["sentinel_user", "sentinel_password"] {
                it.refused(name, "it is for redis+sentinel://")?;
            }
        }
        self.tls = it.tls(secure)?;
        it.finish()
    }

    /// The same, if it can be obtained.
    pub(crate) fn ready(self) -> Result<Self, Error> {
        self.check()?;
        if self.tls.is_some() && !cfg!(feature = "tls") {
            return Err(Tls::lacking(crate::fault::NAME, "lockkeeper-redis"));
        }
        Ok(self)
    }

    /// Refuse what makes no sense.
    fn check(&self) -> Result<(), Error> {
        // A prefix may not hold what has a meaning of its own in keys, patterns and slots.
        let fine = |it: char| it.is_ascii_alphanumeric() || "._-:/".contains(it);
        if self.prefix.is_empty() || 64 < self.prefix.len() || !self.prefix.chars().all(fine) {
            return Err(
                FORM.wrong("the prefix is not usable; write 1 to 64 of the characters A-Z a-z 0-9 . _ - : /")
            );
        }
        Ok(())
    }

    /// The ACL user. Default: `default`.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password. Default: none.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(Secret::new(password));
        self
    }

    /// The user for the sentinels themselves. Default: `default`.
    #[must_use]
    pub fn sentinel_user(mut self, user: impl Into<String>) -> Self {
        self.sentinel_user = Some(user.into());
        self
    }

    /// The password for the sentinels themselves. Default: none.
    #[must_use]
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_password = Some(Secret::new(password));
        self
    }

    /// Encrypt, and check the servers' certificates. Default: off.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// What the name of every key and channel begins with. Default: `lk`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long an answer is waited for. After that its outcome is unknown. Default: 1 second.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How long a connection is waited for. Default: 1 second.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How many replicas must confirm a grant before it counts. Default: none.
    #[must_use]
    pub fn replicas(mut self, replicas: Replicas) -> Self {
        self.replicas = replicas;
        self
    }

    /// How long the replicas may take to confirm. Default: 500 milliseconds.
    #[must_use]
    pub fn replicas_timeout(mut self, timeout: Duration) -> Self {
        self.replicas_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// Give no grants on a server that started, or took over, less than this long ago. Default: off.
    #[must_use]
    pub fn restart_guard(mut self, ttl_max: Duration) -> Self {
        self.restart_guard = Some(ttl_max);
        self
    }

    /// The name of this store for people, without secrets: `redis://127.0.0.1:6379`.
    fn address(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let (kind, path) = match &self.deployment {
            Deployment::Single => ("", String::new()),
            Deployment::Sentinel { service } => ("+sentinel", format!("/{service}")),
            Deployment::Cluster => ("+cluster", String::new()),
        };
        format!("{scheme}{kind}://{}{path}", hosts.join(","))
    }
}

impl fmt::Display for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address())
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("address", &self.address())
            .field("db", &self.db)
            .field("user", &self.user)
            .field("password", &self.password)
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("replicas", &self.replicas)
            .field("restart_guard", &self.restart_guard)
            .finish_non_exhaustive()
    }
}

fn replicas_of(text: &str) -> Option<Replicas> {
    match text {
        "majority" => Some(Replicas::Majority),
        "0" => Some(Replicas::None),
        _ => text.parse().ok().map(Replicas::Count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deployment_has_its_url() {
        let single = RedisOptions::parse("redis://h/3").unwrap();
        assert_eq!((single.hosts[0].to_string().as_str(), single.db), ("h:6379", 3));
        let sentinel = RedisOptions::parse("redis+sentinel://a,b:1,[::1]:2/my%20service/4").unwrap();
        assert_eq!(sentinel.to_string(), "redis+sentinel://a:26379,b:1,[::1]:2/my service");
        assert_eq!(sentinel.db, 4);
        let cluster =
            RedisOptions::parse("rediss+cluster://a:7000,b:7001?ca=/etc/ca.pem&timeout=2s").unwrap();
        assert_eq!(cluster.deployment, Deployment::Cluster);
        assert_eq!(cluster.tls.unwrap().ca_file(), Some("/etc/ca.pem"));
        assert_eq!(cluster.timeout, Duration::from_secs(2));
        assert_eq!(RedisOptions::parse("redis://h?replicas=majority").unwrap().replicas, Replicas::Majority);
    }

    #[test]
    fn what_is_wrong_is_refused_and_the_right_form_named() {
        for (url, hint) in [
            ("localhost", "redis://"),
            ("http://h", "redis+cluster://"),
            ("redis://", "host"),
            ("redis://a,b", "redis+sentinel://"),
            ("redis://h:99999", "port"),
            ("redis://h/x", "database"),
            ("redis+cluster://h/1", "database 0"),
            ("redis+sentinel://h", "service"),
            ("redis://h?prfix=x", "prefix, timeout"),
            ("redis://h?prefix={x}", "A-Z"),
            ("redis://h?timeout=0s", "500ms"),
            ("redis://h?ca=/x", "rediss"),
            ("redis://h?replicas=few", "majority"),
            ("redis://%zz@h", "%25"),
            ("rediss://h?tls=off", "the opposite"),
            ("redis://h?sentinel_user=x", "redis+sentinel://"),
        ] {
            let error = RedisOptions::parse(url).unwrap_err().to_string();
            assert!(error.contains(hint), "{url}: {error}");
        }
    }

    #[test]
    fn what_is_set_in_code_is_checked_as_in_a_url() {
        let options = RedisOptions::parse("redis://h").unwrap();
        assert!(options.check().is_ok());
        assert!(options.prefix("{x}").check().is_err());
    }

    #[test]
    fn a_password_is_never_shown() {
        let secret = "p@ss/wörd";
        let url = "rediss+sentinel://joe:p%40ss%2Fw%C3%B6rd@h/s?sentinel_password=p%40ss%2Fw%C3%B6rd";
        let options = RedisOptions::parse(url).unwrap();
        assert_eq!(options.password.as_ref().unwrap().reveal(), secret);
        assert_eq!(options.sentinel_password.as_ref().unwrap().reveal(), secret);
        let shown = format!("{options} {options:?} {:?}", options.password);
        assert!(!shown.contains(secret) && !shown.contains("p%40"), "{shown}");
        for broken in ["redis://u:hush@h?x=1", "redis://u:hush@h:port", "redis://u:hush%@h"] {
            assert!(!RedisOptions::parse(broken).unwrap_err().to_string().contains("hush"));
        }
    }
}
