//! The office: a log, a seat, and named participants. Where transactions begin and what was left is finished.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Guard, Locker};
use lockkeeper_sqlite::SqliteOptions;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::id::{SEATS_MAX, TransactionId, check_name};
use crate::log::{Log, Ruling};
use crate::observe::{Observer, Point, Step};
use crate::participant::{ANSWER_MAX, Participant, Session, timed};
use crate::recover::{self, Left};
use crate::sweep::sweep;
use crate::transaction::Transaction;

/// How much longer than a transaction may take what became of it is remembered at least.
pub(crate) const REMEMBER_MIN: Duration = Duration::from_secs(60);

/// An office that is being set up.
///
/// ```no_run
/// # use std::time::Duration;
/// # use lockkeeper_core::{Locker, Memory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper_twophase::Result<()> {
/// # let locker = Locker::new(Memory::default());
/// use lockkeeper_twophase::{Participant, TwoPhase};
///
/// let office = TwoPhase::open("sqlite:2pc.db", &locker)
///     .await?
///     .participant("orders", Participant::postgres("postgres://shop@db-1/orders")?)
///     .participant("stock", Participant::mysql("mysql://shop@db-2/stock")?)
///     .ttl(Duration::from_secs(10))
///     .sweep_every(Duration::from_secs(30))
///     .start()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an office does nothing until `start`"]
pub struct TwoPhase {
    pub(crate) desk: Desk,
    wrong: Option<Error>,
    sweep_every: Duration,
}

impl TwoPhase {
    /// Open the log at this URL, `sqlite:PATH`, `postgres://…` or `mysql://…`, and make it if there is none. The locker guards
    /// its seats; all processes that use this log must use the same lock store. An SQLite log reaches the processes of one host.
    ///
    /// Keep the log as you keep your data: without it nobody knows what was decided about the branches that are prepared.
    ///
    /// If a participant is the database in which the log lives, the commit of its branch is the decision: it is never prepared,
    /// which spares two of five forced writes, and PostgreSQL needs no `max_prepared_transactions` there.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another URL, [`Error::Unsupported`] for a log of another version, [`Error::Unavailable`].
    ///
    /// # Cancel safety
    /// If dropped, the file may or may not be made.
    pub async fn open(url: &str, locker: &Locker) -> Result<Self> {
        TwoPhase::opened(url, locker, true).await
    }

