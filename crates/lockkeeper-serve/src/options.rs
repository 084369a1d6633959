//! What a server may do, how much of it, and the router.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::{Error, Locker, Result};

use crate::doubt::{Doubts, InDoubts};
use crate::hot::HotNames;
use crate::secret::{Secret, random_token};
use crate::state::{Metrics, State, Told};
use crate::{console, gate, leaders, locks, look, tokens};

/// How much a server does at a time.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper_serve::Limits;
///
/// let limits = Limits::default().streams(100).body_bytes(1024).patience(Duration::from_secs(5));
/// assert!(format!("{limits:?}").contains("100"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub(crate) streams: usize,
    pub(crate) connections: usize,
    pub(crate) body_bytes: usize,
    pub(crate) patience: Duration,
    /// How long a client may take to send the head of a request, or be silent between two.
    pub(crate) head: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let (patience, head) = (Duration::from_secs(10), Duration::from_secs(60));
        Limits { streams: 4096, connections: 8192, body_bytes: 16 * 1024, patience, head }
    }
}

impl Limits {
    /// How many locks and roles may be held or waited for over HTTP at a time. Default 4096; the next is answered with 503.
    #[must_use]
    pub fn streams(mut self, count: usize) -> Self {
        self.streams = count;
        self
    }

    /// How many connections may be open at a time. Default 8192; the next waits until one is closed.
    #[must_use]
    pub fn connections(mut self, count: usize) -> Self {
        self.connections = count.max(1);
        self
    }

    /// The largest body of a request. Default 16 KiB.
    #[must_use]
    pub fn body_bytes(mut self, bytes: usize) -> Self {
        self.body_bytes = bytes;
        self
    }

    /// How long a client may take to send a body, and how long clients are left to end at a shutdown. Default 10 s.
    #[must_use]
    pub fn patience(mut self, span: Duration) -> Self {
        self.patience = span;
        self
    }
}

/// A server of locks over HTTP. It reads only, unless [`allow_locks`](Serve::allow_locks) is said.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Locker, Memory};
/// use lockkeeper_serve::{HotNames, InDoubts, Limits, Serve};
///
/// let store = Memory::default();
/// let router: axum::Router = Serve::new(Locker::new(store.clone()), store, "a-long-secret")?
///     .store("memory:")
///     .allow_locks()
///     .allow_break()
///     .on_break(|told| println!("{told}"))
///     .hosts(["locks.internal:7765"])
///     .limits(Limits::default().streams(100))
///     .metrics(|| "# EOF\n".to_owned())
///     .hot_names(HotNames::default())
///     .two_phase(|| async { Ok(InDoubts::default()) })
///     .router(); // to be mounted where you like, or `run`
/// # drop(router);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a server does nothing until it is run"]
pub struct Serve {
    pub(crate) state: State,
}

impl Serve {
    /// A server for the locks of this locker, as seen by the operator's view of the same store. Clients show the token.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a token that is empty or has blanks in it; [`Error::Unavailable`] if the operating
    /// system has no randomness to give. A token that is easily guessed because it is short is taken as it is.
    pub fn new(locker: Locker, inspect: impl DynInspect, token: impl Into<String>) -> Result<Self> {
        Serve::with(locker, Arc::new(inspect), token)
    }

    /// The same with a view that others use, too.
    ///
    /// # Errors
    /// As for [`Serve::new`].
    pub fn with(locker: Locker, inspect: Arc<dyn DynInspect>, token: impl Into<String>) -> Result<Self> {
        let token = token.into();
        if token.is_empty() || token.contains(|it: char| it.is_whitespace() || it.is_control()) {
            return Err(Error::invalid("the token is empty or has blanks in it; draw it at random"));
        }
        let session = Secret::new(random_token()?);
        Ok(Serve { state: State::new(locker, inspect, Secret::new(token), session) })
    }

    /// How the store is called on the console, without secrets. Default: the kind of store.
    pub fn store(mut self, shown: impl Into<String>) -> Self {
        self.state.store = shown.into();
        self
    }

