//! Supervised connections: opened when first needed, replaced when broken, shared by all who use them.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use lockkeeper_core::backend::Fault;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Moment};
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::runtime::Handle;

use crate::dial::{Goal, SharedDialer};
use crate::fault;
use crate::joint::Joint;
use crate::lone::Lone;
use crate::node::Server;
use crate::pulse::Pulse;
use crate::script::{Call, Script};
use crate::wake::Ear;

/// After a failed attempt the next one waits this long, however many callers press.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(20);

/// A runtime that has not even begun to dial after this long does not run.
const START_MAX: Duration = Duration::from_millis(100);

/// A supervised connection to one server.
#[derive(Clone)]
pub(crate) struct Link(Arc<Supervised>);

struct Supervised {
    dialer: SharedDialer,
    goal: Goal,
    /// Who hears what comes on this connection, if anybody.
    ear: Option<Ear>,
    /// Whether callers come one by one and wait for their answers.
    for_calls: bool,
    /// The runtime where the connection lives.
    home: Handle,
    live: Mutex<Option<Live>>,
    opening: Joint<Live>,
    failed_at: Mutex<Option<Moment>>,
    /// Set while an attempt waits for its runtime to run it: whether it has begun. Acquire and Release are more than enough: nothing
    /// else is read because of it.
    begun: Mutex<Option<Arc<AtomicBool>>>,
}

/// An open connection and what is known about it.
#[derive(Clone)]
pub(crate) struct Live {
    state: Arc<State>,
}

struct State {
    wire: MultiplexedConnection,
    /// Only ever set; who sets it first is the one who tells. Acquire and Release: a call of whoever does not see it yet is in doubt,
    /// like one that was sent before it broke.
    broken: Arc<AtomicBool>,
    /// How often the primary had changed when this was opened.
    switches: u64,
    /// Grants before this moment do not count.
    grants_from: Moment,
    /// How long it took to open: answers may take as long.
    took: Duration,
    pulse: Arc<Pulse>,
    /// For whoever is alone.
    lone: Option<Lone>,
    ear: Option<Ear>,
    /// Who is at the other end, when somebody asked last.
    server: Mutex<Option<Server>>,
    /// When it was found last that the server is one of our cluster.
    vouched: Mutex<Option<Moment>>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.pulse.end();
    }
}

/// What became of a call.
#[derive(Debug)]
pub(crate) struct Asked<T> {
    pub(crate) answer: Result<T, Fault>,
    /// It was sent at least once without an answer: that one may still be on its way.
    pub(crate) in_doubt: bool,
    /// Just before what was answered was sent.
    pub(crate) sent_at: Moment,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("open", &self.is_open()).finish_non_exhaustive()
    }
}

impl Link {
    /// `for_calls` says that callers wait for their answers one by one, so that each may be alone.
    pub(crate) fn new(
        dialer: SharedDialer,
        goal: Goal,
        ear: Option<Ear>,
        for_calls: bool,
        home: Handle,
    ) -> Self {
        Link(Arc::new(Supervised {
            dialer,
            goal,
            ear,
            for_calls,
            home,
            live: Mutex::default(),
            opening: Joint::default(),
            failed_at: Mutex::default(),
            begun: Mutex::default(),
        }))
    }

    pub(crate) fn is_open(&self) -> bool {
        locked(&self.0.live).as_ref().is_some_and(|it| it.is_sound(&self.0.dialer))
    }

    /// Whether the runtime where it lives does not run: what is waited for there does not come.
    pub(crate) fn is_stuck(&self) -> bool {
        self.0.is_stuck()
    }

    /// The open connection, or a new one.
    pub(crate) async fn open(&self, doing: &'static str) -> Result<Live, Fault> {
        if let Some(live) = self.0.ready() {
            return Ok(live);
        }
        let link = self.0.clone();
        self.0.opening.join(doing, || async move { link.open().await }).await
    }

    /// Call a script; if no answer comes, once more on a new connection. Every script bears repeating.
    pub(crate) async fn call(
        &self,
        doing: &'static str,
        script: &Script,
        call: &Call<'_>,
        patience: Duration,
    ) -> Asked<Value> {
        let first = self.call_once(doing, script, call, patience).await;
        match &first {
            Tried::Unanswered(_) => {
                let second = self.call_once(doing, script, call, patience).await;
                Asked { in_doubt: true, ..second.told(doing, &self.0.dialer) }
            }
            Tried::NotSent(_) | Tried::Answered(..) => first.told(doing, &self.0.dialer),
        }
    }