    /// As [`TwoPhase::open`], and if there is no log, none is made.
    ///
    /// # Errors
    /// As [`TwoPhase::open`]; [`Error::Unavailable`] if there is none.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn open_existing(url: &str, locker: &Locker) -> Result<Self> {
        TwoPhase::opened(url, locker, false).await
    }

    async fn opened(url: &str, locker: &Locker, make: bool) -> Result<Self> {
        let observer = Observer::default();
        let database = match url.split_once("://").map(|it| it.0) {
            Some("postgres" | "postgresql") => Some(Participant::postgres(url)?),
            Some("mysql" | "mariadb") => Some(Participant::mysql(url)?),
            _ => None,
        };
        if let Some(database) = database {
            let log = Log::in_database(database, observer.clone(), make).await?;
            return Ok(TwoPhase::over(log, locker, observer));
        }
        let options = SqliteOptions::parse(url)?;
        if !make && !options.path().exists() {
            let none = std::io::Error::other("there is no log");
            return Err(Error::unavailable(format!("the log {}", options.path().display()), none));
        }
        let log = Log::in_file(options.path(), observer.clone()).await?;
        Ok(TwoPhase::over(log, locker, observer))
    }

    /// As [`TwoPhase::open`], with the log in a database that you describe as you do for a participant.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a log of another version, [`Error::Unavailable`].
    ///
    /// # Cancel safety
    /// If dropped, the tables may or may not be made.
    pub async fn open_in(database: Participant, locker: &Locker) -> Result<Self> {
        let observer = Observer::default();
        let log = Log::in_database(database, observer.clone(), true).await?;
        Ok(TwoPhase::over(log, locker, observer))
    }

    fn over(log: Log, locker: &Locker, observer: Observer) -> Self {
        let desk = Desk {
            log,
            locker: locker.clone(),
            participants: BTreeMap::new(),
            met: Mutex::default(),
            fresh: Mutex::default(),
            home: OnceLock::new(),
            ttl: None,
            remember: Duration::from_secs(24 * 3600),
            connections: 4,
            seat: OnceLock::new(),
            active: Mutex::default(),
            handle: Handle::current(),
            observer,
            wake: Notify::new(),
            left: Mutex::default(),
        };
        TwoPhase { desk, wrong: None, sweep_every: Duration::from_secs(30) }
    }

    /// A database that takes part, by a name that must stay the same for as long as the log lives.
    pub fn participant(mut self, name: impl Into<String>, participant: Participant) -> Self {
        let name = name.into();
        let wrong = check_name(&name).err();
        let twice = || {
            Error::invalid(format!("there are two participants with the name {name:?}; each needs its own"))
        };
        let wrong = wrong.or_else(|| self.desk.participants.contains_key(&name).then(twice));
        self.wrong = self.wrong.or(wrong);
        self.desk.participants.insert(name, participant);
        self
    }

    /// How long the seat stays ours without a renewal, and so how long others wait after our death. Default: the locker's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.desk.ttl = Some(ttl);
        self
    }

    /// How often other seats are looked at, and what was left is tried again at the latest. Default 30 s.
    pub fn sweep_every(mut self, span: Duration) -> Self {
        self.sweep_every = span.max(Duration::from_millis(10));
        self
    }

    /// How long the log keeps a finished decision for callers that lost the answer. Default a day, at least a minute, and a minute
    /// longer than a transaction is `within`: what was called aborted must not be forgotten before it can no longer arrive.
    ///
    /// It is judged by the clock of whoever forgets. All offices of one log should have the same.
    pub fn remember(mut self, span: Duration) -> Self {
        let short = || {
            let text = "what was called aborted could be forgotten before it can no longer arrive; give it at least a minute";
            Error::invalid(format!("the office is to remember for {span:?}: {text}"))
        };
        self.wrong = self.wrong.or((span < REMEMBER_MIN).then(short));
        self.desk.remember = span;
        self
    }

    /// How many connections to one participant recovery uses at most, when much was left. Default 4.
    pub fn connections(mut self, count: usize) -> Self {
        self.desk.connections = count.max(1);
        self
    }

    /// Hear of every step: [`Step`]. It is called in the middle of the work and must not take long. The first one counts.
    pub fn observer(self, tell: impl Fn(&Step<'_>) + Send + Sync + 'static) -> Self {
        self.desk.observer.set(tell);
        self
    }

    /// Look at the participants, take a seat, and finish what its last holder left.
    ///
    /// A participant that the log knows and that does not answer is no error: what it has to do is tried again. One that the
    /// log does not know yet must answer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bad or repeated names, before anything is asked; for two participants that are one database; for a
    /// participant that is another database than it was. [`Error::Unsupported`] for a server that cannot do it, with what to
    /// change. [`Error::Unavailable`] if the log, the lock store or a new participant does not answer.
    ///
    /// # Cancel safety
    /// If dropped, the seat is given back.
    pub async fn start(self) -> Result<Office> {
        let sweep_every = self.sweep_every;
        let desk = self.ready()?;
        desk.meet_all().await?;
        let (seat, guard) = desk.take_a_seat().await?;
        let _ = desk.seat.set(seat);
        let desk = Arc::new(desk);
        let left = sweep(&desk, seat, true).await?;
        locked(&desk.left).0 = left;
        desk.observer.tell(Point::Ready, None, None);
        let sweeper = recover::sweeper(desk.clone(), sweep_every);
        let sweeper = desk.handle.spawn(sweeper).abort_handle();
        Ok(Office { desk, guard: Some(guard), sweeper })
    }

    pub(crate) fn ready(self) -> Result<Desk> {
        match self.wrong {
            Some(wrong) => Err(wrong),
            None => Ok(self.desk),
        }
    }
}

/// What became of a transaction, for a caller that lost the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is committed, or will be as soon as its participants answer.
    Committed,
    /// It is rolled back, or will be. It cannot be committed any more.
    Aborted,
    /// Not known, and why: it is still under way, or so old that the log has forgotten.
    Unknown(String),
}

