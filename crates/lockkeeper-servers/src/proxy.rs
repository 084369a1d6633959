//! A TCP proxy on loopback that delays, stalls, swallows and cuts what passes through it.
//!
//! ```text
//! client ──▶ read ──▶ queue ──▶ rule(ToServer) ──▶ write ──▶ server
//! client ◀── write ◀── rule(ToClient) ◀── queue ◀── read ◀── server
//! ```
//! Each direction has its own [`Rule`], which may change at any time and also governs what is queued. The end
//! of a connection passes through the queue like its bytes: while a direction is held, the other side does
//! not learn that its peer has gone.
//!
//! What is the matter with a connection, not with a direction, has methods of its own: [`Proxy::forget_idle`] is the
//! firewall that forgets quiet flows, [`Proxy::vanish`] the host that is no longer there, [`Proxy::repeat`] the network
//! that says twice what was said once. A [`BlackHole`] is a host that never was.

mod flow;
mod hole;
mod lane;
mod tape;

pub use hole::BlackHole;

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::kit::locked;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::Port;
use crate::process::KitError;

/// Which way bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Answers.
    ToClient,
}

/// What happens to the bytes of one direction, on all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Forward at once.
    Pass,
    /// Forward this long after arrival, in order. Latency, not a limit of throughput.
    Delay(Duration),
    /// Keep everything back until the rule changes, as a network does that will recover.
    Hold,
    /// Swallow everything, as a network does that forgot the connection. A connection that lost bytes in this
    /// way loses all further bytes of that direction, whatever the rule, because the stream has a hole.
    Drop,
    /// Forward exactly this many more bytes, then cut the connection that carried the last. Then `Pass`.
    CutAfter(usize),
}

/// What a proxy has seen since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that clients made.
    pub accepted: usize,
    /// Connections that are open now.
    pub open: usize,
    /// Connections that a rule, a trap or [`Proxy::cut`] has cut.
    pub cut: usize,
    /// Connections that were idle too long for [`Proxy::forget_idle`].
    pub forgotten: usize,
    /// Bytes forwarded to the server.
    pub to_server: usize,
    /// Bytes forwarded to clients.
    pub to_client: usize,
    /// Bytes swallowed, in both directions.
    pub dropped: usize,
    /// Requests that were kept back.
    pub kept: usize,
    /// How often the server answered what it was asked. What was asked together counts once.
    pub round_trips: usize,
    /// Bytes that were said to the server once more.
    pub repeated: usize,
}

/// A running proxy. Dropping it closes its port and all its connections.
pub struct Proxy {
    shared: Arc<Shared>,
    gate: mpsc::Sender<(Gate, oneshot::Sender<Result<(), KitError>>)>,
    task: AbortHandle,
    port: Port,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("port", &self.port())
            .field("upstream", &*locked(&self.shared.upstream))
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Start a proxy in front of the server on this loopback port.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start(upstream: u16) -> Result<Proxy, KitError> {
        let (port, listener) = listen_somewhere().await?;
        let shared = Arc::new(Shared::new(upstream));
        let (gate, orders) = mpsc::channel(1);
        let task = tokio::spawn(serve(Arc::clone(&shared), listener, orders)).abort_handle();
        Ok(Proxy { shared, gate, task, port })
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Address and port for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Set the rule of one direction, for open and for new connections.
    pub fn set(&self, direction: Direction, rule: Rule) {
        self.shared.rule(direction).send_replace(rule);
    }

    /// Set the rule of both directions.
    pub fn set_both(&self, rule: Rule) {
        self.set(Direction::ToServer, rule);
        self.set(Direction::ToClient, rule);
    }

    /// Forget every connection on which nothing was said for this long, as a firewall or a translator of addresses
    /// does: from then on all it carries, its end included, is swallowed in both directions, for ever and without a
    /// word to either side. New connections work. `None` forgets no more; what is forgotten stays so.
    ///
    /// Bytes are what counts as said. Probes of the sockets' own keep-alive end at this proxy: they neither keep a
    /// connection alive, nor do they find out that it is forgotten.
    pub fn forget_idle(&self, after: Option<Duration>) {
        self.shared.idle_max.send_replace(after);
    }

    /// Send new connections to another server; open ones stay where they are.
    pub fn redirect(&self, upstream: u16) {
        *locked(&self.shared.upstream) = upstream;
    }

    /// Cut every open connection now: both ends see a reset.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|it| *it += 1);
    }