    async fn call_once(
        &self,
        doing: &'static str,
        script: &Script,
        call: &Call<'_>,
        patience: Duration,
    ) -> Tried {
        let live = match self.open(doing).await {
            Ok(live) => live,
            Err(fault) => return Tried::NotSent(fault),
        };
        let sent_at = self.0.dialer.clock.now();
        let answer = live.eval(script, call, patience, false).await;
        live.judge(answer, sent_at)
    }
}

impl Supervised {
    fn is_stuck(&self) -> bool {
        locked(&self.begun).as_ref().is_some_and(|it| !it.load(Ordering::Acquire))
    }

    fn ready(&self) -> Option<Live> {
        let live = locked(&self.live);
        live.as_ref().filter(|it| it.is_sound(&self.dialer)).cloned()
    }

    /// Open a new one, not too soon after the last attempt.
    async fn open(&self) -> Result<Live, Fault> {
        if let Some(live) = self.ready() {
            return Ok(live);
        }
        let failed_at = *locked(&self.failed_at);
        if let Some(at) = failed_at {
            self.dialer.clock.sleep_until(at.after(PAUSE_AFTER_FAILURE)).await;
        }
        let opened = self.dial().await;
        match &opened {
            Ok(live) => *locked(&self.live) = Some(live.clone()),
            Err(_) => *locked(&self.failed_at) = Some(self.dialer.clock.now()),
        }
        opened
    }

    /// Dial where the connection shall live. Not for longer than it may take, and hardly at all if nobody runs there.
    async fn dial(&self) -> Result<Live, Fault> {
        let clock = &self.dialer.clock;
        let begun = Arc::new(AtomicBool::new(false));
        *locked(&self.begun) = Some(begun.clone());
        let (dialer, goal, ear) = (self.dialer.clone(), self.goal.clone(), self.ear.clone());
        let home = self.for_calls.then(|| self.home.clone());
        let mut task = self.home.spawn(async move {
            begun.store(true, Ordering::Release);
            dial(&dialer, &goal, ear, home).await
        });
        let mut opened = within(clock, START_MAX, &mut task).await;
        if opened.is_none() && self.is_stuck() {
            // It is left where it is: if it begins after all, the runtime runs again.
            return Err(connecting("the runtime where this connection should live does not run"));
        }
        if opened.is_none() {
            opened = within(clock, self.dialer.longest_dial(), &mut task).await;
        }
        *locked(&self.begun) = None;
        match opened {
            Some(Ok(opened)) => opened.map_err(|it| fault::of("connecting", it)),
            Some(Err(_gone)) => {
                Err(connecting("the runtime where this connection should live is shutting down"))
            }
            None => {
                task.abort();
                Err(connecting("no connection could be opened in time; does the server answer at all?"))
            }
        }
    }
}

