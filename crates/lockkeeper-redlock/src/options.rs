//! Options: the nodes, timeouts, the allowance for clocks, the restart guard, and what tests replace.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::address::hosts;
use lockkeeper_core::kit::settings::{Form, span_of};
use lockkeeper_core::node::UrlNode;
use lockkeeper_core::{Clock, Result, Spawn};

const FORM: Form = Form::new(
    "Redlock",
    "redlock://[user:password@]host[:port],host,host[?node_timeout=50ms&restart_guard=1m|off], or redlocks:// for TLS",
);

/// A node that is given less cannot answer over a network.
const NODE_TIMEOUT_MIN: Duration = Duration::from_millis(10);

/// Which nodes, and how a [`Redlock`](crate::Redlock) of them behaves. The defaults are safe.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_redis::Redis;
/// use lockkeeper_redlock::RedlockOptions;
///
/// let options = RedlockOptions::<Redis>::parse("redlock://one,two,three?timeout=500ms")?
///     .node_timeout(Duration::from_millis(200))
///     .restart_guard(Duration::from_secs(120)) // the longest ttl of anybody
///     .retry_max(Duration::from_millis(50));
/// # let _ = options; Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RedlockOptions<B> {
    pub(crate) nodes: Vec<B>,
    pub(crate) rules: Rules,
}

/// What can be chosen, whatever the nodes are.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) drift_per_mille: u32,
    pub(crate) restart_guard: Option<Duration>,
    pub(crate) retry_max: Duration,
    pub(crate) clock: Clock,
    pub(crate) spawner: Option<Arc<dyn Spawn>>,
    pub(crate) seed: Option<u64>,
}

impl<B: UrlNode> RedlockOptions<B> {
    /// Read a URL: `redlock://[user:password@]host[:port],host,host[?setting=value&setting=value]`. All hosts have the same
    /// login and the same settings.
    ///
    /// Settings: `node_timeout`, `restart_guard` (a span, or `off`), and those that nodes of this kind share; for Redis
    /// `prefix`, `timeout`, `connect_timeout`, `replicas`, `replicas_timeout`, `password_file`, `tls` with the files `ca`,
    /// `cert` and `key`. `redlocks://` means TLS, too.
    ///
    /// # Errors
    /// [`Error::Invalid`](lockkeeper_core::Error::Invalid) with what is wrong and what would be right. The message holds
    /// no secret.
    pub fn parse(url: &str) -> Result<Self> {
        let address = FORM.address(url)?;
        let secure = match address.scheme {
            "redlock" => false,
            "redlocks" => true,
            _ => return Err(FORM.wrong("it does not begin with redlock:// or redlocks://")),
        };
        if !address.path.is_empty() {
            return Err(FORM.wrong("nothing may follow the hosts but `?`"));
        }
        hosts(address.hosts, 1).map_err(|it| FORM.wrong(it))?;
        let mut settings = FORM.settings(address.query)?;
        let node_timeout = settings.span("node_timeout")?;
        let guard_of = |it: &str| if it == "off" { Some(None) } else { span_of(it).map(Some) };
        let restart_guard = settings.read("restart_guard", "a duration such as `1m`, or `off`", guard_of)?;
        let mut passed = settings.passed(B::SETTINGS);
        settings.finish()?;
        if secure {
            match passed.iter().find(|it| it.0 == "tls") {
                Some((_, "off" | "no")) => {
                    return Err(FORM.wrong("its scheme means TLS, and `tls=off` says the opposite"));
                }
                Some(_) => {}
                None => passed.push(("tls", "on")),
            }
        }
        let mut options = RedlockOptions::new(nodes(url, address.hosts, &passed)?);
        options.rules.node_timeout = node_timeout;
        options.rules.restart_guard = restart_guard.unwrap_or(options.rules.restart_guard);
        Ok(options)
    }
}

/// Each host as a node, with the login and the settings of all.
fn nodes<B: UrlNode>(url: &str, hosts: &str, settings: &[(&str, &str)]) -> Result<Vec<B>> {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let login = authority.rfind('@').map_or("", |at| &authority[..=at]);
    let query: Vec<_> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let query = query.join("&");
    hosts.split(',').map(|host| B::lazy_from(&format!("{}://{login}{host}?{query}", B::SCHEME))).collect()
}

impl<B> RedlockOptions<B> {
    /// These nodes, with defaults for everything else.
    pub fn new(nodes: Vec<B>) -> Self {
        let rules = Rules {
            node_timeout: None,
            drift_per_mille: 10,
            restart_guard: Some(Duration::from_secs(60)),
            retry_max: Duration::from_millis(100),
            clock: Clock::boot(),
            spawner: None,
            seed: None,
        };
        RedlockOptions { nodes, rules }
    }

