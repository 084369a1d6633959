//! A transaction: who takes part, what each does, and the one moment in which it is decided.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_core::{Clock, Fence, Guard, Key};
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::id::TransactionId;
use crate::log::{Dialect, Inside};
use crate::observe::{Asking, Point};
use crate::office::{Active, Desk, REMEMBER_MIN};
use crate::phases::{Plan, conclude};
use crate::rollback::abandon;
use crate::work::{Bench, Failure, Job, Jobs, Open, Work, WorkError, work};

/// What a transaction ended with that is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// Its name.
    pub id: TransactionId,
    /// Participants that have not answered yet. They have promised, the decision is durable, and the office goes on telling
    /// them.
    pub pending: Vec<String>,
}

/// A transaction that is being put together. Made by [`Office::transaction`](crate::Office::transaction).
///
/// Branches run in the order in which they are written. Use the same order everywhere: nobody notices a deadlock between two
/// databases, it ends only by [`within`](Transaction::within).
///
/// ```no_run
/// # use std::time::Duration;
/// # use lockkeeper_twophase::{Error, Office, Result};
/// # use lockkeeper_twophase::tokio_postgres::Client;
/// # use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
/// # async fn example(office: &Office, guard: &lockkeeper_core::Guard) -> Result<()> {
/// let done = office
///     .transaction()
///     .note("checkout 42")
///     .within(Duration::from_secs(5))
///     .guarded_by(guard)
///     .on("orders", async |db: &Client| {
///         db.execute("INSERT INTO orders VALUES (42, 7)", &[]).await?;
///         Ok(())
///     })
///     .on("stock", async |db: &mut Conn| {
///         db.query_drop("UPDATE stock SET amount = amount - 1 WHERE id = 7").await?;
///         Ok(())
///     })
///     .commit()
///     .await;
/// match done {
///     Ok(done) => println!("{}, still to be told: {:?}", done.id, done.pending),
///     Err(Error::Aborted { source, .. }) => println!("nothing happened: {source}"),
///     Err(Error::Unknown { id, .. }) => println!("{:?}", office.verdict(&id).await?),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a transaction does nothing until `commit`"]
pub struct Transaction<J = ()> {
    desk: Arc<Desk>,
    note: String,
    within: Duration,
    guard: Option<(Key, Fence)>,
    names: Vec<String>,
    wrong: Option<Error>,
    inside: Option<Inside>,
    ways: Ways,
    jobs: J,
}

/// How strictly branches are kept apart from what others do at the same time. Each database keeps its own apart: none of these
/// makes readers see two databases change at one moment.
///
/// ```no_run
/// # use lockkeeper_twophase::{Isolation, Office, Result, tokio_postgres::Client};
/// # async fn example(office: &Office) -> Result<()> {
/// let work = office.transaction().isolation(Isolation::Serializable).read_only_vote(false);
/// work.on("orders", async |db: &Client| Ok(db.batch_execute("UPDATE orders SET paid = true").await?)).commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// Each statement sees what was committed when it began.
    ReadCommitted,
    /// All statements see what was committed when the first began.
    RepeatableRead,
    /// As if one transaction of the database came after the other.
    Serializable,
}

impl Isolation {
    /// As SQL has it, the same everywhere.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Isolation::ReadCommitted => "READ COMMITTED",
            Isolation::RepeatableRead => "REPEATABLE READ",
            Isolation::Serializable => "SERIALIZABLE",
        }
    }
}

/// How a transaction goes where there is a choice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ways {
    pub(crate) at_once: bool,
    pub(crate) keep_readers: bool,
    pub(crate) answer_early: bool,
    pub(crate) isolation: Option<Isolation>,
}

impl<J> fmt::Debug for Transaction<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("note", &self.note)
            .field("on", &self.names)
            .finish_non_exhaustive()
    }
}

impl Transaction {
    pub(crate) fn new(desk: Arc<Desk>) -> Self {
        let within = Duration::from_secs(10);
        Transaction {
            desk,
            note: String::new(),
            within,
            guard: None,
            names: Vec::new(),
            wrong: None,
            inside: None,
            ways: Ways::default(),
            jobs: (),
        }
    }
}