    /// Lose the next request that contains these bytes: it is not forwarded and its connection is cut.
    ///
    /// An empty slice means any request. Bytes are looked for in one read, not across reads.
    pub fn lose_request(&self, containing: &[u8]) {
        self.set_trap(Kind::Request, containing);
    }

    /// Lose the answer to the next request that contains these bytes: the request is forwarded, and when the
    /// server answers the connection is cut instead.
    ///
    /// On a connection with several requests under way the first answer to arrive is the one that is lost.
    pub fn lose_reply(&self, containing: &[u8]) {
        self.set_trap(Kind::Reply, containing);
    }

    /// Lose the next thing that the server says and that contains these bytes: it is swallowed, and its connection stays as it
    /// was. So a message is lost that nobody asked for, and nothing else.
    pub fn lose_message(&self, containing: &[u8]) {
        self.set_trap(Kind::Message, containing);
    }

    /// Keep back the next request that contains these bytes, and everything behind it on its connection, until
    /// [`Proxy::let_go`]. Other connections are served meanwhile; so a request can be overtaken by later ones.
    pub fn keep_request(&self, containing: &[u8]) {
        self.shared.keeping.send_replace(true);
        self.set_trap(Kind::Kept, containing);
    }

    /// Forward what [`Proxy::keep_request`] kept back, also if its client has gone.
    pub fn let_go(&self) {
        self.shared.keeping.send_replace(false);
    }

    /// Keep what clients say on the connections that they make from now on, the first `max` bytes of each, for
    /// [`Proxy::repeat`]. What was kept before is forgotten; `None` keeps nothing.
    pub fn record(&self, max: Option<usize>) {
        locked(&self.shared.tapes).record(max);
    }

    /// Say to the server once more what was kept since [`Proxy::record`], that of each connection on one of its own, all
    /// at once. What the server answers is thrown away, and the rules do not matter. How many bytes the server took.
    ///
    /// # Cancel safety
    /// If dropped, a part has been said.
    pub async fn repeat(&self) -> usize {
        let tapes = locked(&self.shared.tapes).all();
        let mut all = JoinSet::new();
        for tape in tapes {
            let shared = Arc::clone(&self.shared);
            all.spawn(async move { tape.repeat(&shared).await });
        }
        all.join_all().await.into_iter().sum()
    }

    /// Refuse new connections, as a host does on which nothing listens. Open ones stay.
    ///
    /// # Cancel safety
    /// Safe to drop; the change may or may not happen.
    ///
    /// # Errors
    /// If the proxy's runtime has ended.
    pub async fn refuse(&self) -> Result<(), KitError> {
        self.turn_gate(Gate::Refuse).await
    }

    /// Be gone without a word, as a host whose cable was pulled: new connections are neither taken nor refused, and
    /// open ones lose whatever they carry from now on, for ever ([`Rule::Drop`]).
    ///
    /// # Cancel safety
    /// Safe to drop; the change may or may not happen.
    ///
    /// # Errors
    /// If the proxy's runtime has ended, or a stranger took the port.
    pub async fn vanish(&self) -> Result<(), KitError> {
        self.set_both(Rule::Drop);
        self.turn_gate(Gate::Ignore).await
    }

    /// Be there again after [`Proxy::vanish`]: new connections work, and bytes pass.
    ///
    /// # Cancel safety
    /// Safe to drop; the change may or may not happen.
    ///
    /// # Errors
    /// If the proxy's runtime has ended, or a stranger took the port.
    pub async fn appear(&self) -> Result<(), KitError> {
        self.set_both(Rule::Pass);
        self.turn_gate(Gate::Open).await
    }

    /// Take new connections again after [`Proxy::refuse`].
    ///
    /// # Cancel safety
    /// Safe to drop; the change may or may not happen.
    ///
    /// # Errors
    /// If the proxy's runtime has ended, or a stranger took the port.
    pub async fn accept(&self) -> Result<(), KitError> {
        self.turn_gate(Gate::Open).await
    }

    /// What the proxy has seen so far.
    pub fn counters(&self) -> Counters {
        *self.shared.counters.borrow()
    }

    /// Wait until the counters satisfy `enough`, for at most ten seconds.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If they do not in that time.
    pub async fn wait_for(&self, mut enough: impl FnMut(&Counters) -> bool) -> Result<Counters, KitError> {
        let mut counters = self.shared.counters.subscribe();
        tokio::select! {
            seen = counters.wait_for(|it| enough(it)) => {
                seen.map(|it| *it).map_err(|_| KitError::new("the proxy is gone"))
            }
            () = self.shared.clock.sleep(WAIT_MAX) => {
                Err(KitError::new(format!("not within {WAIT_MAX:?}; the proxy saw {:?}", self.counters())))
            }
        }
    }

