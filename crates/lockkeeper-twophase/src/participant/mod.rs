//! Participants: the databases that take part, and what is said to them.

mod doctor;
mod mysql;
mod postgres;
mod witness;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::inspect::Finding;
use lockkeeper_core::{Clock, Fence, Key};
use lockkeeper_sql::MysqlOptions;
use lockkeeper_sql::mysql_async::{Conn, Opts};
use lockkeeper_sql::tokio_postgres::Client;
use sha2::{Digest as _, Sha256};

use crate::error::{BoxError, Error, Result};
use crate::id::{BranchName, TransactionId};
use crate::log::{Dialect, Ruling};
use crate::observe::Observer;
use crate::transaction::Isolation;

/// The table that participants keep: an identity, and the witnesses of commits.
const WITNESS: &str = "lockkeeper_2pc_witness";
/// The number of the row that tells of a transaction which was alone: branches begin with 0.
const MARK: i32 = -1;
/// It has committed. Participants have no such names.
const ONCE: &str = ":once";
/// It has not, and cannot any more.
const VOID: &str = ":void";
/// How many witnesses are looked at together.
pub(crate) const WITNESSES: usize = 1000;
/// How long one statement of ours is waited for.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A database that takes part. Give it a name with [`TwoPhase::participant`](crate::TwoPhase::participant).
///
/// `Debug` shows no secret.
///
/// ```
/// use lockkeeper_twophase::Participant;
///
/// let orders = Participant::postgres("postgres://shop:secret@db-1/orders")?;
/// let stock = Participant::mysql("mysql://shop:secret@db-2/stock")?;
/// assert!(!format!("{orders:?} {stock:?}").contains("secret"));
/// assert!(Participant::mysql("postgres://db-1/orders").is_err());
/// # Ok::<(), lockkeeper_twophase::Error>(())
/// ```
#[derive(Clone)]
pub struct Participant(Kind);

#[derive(Clone)]
enum Kind {
    Postgres(postgres::Way),
    Mysql(mysql::Way),
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Participant({})", self.place())
    }
}

impl Participant {
    /// A database of PostgreSQL 13 or newer. Its `max_prepared_transactions` must not be 0.
    ///
    /// The URL is that of a lock store in PostgreSQL, without what is about locks: `password_file`, `connect_timeout`, and for
    /// TLS (feature `tls`) `tls=on` with the files `ca`, `cert` and `key`. Of several hosts the one is used that takes writes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL cannot be read. The message holds no secret.
    pub fn postgres(url: &str) -> Result<Self> {
        postgres::Way::read(url).map(|it| Participant(Kind::Postgres(it)))
    }

    /// By its URL, which says what it is: [`Participant::postgres`] or [`Participant::mysql`].
    ///
    /// # Errors
    /// As they have; [`Error::Invalid`] for a URL of something else.
    pub fn of_url(url: &str) -> Result<Self> {
        match url.split_once("://").map(|it| it.0) {
            Some("postgres" | "postgresql") => Participant::postgres(url),
            Some("mysql" | "mariadb") => Participant::mysql(url),
            _ => Err(Error::invalid(
                "a participant is postgres://…, mysql://… or mariadb://…; SQLite can take part only in the log's own file",
            )),
        }
    }

