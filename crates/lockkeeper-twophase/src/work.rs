//! The work of branches: one closure for each, over the driver's own connection, run in the order written.

use std::future::Future;

use lockkeeper_core::{Clock, Fence, Key, Moment};
use lockkeeper_sql::mysql_async::Conn;
use lockkeeper_sql::tokio_postgres::Client;

use crate::dial::Dialing;
use crate::error::{BoxError, Error, Result};
use crate::id::{BranchName, TransactionId};
use crate::observe::Point;
use crate::office::Desk;
use crate::participant::Session;
use crate::transaction::Isolation;

/// Marks work on PostgreSQL. It is inferred.
#[derive(Clone, Copy, Debug)]
pub struct OnPostgres;

/// Marks work on MySQL or MariaDB. It is inferred.
#[derive(Clone, Copy, Debug)]
pub struct OnMysql;

/// Why a branch's work ended: `?` makes it of any error.
///
/// ```
/// # use lockkeeper_twophase::WorkError;
/// fn read(amount: &str) -> Result<u32, WorkError> {
///     let amount: u32 = amount.parse()?;
///     if amount == 0 { Err(WorkError::new("sold out")) } else { Ok(amount) }
/// }
/// assert!(read("0").unwrap_err().to_string().contains("sold out"));
/// assert!(read("many").is_err());
/// ```
// Not a bare box, and not an error itself: `From` below would contradict that of the standard library.
pub struct WorkError(pub(crate) BoxError);

impl WorkError {
    /// An error in words of your own.
    pub fn new(what: impl Into<BoxError>) -> Self {
        WorkError(what.into())
    }
}

/// As `Display`, because that is what a `main` that returns an error prints.
impl std::fmt::Debug for WorkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for WorkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for WorkError {
    fn from(error: E) -> Self {
        WorkError(Box::new(error))
    }
}

/// The open branch that work is done in.
#[derive(Debug)]
pub struct Link<'a>(&'a mut Session);

/// What a branch does: an async closure that takes the driver's connection, `&Client` or `&mut Conn`. Implemented for those.
///
/// Return every error of the driver. On MySQL and MariaDB a statement that waited too long for a row lock is undone alone,
/// and the branch could still be prepared without it.
pub trait Work<M> {
    /// The kind of participant that it works on.
    #[doc(hidden)]
    const KIND: &'static str;

    /// Do it.
    #[doc(hidden)]
    fn run(self, link: Link<'_>) -> impl Future<Output = Result<(), WorkError>>;
}

impl<F: AsyncFnOnce(&Client) -> Result<(), WorkError>> Work<OnPostgres> for F {
    const KIND: &'static str = "postgres";

    async fn run(self, link: Link<'_>) -> Result<(), WorkError> {
        match link.0 {
            Session::Postgres(client) => self(client).await,
            Session::Mysql(_) => Err(WorkError::new("the participant is not PostgreSQL")),
        }
    }
}

impl<F: AsyncFnOnce(&mut Conn) -> Result<(), WorkError>> Work<OnMysql> for F {
    const KIND: &'static str = "mysql";

    async fn run(self, link: Link<'_>) -> Result<(), WorkError> {
        match link.0 {
            Session::Mysql(conn) => self(conn).await,
            Session::Postgres(_) => Err(WorkError::new("the participant is not MySQL or MariaDB")),
        }
    }
}

/// A branch that has begun.
#[derive(Debug)]
pub struct Open {
    pub(crate) name: BranchName,
    pub(crate) session: Session,
    /// It is not to be prepared: its own commit decides.
    pub(crate) plain: bool,
    /// What ends the statement that its session is busy with, said in another session. Known as soon as it has begun.
    pub(crate) stop: Option<String>,
}

/// Why the work ended early.
#[derive(Debug)]
pub struct Failure {
    pub(crate) by: Option<String>,
    pub(crate) source: BoxError,
}

/// What all branches of a transaction share while they work.
#[derive(Debug)]
pub struct Bench<'a> {
    pub(crate) desk: &'a Desk,
    pub(crate) id: &'a TransactionId,
    /// When all work and votes must be done.
    pub(crate) until: Moment,
    pub(crate) guard: Option<&'a (Key, Fence)>,
    /// There is one branch, and nothing else to decide about.
    pub(crate) alone: bool,
    /// Begin all branches before any work, and then do all of it at once.
    pub(crate) at_once: bool,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) open: &'a mut Vec<Open>,
    /// Sessions for those that have not begun, as far as they are being opened ahead of their turn.
    pub(crate) ahead: std::vec::IntoIter<Option<Dialing>>,
}

