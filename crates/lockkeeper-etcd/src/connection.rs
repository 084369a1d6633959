//! The way to the cluster: one channel per endpoint, tried in turn, driven by a thread of its own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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

/// How many runtimes of the application get channels of their own.
const RUNTIMES_MAX: usize = 8;

/// The channels to all endpoints.
pub(crate) struct Connection {
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    /// Those that our own thread drives.
    channels: Vec<Channel>,
    /// Those that runtimes of the application drive: a call that stays on its thread is quicker. They may be blocked
    /// or gone at any time, so a call that failed on one of them is repeated on ours.
    local: Mutex<HashMap<tokio::runtime::Id, Vec<Channel>>>,
    driver: Handle,
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
    /// Prepare the channels. Nothing is sent yet.
    pub(crate) fn new(options: Options, clock: Clock, driver: Handle) -> lockkeeper_core::Result<Self> {
        let entered = driver.enter();
        let channels = channels(&options)?;
        drop(entered);
        let (at, token, local) = (AtomicUsize::new(0), Mutex::new(None), Mutex::default());
        Ok(Connection { options, clock, channels, local, driver, at, token })
    }

    /// The channel in use that the caller's own runtime drives, and the id of that runtime.
    fn nearby(&self) -> Option<(tokio::runtime::Id, usize, Channel)> {
        let here = Handle::try_current().ok()?.id();
        if here == self.driver.id() {
            return None;
        }
        let at = self.at.load(Ordering::Relaxed);
        let mut local = self.local();
        if RUNTIMES_MAX <= local.len() && !local.contains_key(&here) {
            return None;
        }
        let channels = match local.entry(here) {
            Entry::Occupied(it) => it.into_mut(),
            Entry::Vacant(it) => it.insert(channels(&self.options).ok()?),
        };
        Some((here, at, channels[at % channels.len()].clone()))
    }

    fn local(&self) -> MutexGuard<'_, HashMap<tokio::runtime::Id, Vec<Channel>>> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.call_counted(patience, message, send).await.map(|it| it.0)
    }

    /// [`Connection::call`] that tells how often the message was sent. What was sent before the one that was answered
    /// may still be under way.
    async fn call_counted<Q, A, F>(
        &self,
        patience: Duration,
        message: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> std::result::Result<(A, u32), Status>
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let mut left = self.channels.len();
        let (mut renewed_token, mut nearby, mut sent) = (false, true, 0);
        loop {
            sent += 1;
            let near = if nearby { self.nearby() } else { None };
            let runtime = near.as_ref().map(|it| it.0);
            let (at, channel) = near.map_or_else(|| self.current(), |it| (it.1, it.2));
            let answer = tokio::select! {
                answer = send(channel, self.request(message.clone(), false)) => answer,
                () = self.clock.sleep(patience) => {
                    self.turn_away_from(at);
                    return Err(Status::deadline_exceeded("no answer in time; the next endpoint is tried"));
                }
            };
            let status = match answer {
                Ok(answer) => return Ok((answer.into_inner(), sent)),
                Err(status) => status,
            };
            if self.options.user.is_some() && fault::is_token_stale(&status) && !renewed_token {
                // A refusal is an answer.
                (renewed_token, sent) = (true, sent - 1);
                self.authenticate().await?;
                continue;
            }
            let elsewhere = matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal);
            if let (Some(runtime), true) = (runtime, elsewhere) {
                self.local().remove(&runtime);
                nearby = false;
                continue;
            }
            left -= 1;
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

    /// One transaction, and whether an earlier copy of it may still be under way.
    pub(crate) async fn txn_counted(
        &self,
        txn: TxnRequest,
    ) -> std::result::Result<(TxnResponse, bool), Status> {
        let call = |channel, request| async move { KvClient::new(channel).txn(request).await };
        let (answer, sent) = self.call_counted(self.options.timeout, txn, call).await?;
        Ok((answer, 1 < sent))
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

fn channels(options: &Options) -> lockkeeper_core::Result<Vec<Channel>> {
    options.endpoints.iter().map(|it| channel(it, options)).collect()
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
