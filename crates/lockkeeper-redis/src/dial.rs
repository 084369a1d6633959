//! Opening connections: to a server, to the primary that sentinels name, to a cluster; with or without TLS.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Error, Moment};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult,
};
use tokio::net::TcpStream;

use crate::cluster::Members;
use crate::fault;
use crate::options::{Deployment, Host, RedisOptions, Secret};
use crate::wake::Tap;

/// Commands that may wait in a connection's channel. The client's own 50 make a crowd queue for the queue.
const PIPELINE_BUFFER: usize = 4096;

/// Which server a connection is for.
#[derive(Clone, Debug)]
pub(crate) enum Goal {
    /// The named server, or whichever the sentinels name.
    Primary,
    /// This one: a node of a cluster.
    Node(Host),
}

/// The last slot of a range, its first, and which server of a cluster keeps it.
pub(crate) type Range = (u16, u16, Host);

/// Knows how to reach the store.
#[derive(Debug)]
pub(crate) struct Dialer {
    pub(crate) options: RedisOptions,
    pub(crate) clock: Clock,
    /// Which server was the primary when last asked, and since when if it took over, for the restart guard.
    known_run: Mutex<Option<(String, Option<Moment>)>>,
    /// How often the primary has changed while we watched: what was opened before is not believed any more.
    /// Acquire and Release are more than enough: a call of whoever does not see the change yet is like one that was sent before it.
    switches: AtomicU64,
    /// Who keeps what in a cluster, sorted. Known to all connections: what one learns of a failover, none may ignore.
    pub(crate) slots: Mutex<Arc<[Range]>>,
    /// The nodes of our cluster, when last looked.
    pub(crate) members: Mutex<Arc<Members>>,
}

impl Dialer {
    pub(crate) fn new(options: RedisOptions) -> Result<Self, Error> {
        #[cfg(feature = "tls")]
        if options.tls.is_some() {
            tls_ready();
        }
        if options.restart_guard.is_some() && options.deployment == Deployment::Cluster {
            return Err(Error::unsupported(
                fault::NAME,
                "restart_guard on a cluster, whose nodes restart unseen; use it on single servers, \
                    sentinels or redlock",
            ));
        }
        Ok(Dialer {
            options,
            clock: Clock::boot(),
            known_run: Mutex::default(),
            switches: AtomicU64::new(0),
            slots: Mutex::new(Arc::from([])),
            members: Mutex::default(),
        })
    }

    pub(crate) fn switches(&self) -> u64 {
        self.switches.load(Ordering::Acquire)
    }

    /// Another server is the primary now.
    pub(crate) fn switch(&self) {
        self.switches.fetch_add(1, Ordering::AcqRel);
    }

    /// A connection takes a few trips to open; none is waited for longer than this.
    pub(crate) fn longest_dial(&self) -> Duration {
        self.options.connect_timeout + self.options.timeout.saturating_mul(2)
    }

    /// Connect to the server that is meant, and tell which that is.
    pub(crate) async fn reach(
        &self,
        goal: &Goal,
        tap: Option<Tap>,
    ) -> RedisResult<(MultiplexedConnection, Host)> {
        let host = match (goal, &self.options.deployment) {
            (Goal::Primary, Deployment::Sentinel { service }) => {
                let host = self.elected(service).await?;
                return Ok((self.server_that_leads(&host, tap).await?, host));
            }
            (Goal::Node(host), _) => host,
            (Goal::Primary, _) => &self.options.hosts[0],
        };
        Ok((self.server(host, None, tap).await?, host.clone()))
    }

    /// The primary that more than half of the named sentinels name.
    ///
    /// One that was cut off may name a server that is no primary any more, and which does not know it either.
    async fn elected(&self, service: &str) -> RedisResult<Host> {
        let hosts = &self.options.hosts;
        let mut answers: FuturesUnordered<_> =
            hosts.iter().map(|it| self.ask_sentinel(it, service)).collect();
        let mut votes: Vec<(Host, usize)> = Vec::new();
        let mut last = None;
        while let Some(answer) = answers.next().await {
            let host = match answer {
                Ok(host) => host,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            let at = votes.iter().position(|it| it.0 == host).unwrap_or_else(|| {
                votes.push((host, 0));
                votes.len() - 1
            });
            votes[at].1 += 1;
            if hosts.len() < votes[at].1 * 2 {
                return Ok(votes.swap_remove(at).0);
            }
        }
        match last {
            Some(error) if votes.is_empty() => Err(error),
            last => {
                let named: Vec<_> = votes.iter().map(|(host, count)| format!("{host} by {count}")).collect();
                let others = last.map_or(String::new(), |it| format!("; the others fail: {it}"));
                let what = format!("of {} sentinels: {}{others}", hosts.len(), named.join(", "));
                let short = "no primary is named by more than half of the sentinels in the URL";
                Err(RedisError::from((ErrorKind::Io, short, what)))
            }
        }
    }

    /// Sentinels may be behind the times: the server itself must say that it is the primary.
    async fn server_that_leads(&self, host: &Host, tap: Option<Tap>) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.server(host, None, tap).await?;
        let info: String = Cmd::new().arg("INFO").arg("replication").query_async(&mut connection).await?;
        match field(&info, "role") {
            Some("master") => Ok(connection),
            _ => Err(RedisError::from((
                ErrorKind::Io,
                "the server that the sentinels name is not a primary (yet)",
                host.to_string(),
            ))),
        }
    }

