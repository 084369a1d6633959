//! The way to the cluster: one channel per endpoint, tried in turn, driven by a thread of its own.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::{Clock, Error};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::fault;
use crate::options::Options;
use crate::wire::auth_client::AuthClient;
use crate::wire::kv_client::KvClient;
use crate::wire::{AuthenticateRequest, TxnRequest, TxnResponse};

/// An idle connection is asked for a sign of life this often; a dead one is noticed after twice that.
const ALIVE_EVERY: Duration = Duration::from_secs(2);

/// A thread that drives our connections, heartbeats and watches while the application blocks its own.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) handle: Handle,
    /// Dropping it tells the thread to say goodbye and end.
    _alive: oneshot::Sender<()>,
}

impl Driver {
    /// Start the thread. `farewell` is what it does last.
    pub(crate) fn start<F>(farewell: impl FnOnce() -> F + Send + 'static) -> lockkeeper_core::Result<Self>
    where
        F: Future<Output = ()>,
    {
        let unavailable = |it| Error::unavailable("a thread for etcd", it);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unavailable)?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel::<()>();
        let main = move || {
            runtime.block_on(async {
                // The sender is never used: the channel ends when the last of us is gone.
                let _ = ended.await;
                farewell().await;
            });
        };
        std::thread::Builder::new().name("lockkeeper-etcd".into()).spawn(main).map_err(unavailable)?;
        Ok(Driver { handle, _alive: alive })
    }
}

