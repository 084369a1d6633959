//! Where the store is and how to speak to it: the URLs of all deployments, parsed and checked at once.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::address::{Address, decoded, hosts, unknown_setting};

pub use lockkeeper_core::address::{Host, Secret};

/// What the URL schemes look like, for error messages.
const FORMS: &str = "redis://[user:password@]host[:port][/db], rediss:// (TLS), \
    redis+sentinel://host[:port],host…/service[/db] or redis+cluster://host[:port],host…";

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The settings a URL may carry after `?`.
const KNOWN: [&str; 12] = [
    "prefix",
    "timeout",
    "connect_timeout",
    "replicas",
    "replicas_timeout",
    "restart_guard",
    "password_file",
    "sentinel_user",
    "sentinel_password",
    "ca",
    "cert",
    "key",
];

/// Everything needed to open the store. Made by [`Options::parse`]; fields may be changed afterwards.
///
/// `Debug` and `Display` show no secret.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_redis::{Deployment, Host, Options, Replicas, Secret};
///
/// let mut options = Options::parse("redis+sentinel://one,two:26380/shop?replicas=majority")?;
/// assert_eq!(options.deployment, Deployment::Sentinel { service: "shop".into() });
/// assert_eq!(options.hosts[1], Host { name: "two".into(), port: 26380 });
/// assert_eq!(options.replicas, Replicas::Majority);
/// options.password = Some(Secret::new("sesame"));
/// options.restart_guard = Some(Duration::from_secs(60));
/// assert!(!format!("{options:?}").contains("sesame"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// How the servers are deployed.
    pub deployment: Deployment,
    /// The hosts named in the URL: the server, the sentinels, or some nodes of the cluster.
    pub hosts: Vec<Host>,
    /// The database number. Always 0 on a cluster.
    pub db: i64,
    /// The ACL user; `None` is `default`.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The user for the sentinels themselves.
    pub sentinel_user: Option<String>,
    /// The password for the sentinels themselves.
    pub sentinel_password: Option<Secret>,
    /// TLS, if the scheme begins with `rediss`.
    pub tls: Option<Tls>,
    /// What the name of every key and channel begins with.
    pub prefix: String,
    /// How long to wait for an answer. After that its outcome is unknown.
    pub timeout: Duration,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How many replicas must confirm a grant before it counts.
    pub replicas: Replicas,
    /// How long the replicas may take to confirm.
    pub replicas_timeout: Duration,
    /// Give no grants on a server that started, or took over, less than this long ago.
    pub restart_guard: Option<Duration>,
}

/// How the servers are deployed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deployment {
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

/// Files for TLS. Without `ca` the system's own list of authorities counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authority that signed the server's certificate, PEM.
    pub ca: Option<String>,
    /// Our own certificate, PEM.
    pub cert: Option<String>,
    /// The key to our certificate, PEM.
    pub key: Option<String>,
}

/// How many replicas must confirm a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// None: the primary alone decides.
    None,
    /// At least this many.
    Count(u32),
    /// So many that primary and confirming replicas are more than half of the servers.
    Majority,
}