    /// Let clients take locks and lead. Without it these routes are not there.
    pub fn allow_locks(mut self) -> Self {
        self.state.allow_locks = true;
        self
    }

    /// Let operators break a lock: the holder that they were shown, and nobody who came after it. Without it this route is not
    /// there.
    pub fn allow_break(mut self) -> Self {
        self.state.allow_break = true;
        self
    }

    /// Be told of every break in a line: what, which fence, whom, by whom and when.
    pub fn on_break(mut self, told: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.state.on_break = Some(Told(Arc::new(told)));
        self
    }

    /// Names by which clients may call this server beside the address that it listens on, as in a `Host` header:
    /// `locks.internal:7765`. A request for any other name is refused, so that a page of a stranger cannot reach it by a
    /// name of the stranger's own. A name with the port 80 is also known without it.
    pub fn hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.state.hosts.extend(hosts.into_iter().flat_map(|it| gate::spellings(&it.into())));
        self
    }

    /// How much it does at a time.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.state.set_limits(limits);
        self
    }

    /// What `GET /metrics` answers: `OpenMetrics` text. Without it this route is not there.
    pub fn metrics(mut self, text: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.state.metrics = Some(Metrics(Arc::new(text)));
        self
    }

    /// Show on the console which names this server is asked for most. The locker must be built with the same observer.
    pub fn hot_names(mut self, hot: HotNames) -> Self {
        self.state.hot = Some(hot);
        self
    }

    /// Show on the console what two-phase commit left in doubt. Whoever knows is asked while somebody looks or reads
    /// `/metrics`, every five seconds at most, and must change nothing. Without it this page is not there.
    pub fn two_phase<A>(mut self, ask: impl Fn() -> A + Send + Sync + 'static) -> Self
    where
        A: Future<Output = std::result::Result<InDoubts, String>> + Send + 'static,
    {
        self.state.doubts = Some(Doubts::new(ask));
        self
    }

    /// The routes, behind the checks of host, token and origin. To be mounted at the root of a server; [`Serve::run`] does
    /// that, with limits on connections and a graceful end.
    ///
    /// Here every name of a host that was not [named](Serve::hosts) is refused.
    pub fn router(self) -> Router {
        let state = Arc::new(self.state);
        routes(&state).layer(from_fn_with_state(state.clone(), gate::keep))
    }

    pub(crate) fn state(self) -> State {
        self.state
    }
}

/// All routes, without the checks before them.
pub(crate) fn routes(state: &Arc<State>) -> Router {
    let mut routes = Router::new()
        .route("/health", get(look::health))
        .route("/openapi.json", get(look::openapi))
        .route("/v1/locks", get(look::locks));
    routes = routes
        .route("/", get(console::overview))
        .route("/locks", get(console::locks))
        .route("/locks/{*name}", get(console::lock))
        .route("/rooms", get(console::rooms))
        .route("/hot", get(console::hot))
        .route("/two-phase", get(console::doubts))
        .route("/doctor", get(console::doctor))
        .route("/events", get(console::events))
        .route("/login", post(console::enter))
        .route("/assets/{name}", get(console::asset));
    if state.allow_break {
        routes = routes.route("/v1/break/{*name}", post(console::break_holder));
    }
    let (mut lock, mut leader) = (get(look::lock), get(leaders::leader));
    if state.allow_locks {
        lock = lock.merge(post(locks::lock));
        leader = leader.merge(post(leaders::campaign));
        routes = routes.route("/v1/tokens", post(tokens::take)).route(
            "/v1/tokens/{token}",
            get(tokens::look).merge(post(tokens::renew)).merge(axum::routing::delete(tokens::release)),
        );
    }
    routes = routes.route("/v1/locks/{*name}", lock).route("/v1/leaders/{*name}", leader);
    if state.metrics.is_some() {
        routes = routes.route("/metrics", get(look::metrics));
    }
    routes.fallback(look::nothing).method_not_allowed_fallback(look::not_so).with_state(state.clone())
}
