//! One connection, and the task that owns it.
//!
//! The driver cannot bear to be interrupted in the middle of a statement, so each connection belongs to a task
//! that nobody interrupts; callers send it statements and wait. What breaks is opened again at the next one.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Moment};
use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row, Value};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::doubt::{Doubts, Identity};
use super::fault::{Result, Trouble};
use super::lanes::Lanes;
use super::options::MysqlOptions;
use super::session;

/// After how long without a sign of life a runtime counts as one that nobody drives.
const STALL: Duration = Duration::from_millis(250);
/// A connection that was idle for so long may have been forgotten on its way: it gets little patience.
const IDLE: Duration = Duration::from_secs(1);
/// At least so long may it take to open a connection.
const OPEN_MIN: Duration = Duration::from_secs(1);

/// What is asked of the server.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// Nothing but to be connected.
    Nothing,
    /// Statements as text.
    Text(String),
    /// The same, which may take longer than the options say: those that make tables.
    Patient(String),
    /// One statement that is prepared on its first use, and its parameters.
    Prepared(&'static str, Vec<Value>),
}

/// What the server answered.
#[derive(Debug)]
pub(super) struct Reply {
    /// The rows of each statement.
    pub(super) rows: Vec<Vec<Row>>,
    /// How many rows the last statement changed.
    pub(super) changed: u64,
    /// The number that it left.
    pub(super) number: u64,
    /// The moment before the request left this process.
    pub(super) sent_at: Moment,
}

struct Request {
    ask: Ask,
    patience: Duration,
    /// Only a connection will do over which the server has spoken since then.
    heard_since: Moment,
    reply: oneshot::Sender<Result<Reply>>,
}

/// The signs of life of a connection's task. Acquire and Release are more than enough for hints: an old one costs a look more. Only
/// `busy` and the withdrawal of a request are in one order, by fences (`SeqCst`): it is marked before it is looked whether the request
/// was withdrawn, and looked at after that was done. So what is begun with is withdrawn in time, or its session is in doubt.
#[derive(Debug, Default)]
struct Pulse {
    steps: AtomicU64,
    /// It is at work on a request, by its own timer.
    busy: AtomicBool,
    connected: AtomicBool,
    /// It gave no sign of life when one was due.
    stalled: AtomicBool,
    /// The session, as the server knows it.
    identity: Mutex<Option<Identity>>,
}

/// A connection's task, driven by one runtime, and the lanes that lead to it.
pub(super) struct Link {
    pub(super) runtime: Handle,
    requests: mpsc::UnboundedSender<Request>,
    pulse: Arc<Pulse>,
    /// Where a session that is given up is noted; `None` if it does not matter what it still does.
    doubts: Option<Arc<Doubts>>,
    clock: Clock,
    pub(super) lanes: Lanes,
}

impl Link {
    pub(super) fn start(options: Arc<MysqlOptions>, runtime: Handle, doubts: Option<Arc<Doubts>>) -> Self {
        let (requests, inbox) = mpsc::unbounded_channel();
        let pulse = Arc::<Pulse>::default();
        let way = Way { options, clock: Clock::boot(), pulse: pulse.clone(), doubts: doubts.clone() };
        runtime.spawn(way.serve(inbox));
        Link { runtime, requests, pulse, doubts, clock: Clock::boot(), lanes: Lanes::new() }
    }

    /// Its runtime has ended.
    pub(super) fn is_dead(&self) -> bool {
        self.requests.is_closed()
    }

    /// Nobody seems to drive its runtime.
    pub(super) fn is_stalled(&self) -> bool {
        self.pulse.stalled.load(Ordering::Acquire)
    }

    /// It was connected when it last heard of the server.
    pub(super) fn is_connected(&self) -> bool {
        self.pulse.connected.load(Ordering::Acquire)
    }

    /// Nobody stands between us and the server, as far as we know.
    pub(super) fn is_direct(&self) -> bool {
        self.pulse.identity().is_some()
    }