impl Options {
    /// Read a URL.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right. The message holds no secret.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = Address::read(url).map_err(|it| bad(&it, FORMS))?;
        let (tls, kind) = match address.scheme {
            scheme @ ("redis" | "rediss") => (scheme == "rediss", ""),
            scheme => match scheme.split_once('+') {
                Some(("redis", kind @ ("sentinel" | "cluster"))) => (false, kind),
                Some(("rediss", kind @ ("sentinel" | "cluster"))) => (true, kind),
                _ => return Err(bad(&format!("the scheme {scheme:?} is unknown"), FORMS)),
            },
        };
        let mut options = Options::new(kind, address.path, address.hosts)?;
        options.tls = tls.then(Tls::default);
        (options.user, options.password) = (address.user.clone(), address.password.clone());
        for (name, value) in address.settings().map_err(|it| bad(&it, FORMS))? {
            options.set(name, &value)?;
        }
        Ok(options)
    }

    fn new(kind: &str, path: &str, named: &str) -> Result<Self, Error> {
        let (deployment, db, port) = match kind {
            "sentinel" => {
                let (service, db) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(bad("the service is missing", "redis+sentinel://host,host/service"));
                }
                let service = decoded(service).map_err(|it| bad(&it, FORMS))?;
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
                .ok_or_else(|| bad("the database is not a number", FORMS))?,
        };
        if deployment == Deployment::Cluster && db != 0 {
            return Err(bad("a cluster has database 0 only", "redis+cluster://host,host"));
        }
        let hosts = hosts(named, port).map_err(|it| bad(&it, FORMS))?;
        if deployment == Deployment::Single && hosts.len() != 1 {
            return Err(bad(
                "it names several hosts",
                "one host, or redis+sentinel://, redis+cluster:// or redlock:// for several",
            ));
        }
        Ok(Options {
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

    fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let text = || Some(value.to_owned());
        match name {
            "prefix" => self.prefix = prefix(value)?,
            "timeout" => self.timeout = duration(name, value)?,
            "connect_timeout" => self.connect_timeout = duration(name, value)?,
            "replicas" => self.replicas = replicas(value)?,
            "replicas_timeout" => self.replicas_timeout = duration(name, value)?,
            "restart_guard" => self.restart_guard = Some(duration(name, value)?),
            "password_file" => {
                let secret = Secret::from_file(value).map_err(|it| bad(&it, "a readable file"))?;
                self.password = Some(secret);
            }
            "sentinel_user" => self.sentinel_user = text(),
            "sentinel_password" => self.sentinel_password = Some(Secret::new(value)),
            "ca" => self.tls_of(name)?.ca = text(),
            "cert" => self.tls_of(name)?.cert = text(),
            "key" => self.tls_of(name)?.key = text(),
            _ => return Err(bad(&unknown_setting(name, &KNOWN), FORMS)),
        }
        Ok(())
    }

    fn tls_of(&mut self, name: &str) -> Result<&mut Tls, Error> {
        self.tls
            .as_mut()
            .ok_or_else(|| bad(&format!("{name:?} is for TLS"), "a scheme that begins with rediss"))
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

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("address", &self.address())
            .field("db", &self.db)
            .field("user", &self.user)
            .field("password", &self.password)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("replicas", &self.replicas)
            .field("restart_guard", &self.restart_guard)
            .finish_non_exhaustive()
    }
}

/// An error about the URL that does not repeat the URL, which may hold a password.
fn bad(what: &str, right: &str) -> Error {
    Error::invalid(format!("the Redis URL cannot be used: {what}; expected {right}"))
}

/// A prefix may not hold what has a meaning of its own in keys, patterns and slots.
fn prefix(value: &str) -> Result<String, Error> {
    let fine = |it: char| it.is_ascii_alphanumeric() || "._-:/".contains(it);
    if value.is_empty() || 64 < value.len() || !value.chars().all(fine) {
        return Err(bad("the prefix is not usable", "1 to 64 of the characters A-Z a-z 0-9 . _ - : /"));
    }
    Ok(value.to_owned())
}

fn duration(name: &str, value: &str) -> Result<Duration, Error> {
    humantime::parse_duration(value)
        .ok()
        .filter(|it| !it.is_zero())
        .ok_or_else(|| bad(&format!("{name:?} is not a time"), "for example 500ms, 2s or 1m"))
}

fn replicas(value: &str) -> Result<Replicas, Error> {
    match value {
        "majority" => Ok(Replicas::Majority),
        "0" => Ok(Replicas::None),
        _ => value
            .parse()
            .map(Replicas::Count)
            .map_err(|_| bad("\"replicas\" is not usable", "a number or majority")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deployment_has_its_url() {
        let single = Options::parse("redis://h/3").unwrap();
        assert_eq!((single.hosts[0].to_string().as_str(), single.db), ("h:6379", 3));
        let sentinel = Options::parse("redis+sentinel://a,b:1,[::1]:2/my%20service/4").unwrap();
        assert_eq!(sentinel.to_string(), "redis+sentinel://a:26379,b:1,[::1]:2/my service");
        assert_eq!(sentinel.db, 4);
        let cluster = Options::parse("rediss+cluster://a:7000,b:7001?ca=/etc/ca.pem&timeout=2s").unwrap();
        assert_eq!(cluster.deployment, Deployment::Cluster);
        assert_eq!(cluster.tls.unwrap().ca.as_deref(), Some("/etc/ca.pem"));
        assert_eq!(cluster.timeout, Duration::from_secs(2));
        assert_eq!(Options::parse("redis://h?replicas=majority").unwrap().replicas, Replicas::Majority);
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
        ] {
            let error = Options::parse(url).unwrap_err().to_string();
            assert!(error.contains(hint), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let secret = "p@ss/wörd";
        let url = "rediss+sentinel://joe:p%40ss%2Fw%C3%B6rd@h/s?sentinel_password=p%40ss%2Fw%C3%B6rd";
        let options = Options::parse(url).unwrap();
        assert_eq!(options.password.as_ref().unwrap().reveal(), secret);
        assert_eq!(options.sentinel_password.as_ref().unwrap().reveal(), secret);
        let shown = format!("{options} {options:?} {:?}", options.password);
        assert!(!shown.contains(secret) && !shown.contains("p%40"), "{shown}");
        for broken in ["redis://u:hush@h?x=1", "redis://u:hush@h:port", "redis://u:hush%@h"] {
            assert!(!Options::parse(broken).unwrap_err().to_string().contains("hush"));
        }
    }
}