/// The channels to all endpoints.
pub(crate) struct Connection {
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    channels: Vec<Channel>,
    /// The endpoint in use, modulo their number.
    at: AtomicUsize,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Connection {
    /// Prepare the channels. Nothing is sent yet. Must run inside the runtime that shall drive them.
    pub(crate) fn new(options: Options, clock: Clock) -> lockkeeper_core::Result<Self> {
        let channels = options.endpoints.iter().map(|it| channel(it, &options));
        let channels = channels.collect::<std::result::Result<_, _>>()?;
        let (at, token) = (AtomicUsize::new(0), Mutex::new(None));
        Ok(Connection { options, clock, channels, at, token })
    }

    /// The number of endpoints.
    pub(crate) fn nodes(&self) -> usize {
        self.channels.len()
    }

    /// The channel in use, and its number for [`Connection::turn_away_from`].
    pub(crate) fn current(&self) -> (usize, Channel) {
        let at = self.at.load(Ordering::Relaxed);
        (at, self.channels[at % self.channels.len()].clone())
    }

    /// The channel to one endpoint, for those who look at all.
    pub(crate) fn node(&self, at: usize) -> Channel {
        self.channels[at % self.channels.len()].clone()
    }

    /// Use the next endpoint, unless somebody has turned away already.
    pub(crate) fn turn_away_from(&self, at: usize) {
        let _ = self.at.compare_exchange(at, at.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A request with our token. `with_leader` refuses to be served by a node that knows of no leader.
    pub(crate) fn request<T>(&self, message: T, with_leader: bool) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = self.token().as_ref() {
            request.metadata_mut().insert("token", token.clone());
        }
        if with_leader {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        request
    }

    /// Call until an endpoint answers, each at most once. Every call we make may be repeated.
    ///
    /// Silence is told as `DeadlineExceeded`, and the next call goes to the next endpoint.
    pub(crate) async fn call<Q, A, F>(
        &self,
        message: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> std::result::Result<A, Status>
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        self.call_within(self.options.timeout, message, send).await
    }

    /// [`Connection::call`] with a patience of its own.
    pub(crate) async fn call_within<Q, A, F>(
        &self,
        patience: Duration,
        message: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> std::result::Result<A, Status>
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let mut left = self.channels.len();
        let mut renewed_token = false;
        loop {
            let (at, channel) = self.current();
            let answer = tokio::select! {
                answer = send(channel, self.request(message.clone(), false)) => answer,
                () = self.clock.sleep(patience) => {
                    self.turn_away_from(at);
                    return Err(Status::deadline_exceeded("no answer in time; the next endpoint is tried"));
                }
            };
            let status = match answer {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            if self.options.user.is_some() && fault::is_token_stale(&status) && !renewed_token {
                renewed_token = true;
                self.authenticate().await?;
                continue;
            }
            left -= 1;
            let elsewhere = matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal);
            if elsewhere || status.code() == Code::Cancelled {
                self.turn_away_from(at);
            }
            if left == 0 || !elsewhere {
                return Err(status);
            }
        }
    }

    /// One transaction.
    pub(crate) async fn txn(&self, txn: TxnRequest) -> std::result::Result<TxnResponse, Status> {
        self.txn_within(self.options.timeout, txn).await
    }

    /// One transaction, with a patience of its own.
    pub(crate) async fn txn_within(
        &self,
        patience: Duration,
        txn: TxnRequest,
    ) -> std::result::Result<TxnResponse, Status> {
        let call = |channel, request| async move { KvClient::new(channel).txn(request).await };
        self.call_within(patience, txn, call).await
    }

    /// Ask for a token, if there is a user.
    pub(crate) async fn authenticate(&self) -> std::result::Result<(), Status> {
        let (Some(name), Some(password)) = (&self.options.user, &self.options.password) else {
            return Ok(());
        };
        // The old token stays until there is a new one: others go on meanwhile, and hear by themselves that it is stale.
        let message = AuthenticateRequest { name: name.clone(), password: password.reveal().to_owned() };
        let call = |channel, mut request: Request<AuthenticateRequest>| async move {
            // A stale token would be refused here, too, and there would be no end to it.
            request.metadata_mut().remove("token");
            AuthClient::new(channel).authenticate(request).await
        };
        // Boxed, because a call may ask for a token and this is a call.
        let answer = Box::pin(self.call(message, call)).await?;
        let token = answer.token.parse();
        *self.token() = Some(token.map_err(|_| Status::internal("the server's token cannot be sent"))?);
        Ok(())
    }

    /// Find out whether anybody serves us.
    pub(crate) async fn open(&self) -> Result<()> {
        const DOING: &str = "connecting";
        self.authenticate().await.map_err(|it| self.refused(DOING, &it))?;
        let nothing = crate::wire::RangeRequest {
            count_only: true,
            ..crate::wire::one(&format!("{}/", self.options.prefix).into())
        };
        let call = |channel, request| async move { KvClient::new(channel).range(request).await };
        self.call(nothing, call).await.map_err(|it| self.refused(DOING, &it))?;
        Ok(())
    }

    fn refused(&self, doing: &'static str, status: &Status) -> Fault {
        let mut fault = fault::from_status(doing, status);
        fault.message = format!("{} ({})", fault.message, self.options.endpoints.join(", "));
        fault
    }

    fn token(&self) -> MutexGuard<'_, Option<MetadataValue<Ascii>>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn channel(endpoint: &str, options: &Options) -> lockkeeper_core::Result<Channel> {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let unusable = |it: tonic::transport::Error| Error::unavailable(format!("the etcd node {endpoint}"), it);
    let endpoint = Endpoint::from_shared(format!("{scheme}://{endpoint}"))
        .map_err(unusable)?
        .connect_timeout(options.timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_EVERY)
        .keep_alive_while_idle(true);
    #[cfg(feature = "tls")]
    let endpoint = match &options.tls {
        Some(tls) => endpoint.tls_config(tls_config(tls)?).map_err(unusable)?,
        None => endpoint,
    };
    Ok(endpoint.connect_lazy())
}

#[cfg(feature = "tls")]
fn tls_config(tls: &crate::options::Tls) -> lockkeeper_core::Result<tonic::transport::ClientTlsConfig> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};

    let read = |file: &str| {
        std::fs::read(file).map_err(|it| Error::invalid(format!("the file {file:?} cannot be read: {it}")))
    };
    let mut config = match &tls.ca {
        Some(file) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(file)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&tls.cert, &tls.key) {
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    if let Some(domain) = &tls.domain {
        config = config.domain_name(domain.clone());
    }
    Ok(config)
}