/// What comes within a span.
pub(crate) async fn within<T>(clock: &Clock, span: Duration, future: impl Future<Output = T>) -> Option<T> {
    match select(pin!(future), clock.sleep(span)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

fn connecting(what: &str) -> Fault {
    Fault::transient(fault::NAME, "connecting", what)
}

/// `home` is where a socket for lone callers may be opened, too.
async fn dial(
    dialer: &SharedDialer,
    goal: &Goal,
    ear: Option<Ear>,
    home: Option<Handle>,
) -> RedisResult<Live> {
    let (began, switches) = (dialer.clock.now(), dialer.switches());
    let broken = Arc::new(AtomicBool::new(false));
    let channel = ear.as_ref().and_then(|it| it.channel.clone());
    let (mut wire, host) = dialer.reach(goal, ear.clone().map(|it| it.tap(broken.clone()))).await?;
    if let Some(channel) = channel {
        wire.subscribe(channel).await?;
    }
    let grants_from = dialer.grants_from(&mut wire).await?;
    let took = dialer.clock.now() - began;
    let pulse = Pulse::new(dialer.options.timeout + dialer.options.replicas_timeout);
    let lone = home.and_then(|it| Lone::new(dialer, host, it));
    let (server, vouched) = Default::default();
    let state = State { wire, broken, switches, grants_from, took, pulse, lone, ear, server, vouched };
    Ok(Live { state: Arc::new(state) })
}

/// One sending of a call.
pub(crate) enum Tried {
    NotSent(Fault),
    /// The connection was cut, or is silent.
    Unanswered(RedisError),
    Answered(RedisResult<Value>, Moment),
}

impl Tried {
    pub(crate) fn told(self, doing: &'static str, dialer: &SharedDialer) -> Asked<Value> {
        let (answer, in_doubt, sent_at) = match self {
            Tried::NotSent(fault) => (Err(fault), false, dialer.clock.now()),
            Tried::Unanswered(error) => (Err(fault::of(doing, error)), true, dialer.clock.now()),
            Tried::Answered(answer, sent_at) => (answer.map_err(|it| fault::of(doing, it)), false, sent_at),
        };
        Asked { answer, in_doubt, sent_at }
    }
}

impl Live {
    fn is_sound(&self, dialer: &SharedDialer) -> bool {
        !self.state.broken.load(Ordering::Acquire) && self.state.switches == dialer.switches()
    }

    pub(crate) fn grants_from(&self) -> Moment {
        self.state.grants_from
    }

    pub(crate) fn server(&self) -> &Mutex<Option<Server>> {
        &self.state.server
    }

    pub(crate) fn vouched(&self) -> &Mutex<Option<Moment>> {
        &self.state.vouched
    }

    /// Nobody uses this connection from now on, nor relies on what would come on it.
    pub(crate) fn give_up(&self) {
        let first = !self.state.broken.swap(true, Ordering::AcqRel);
        if let Some(ear) = self.state.ear.as_ref().filter(|_| first) {
            (ear.deaf)();
        }
    }

    /// Send one command and wait for its answer as long as the connection does not stay silent for `patience`.
    pub(crate) async fn send(&self, command: &Cmd, patience: Duration) -> RedisResult<Value> {
        let mut connection = self.state.wire.clone();
        self.bear(patience, connection.req_packed_command(command)).await?.extract_error()
    }

    /// Send commands one after the other in one piece.
    pub(crate) async fn send_all(&self, commands: &[Cmd], patience: Duration) -> RedisResult<Vec<Value>> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let mut connection = self.state.wire.clone();
        let answers = connection.req_packed_commands(&pipeline, 0, commands.len());
        self.bear(patience, answers).await?.into_iter().map(Value::extract_error).collect()
    }

    /// Wait for an answer as long as the connection does not stay silent for `patience`.
    async fn bear<T>(
        &self,
        patience: Duration,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let State { pulse, took, .. } = &*self.state;
        pulse.bear(patience.max(*took), answer).await
    }

    /// Run a script. `asking` is for a slot that is being moved to this server.
    pub(crate) async fn eval(
        &self,
        script: &Script,
        call: &Call<'_>,
        patience: Duration,
        asking: bool,
    ) -> RedisResult<Value> {
        let answer = self.send_asking(script.by_hash(call), patience, asking).await;
        match answer {
            Err(it) if it.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send_asking(script.by_text(call), patience, asking).await
            }
            other => other,
        }
    }

    async fn send_asking(&self, command: Cmd, patience: Duration, asking: bool) -> RedisResult<Value> {
        if !asking {
            let alone = self.state.lone.as_ref().filter(|_| self.state.pulse.is_idle()).and_then(Lone::take);
            return match alone {
                Some(mut trip) => trip.ask(&command, patience.max(self.state.took)).await,
                None => self.send(&command, patience).await,
            };
        }
        let mut first = Cmd::new();
        first.arg("ASKING");
        let answers = self.send_all(&[first, command], patience).await?;
        Ok(answers.into_iter().last().unwrap_or(Value::Nil))
    }

    /// What an answer, or none, says about the call and about the connection.
    pub(crate) fn judge(&self, answer: RedisResult<Value>, sent_at: Moment) -> Tried {
        match answer {
            Err(error) if fault::is_unanswered(&error) => {
                self.give_up();
                Tried::Unanswered(error)
            }
            answer => {
                if answer.as_ref().is_err_and(fault::breaks_connection) {
                    self.give_up();
                }
                Tried::Answered(answer, sent_at)
            }
        }
    }

    /// The error as a fault; the connection is given up if it cannot be trusted any more.
    pub(crate) fn fault(&self, doing: &'static str, error: RedisError) -> Fault {
        if fault::is_unanswered(&error) || fault::breaks_connection(&error) {
            self.give_up();
        }
        fault::of(doing, error)
    }
}