    /// Send a request and wait for the answer, at most `patience` from when it is its turn.
    pub(super) async fn send(&self, ask: Ask, patience: Duration, heard_since: Moment) -> Result<Reply> {
        let (reply, mut answer) = oneshot::channel();
        let request = Request { ask, patience, heard_since, reply };
        self.requests.send(request).map_err(|_| Trouble::NoRuntime)?;
        if Handle::try_current().is_ok_and(|it| it.id() == self.runtime.id()) {
            return answer.await.unwrap_or(Err(Trouble::NoRuntime));
        }
        // Its timer is another runtime's, which may stand still: watch it by one of our own.
        let (mut steps, mut since) = (self.pulse.steps.load(Ordering::Acquire), self.clock.now());
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer.unwrap_or(Err(Trouble::NoRuntime)),
                () = self.clock.sleep(STALL) => {}
            }
            let (seen, now) = (self.pulse.steps.load(Ordering::Acquire), self.clock.now());
            if seen != steps {
                (steps, since) = (seen, now);
                continue;
            }
            let is_over = patience.max(OPEN_MIN) + STALL < now - since;
            if is_over || !self.pulse.busy.load(Ordering::Acquire) {
                let has_begun = self.pulse.withdraw(|| answer.close());
                if let Ok(answer) = answer.try_recv() {
                    return answer;
                }
                self.pulse.stalled.store(true, Ordering::Release);
                if let Some(doubts) = self.doubts.as_ref().filter(|_| has_begun) {
                    doubts.add(self.pulse.identity().as_ref());
                }
                return Err(Trouble::Stalled);
            }
        }
    }
}

impl Pulse {
    fn identity(&self) -> MutexGuard<'_, Option<Identity>> {
        locked(&self.identity)
    }

    fn step(&self) {
        self.stalled.store(false, Ordering::Release);
        self.steps.fetch_add(1, Ordering::AcqRel);
    }

    /// Begin with a request, unless it was withdrawn.
    fn begin(&self, is_withdrawn: impl FnOnce() -> bool) -> bool {
        self.busy.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        let begins = !is_withdrawn();
        if !begins {
            self.busy.store(false, Ordering::Release);
        }
        begins
    }

    /// Withdraw a request. Whether somebody may have begun with it.
    fn withdraw(&self, withdraw: impl FnOnce()) -> bool {
        withdraw();
        fence(Ordering::SeqCst);
        self.busy.load(Ordering::Acquire)
    }
}

/// A connection that is open, and when the server last spoke over it.
struct Open {
    conn: Conn,
    heard_at: Moment,
}

/// What the connection's task works with.
struct Way {
    options: Arc<MysqlOptions>,
    clock: Clock,
    pulse: Arc<Pulse>,
    doubts: Option<Arc<Doubts>>,
}

impl Way {
    /// The connection's task: one statement after the other, until nobody can send any more.
    async fn serve(self, mut inbox: mpsc::UnboundedReceiver<Request>) {
        let mut open = None::<Open>;
        while let Some(request) = inbox.recv().await {
            self.pulse.step();
            let is_withdrawn = || request.reply.is_closed();
            if !self.pulse.begin(is_withdrawn) {
                continue;
            }
            let Request { ask, patience, heard_since, .. } = request;
            let answer = self.answer(&mut open, ask, patience, heard_since, is_withdrawn).await;
            if answer.as_ref().is_err_and(Trouble::is_answer) && answer.as_ref().is_err_and(Trouble::spoils) {
                // Nothing is under way any more, but nobody can tell what is left of it.
                open = None;
            } else if answer.as_ref().is_err_and(Trouble::spoils) {
                // An unanswered statement blocks all behind it, and nobody can tell whose answer comes next.
                self.give_up(&mut open);
            } else if let Some(open) = &mut open {
                open.heard_at = self.clock.now();
            }
            self.pulse.connected.store(open.is_some(), Ordering::Release);
            self.pulse.busy.store(false, Ordering::Release);
            self.pulse.step();
            // Whoever went away does not need the answer.
            let _ = request.reply.send(answer);
        }
        if let Some(Open { conn, .. }) = open {
            // Say goodbye; if that fails the server notices by itself.
            let _ = conn.disconnect().await;
        }
    }

    /// Never use this connection again.
    fn give_up(&self, open: &mut Option<Open>) {
        let identity = self.pulse.identity().take();
        if let (Some(doubts), Some(_)) = (&self.doubts, open.take()) {
            doubts.add(identity.as_ref());
        }
    }

