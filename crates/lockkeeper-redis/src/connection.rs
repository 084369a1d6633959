//! Supervised connections: opened when first needed, replaced when broken, shared by all who use them.
//!
//! ```text
//!  commands   turn, leave and the messages of the wake channel; lives on the runtime that connected
//!  ears       cluster only: sharded wake channels, apart from the commands, because the client library
//!             takes an unsubscription that the server decided on for the answer to a command
//!  renewals   opened on the keeper's own thread, so that a busy or blocked application cannot starve it
//!  sync       WAIT, which blocks a connection
//! ```

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::backend::Fault;
use redis::cluster_async::ClusterConnection;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::runtime::Handle;

use crate::dial::{SharedDialer, Wire, at_home};
use crate::fault;
use crate::naming;
use crate::node::Server;
use crate::options::Deployment;
use crate::script::{Call, Script};
use crate::sentinel;
use crate::wake::{Board, Tap};

/// After a failed attempt the next one waits this long, however many callers press.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(20);

/// A supervised connection.
pub(crate) struct Link {
    dialer: SharedDialer,
    /// Who hears the messages of this connection, if it is subscribed.
    board: Option<Arc<Board>>,
    timeout: Duration,
    /// The runtime where the connection should live; `None` for the caller's.
    home: Option<Handle>,
    live: Mutex<Option<Live>>,
    attempts: AtomicU64,
    /// Calls that were repeated because their connection was cut.
    repeats: AtomicU64,
    opening: tokio::sync::Mutex<Option<(Moment, Fault)>>,
}

/// An open connection and what is known about it.
#[derive(Clone)]
pub(crate) struct Live {
    wire: Wire,
    state: Arc<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    broken: Arc<AtomicBool>,
    /// Grants before this moment do not count.
    pub(crate) grants_from: Moment,
    /// Who is at the other end, once somebody asked.
    server: OnceLock<Server>,
    /// Watches the sentinels while this connection lives.
    watch: Mutex<Option<tokio::task::AbortHandle>>,
}

impl State {
    pub(crate) fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(watch) = locked(&self.watch).take() {
            watch.abort();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("open", &self.ready().is_some())
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(
        dialer: SharedDialer,
        board: Option<Arc<Board>>,
        timeout: Duration,
        home: Option<Handle>,
    ) -> Self {
        Link {
            dialer,
            board,
            timeout,
            home,
            live: Mutex::default(),
            attempts: AtomicU64::new(0),
            repeats: AtomicU64::new(0),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// Call a script; if the connection was cut, once more on a new one. Every script bears repeating.
    pub(crate) async fn call(
        &self,
        doing: &'static str,
        script: &Script,
        call: &Call<'_>,
    ) -> Result<Value, Fault> {
        let mut live = self.open(doing).await?;
        let mut answer = live.eval(script, call).await;
        if answer.as_ref().is_err_and(was_cut) {
            live.state.give_up();
            self.repeats.fetch_add(1, Ordering::AcqRel);
            live = self.open(doing).await?;
            answer = live.eval(script, call).await;
        }
        answer.map_err(|it| live.fault(doing, it))
    }

    /// How many calls were sent twice. The first of the two may still be on its way.
    pub(crate) fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Acquire)
    }

    fn ready(&self) -> Option<Live> {
        let live = locked(&self.live);
        live.as_ref().filter(|it| !it.state.broken.load(Ordering::Acquire)).cloned()
    }

    /// The open connection, or a new one.
    pub(crate) async fn open(&self, doing: &'static str) -> Result<Live, Fault> {
        if let Some(live) = self.ready() {
            return Ok(live);
        }
        let seen = self.attempts.load(Ordering::Acquire);
        let mut failed = self.opening.lock().await;
        if let Some(live) = self.ready() {
            return Ok(live);
        }
        if let Some((at, fault)) = failed.as_ref() {
            // Somebody tried and failed while we queued: that is our answer too.
            if self.attempts.load(Ordering::Acquire) != seen {
                return Err(fault.clone().while_doing(doing));
            }
            let clock = &self.dialer.clock;
            clock.sleep_until(at.after(PAUSE_AFTER_FAILURE)).await;
        }
        let opened = self.dial().await;
        self.attempts.fetch_add(1, Ordering::AcqRel);
        match opened {
            Ok(live) => {
                *failed = None;
                *locked(&self.live) = Some(live.clone());
                Ok(live)
            }
            Err(fault) => {
                let fault = fault.while_doing(doing);
                *failed = Some((self.dialer.clock.now(), fault.clone()));
                Err(fault)
            }
        }
    }

    async fn dial(&self) -> Result<Live, Fault> {
        let patience = self.dialer.options.connect_timeout.saturating_mul(3);
        at_home(self.home.clone(), patience, || {
            let (dialer, board, timeout) = (self.dialer.clone(), self.board.clone(), self.timeout);
            Box::pin(
                async move { dial(&dialer, board, timeout).await.map_err(|it| fault::of("connecting", it)) },
            )
        })
        .await
    }
}

async fn dial(dialer: &SharedDialer, board: Option<Arc<Board>>, timeout: Duration) -> RedisResult<Live> {
    if dialer.options.deployment == Deployment::Cluster {
        let wire = Wire::Cluster(dialer.cluster(timeout, None).await?);
        return Ok(live(wire, Arc::default(), Moment::from_nanos(0)));
    }
    let (mut connection, broken) = dialer.primary(timeout, board.as_ref()).await?;
    if let Some(board) = &board {
        let channel = naming::channel(&dialer.options.prefix, None, &board.process);
        connection.subscribe(channel).await?;
    }
    let grants_from = dialer.grants_from(&mut connection).await?;
    let live = live(Wire::Server(connection), broken, grants_from);
    if let (Deployment::Sentinel { service }, Some(board)) = (&dialer.options.deployment, board) {
        let watch = sentinel::watch(dialer.clone(), service.clone(), Arc::downgrade(&live.state), board);
        *locked(&live.state.watch) = Some(tokio::spawn(watch).abort_handle());
    }
    Ok(live)
}

fn live(wire: Wire, broken: Arc<AtomicBool>, grants_from: Moment) -> Live {
    Live {
        wire,
        state: Arc::new(State { broken, grants_from, server: OnceLock::new(), watch: Mutex::default() }),
    }
}

impl Live {
    pub(crate) fn grants_from(&self) -> Moment {
        self.state.grants_from
    }