    fn set_trap(&self, kind: Kind, containing: &[u8]) {
        *locked(&self.shared.trap) = Some((kind, containing.to_vec()));
    }

    async fn turn_gate(&self, wanted: Gate) -> Result<(), KitError> {
        let (done, answer) = oneshot::channel();
        let gone = || KitError::new("the runtime of the proxy has ended");
        self.gate.send((wanted, done)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

const WAIT_MAX: Duration = Duration::from_secs(10);

/// What becomes of those who dial.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    Refuse,
    Ignore,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Request,
    Reply,
    Kept,
    Message,
}

impl Kind {
    /// On whose words it waits.
    fn direction(self) -> Direction {
        match self {
            Kind::Request | Kind::Reply | Kind::Kept => Direction::ToServer,
            Kind::Message => Direction::ToClient,
        }
    }
}

struct Shared {
    clock: Clock,
    upstream: Mutex<u16>,
    to_server: watch::Sender<Rule>,
    to_client: watch::Sender<Rule>,
    cuts: watch::Sender<u64>,
    idle_max: watch::Sender<Option<Duration>>,
    trap: Mutex<Option<(Kind, Vec<u8>)>>,
    keeping: watch::Sender<bool>,
    tapes: Mutex<tape::Tapes>,
    counters: watch::Sender<Counters>,
}

impl Shared {
    fn new(upstream: u16) -> Self {
        Shared {
            clock: Clock::boot(),
            upstream: Mutex::new(upstream),
            to_server: watch::Sender::new(Rule::Pass),
            to_client: watch::Sender::new(Rule::Pass),
            cuts: watch::Sender::new(0),
            idle_max: watch::Sender::new(None),
            trap: Mutex::new(None),
            keeping: watch::Sender::new(false),
            tapes: Mutex::default(),
            counters: watch::Sender::new(Counters::default()),
        }
    }

    fn rule(&self, direction: Direction) -> &watch::Sender<Rule> {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        self.counters.send_modify(change);
    }

    /// Take the trap if these words spring it.
    fn spring(&self, direction: Direction, words: &[u8]) -> Option<Kind> {
        let mut trap = locked(&self.trap);
        let (kind, wanted) = trap.as_ref().filter(|it| it.0.direction() == direction)?;
        let hit = wanted.is_empty() || words.windows(wanted.len()).any(|it| it == wanted);
        let kind = hit.then_some(*kind)?;
        *trap = None;
        Some(kind)
    }
}

async fn listen_somewhere() -> Result<(Port, TcpListener), KitError> {
    // A stranger may take a port between the claim and our use of it; not ten times.
    for _ in 0..10 {
        let port = Port::claim()?;
        if let Ok(listener) = listen(port.number()).await {
            return Ok((port, listener));
        }
    }
    Err(KitError::new("no free loopback port for a proxy"))
}

async fn listen(port: u16) -> Result<TcpListener, KitError> {
    Ok(TcpListener::bind(("127.0.0.1", port)).await?)
}

/// Accept connections until the proxy is dropped; with this task end all of them.
async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    mut orders: mpsc::Receiver<(Gate, oneshot::Sender<Result<(), KitError>>)>,
) {
    let port = listener.local_addr().map_or(0, |it| it.port());
    let mut door = Door::Open(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some((wanted, done)) = order else { return };
                let result = door.turn(port, wanted).await;
                // The one who gave the order may have stopped waiting.
                drop(done.send(result));
            }
            client = door.next_client() => {
                connections.spawn(lane::connection(Arc::clone(&shared), client));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The port as those find it who dial.
enum Door {
    Open(TcpListener),
    Shut,
    Ignoring { _hole: hole::Deaf },
}

impl Door {
    async fn turn(&mut self, port: u16, wanted: Gate) -> Result<(), KitError> {
        if wanted == Gate::Open && matches!(self, Door::Open(_)) {
            return Ok(());
        }
        // First, because two cannot have the port.
        *self = Door::Shut;
        match wanted {
            Gate::Open => *self = Door::Open(listen(port).await?),
            Gate::Refuse => {}
            Gate::Ignore => *self = Door::Ignoring { _hole: hole::Deaf::at(port).await? },
        }
        Ok(())
    }

    async fn next_client(&self) -> TcpStream {
        let Door::Open(listener) = self else {
            return pending().await;
        };
        loop {
            // An error here is that of one connection which ended before we took it.
            if let Ok((client, _)) = listener.accept().await {
                return client;
            }
        }
    }
}