    /// A database of PostgreSQL, by connections that you make. `place` is where it is, for people and without a secret. What
    /// you give must be a session of its own, never one of a pool, and its connection must be driven.
    pub fn postgres_with<F, A>(place: impl Into<String>, connect: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<Client, BoxError>> + Send + 'static,
    {
        Participant(Kind::Postgres(postgres::Way::with(place.into(), connect)))
    }

    /// A database of MariaDB 10.5 or newer, or of MySQL 8.0.29 or newer.
    ///
    /// The URL is that of a lock store in MySQL, without what is about locks: `password_file`, and for TLS (feature `tls`)
    /// `tls=on` with the files `ca`, `cert` and `key`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL cannot be read, or names no database, or if a file for TLS cannot be used. The message holds
    /// no secret.
    pub fn mysql(url: &str) -> Result<Self> {
        not_of_stores(url)?;
        let opts = MysqlOptions::parse(url).and_then(MysqlOptions::driver).map_err(of_url)?;
        Participant::mysql_with(opts)
    }

    /// As [`Participant::mysql`], with the driver's options, such as those for TLS. Its pool is never used.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they name no database.
    pub fn mysql_with(opts: impl Into<Opts>) -> Result<Self> {
        let opts = opts.into();
        if opts.db_name().is_none_or(str::is_empty) {
            return Err(Error::invalid("the URL of a participant must name a database"));
        }
        Ok(Participant(Kind::Mysql(mysql::Way::new(opts))))
    }

    /// Where it is, without secrets.
    pub(crate) fn place(&self) -> String {
        match &self.0 {
            Kind::Postgres(way) => way.place.clone(),
            Kind::Mysql(mysql::Way { opts, .. }) => {
                let database = opts.db_name().unwrap_or_default();
                format!("mysql://{}:{}/{database}", opts.ip_or_hostname(), opts.tcp_port())
            }
        }
    }

    /// The word for it in the log.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.0 {
            Kind::Postgres(_) => "postgres",
            Kind::Mysql(_) => "mysql",
        }
    }

    /// Whose SQL it understands.
    pub(crate) fn dialect(&self) -> Dialect {
        match &self.0 {
            Kind::Postgres(_) => Dialect::Postgres,
            Kind::Mysql(_) => Dialect::Mysql,
        }
    }

    /// A session of its own. Never pooled: `COM_RESET_CONNECTION`, which a pool sends, makes MariaDB lose a prepared branch.
    pub(crate) async fn connect(&self) -> Result<Session> {
        self.opened(true).await
    }

    /// The same for [`Session::begin`], which must come first.
    pub(crate) async fn dial(&self) -> Result<Session> {
        self.opened(false).await
    }

    async fn opened(&self, ready: bool) -> Result<Session> {
        let opened = async {
            match &self.0 {
                Kind::Postgres(way) => way.connect().await.map(Session::Postgres),
                Kind::Mysql(way) => {
                    let conn = if ready { way.connect().await } else { way.dial().await };
                    conn.map(|it| Session::Mysql(Box::new(it)))
                }
            }
        };
        timed(ANSWER_MAX, opened).await.map_err(|it| self.trouble(&it))
    }

    /// Make our tables, look at the settings, and learn which database this is. One that is `at_home` need not prepare.
    pub(crate) async fn meet(&self, session: &mut Session, at_home: bool) -> Result<String> {
        let met = match session {
            Session::Postgres(client) => postgres::meet(client, at_home).await,
            Session::Mysql(conn) => mysql::meet(conn).await,
        };
        met.map_err(|it| match it {
            Error::Unsupported { what } => Error::unsupported(format!("{}: {what}", self.place())),
            other => other,
        })
    }

    pub(crate) fn trouble(&self, trouble: &Trouble) -> Error {
        Error::unavailable(self.place(), std::io::Error::other(trouble.to_string()))
    }
}

/// Settings of a lock store's URL that mean nothing to a participant.
const OF_STORES: &[&str] = &["schema", "mode", "waiting_max", "listen", "timeout", "clean_every", "create"];

fn not_of_stores(url: &str) -> Result<()> {
    let given = url.split_once('?').map_or("", |it| it.1).split('&');
    let names = given.map(|it| it.split('=').next().unwrap_or_default());
    match names.into_iter().find(|it| OF_STORES.contains(it)) {
        Some(name) => Err(Error::invalid(format!(
            "`{name}` is a setting of lock stores, and this URL is that of a participant or of a log; leave it out"
        ))),
        None => Ok(()),
    }
}

/// A URL that cannot be used.
fn of_url(error: lockkeeper_core::Error) -> Error {
    match error {
        lockkeeper_core::Error::Invalid { what, .. } => Error::invalid(what),
        other => Error::unsupported(other.to_string()),
    }
}

/// A driver's error, and what to do about it if it is one of TLS.
fn with_advice(error: &(dyn std::error::Error + 'static), said: &str) -> String {
    lockkeeper_sql::tls_advice(error).map_or_else(|| said.to_owned(), |advice| format!("{said}: {advice}"))
}

/// What a statement of ours ended with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("{}", with_advice(.0, &postgres::said(.0)))]
    Postgres(#[from] lockkeeper_sql::tokio_postgres::Error),
    #[error("{}", with_advice(.0, &.0.to_string()))]
    Mysql(#[from] lockkeeper_sql::mysql_async::Error),
    #[error("no answer in time")]
    Silent,
    #[error("{0}")]
    Said(String),
}

impl Trouble {
    /// Whether the server has answered, and its answer was no.
    pub(crate) fn is_answer(&self) -> bool {
        match self {
            Trouble::Postgres(it) => it.as_db_error().is_some(),
            Trouble::Mysql(it) => matches!(it, lockkeeper_sql::mysql_async::Error::Server(_)),
            Trouble::Silent | Trouble::Said(_) => false,
        }
    }

    /// Whether a branch that was asked for its vote is certainly not prepared. Who was interrupted, or sent away, may have
    /// prepared it before.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Trouble::Postgres(it) => it.code().is_some_and(|it| !it.code().starts_with("57")),
            Trouble::Mysql(it) => !mysql::was_interrupted(it),
            Trouble::Silent => false,
            Trouble::Said(_) => true,
        }
    }
}