    /// The answer to one request, on a connection that is opened if there is none to be trusted.
    async fn answer(
        &self,
        open: &mut Option<Open>,
        ask: Ask,
        mut patience: Duration,
        heard_since: Moment,
        is_withdrawn: impl Fn() -> bool,
    ) -> Result<Reply> {
        let (clock, answer_within) = (&self.clock, self.options.common.timeout);
        if open.as_ref().is_some_and(|it| it.heard_at < heard_since) {
            self.give_up(open);
        }
        if let Some(open) = open {
            if IDLE < clock.now() - open.heard_at && !matches!(ask, Ask::Patient(_)) {
                patience = patience.min(IDLE);
            }
        } else {
            let opening =
                in_time(clock, patience.max(OPEN_MIN).min(self.options.connect_patience()), async {
                    let mut conn = Conn::new(self.options.opts.clone()).await?;
                    session::greet(&mut conn).await?;
                    let known = if self.doubts.is_some() { Identity::of(&mut conn).await } else { Ok(None) };
                    // Who is not known is not ended; whatever broke it is met again by the next statement.
                    let identity = known.unwrap_or(None);
                    Ok((conn, identity))
                });
            let (conn, identity) = opening.await?;
            *self.pulse.identity() = identity;
            *open = Some(Open { conn, heard_at: clock.now() });
            // Whoever withdrew it before the session was known could not note it as one in doubt.
            if is_withdrawn() {
                return Err(Trouble::Stalled);
            }
        }
        let Some(Open { conn, .. }) = open else { return Err(Trouble::Silent) };
        if let Some(doubts) = &self.doubts {
            let settling = async {
                doubts.settle(clock, conn).await;
                Ok(())
            };
            in_time(clock, answer_within, settling).await?;
        }
        let sent_at = clock.now();
        let most = if matches!(ask, Ask::Patient(_)) { patience } else { patience.min(answer_within) };
        in_time(clock, most, run(conn, ask, sent_at)).await
    }
}

async fn in_time<T>(clock: &Clock, patience: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        biased;
        out = work => out,
        () = clock.sleep(patience) => Err(Trouble::Silent),
    }
}

async fn run(conn: &mut Conn, ask: Ask, sent_at: Moment) -> Result<Reply> {
    let mut rows = Vec::new();
    match ask {
        Ask::Nothing => {}
        Ask::Text(sql) | Ask::Patient(sql) => {
            let mut results = conn.query_iter(sql).await?;
            while !results.is_empty() {
                rows.push(results.collect().await?);
            }
        }
        Ask::Prepared(sql, params) => {
            let mut results = conn.exec_iter(sql, params).await?;
            while !results.is_empty() {
                rows.push(results.collect().await?);
            }
        }
    }
    // What is not committed is not granted, whoever has changed the session behind our back.
    let flags = conn.last_ok_packet().map(mysql_async::OkPacket::status_flags);
    if flags.is_some_and(|it| {
        it.contains(StatusFlags::SERVER_STATUS_IN_TRANS)
            || !it.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT)
    }) {
        return Err(Trouble::Uncommitted);
    }
    Ok(Reply { rows, changed: conn.affected_rows(), number: conn.last_insert_id().unwrap_or(0), sent_at })
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("pulse", &self.pulse).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_withdrawn_while_it_is_begun_with_is_in_doubt_or_not_begun() {
        // Withdrawn while whoever begins looks whether it is: what it sees is from before.
        let (pulse, in_doubt) = (Pulse::default(), Cell::new(false));
        let begun = pulse.begin(|| {
            in_doubt.set(pulse.withdraw(|| {}));
            false
        });
        assert!(begun && in_doubt.get());
        // Begun with in the moment before it is withdrawn.
        let (pulse, begun) = (Pulse::default(), Cell::new(false));
        let in_doubt = pulse.withdraw(|| begun.set(pulse.begin(|| false)));
        assert!(begun.get() && in_doubt);
        // Withdrawn before, and nobody begins.
        let (pulse, withdrawn) = (Pulse::default(), Cell::new(false));
        assert!(!pulse.withdraw(|| withdrawn.set(true)));
        assert!(!pulse.begin(|| withdrawn.get()));
        assert!(!pulse.withdraw(|| {}), "nobody is at work");
    }
}