/// A coordinator with a seat. Share it in an `Arc`; all its methods take `&self`.
///
/// Dropping it gives the seat back. What is under way goes on for as long as its runtime does; what is left is finished by
/// whoever takes the seat.
#[derive(Debug)]
pub struct Office {
    desk: Arc<Desk>,
    guard: Option<Guard>,
    sweeper: tokio::task::AbortHandle,
}

impl Drop for Office {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

impl Office {
    /// A new transaction. Nothing is said to anybody before [`Transaction::commit`].
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self.desk.clone())
    }

    /// The number of our seat.
    pub fn seat(&self) -> u32 {
        self.desk.own().0
    }

    /// The epoch of our seat, under which we decide.
    pub fn fence(&self) -> u64 {
        self.desk.own().1
    }

    /// What could not be finished when it was tried last, and why. It is tried again.
    pub fn left(&self) -> Vec<Left> {
        let (own, others) = &*locked(&self.desk.left);
        // Who does not answer is missed by both.
        let more = others.iter().filter(|it| !own.contains(it));
        own.iter().chain(more).cloned().collect()
    }

    /// What became of a transaction of this log. One that wrote nothing was never decided, and counts as aborted. What is called
    /// aborted stays so: where the log has no row it gets one first.
    ///
    /// One that had a single branch is not in the log: all participants that the log knows are asked, and whoever has not
    /// committed it cannot any more from then on. If one of them is not set up here, or does not answer, the verdict is unknown.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a transaction of another log; [`Error::Unavailable`] if the log does not answer.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn verdict(&self, id: &TransactionId) -> Result<Verdict> {
        self.desk.verdict(id).await
    }

    /// Give the seat back and wait until the lock store knows.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer; the seat's ttl frees it.
    ///
    /// # Cancel safety
    /// The seat is given back in the background if this is dropped.
    pub async fn close(self) -> Result<()> {
        let mut this = self;
        match this.guard.take() {
            Some(guard) => Ok(guard.release().await?),
            None => Ok(()),
        }
    }
}

/// What offices, transactions and recovery share.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) log: Log,
    pub(crate) locker: Locker,
    pub(crate) participants: BTreeMap<String, Participant>,
    pub(crate) met: Mutex<BTreeSet<String>>,
    /// Sessions in which participants were met, for the sweep that follows.
    pub(crate) fresh: Mutex<BTreeMap<String, Session>>,
    /// The participant in whose database the log lives.
    pub(crate) home: OnceLock<String>,
    /// How long what is finished can be asked for.
    pub(crate) remember: Duration,
    /// How many connections to one participant recovery may use.
    pub(crate) connections: usize,
    ttl: Option<Duration>,
    seat: OnceLock<(u32, u64)>,
    active: Mutex<HashSet<TransactionId>>,
    pub(crate) handle: Handle,
    pub(crate) observer: Observer,
    pub(crate) wake: Notify,
    /// What is left of our own seat, and of those of others as of the last look at them.
    pub(crate) left: Mutex<(Vec<Left>, Vec<Left>)>,
}

impl Desk {
    /// Our seat and its epoch.
    pub(crate) fn own(&self) -> (u32, u64) {
        self.seat.get().copied().unwrap_or((0, 0))
    }

    pub(crate) fn new_id(&self, lone: bool) -> Result<TransactionId> {
        let (seat, fence) = self.own();
        TransactionId::new(&self.log.id, seat, fence, lone)
    }

    /// Whether the log lives in this participant's database.
    pub(crate) fn is_home(&self, participant: &str) -> bool {
        self.home.get().is_some_and(|it| it == participant)
    }

    /// Under way here: the sweep leaves it alone.
    pub(crate) fn enter(self: &Arc<Self>, id: &TransactionId) -> Active {
        locked(&self.active).insert(id.clone());
        Active { desk: self.clone(), id: id.clone() }
    }

    pub(crate) fn is_active(&self, id: &TransactionId) -> bool {
        locked(&self.active).contains(id)
    }

    /// The first seat that is free, and the epoch in which it is ours.
    async fn take_a_seat(&self) -> Result<((u32, u64), Guard)> {
        for seat in 0..SEATS_MAX {
            if let Some((fence, guard)) = self.take(seat).await? {
                return Ok(((seat, fence), guard));
            }
        }
        Err(Error::invalid(format!("all {SEATS_MAX} seats of this log are taken")))
    }

