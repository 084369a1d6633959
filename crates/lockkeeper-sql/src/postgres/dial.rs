//! Connecting: of several hosts the first that answers and takes writes. A silent one holds up nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_core::Clock;
use tokio_postgres::Config;

use super::fault::{Result, Trouble};
use super::options::PostgresOptions;
use super::session::{Ears, Session};
use super::wire::Wire;

/// After so long without an answer the next host is tried as well.
const STAGGER: Duration = Duration::from_millis(250);

/// The ways to one database.
pub(crate) struct Dialer {
    /// One for each host of the URL.
    hosts: Vec<Config>,
    wire: Wire,
    answer_within: Duration,
    /// The host that was good last, which is tried first.
    good: AtomicUsize,
}

impl Dialer {
    pub(crate) fn new(options: &PostgresOptions, wire: Wire) -> Self {
        Dialer {
            hosts: each_host(&options.config),
            wire,
            answer_within: options.common.timeout,
            good: AtomicUsize::new(0),
        }
    }

    /// Open a session on the present runtime.
    pub(crate) async fn dial(&self, ears: Option<&Arc<Ears>>) -> Result<Session> {
        tokio::select! {
            biased;
            session = self.race(ears) => session,
            () = Clock::boot().sleep(self.answer_within) => Err(Trouble::Silent),
        }
    }

    async fn race(&self, ears: Option<&Arc<Ears>>) -> Result<Session> {
        let (clock, count, first) = (Clock::boot(), self.hosts.len(), self.good.load(Ordering::Relaxed));
        let mut attempts = FuturesUnordered::new();
        let (mut begun, mut last) = (0, Err(Trouble::Silent));
        loop {
            if begun < count {
                let at = (first + begun) % count;
                attempts.push(self.attempt(at, ears.cloned()));
                begun += 1;
            }
            tokio::select! {
                biased;
                ended = attempts.next() => match ended {
                    Some((at, Ok(session))) => {
                        self.good.store(at, Ordering::Relaxed);
                        return Ok(session);
                    }
                    Some((_, failed)) => last = failed,
                    // All were tried and none is left.
                    None if begun == count => return last,
                    None => {}
                },
                () = clock.sleep(STAGGER), if begun < count => {}
            }
        }
    }

    async fn attempt(&self, at: usize, ears: Option<Arc<Ears>>) -> (usize, Result<Session>) {
        let Some(config) = self.hosts.get(at) else {
            return (at, Err(Trouble::Refused("the URL names no host".into())));
        };
        (at, Session::open(config.clone(), self.wire.clone(), ears, self.answer_within).await)
    }
}

/// The same configuration with one host in each.
fn each_host(config: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = hosts.len().max(addresses.len());
    // What the driver would refuse as a whole, it shall refuse.
    let odd = !hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len();
    if count < 2 || odd || (1 < ports.len() && ports.len() != count) {
        return vec![config.clone()];
    }
    let one = |at: usize| {
        let mut one = without_hosts(config);
        match hosts.get(at) {
            Some(tokio_postgres::config::Host::Tcp(name)) => drop(one.host(name)),
            #[cfg(unix)]
            Some(tokio_postgres::config::Host::Unix(path)) => drop(one.host_path(path)),
            None => {}
        }
        if let Some(address) = addresses.get(at) {
            one.hostaddr(*address);
        }
        if let Some(port) = ports.get(at).or_else(|| ports.first()) {
            one.port(*port);
        }
        one
    };
    (0..count).map(one).collect()
}

fn without_hosts(config: &Config) -> Config {
    let mut one = Config::new();
    if let Some(user) = config.get_user() {
        one.user(user);
    }
    if let Some(password) = config.get_password() {
        one.password(password);
    }
    if let Some(name) = config.get_dbname() {
        one.dbname(name);
    }
    if let Some(options) = config.get_options() {
        one.options(options);
    }
    if let Some(name) = config.get_application_name() {
        one.application_name(name);
    }
    if let Some(span) = config.get_connect_timeout() {
        one.connect_timeout(*span);
    }
    if let Some(span) = config.get_tcp_user_timeout() {
        one.tcp_user_timeout(*span);
    }
    if let Some(span) = config.get_keepalives_interval() {
        one.keepalives_interval(span);
    }
    if let Some(count) = config.get_keepalives_retries() {
        one.keepalives_retries(count);
    }
    one.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs())
        .load_balance_hosts(config.get_load_balance_hosts());
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_keeps_everything_else() {
        let url = "postgres://me:secret@a:1,b:2/db?connect_timeout=7&application_name=x&options=-c%20a%3Db";
        let config: Config = url.parse().unwrap();
        let hosts = each_host(&config);
        assert_eq!(hosts.len(), 2);
        for (at, one) in hosts.iter().enumerate() {
            assert_eq!(one.get_hosts(), &config.get_hosts()[at..=at]);
            assert_eq!(one.get_ports(), &config.get_ports()[at..=at]);
            let mut whole: Config = "postgres://me:secret@c:3/db".parse().unwrap();
            whole.connect_timeout(Duration::from_secs(7)).application_name("x").options("-c a=b");
            assert_eq!(without_hosts(one), without_hosts(&whole));
        }
        let single: Config = "postgres://me@a/db".parse().unwrap();
        assert_eq!(each_host(&single), [single]);
    }
}