/// What statements of ours answered: the rows of all, and how many rows the last one changed.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Vec<Option<String>>>,
    pub(crate) changed: u64,
}

/// How a branch voted. A no is an error.
#[derive(Debug)]
pub(crate) enum Vote {
    /// It wrote nothing and has ended.
    ReadOnly,
    /// It is prepared. The number by which its server knows it, if it has one.
    Prepared(Option<String>),
    /// It is not prepared, and can be committed: its own commit decides.
    Ready,
}

/// What became of an order to a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It did as ordered, now or before.
    Done,
    /// Not yet, and this is why. Ask again.
    Pending(String),
    /// It has done the opposite.
    Damaged(String),
}

/// What one branch is told, by whom does not matter.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) branch: BranchName,
    pub(crate) ruling: Ruling,
    /// The number that the log has noted.
    pub(crate) proof: Option<String>,
}

/// One session at a participant.
#[derive(Debug)]
pub(crate) enum Session {
    Postgres(Client),
    // Large, and moved often.
    Mysql(Box<Conn>),
}

impl Session {
    /// Statements in one message.
    pub(crate) async fn run(&mut self, sql: &str) -> Result<Answer, Trouble> {
        match self {
            Session::Postgres(client) => postgres::run(client, sql).await,
            Session::Mysql(conn) => mysql::run(conn, sql).await,
        }
    }