    /// This seat, if nobody has it. From then on its last holder cannot decide.
    pub(crate) async fn take(&self, seat: u32) -> Result<Option<(u64, Guard)>> {
        // Not the one that another coordinator in the same owner's scope has.
        let attempt = self.locker.try_lock(self.log.id.seat(seat)).not_reentrant().note("two-phase commit");
        let attempt = match self.ttl {
            Some(ttl) => attempt.ttl(ttl),
            None => attempt,
        };
        let Some(guard) = attempt.await? else { return Ok(None) };
        self.observer.tell(Point::SeatTaken, None, None);
        let fence = guard.fence().get();
        let mut raised = self.log.raise(seat, fence, false).await?;
        if raised.is_none() && guard.is_valid() {
            raised = self.log.raise(seat, fence, true).await?;
        }
        let Some(fence) = raised else { return Ok(None) };
        self.observer.tell(Point::FenceRaised, None, None);
        Ok(Some((fence, guard)))
    }

    pub(crate) async fn verdict(&self, id: &TransactionId) -> Result<Verdict> {
        self.is_of_this_log(id)?;
        // Before the log is asked: what was under way then may have been decided since.
        let active = self.is_active(id);
        // And who has the seat: between the two looks its holder may decide, end, and be replaced.
        let newest = self.log.newest(id.seat()).await?;
        let (record, forgotten) = self.log.look(id).await?;
        if let Some(record) = record {
            return Ok(if record.ruling == Ruling::Commit { Verdict::Committed } else { Verdict::Aborted });
        }
        if forgotten {
            return Ok(Verdict::Unknown("it is so old that the log has forgotten such decisions".into()));
        }
        if active {
            return Ok(Verdict::Unknown("it is under way".into()));
        }
        let ours = self.seat.get() == Some(&(id.seat(), id.fence()));
        if newest == id.fence() && !ours {
            let text =
                "its coordinator may still decide; if it is dead, whoever takes its seat rolls it back";
            return Ok(Verdict::Unknown(text.into()));
        }
        if id.is_lone() {
            return self.verdict_of_one(id).await;
        }
        // First written, then said: without a row a person could still rule to commit it.
        let ruled = self.log.rule_abort_all(vec![id.clone()]).await?;
        let commit = ruled.get(id).is_some_and(|it| it.ruling == Ruling::Commit);
        Ok(if commit { Verdict::Committed } else { Verdict::Aborted })
    }

    /// Only this log knows about its transactions.
    pub(crate) fn is_of_this_log(&self, id: &TransactionId) -> Result<()> {
        if id.log() == self.log.id.0 {
            return Ok(());
        }
        Err(Error::invalid(format!("{id} is a transaction of another log; ask an office of that one")))
    }

    /// Ask all participants about a transaction that one of them may have committed alone. Whoever has not cannot any more.
    async fn verdict_of_one(&self, id: &TransactionId) -> Result<Verdict> {
        let noted = self.log.participants().await?;
        let mut names: BTreeSet<&str> = self.participants.keys().map(String::as_str).collect();
        // Also those that are not set up here: one of them may have it.
        names.extend(noted.iter().map(|it| it.name.as_str()));
        let mut silent = Vec::new();
        for name in names {
            let asked = async {
                let mut session = self.connect(name).await?;
                let closed = timed(ANSWER_MAX, session.close_door(id)).await;
                closed.map_err(|it| Error::unavailable(name, it))
            };
            match asked.await {
                Ok(true) => return Ok(Verdict::Committed),
                Ok(false) => {}
                Err(error) => silent.push(error.to_string()),
            }
        }
        Ok(if silent.is_empty() {
            Verdict::Aborted
        } else {
            Verdict::Unknown(format!("one participant may have committed it alone: {}", silent.join("; ")))
        })
    }
}

/// A transaction that this office works on.
#[derive(Debug)]
pub(crate) struct Active {
    desk: Arc<Desk>,
    pub(crate) id: TransactionId,
}

impl Drop for Active {
    fn drop(&mut self) {
        locked(&self.desk.active).remove(&self.id);
    }
}
