//! What an office tells of its steps, for logs, meters and tests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::{Clock, Moment};

use crate::error::{Error, Result};
use crate::id::TransactionId;
use crate::transaction::Committed;

/// A point of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Point {
    /// A seat's lock is ours; the log does not know yet.
    SeatTaken,
    /// The log refuses the seat's last holder from now on.
    FenceRaised,
    /// What the participants still have prepared is known.
    Listed,
    /// A branch that was left by somebody was ended.
    Recovered,
    /// Everything that the seat's last holder left is ended, as far as participants answer.
    SeatFinished,
    /// A participant stands in the log.
    ParticipantNoted,
    /// The office can be used.
    Ready,
    /// A branch has begun.
    Begun,
    /// All branches have done their work.
    Worked,
    /// A branch is about to be prepared.
    Preparing,
    /// An XA branch has ended and is not prepared.
    Ended,
    /// A branch is prepared.
    Prepared,
    /// All branches that wrote are prepared.
    AllPrepared,
    /// The decision is written in a transaction of the log that is still open, or about to be sent to a log in a server. Told
    /// on the log's own thread or task.
    Deciding,
    /// The log did not say whether the decision is written. It is asked again.
    Doubted,
    /// The decision to commit is durable.
    Decided,
    /// A branch is about to be told to commit.
    Committing,
    /// The order to commit got no answer, or an error. The branch is looked into on another session.
    Unanswered,
    /// A branch is committed.
    Committed,
    /// All branches are committed, and the log does not know yet.
    AllCommitted,
    /// The log knows that all is done.
    Finished,
    /// A branch is about to be rolled back.
    RollingBack,
    /// A branch is rolled back.
    RolledBack,
    /// All branches are rolled back, as far as participants answer.
    Aborted,
    /// The seat was taken by somebody else.
    Superseded,
    /// Whoever called `commit` has its answer, or went away. Told once for each call.
    Answered,
}

/// What a call of [`Transaction::commit`](crate::Transaction::commit) came to.
///
/// ```
/// use lockkeeper_twophase::Outcome;
///
/// assert_eq!(Outcome::Committed.word(), "committed");
/// assert_eq!(Outcome::ALL.len(), 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It is committed.
    Committed,
    /// Nothing happened at any participant.
    Aborted,
    /// Another coordinator took the seat before the decision.
    Superseded,
    /// The log did not say whether it is committed.
    Unknown,
    /// It is committed, and not everywhere.
    Damaged,
    /// It was refused before anything was said to a participant, or log or seat cannot be used.
    Failed,
    /// The caller went away before the answer.
    Withdrawn,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 7] = [
        Outcome::Committed,
        Outcome::Aborted,
        Outcome::Superseded,
        Outcome::Unknown,
        Outcome::Damaged,
        Outcome::Failed,
        Outcome::Withdrawn,
    ];

    /// As a label.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Committed => "committed",
            Outcome::Aborted => "aborted",
            Outcome::Superseded => "superseded",
            Outcome::Unknown => "unknown",
            Outcome::Damaged => "damaged",
            Outcome::Failed => "failed",
            Outcome::Withdrawn => "withdrawn",
        }
    }

    fn of(answer: &Result<Committed>) -> Self {
        match answer {
            Ok(_) => Outcome::Committed,
            Err(Error::Aborted { .. }) => Outcome::Aborted,
            Err(Error::Superseded { .. }) => Outcome::Superseded,
            Err(Error::Unknown { .. }) => Outcome::Unknown,
            Err(Error::Damaged { .. }) => Outcome::Damaged,
            Err(_) => Outcome::Failed,
        }
    }
}

/// One step of an office.
///
/// ```no_run
/// # use lockkeeper_core::{Locker, Memory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper_twophase::Result<()> {
/// use lockkeeper_twophase::{Step, TwoPhase};
///
/// let locker = Locker::new(Memory::default());
/// let office = TwoPhase::open("sqlite:2pc.db", &locker)
///     .await?
///     .observer(|step: &Step<'_>| println!("{:?} {:?}", step.point, step.participant))
///     .start()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Step<'a> {
    /// Where.
    pub point: Point,
    /// In which transaction.
    pub id: Option<&'a TransactionId>,
    /// At which participant.
    pub participant: Option<&'a str>,
    /// What was answered, and how long after `commit` was called. At [`Point::Answered`] only.
    pub answered: Option<(Outcome, Duration)>,
}

type Tell = dyn Fn(&Step<'_>) + Send + Sync;

/// Whoever listens. Set once, before the office starts; the log, which is opened earlier, has a clone.
#[derive(Clone, Default)]
pub(crate) struct Observer(Arc<OnceLock<Box<Tell>>>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.get().is_some() { "Observer" } else { "nobody" })
    }
}

impl Observer {
    /// The first one stays.
    pub(crate) fn set(&self, tell: impl Fn(&Step<'_>) + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(tell));
    }

    pub(crate) fn tell(&self, point: Point, id: Option<&TransactionId>, participant: Option<&str>) {
        if let Some(tell) = self.0.get() {
            tell(&Step { point, id, participant, answered: None });
        }
    }
}

/// A call of `commit` that has no answer yet. A caller that goes away drops it.
pub(crate) struct Asking {
    observer: Observer,
    clock: Clock,
    begun: Moment,
    outcome: Outcome,
    id: Option<TransactionId>,
}

impl Asking {
    /// Nothing, not even the time, is looked at if nobody listens.
    pub(crate) fn begin(observer: &Observer) -> Option<Self> {
        observer.0.get()?;
        let clock = Clock::boot();
        let begun = clock.now();
        Some(Asking { observer: observer.clone(), clock, begun, outcome: Outcome::Withdrawn, id: None })
    }

    pub(crate) fn end(mut self, answer: &Result<Committed>) {
        self.outcome = Outcome::of(answer);
        self.id = answer.as_ref().ok().map(|it| it.id.clone());
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let answered = Some((self.outcome, self.clock.now() - self.begun));
        let step = Step { point: Point::Answered, id: self.id.as_ref(), participant: None, answered };
        if let Some(tell) = self.observer.0.get() {
            // Whoever listens may panic; a drop may not.
            drop(catch_unwind(AssertUnwindSafe(|| tell(&step))));
        }
    }
}