    pub(crate) fn server(&self) -> &OnceLock<Server> {
        &self.state.server
    }

    /// The wire itself, for what only one deployment can do.
    pub(crate) fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    pub(crate) async fn eval(&mut self, script: &Script, call: &Call<'_>) -> RedisResult<Value> {
        let answer = self.wire.send(&script.by_hash(call)).await;
        match answer {
            Err(it) if it.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.wire.send(&script.by_text(call)).await
            }
            other => other,
        }
    }

    /// The error as a fault; the connection is given up if it cannot be trusted any more.
    pub(crate) fn fault(&self, doing: &'static str, error: RedisError) -> Fault {
        let cluster = matches!(self.wire, Wire::Cluster(_));
        if fault::breaks_connection(&error, cluster) {
            self.state.give_up();
        }
        fault::of(doing, error)
    }
}

fn was_cut(error: &RedisError) -> bool {
    !error.is_timeout() && error.is_connection_dropped()
}

/// A cluster's sharded wake channels: one per hash tag in which somebody waits.
pub(crate) struct Ears {
    dialer: SharedDialer,
    board: Arc<Board>,
    heard: Arc<Mutex<HashSet<u8>>>,
    connection: tokio::sync::Mutex<Option<ClusterConnection>>,
    home: Option<Handle>,
}

impl fmt::Debug for Ears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ears").field("channels", &locked(&self.heard).len()).finish_non_exhaustive()
    }
}

impl Ears {
    pub(crate) fn new(dialer: SharedDialer, board: Arc<Board>, home: Option<Handle>) -> Self {
        Ears { dialer, board, heard: Arc::default(), connection: tokio::sync::Mutex::default(), home }
    }

    /// Whether the channel of this tag is subscribed, as far as we know.
    pub(crate) fn listens_to(&self, tag: u8) -> bool {
        locked(&self.heard).contains(&tag)
    }

    /// Subscribe to the channel of this tag.
    pub(crate) async fn listen_to(&self, tag: u8) -> Result<(), Fault> {
        let mut connection = self.connection.lock().await;
        if self.listens_to(tag) {
            return Ok(());
        }
        let mut wire = match connection.take() {
            Some(wire) => wire,
            None => self.dial().await?,
        };
        let channel = naming::channel(&self.dialer.options.prefix, Some(tag), &self.board.process);
        wire.ssubscribe(channel).await.map_err(|it| fault::of("listening for wake-ups", it))?;
        locked(&self.heard).insert(tag);
        *connection = Some(wire);
        Ok(())
    }

    async fn dial(&self) -> Result<ClusterConnection, Fault> {
        let patience = self.dialer.options.connect_timeout.saturating_mul(3);
        at_home(self.home.clone(), patience, || {
            let (dialer, board, heard) = (self.dialer.clone(), self.board.clone(), self.heard.clone());
            Box::pin(async move {
                let tap = Tap::new(board, move || locked(&heard).clear());
                dialer
                    .cluster(dialer.options.timeout, Some(tap))
                    .await
                    .map_err(|it| fault::of("connecting", it))
            })
        })
        .await
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