impl<J> Transaction<J> {
    /// A free text, shown to whoever looks at the log.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// How long work and votes may take together, and how long a branch waits for a row lock. Default 10 s. Then the statement
    /// that a branch is busy with is ended at its server, too: PostgreSQL does it by itself, also if we die, and MySQL and
    /// MariaDB are told to. It needs a connection more for a moment.
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Do the work of all branches at once. By default one after the other, in the order written: the same order everywhere
    /// avoids deadlocks between databases.
    pub fn at_once(mut self) -> Self {
        self.ways.at_once = true;
        self
    }

    /// Whether a branch of PostgreSQL that wrote nothing ends with its vote, which is the default. `false` keeps what it read
    /// locked until all have committed, for work that must be serializable across databases.
    ///
    /// `NOTIFY` is no write before its commit: a branch that does nothing else sends it with its vote, also if another branch
    /// then says no. With `false` such a branch is refused, because PostgreSQL does not prepare one. Notify after the commit.
    pub fn read_only_vote(mut self, early: bool) -> Self {
        self.ways.keep_readers = !early;
        self
    }

    /// How strictly every branch is kept apart from others. Default: what the server, or the user's settings there, choose. Work
    /// cannot choose it by itself: the branch has begun before.
    pub fn isolation(mut self, level: Isolation) -> Self {
        self.ways.isolation = Some(level);
        self
    }

    /// Answer when the decision is durable. All branches that promised are then `pending`, and told in the background.
    pub fn answer_after_verdict(mut self) -> Self {
        self.ways.answer_early = true;
        self
    }

    /// Let every branch check this guard's fence before its work, in the table `lockkeeper_fence` of its database.
    pub fn guarded_by(mut self, guard: &Guard) -> Self {
        self.guard = Some((guard.key().clone(), guard.fence()));
        self
    }

    /// What this participant does. An error rolls everything back.
    pub fn on<M, F: Work<M>>(
        mut self,
        participant: impl Into<String>,
        work: F,
    ) -> Transaction<(J, Job<F>, PhantomData<M>)> {
        let participant = participant.into();
        if let Some(wrong) = self.wrong_with(&participant, F::KIND) {
            self.wrong.get_or_insert(Error::invalid(wrong));
        }
        self.names.push(participant.clone());
        let Transaction { desk, note, within, guard, names, wrong, inside, ways, jobs } = self;
        let jobs = (jobs, Job { participant, work }, PhantomData);
        Transaction { desk, note, within, guard, names, wrong, inside, ways, jobs }
    }

    /// What is done in the log's own SQLite file, by the very commit that decides: after every participant has promised, on
    /// the log's thread, before other decisions. So it must not take long, and must not end the transaction. An error rolls
    /// everything back. `guarded_by` does not check it.
    pub fn in_log(
        mut self,
        work: impl FnOnce(&rusqlite::Connection) -> Result<(), WorkError> + Send + 'static,
    ) -> Self {
        let wrong = if self.desk.log.file().is_none() {
            Some(Error::unsupported(
                "work in SQLite needs the log in that file, because SQLite cannot promise; this log is in a server",
            ))
        } else if self.inside.is_some() {
            Some(Error::invalid("there is work in the log already; put all of it into one"))
        } else {
            None
        };
        self.wrong = self.wrong.or(wrong);
        self.inside = Some(Box::new(move |db| work(db).map_err(|it| it.0)));
        self
    }

    fn wrong_with(&self, name: &str, kind: &str) -> Option<String> {
        let Some(known) = self.desk.participants.get(name) else {
            let names: Vec<&str> = self.desk.participants.keys().map(String::as_str).collect();
            return Some(format!("there is no participant {name:?} here; there are {}", names.join(", ")));
        };
        if known.kind() != kind {
            return Some(format!("the participant {name:?} is {}, and the work is for {kind}", known.kind()));
        }
        let twice = self.names.iter().any(|it| it == name);
        twice.then(|| format!("the participant {name:?} has two branches; put all its work into one"))
    }
}

