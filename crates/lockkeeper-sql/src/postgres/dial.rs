//! Connecting: of several hosts one that answers, takes writes and is the store that this process knows. A silent one holds
//! up nobody.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Moment};
use tokio_postgres::Config;

use super::fault::{Result, Trouble};
use super::options::{PostgresMode, PostgresOptions};
use super::origin::{self, Writer};
use super::session::{Ears, Session};
use super::wire::Wire;
use crate::joint::Joint;

/// After so long without an answer the next host is tried as well.
const STAGGER: Duration = Duration::from_millis(250);

/// How often all hosts are asked, not only as many as it needs.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The ways to one database.
pub(crate) struct Dialer {
    /// One for each host of the URL.
    hosts: Vec<Config>,
    wire: Wire,
    answer_within: Duration,
    /// Whether the sessions' sockets may be heard by their callers: then many a session is used by one at a time.
    lends: bool,
    /// The host that was good last, which is tried first. Relaxed: a hint.
    good: AtomicUsize,
    seen: Mutex<Seen>,
}

/// What this process knows of its store.
#[derive(Default)]
struct Seen {
    store: Option<Writer>,
    /// When all hosts were asked.
    looked_at: Option<Moment>,
    /// The sessions that are open, and where.
    open: Vec<(Writer, Joint)>,
}

/// A session with a host that takes writes.
struct Found {
    at: usize,
    session: Session,
    writer: Writer,
}

impl Dialer {
    pub(crate) fn new(options: &PostgresOptions, wire: Wire) -> Self {
        Dialer {
            hosts: each_host(&options.config),
            wire,
            answer_within: options.common.timeout,
            lends: options.mode == PostgresMode::Session,
            good: AtomicUsize::new(0),
            seen: Mutex::default(),
        }
    }

    /// Whether there is more than one host to choose from.
    pub(crate) fn has_choice(&self) -> bool {
        1 < self.hosts.len()
    }

    /// Open a session on the present runtime.
    pub(crate) async fn dial(&self, ears: Option<&Arc<Ears>>) -> Result<Session> {
        let session = tokio::select! {
            biased;
            session = self.open() => session?,
            () = Clock::boot().sleep(self.answer_within) => return Err(Trouble::Silent),
        };
        if let Some(ears) = ears {
            session.tell(ears);
        }
        Ok(session)
    }

    async fn open(&self) -> Result<Session> {
        if !self.has_choice() {
            return self.session(0).await;
        }
        let (found, last) = self.ask(self.is_time_to_look()).await;
        if found.is_empty() { Err(last) } else { self.chosen(found) }
    }

    /// Look at all hosts. If another was promoted since, our sessions with the one before it end, so that locks that are held
    /// there are lost in words and not held twice.
    pub(crate) async fn look(&self) {
        if !self.has_choice() {
            return;
        }
        tokio::select! {
            biased;
            // Whoever is not reached or not believed now changes nothing for those who are connected.
            (found, _) = self.ask(true) => drop(self.chosen(found)),
            () = Clock::boot().sleep(self.answer_within) => {}
        }
    }

    /// All hosts that take writes, for the operator.
    pub(crate) async fn writers(&self) -> Vec<Writer> {
        if !self.has_choice() {
            return Vec::new();
        }
        tokio::select! {
            biased;
            (found, _) = self.ask(true) => found.into_iter().map(|it| it.writer).collect(),
            () = Clock::boot().sleep(self.answer_within) => Vec::new(),
        }
    }

    fn is_time_to_look(&self) -> bool {
        let (now, seen) = (Clock::boot().now(), locked(&self.seen));
        seen.store.is_none() || seen.looked_at.is_none_or(|it| LOOK_EVERY <= now - it)
    }

    fn is_believed(&self, writer: &Writer) -> bool {
        origin::choose(locked(&self.seen).store.as_ref(), std::slice::from_ref(writer)).is_ok()
    }

    /// Whether it is the very server that this process has seen.
    fn was_seen(&self, writer: &Writer) -> bool {
        locked(&self.seen).store.as_ref().is_some_and(|it| origin::is_same(it, writer))
    }

    /// Ask the hosts one after the other, the last good one first, until one takes writes that is our store. To look at `all`,
    /// and if it is not sure to be ours, the others are asked then, too, and waited for a moment. With what the last failure was.
    async fn ask(&self, all: bool) -> (Vec<Found>, Trouble) {
        let (clock, count, first) = (Clock::boot(), self.hosts.len(), self.good.load(Ordering::Relaxed));
        let (mut attempts, mut begun) = (FuturesUnordered::new(), 0);
        let (mut found, mut last, mut until) = (Vec::new(), Trouble::Silent, Moment::NEVER);
        if all {
            locked(&self.seen).looked_at = Some(clock.now());
        }
        loop {
            let more = if found.is_empty() { 1 } else { count };
            for _ in 0..more.min(count - begun) {
                attempts.push(self.attempt((first + begun) % count));
                begun += 1;
            }
            tokio::select! {
                biased;
                ended = attempts.next() => match ended {
                    Some(Ok(it)) => {
                        let believed = self.is_believed(&it.writer);
                        // One that was started since may be a copy of ours: then ours is to be heard, too.
                        let sure = believed && self.was_seen(&it.writer);
                        found.push(it);
                        if sure && !all {
                            return (found, last);
                        }
                        // Ours may be slow; if it does not come it is the stranger that is to be told.
                        let wait = if believed { STAGGER } else { self.answer_within / 2 };
                        until = until.min(clock.now().after(wait));
                    }
                    Some(Err(failed)) => last = failed,
                    // All were tried and none is left.
                    None if begun == count => return (found, last),
                    None => {}
                },
                () = clock.sleep_until(until), if !found.is_empty() => return (found, last),
                () = clock.sleep(STAGGER), if found.is_empty() && begun < count => {}
            }
        }
    }

    async fn session(&self, at: usize) -> Result<Session> {
        let Some(config) = self.hosts.get(at) else {
            return Err(Trouble::Refused("the URL names no host".into()));
        };
        Session::open(config, &self.wire, self.answer_within, self.lends).await
    }

    async fn attempt(&self, at: usize) -> Result<Found> {
        let session = self.session(at).await?;
        let origin = origin::ask(&session).await?;
        let host = self.hosts.get(at).map(name_of).unwrap_or_default();
        Ok(Found { at, session, writer: Writer { host, origin } })
    }

    /// The one that is our store. Those that it came after are not used any more.
    fn chosen(&self, mut found: Vec<Found>) -> Result<Session> {
        let writers: Vec<Writer> = found.iter().map(|it| it.writer.clone()).collect();
        let mut seen = locked(&self.seen);
        let Found { at, session, writer } = found.swap_remove(origin::choose(seen.store.as_ref(), &writers)?);
        seen.open.retain(|(where_to, open)| {
            let outrun = origin::is_later(&writer, where_to);
            if outrun {
                open.end();
            }
            !outrun && !open.is_over()
        });
        seen.open.push((writer.clone(), session.work()));
        seen.store = Some(writer);
        self.good.store(at, Ordering::Relaxed);
        Ok(session)
    }
}

/// A host as errors name it.
fn name_of(config: &Config) -> String {
    let host = config.get_hosts().first().map(super::doctor::host);
    let host = host.or_else(|| config.get_hostaddrs().first().map(ToString::to_string)).unwrap_or_default();
    format!("{host}:{}", config.get_ports().first().unwrap_or(&5432))
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