    /// Connect to this server. What comes unasked goes into the tap. Without a timeout the caller sees to one.
    pub(crate) async fn server(
        &self,
        host: &Host,
        timeout: Option<Duration>,
        tap: Option<Tap>,
    ) -> RedisResult<MultiplexedConnection> {
        let login = (self.options.user.as_deref(), self.options.password.as_ref());
        let client = self.client(host, login, self.options.db)?;
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(timeout)
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        if let Some(tap) = tap {
            config = config.set_push_sender(tap);
        }
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// The address of the service's primary, as this sentinel believes.
    async fn ask_sentinel(&self, sentinel: &Host, service: &str) -> RedisResult<Host> {
        self.primary_told_by(sentinel, service).await.map_err(|error| match error.code() {
            Some("NOAUTH" | "WRONGPASS" | "NOPERM") => {
                let what =
                    "a sentinel refuses us; check sentinel_user and sentinel_password, and their rights";
                RedisError::from((ErrorKind::AuthenticationFailed, what, error.to_string()))
            }
            _ => error,
        })
    }

    async fn primary_told_by(&self, sentinel: &Host, service: &str) -> RedisResult<Host> {
        let client = self.sentinel_client(sentinel)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(self.options.timeout));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let address: Option<(String, u16)> = Cmd::new()
            .arg("SENTINEL")
            .arg("get-master-addr-by-name")
            .arg(service)
            .query_async(&mut connection)
            .await?;
        let (name, port) = address.ok_or_else(|| {
            RedisError::from((
                ErrorKind::MasterNameNotFoundBySentinel,
                "the sentinel does not know the service",
                service.to_owned(),
            ))
        })?;
        Ok(Host { name, port })
    }

    pub(crate) fn sentinel_client(&self, sentinel: &Host) -> RedisResult<Client> {
        let login = (self.options.sentinel_user.as_deref(), self.options.sentinel_password.as_ref());
        self.client(sentinel, login, 0)
    }

    fn client(&self, host: &Host, login: (Option<&str>, Option<&Secret>), db: i64) -> RedisResult<Client> {
        let info = self.connection_info(host, login, db)?;
        #[cfg(feature = "tls")]
        if let Some(certificates) = self.certificates()? {
            return Client::build_with_tls(info, certificates);
        }
        Client::open(info)
    }

    fn connection_info(
        &self,
        host: &Host,
        (user, password): (Option<&str>, Option<&Secret>),
        db: i64,
    ) -> RedisResult<ConnectionInfo> {
        let (name, port) = (host.name.clone(), host.port);
        let address = if self.options.tls.is_some() {
            ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(name, port)
        };
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            // One right less to ask for; a server that refuses it would log that at every connection.
            .set_skip_set_lib_name()
            .set_db(db);
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password.reveal());
        }
        Ok(address.into_connection_info()?.set_tcp_settings(self.tcp()).set_redis_settings(settings))
    }

    /// No delay, and no silence for longer than a lease may last: a peer that vanished must be noticed.
    fn tcp(&self) -> TcpSettings {
        let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive());
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        let settings = settings.set_user_timeout(self.user_timeout());
        settings
    }

    /// The same for a socket of our own.
    pub(crate) fn keep_alive(&self, stream: &TcpStream) -> io::Result<()> {
        let socket = socket2::SockRef::from(stream);
        socket.set_tcp_keepalive(&keepalive())?;
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        socket.set_tcp_user_timeout(Some(self.user_timeout()))?;
        Ok(())
    }

    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    fn user_timeout(&self) -> Duration {
        self.options.timeout.saturating_mul(4)
    }

    #[cfg(feature = "tls")]
    fn certificates(&self) -> RedisResult<Option<redis::TlsCertificates>> {
        let Some(tls) = &self.options.tls else {
            return Ok(None);
        };
        let unreadable = |it: Error| {
            RedisError::from((ErrorKind::InvalidClientConfig, "a TLS file cannot be read", it.to_string()))
        };
        let (root_cert, identity) =
            (tls.read_ca().map_err(unreadable)?, tls.read_identity().map_err(unreadable)?);
        let client_tls =
            identity.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
        Ok(Some(redis::TlsCertificates { client_tls, root_cert }))
    }

    /// From when on grants of this server count, by the restart guard.
    ///
    /// A server that started less than the guard ago may have forgotten grants that are still in use.
    /// So may one that took over from another while we watched.
    pub(crate) async fn grants_from(&self, connection: &mut MultiplexedConnection) -> RedisResult<Moment> {
        let Some(guard) = self.options.restart_guard else {
            return Ok(Moment::from_nanos(0));
        };
        let now = self.clock.now();
        let info: String = Cmd::new().arg("INFO").arg("server").query_async(connection).await?;
        let run = field(&info, "run_id").unwrap_or_default().to_owned();
        let uptime = field(&info, "uptime_in_seconds").and_then(|it| it.parse().ok()).unwrap_or(0_u64);
        // Counted in whole seconds of the wall clock: it may be one too many.
        let uptime = Duration::from_secs(uptime.saturating_sub(1));
        // All connections share this: the switch counts for each, whichever of them noticed it.
        let mut known = locked(&self.known_run);
        let took_over = match known.as_ref() {
            Some((same, since)) if *same == run => *since,
            Some(_) => Some(now),
            None => None,
        };
        *known = Some((run, took_over));
        let since_start = now.after(guard.saturating_sub(uptime));
        Ok(took_over.map_or(since_start, |it| it.after(guard).max(since_start)))
    }
}

fn keepalive() -> socket2::TcpKeepalive {
    socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(3))
        .with_retries(3)
}

/// A line `name:value` of `INFO`.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The client asks rustls for the process's default provider and would panic if that is not clear.
#[cfg(feature = "tls")]
fn tls_ready() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // If another thread was quicker there is a default now, which is all we need.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Shared by those who dial.
pub(crate) type SharedDialer = Arc<Dialer>;