    /// After how long a round goes on without a node that does not answer. Otherwise a twentieth of the ttl, at least
    /// 10 ms. What the node was asked is finished in the background, within its own timeout.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.rules.node_timeout = Some(timeout.max(Duration::from_millis(1)));
        self
    }

    /// By how much, in thousandths, two clocks may differ in rate. 10 by default.
    #[must_use]
    pub fn drift_per_mille(mut self, drift: u32) -> Self {
        self.rules.drift_per_mille = drift.min(500);
        self
    }

    /// The longest ttl that anybody takes on these nodes, one minute by default. A node that lost its memory
    /// has no vote until that has passed. Every client of the nodes must be given the same.
    #[must_use]
    pub fn restart_guard(mut self, ttl_max: Duration) -> Self {
        self.rules.restart_guard = Some(ttl_max.max(Duration::from_millis(1)));
        self
    }

    /// Let nodes vote however young their memory is. Safe only if they never forget what they confirmed,
    /// as Redis with `appendfsync always`; otherwise a restart can give one lock to two holders.
    #[must_use]
    pub fn without_restart_guard(mut self) -> Self {
        self.rules.restart_guard = None;
        self
    }

    /// The longest pause before a lock that is taken is asked for again; 100 ms by default. The pause is
    /// random and grows from 2 ms.
    #[must_use]
    pub fn retry_max(mut self, pause: Duration) -> Self {
        self.rules.retry_max = pause.max(Duration::from_millis(1));
        self
    }

    /// The clock; the locker must have the same. For tests and simulation.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.rules.clock = clock;
        self
    }

    /// Where verbs are finished that outlast their timeout, instead of on a thread of our own.
    #[must_use]
    pub fn spawner(mut self, spawner: Arc<dyn Spawn>) -> Self {
        self.rules.spawner = Some(spawner);
        self
    }

    /// Draw the random pauses from this seed, so that a simulation can be repeated.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.rules.seed = Some(seed);
        self
    }
}

impl Rules {
    /// The timeout of one node for a claim of this ttl.
    pub(crate) fn timeout_for(&self, ttl: Duration) -> Duration {
        self.node_timeout.unwrap_or((ttl / 20).max(NODE_TIMEOUT_MIN))
    }

    /// Two rounds and some time to work must fit into a lease.
    pub(crate) fn ttl_min(&self) -> Duration {
        self.node_timeout.unwrap_or(NODE_TIMEOUT_MIN) * 5
    }

    /// How long to wait for a node outside the race for a lock.
    pub(crate) fn patience(&self) -> Duration {
        self.node_timeout.unwrap_or_default().max(Duration::from_secs(2))
    }

    /// What two clocks may disagree by after `span`, and the grain of their ticks.
    pub(crate) fn drift(&self, span: Duration) -> Duration {
        span / 1000 * self.drift_per_mille + Duration::from_millis(2)
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_redis::Redis;

    use super::*;

    fn parse(url: &str) -> Result<RedlockOptions<Redis>> {
        RedlockOptions::parse(url)
    }

    #[test]
    fn every_host_becomes_a_node_with_the_same_login_and_settings() {
        let options = parse("redlock://u:p%40@a,b:2,c?node_timeout=20ms&prefix=x&timeout=5s").unwrap();
        let shown: Vec<_> = options.nodes.iter().map(|it| format!("{:?}", it.options())).collect();
        for (shown, host) in shown.iter().zip(["redis://a:6379", "redis://b:2", "redis://c:6379"]) {
            for part in [host, "Some(\"u\")", "password: Some(***)", "prefix: \"x\"", "timeout: 5s"] {
                assert!(shown.contains(part), "{part}: {shown}");
            }
        }
        assert_eq!(options.rules.node_timeout, Some(Duration::from_millis(20)));
        assert_eq!(options.rules.restart_guard, Some(Duration::from_secs(60)));
        let open = parse("redlock://a,b,c?restart_guard=off").unwrap();
        assert_eq!(open.rules.restart_guard, None);
    }

    #[test]
    fn a_misspelt_setting_is_answered_with_the_one_that_was_meant() {
        for (wrong, meant) in
            [("node_timeuot", "node_timeout"), ("restart_gaurd", "restart_guard"), ("prefx", "prefix")]
        {
            let said = parse(&format!("redlock://u:hunter2@a,b,c?{wrong}=5ms")).unwrap_err().to_string();
            assert!(
                said.contains(&format!("did you mean `{meant}`?")) && said.contains("redlock://"),
                "{said}"
            );
            assert!(!said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_the_password() {
        for (url, part) in [
            ("redis://u:hunter2@a,b,c", "redlock://"),
            ("redlock://u:hunter2@a/0,b,c", "nothing may follow"),
            ("redlock://u:hunter2@a,,c", "a host is missing"),
            ("redlock://u:hunter2@a,b,c?node_timeout=x", "`node_timeout` cannot be"),
            ("redlock://u:hunter2@a,b,c?restart_guard=x", "or `off`"),
            ("redlock://u:hunter2@a,b,c?timeout=x", "`timeout` cannot be"),
            ("redlocks://u:hunter2@a,b,c?tls=off", "the opposite"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.to_string().contains(part), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