/// A closure, and whom it is for.
#[derive(Debug)]
pub struct Job<F> {
    pub(crate) participant: String,
    pub(crate) work: F,
}

/// All closures of a transaction.
pub trait Jobs {
    /// One after the other, each in a branch that is begun for it.
    fn run(self, bench: &mut Bench<'_>) -> impl Future<Output = Result<(), Failure>>;

    /// All at once, in branches that have begun, in the order written.
    fn together(self, open: &mut [Open]) -> impl Future<Output = Result<(), Failure>>;
}

impl Jobs for () {
    async fn run(self, _: &mut Bench<'_>) -> Result<(), Failure> {
        Ok(())
    }

    async fn together(self, _: &mut [Open]) -> Result<(), Failure> {
        Ok(())
    }
}

impl<J: Jobs, M, F: Work<M>> Jobs for (J, Job<F>, std::marker::PhantomData<M>) {
    async fn run(self, bench: &mut Bench<'_>) -> Result<(), Failure> {
        let (before, job, _) = self;
        before.run(bench).await?;
        let failed = |source: BoxError| Failure { by: Some(job.participant.clone()), source };
        begin(bench, &job.participant).await.map_err(|it| failed(it.into()))?;
        let Some(open) = bench.open.last_mut() else { return Ok(()) };
        job.work.run(Link(&mut open.session)).await.map_err(|it| failed(it.0))
    }

    async fn together(self, open: &mut [Open]) -> Result<(), Failure> {
        let (before, job, _) = self;
        let Some((last, rest)) = open.split_last_mut() else { return Ok(()) };
        let failed = |it: WorkError| Failure { by: Some(job.participant.clone()), source: it.0 };
        let own = async { job.work.run(Link(&mut last.session)).await.map_err(failed) };
        // The first error ends the others: everything is rolled back.
        tokio::try_join!(before.together(rest), own).map(drop)
    }
}

/// All the work, as it was chosen.
pub(crate) async fn work<J: Jobs>(jobs: J, names: &[String], bench: &mut Bench<'_>) -> Result<(), Failure> {
    if !bench.at_once {
        return jobs.run(bench).await;
    }
    for name in names {
        let failed = |it: Error| Failure { by: Some(name.clone()), source: it.into() };
        begin(bench, name).await.map_err(failed)?;
    }
    jobs.together(bench.open).await
}

/// Begin the branch in a session of its own. It is among the open ones before anything can fail.
async fn begin(bench: &mut Bench<'_>, participant: &str) -> Result<()> {
    let desk = bench.desk;
    let ahead = match bench.ahead.next().flatten() {
        Some(it) => it.session().await,
        None => None,
    };
    let was_ahead = ahead.is_some();
    let session = match ahead {
        Some(it) => it,
        None => desk.dial(participant).await?,
    };
    let n = u32::try_from(bench.open.len()).unwrap_or(u32::MAX);
    let name = BranchName { id: bench.id.clone(), n, participant: participant.to_owned() };
    let plain = bench.alone || desk.is_home(participant);
    bench.open.push(Open { name, session, plain, stop: None });
    let Some(open) = bench.open.last_mut() else { return Ok(()) };
    let refused = |it| Error::unavailable(participant, std::io::Error::other(format!("{it}")));
    let left = bench.until - Clock::boot().now();
    let mut begun = open.session.begin(&open.name, left, plain, bench.isolation).await;
    if was_ahead && begun.as_ref().is_err_and(|it| !it.is_refusal()) {
        // It was idle for as long as the work before it took, and has ended. Nothing was done in it.
        open.session = desk.dial(participant).await?;
        begun = open.session.begin(&open.name, left, plain, bench.isolation).await;
    }
    open.stop = Some(begun.map_err(refused)?);
    if let Some((resource, fence)) = bench.guard {
        open.session.check_fence(resource, *fence).await.map_err(refused)?;
    }
    desk.observer.tell(Point::Begun, Some(bench.id), Some(participant));
    Ok(())
}