impl<J> Transaction<J> {
    /// Everything that can be refused before anybody is asked.
    fn check(&mut self) -> Result<()> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        if self.names.is_empty() && self.inside.is_none() {
            return Err(Error::invalid(
                "a transaction without a branch has nothing to commit; add one with `on`",
            ));
        }
        if self.within.is_zero() {
            return Err(Error::invalid("`within` is zero, so nothing could be done; give it some seconds"));
        }
        if self.desk.remember < self.within.saturating_add(REMEMBER_MIN) {
            return Err(Error::invalid(format!(
                "`within` is {:?}, and the office remembers for {:?}, which must be a minute longer; shorten the one, or let it \
                 `remember` longer",
                self.within, self.desk.remember
            )));
        }
        Ok(())
    }

    /// Whether one participant alone may commit it, without a row in the log: there is one branch; or all are of PostgreSQL,
    /// which tells who only read.
    fn is_lone(&self) -> bool {
        let at_home = self.names.iter().any(|it| self.desk.is_home(it));
        let one_way = self.names.len() == 1
            || !self.ways.keep_readers
                && self.names.iter().all(|it| {
                    self.desk.participants.get(it).is_some_and(|it| it.dialect() == Dialect::Postgres)
                });
        self.inside.is_none() && !at_home && one_way
    }
}

impl<J: Jobs> Transaction<J> {
    /// Do the work, and commit everywhere or nowhere.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything was said to a participant. [`Error::Aborted`]: nothing happened. [`Error::Superseded`]:
    /// nothing happened, and this office cannot be used any more. [`Error::Unknown`]: ask [`Office::verdict`](crate::Office::verdict),
    /// do not repeat. [`Error::Damaged`]: committed, and a participant has undone its part by somebody else's hand.
    ///
    /// # Cancel safety
    /// Dropped before the decision, everything is rolled back; dropped after it, the office commits in the background.
    pub async fn commit(self) -> Result<Committed> {
        let asking = Asking::begin(&self.desk.observer);
        let answer = self.carry_out().await;
        if let Some(asking) = asking {
            asking.end(&answer);
        }
        answer
    }

    async fn carry_out(mut self) -> Result<Committed> {
        self.check()?;
        let lone = self.is_lone();
        let Transaction { desk, note, within, guard, names, wrong: _, inside, ways, jobs } = self;
        let id = desk.new_id(lone)?;
        let active = desk.enter(&id);
        let clock = Clock::boot();
        let until = clock.now().after(within);
        let alone = lone && names.len() == 1;
        let (guard, Ways { at_once, isolation, .. }) = (guard.as_ref(), ways);
        let mut working = Working { desk: desk.clone(), active: Some(active), open: Vec::new() };
        let open = &mut working.open;
        let ahead = desk.dial_all(&names).into_iter();
        let mut bench = Bench { desk: &desk, id: &id, until, guard, alone, at_once, isolation, open, ahead };
        let worked = {
            let work = std::pin::pin!(work(jobs, &names, &mut bench));
            clock.within(until, work).await.unwrap_or_else(|| Err(late(within)))
        };
        if let Err(Failure { by, source }) = worked {
            if let Some(undone) = working.abandon() {
                // It goes on if we do not wait for it.
                drop(undone.await);
            }
            return Err(Error::aborted(&id, by.as_deref(), source));
        }
        let Some((active, open)) = working.done() else {
            return Err(Error::aborted(&id, None, "it was abandoned"));
        };
        desk.observer.tell(Point::Worked, Some(&id), None);
        let unwanted = Arc::new(AtomicBool::new(false));
        let unwanted_too = unwanted.clone();
        let desk_too = desk.clone();
        let plan =
            Plan { desk: desk_too, active, note, open, until, unwanted: unwanted_too, inside, lone, ways };
        let caller = Caller(unwanted);
        let task = desk.handle.spawn(conclude(plan));
        let answer = task.await;
        drop(caller);
        answer.unwrap_or_else(|it| Err(Error::Unknown { id, source: Arc::new(it) }))
    }
}

fn late(within: Duration) -> Failure {
    Failure { by: None, source: format!("the work was not done within {within:?}").into() }
}

/// Work under way. If its caller goes away, so do the branches.
struct Working {
    desk: Arc<Desk>,
    active: Option<Active>,
    open: Vec<Open>,
}

impl Working {
    fn done(mut self) -> Option<(Active, Vec<Open>)> {
        Some((self.active.take()?, std::mem::take(&mut self.open)))
    }

    fn abandon(&mut self) -> Option<JoinHandle<()>> {
        let (active, open) = (self.active.take()?, std::mem::take(&mut self.open));
        Some(self.desk.handle.spawn(abandon(self.desk.clone(), active, open)))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        drop(self.abandon());
    }
}

/// Tells those who vote that nobody waits for the decision any more. `SeqCst`, as is told in `phases.rs`.
struct Caller(Arc<AtomicBool>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