    /// Which database this is, if it was ever met. Nothing is made.
    pub(crate) async fn identity(&mut self) -> Result<Option<String>, Trouble> {
        if self.run(&self.dialect().is_made(WITNESS)).await?.rows.is_empty() {
            return Ok(None);
        }
        let found = self.run(&format!("SELECT what FROM {WITNESS} WHERE id = 'identity' AND n = 0")).await?;
        Ok(found.rows.into_iter().next().and_then(|it| it.into_iter().next().flatten()))
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Session::Postgres(_) => Dialect::Postgres,
            Session::Mysql(_) => Dialect::Mysql,
        }
    }

    /// Begin a branch, first thing in its session. Its waits for row locks end after `left`. A `plain` one is never prepared.
    /// Tells the statement that, said in another session, ends what this one is busy with.
    pub(crate) async fn begin(
        &mut self,
        branch: &BranchName,
        left: Duration,
        plain: bool,
        isolation: Option<Isolation>,
    ) -> Result<String, Trouble> {
        match self {
            Session::Postgres(client) => postgres::begin(client, branch, left, isolation).await,
            Session::Mysql(conn) => mysql::begin(conn, branch, left, plain, isolation).await,
        }
    }

    /// Whether the branch wrote nothing. Then it has ended. What cannot tell counts as a writer.
    pub(crate) async fn end_reader(&mut self, branch: &BranchName) -> Result<bool, Trouble> {
        match self {
            Session::Postgres(client) => postgres::end_reader(client, branch).await,
            Session::Mysql(_) => Ok(false),
        }
    }

    /// Make sure that a plain branch can still be committed.
    pub(crate) async fn ready(&mut self, branch: &BranchName) -> Result<Vote, Trouble> {
        match self {
            Session::Postgres(client) => postgres::ready(client, branch).await,
            Session::Mysql(conn) => mysql::ready(conn).await,
        }
    }

    /// Commit a plain branch that is alone, with a mark that tells of it.
    pub(crate) async fn commit_once(&mut self, branch: &BranchName) -> Result<(), Trouble> {
        let mark = format!("INSERT INTO {WITNESS} VALUES ('{}', {MARK}, '{ONCE}'); COMMIT", branch.id);
        let sql = self.dialect().forced(&mark);
        self.run(&sql).await.map(drop)
    }

    /// Whether a transaction that was alone here has committed. If it has not, it cannot any more: its mark is taken. Waits for
    /// a commit under way, and fails if that takes long.
    pub(crate) async fn close_door(&mut self, id: &TransactionId) -> Result<bool, Trouble> {
        let (wait, insert) = match self {
            Session::Postgres(_) => (
                "SET lock_timeout = '5s'",
                format!("INSERT INTO {WITNESS} VALUES ('{id}', {MARK}, '{VOID}') ON CONFLICT DO NOTHING"),
            ),
            Session::Mysql(_) => (
                "SET SESSION innodb_lock_wait_timeout = 5",
                format!("INSERT IGNORE INTO {WITNESS} VALUES ('{id}', {MARK}, '{VOID}')"),
            ),
        };
        self.run(wait).await?;
        self.run(&insert).await?;
        let found = self.run(&format!("SELECT what FROM {WITNESS} WHERE id = '{id}' AND n = {MARK}")).await?;
        match found.rows.first().and_then(|it| it.first()).and_then(Option::as_deref) {
            Some(ONCE) => Ok(true),
            Some(VOID) => Ok(false),
            _ => Err(Trouble::Said(format!("the table {WITNESS} does not keep what is written to it"))),
        }
    }

    /// Refuse a stale fence, first thing in the branch.
    pub(crate) async fn check_fence(&mut self, resource: &Key, fence: Fence) -> Result<(), Trouble> {
        let hash: [u8; 32] = Sha256::digest(resource.as_str().as_bytes()).into();
        let number =
            i64::try_from(fence.get()).map_err(|_| Trouble::Said("the fence is too large".into()))?;
        let (seen, shared) = match self {
            Session::Postgres(client) => postgres::raise(client, &hash, resource.as_str(), number).await?,
            Session::Mysql(conn) => mysql::raise(conn, &hash, resource.as_str(), number).await?,
        };
        // Whoever shares with a fence that is not older came after us, also with an equal one.
        let newest = if number <= shared { shared.saturating_add(1) } else { seen };
        lockkeeper_core::FencedError::<std::io::Error>::unless_newest(resource, fence, newest)
            .map_err(|it| Trouble::Said(it.to_string()))
    }

    /// Promise to commit when told to, and make sure that the promise stands.
    /// With `keep` also if it only read.
    pub(crate) async fn vote(
        &mut self,
        branch: &BranchName,
        observer: &Observer,
        keep: bool,
    ) -> Result<Vote, Trouble> {
        match self {
            Session::Postgres(client) => postgres::vote(client, branch, observer, keep).await,
            Session::Mysql(conn) => mysql::vote(conn, branch, observer).await,
        }
    }

    /// Roll back what is not prepared. If it does not work, the end of the session does it.
    pub(crate) async fn undo(&mut self, branch: &BranchName) {
        match self {
            Session::Postgres(client) => postgres::undo(client).await,
            Session::Mysql(conn) => mysql::undo(conn, branch).await,
        }
    }

    /// Tell a prepared branch to commit, in the session that prepared it.
    pub(crate) async fn commit_own(&mut self, branch: &BranchName) -> Result<(), Trouble> {
        match self {
            Session::Postgres(client) => postgres::commit(client, branch).await,
            Session::Mysql(conn) => mysql::commit(conn, branch).await,
        }
    }

    /// Make a branch follow the ruling, from a session that did not prepare it, and make sure that it has.
    pub(crate) async fn settle(
        &mut self,
        branch: &BranchName,
        ruling: Ruling,
        proof: Option<&str>,
    ) -> Result<Settled, Trouble> {
        let order = Order { branch: branch.clone(), ruling, proof: proof.map(str::to_owned) };
        self.settle_all(&[order]).await.pop().unwrap_or(Err(Trouble::Silent))
    }

    /// As [`Session::settle`], of several: one answer for each. After an error the session is of no more use.
    pub(crate) async fn settle_all(&mut self, orders: &[Order]) -> Vec<Result<Settled, Trouble>> {
        match self {
            Session::Postgres(client) => postgres::settle_all(client, orders).await,
            Session::Mysql(conn) => mysql::settle_all(conn, orders).await,
        }
    }

    /// Every branch that is prepared here and has a name of ours.
    pub(crate) async fn list(&mut self) -> Result<Vec<BranchName>, Trouble> {
        match self {
            Session::Postgres(client) => postgres::list(client).await,
            Session::Mysql(conn) => mysql::list(conn).await,
        }
    }

    /// What its settings mean for two-phase commit.
    pub(crate) async fn findings(&mut self, at_home: bool) -> Result<Vec<Finding>, Trouble> {
        doctor::findings(self, at_home).await
    }

    /// What the settings of this server mean for a log in it.
    pub(crate) async fn findings_of_log(&mut self) -> Result<Vec<Finding>, Trouble> {
        doctor::of_log(self).await
    }
}

/// The answer, or [`Trouble::Silent`]. A session that was silent is of no more use.
pub(crate) async fn timed<T>(
    span: Duration,
    work: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    let clock = Clock::boot();
    let answer = clock.within(clock.now().after(span), std::pin::pin!(work)).await;
    answer.unwrap_or(Err(Trouble::Silent))
}

type Connect =
    Arc<dyn Fn() -> std::pin::Pin<Box<dyn Future<Output = Result<Client, Trouble>> + Send>> + Send + Sync>;
