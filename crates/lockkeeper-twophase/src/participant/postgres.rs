//! PostgreSQL: prepared transactions, each verified, with a witness row that tells a commit from a loss when one is gone.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_sql::PostgresOptions;
use lockkeeper_sql::tokio_postgres::config::Host;
use lockkeeper_sql::tokio_postgres::error::SqlState;
use lockkeeper_sql::tokio_postgres::types::Type;
use lockkeeper_sql::tokio_postgres::{Client, Config, Error as DriverError, SimpleQueryMessage};

use super::{ANSWER_MAX, Answer, Connect, Order, Settled, Trouble, Vote, WITNESS, timed};
use crate::error::{BoxError, Error, Result};
use crate::id::{BranchName, random};
use crate::log::Ruling;
use crate::observe::{Observer, Point};
use crate::transaction::Isolation;

/// An advisory lock for those who create the tables at the same time; random, to disturb nobody else.
const CREATING: i64 = 0x6c6b_3270_6377_6974;
const OLDEST: i32 = 130_000;

/// The way to a database.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) place: String,
    connect: Connect,
}

impl Way {
    pub(super) fn read(url: &str) -> Result<Self> {
        super::not_of_stores(url)?;
        let clients =
            PostgresOptions::parse(url).and_then(PostgresOptions::clients).map_err(super::of_url)?;
        let config = clients.config();
        if config.get_dbname().is_none_or(str::is_empty) {
            let form = "postgres://user:password@host[:port]/database";
            return Err(Error::invalid(format!(
                "the URL of a participant looks like {form}, and names a database"
            )));
        }
        let place = place(config);
        let connect = move || {
            let clients = clients.clone();
            Box::pin(async move { Ok(clients.connect().await?) }) as _
        };
        Ok(Way { place, connect: Arc::new(connect) })
    }

    pub(super) fn with<F, A>(place: String, connect: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<Client, BoxError>> + Send + 'static,
    {
        let connect = move || {
            let client = connect();
            Box::pin(async move { client.await.map_err(|it| Trouble::Said(it.to_string())) }) as _
        };
        Way { place, connect: Arc::new(connect) }
    }

    pub(super) async fn connect(&self) -> Result<Client, Trouble> {
        (self.connect)().await
    }
}

fn place(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => String::from("?"),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    format!("postgres://{host}:{port}/{}", config.get_dbname().unwrap_or_default())
}

/// What the server said; the driver's own words only if it said nothing.
pub(super) fn said(error: &DriverError) -> String {
    match error.as_db_error() {
        Some(it) => format!("{} ({})", it.message(), it.code().code()),
        None => error.to_string(),
    }
}

/// Statements by the simple protocol, which leaves nothing behind in a session. The first row's columns, if there is one.
async fn ask(client: &Client, sql: &str) -> Result<Option<Vec<Option<String>>>, DriverError> {
    let answer = client.simple_query(sql).await?;
    let row = answer.iter().find_map(|it| match it {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect())
        }
        _ => None,
    });
    Ok(row)
}

fn first(row: Option<Vec<Option<String>>>) -> Option<String> {
    row.and_then(|it| it.into_iter().next().flatten())
}

/// Statements in one message, by the simple protocol.
pub(super) async fn run(client: &Client, sql: &str) -> Result<Answer, Trouble> {
    let mut answer = Answer::default();
    for it in client.simple_query(sql).await? {
        match it {
            SimpleQueryMessage::Row(row) => {
                answer.rows.push((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect());
            }
            SimpleQueryMessage::CommandComplete(changed) => answer.changed = changed,
            _ => {}
        }
    }
    Ok(answer)
}

pub(super) async fn meet(client: &Client, at_home: bool) -> Result<String> {
    let trouble = |it: DriverError| Error::unavailable("a participant", std::io::Error::other(said(&it)));
    let settings = "SELECT current_setting('server_version_num'), current_setting('max_prepared_transactions'), \
                    pg_is_in_recovery()";
    let row = ask(client, settings).await.map_err(trouble)?.unwrap_or_default();
    let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
    if text(0).parse::<i32>().is_ok_and(|it| it < OLDEST) {
        return Err(Error::unsupported("PostgreSQL 13 or newer is needed, for pg_xact_status with 64 bits"));
    }
    if text(1) == "0" && !at_home {
        return Err(Error::unsupported(
            "max_prepared_transactions is 0, so nothing can be prepared; set it to at least the number of transactions \
             at a time, and restart the server",
        ));
    }
    if text(2) == "t" {
        return Err(Error::unsupported("this is a standby, which cannot prepare transactions"));
    }
    // One message, one transaction. `IF NOT EXISTS` alone fails if two do it at the same moment.
    let identity = format!("{:016x}", random()?);
    let make = format!(
        "SELECT pg_advisory_xact_lock({CREATING}); \
         CREATE TABLE IF NOT EXISTS {WITNESS} (id text COLLATE \"C\", n integer, what text NOT NULL, PRIMARY KEY (id, n)); \
         CREATE TABLE IF NOT EXISTS lockkeeper_fence (resource bytea PRIMARY KEY, name text NOT NULL, \
         fence bigint NOT NULL, shared bigint NOT NULL DEFAULT 0); \
         INSERT INTO {WITNESS} VALUES ('identity', 0, '{identity}') ON CONFLICT DO NOTHING"
    );
    ask(client, "SET client_min_messages = warning").await.map_err(trouble)?;
    ask(client, &make).await.map_err(trouble)?;
    // A table of an earlier version. Not altered in vain: that would wait for every branch that is prepared.
    let old = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('lockkeeper_fence') \
               AND attname = 'shared' AND NOT attisdropped)";
    if ask(client, old).await.map_err(trouble)?.is_some() {
        let alter = "ALTER TABLE lockkeeper_fence ADD COLUMN IF NOT EXISTS shared bigint NOT NULL DEFAULT 0";
        ask(client, alter).await.map_err(trouble)?;
    }
    let found = ask(client, &format!("SELECT what FROM {WITNESS} WHERE id = 'identity' AND n = 0")).await;
    first(found.map_err(trouble)?).ok_or_else(|| {
        Error::unsupported(format!("the table {WITNESS} holds no identity; is there a rule on it?"))
    })
}

pub(super) async fn begin(
    client: &Client,
    branch: &BranchName,
    left: Duration,
    isolation: Option<Isolation>,
) -> Result<String, Trouble> {
    let level = isolation.map_or_else(String::new, |it| format!(" ISOLATION LEVEL {}", it.words()));
    let (gid, wait) = (branch.gid(), left.as_millis().clamp(1, 2_000_000_000));
    // Whoever waits gives up first; this is for the case that it died. A limit that is shorter stays.
    let limit = wait + 1000;
    // The mark is gone if the work ends the transaction by itself.
    let sql = format!(
        "BEGIN{level}; SET LOCAL lockkeeper.branch = '{gid}'; SET LOCAL lock_timeout = {wait}; \
         SELECT pg_backend_pid(), current_setting('statement_timeout'); SET LOCAL statement_timeout = {limit}"
    );
    let mut row = ask(client, &sql).await?.unwrap_or_default().into_iter().map(Option::unwrap_or_default);
    let (pid, own) = (row.next().unwrap_or_default(), row.next().unwrap_or_default());
    if own != "0" {
        // Most servers have none, and then one message is enough.
        let keep = format!(
            "SELECT set_config('statement_timeout', '{own}', true) WHERE '{own}'::interval <= '{limit} ms'"
        );
        ask(client, &keep).await?;
    }
    Ok(format!("SELECT pg_cancel_backend({pid})"))
}

/// The newest fence of the resource, and the newest of those who share it, after the first was raised.
pub(super) async fn raise(
    client: &Client,
    hash: &[u8; 32],
    name: &str,
    number: i64,
) -> Result<(i64, i64), Trouble> {
    let sql = "INSERT INTO lockkeeper_fence AS f (resource, name, fence) VALUES ($1, $2, $3) \
               ON CONFLICT (resource) DO UPDATE SET fence = greatest(f.fence, $3) RETURNING fence, shared";
    let hash = hash.as_slice();
    let rows =
        client.query_typed(sql, &[(&hash, Type::BYTEA), (&name, Type::TEXT), (&number, Type::INT8)]).await?;
    // No answer where there must be one is no leave to write.
    let number = |at: usize| rows.first().and_then(|it| it.try_get(at).ok()).unwrap_or(i64::MAX);
    Ok((number(0), number(1)))
}

/// The number of the branch's transaction, `None` if it wrote nothing; and that it still is the one that was begun.
async fn look(client: &Client, gid: &str) -> Result<Option<String>, Trouble> {
    let look = "SELECT pg_current_xact_id_if_assigned()::text, current_setting('lockkeeper.branch', true)";
    let row = match ask(client, look).await {
        Err(error) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => {
            let text =
                "a statement of the branch failed and its error was not returned; nothing can be prepared";
            return Err(Trouble::Said(text.into()));
        }
        answer => answer?.unwrap_or_default(),
    };
    let mut columns = row.into_iter();
    let (number, mark) = (columns.next().flatten(), columns.next().flatten());
    if mark.as_deref() != Some(gid) {
        let text = "the work ended its transaction by itself; what it committed stays committed";
        return Err(Trouble::Said(text.into()));
    }
    Ok(number)
}

pub(super) async fn end_reader(client: &Client, branch: &BranchName) -> Result<bool, Trouble> {
    if look(client, &branch.gid()).await?.is_some() {
        return Ok(false);
    }
    ask(client, "COMMIT").await?;
    Ok(true)
}

pub(super) async fn ready(client: &Client, branch: &BranchName) -> Result<Vote, Trouble> {
    look(client, &branch.gid()).await.map(|_| Vote::Ready)
}

pub(super) async fn vote(
    client: &Client,
    branch: &BranchName,
    observer: &Observer,
    keep: bool,
) -> Result<Vote, Trouble> {
    let gid = branch.gid();
    let number = match look(client, &gid).await? {
        Some(number) => number,
        None if keep => first(ask(client, "SELECT pg_current_xact_id()").await?).unwrap_or_default(),
        None => {
            ask(client, "COMMIT").await?;
            return Ok(Vote::ReadOnly);
        }
    };
    observer.tell(Point::Preparing, Some(&branch.id), Some(&branch.participant));
    // In a transaction that has failed `PREPARE` is no error: it rolls back, and the driver drops the word that says so. So it is
    // looked for, by the function behind the view, whose names a new session would read first. The row tells a commit from a
    // loss when the branch is gone.
    let (id, n, whose) = (&branch.id, branch.n, &branch.participant);
    let prepare = format!(
        "INSERT INTO {WITNESS} VALUES ('{id}', {n}, '{whose}'); \
         PREPARE TRANSACTION '{gid}'; SELECT 1 FROM pg_prepared_xact() WHERE gid = '{gid}'"
    );
    match first(ask(client, &prepare).await?) {
        Some(_) => Ok(Vote::Prepared(Some(number))),
        None => Err(Trouble::Said("the server did not prepare the branch, without an error".into())),
    }
}

pub(super) async fn undo(client: &Client) {
    // The end of the session does the same.
    drop(ask(client, "ROLLBACK").await);
}

pub(super) async fn commit(client: &Client, branch: &BranchName) -> Result<(), Trouble> {
    Ok(ask(client, &format!("COMMIT PREPARED '{}'", branch.gid())).await.map(drop)?)
}

/// All are sent before the first is answered. Each is a message of its own: the server lets none stand beside another.
pub(super) async fn settle_all(client: &Client, orders: &[Order]) -> Vec<Result<Settled, Trouble>> {
    join_all(orders.iter().map(|it| timed(ANSWER_MAX, settle(client, it)))).await
}

async fn settle(client: &Client, order: &Order) -> Result<Settled, Trouble> {
    let Order { branch, ruling, proof } = order;
    let word = if *ruling == Ruling::Commit { "COMMIT" } else { "ROLLBACK" };
    let sql = format!("{word} PREPARED '{}'", branch.gid());
    let Err(error) = ask(client, &sql).await else { return Ok(Settled::Done) };
    match error.code() {
        Some(&SqlState::UNDEFINED_OBJECT) => gone(client, branch, *ruling, proof.as_deref()).await,
        // Somebody else ends it at this moment, or only another user may.
        Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE | &SqlState::INSUFFICIENT_PRIVILEGE) => {
            Ok(Settled::Pending(said(&error)))
        }
        _ => Err(error.into()),
    }
}

/// It is not prepared any more, or never was: what has it done?
async fn gone(
    client: &Client,
    branch: &BranchName,
    ruling: Ruling,
    proof: Option<&str>,
) -> Result<Settled, Trouble> {
    if let Some(status) = number_of(client, proof).await?.filter(|it| it == "in progress") {
        return Ok(Settled::Pending(format!("it is {status}")));
    }
    // After that: whatever it was, it is over, and its witness is there if and only if it has committed. Its number proves
    // nothing: a server that was set back, to a backup or to a standby that was behind, gives the same numbers to others.
    let look = format!("SELECT 1 FROM {WITNESS} WHERE id = '{}' AND n = {}", branch.id, branch.n);
    let committed = ask(client, &look).await?.is_some();
    Ok(match (ruling, committed) {
        (Ruling::Commit, true) | (Ruling::Abort, false) => Settled::Done,
        (Ruling::Commit, false) => Settled::Damaged("rolled back by somebody else".into()),
        (Ruling::Abort, true) => Settled::Damaged("committed by somebody else".into()),
    })
}

/// What the server says of the number that the log has noted. `None` if there is none, or the server does not know it: it is too
/// old, or not given yet, because the server was set back.
async fn number_of(client: &Client, proof: Option<&str>) -> Result<Option<String>, Trouble> {
    let Some(number) = proof.and_then(|it| it.parse::<u64>().ok()) else { return Ok(None) };
    match ask(client, &format!("SELECT pg_xact_status('{number}')")).await {
        Ok(row) => Ok(first(row)),
        Err(error) if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn list(client: &Client) -> Result<Vec<BranchName>, Trouble> {
    let sql = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'lk1.%'";
    let answer = client.simple_query(sql).await?;
    let gids = answer.iter().filter_map(|it| match it {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    Ok(gids.filter_map(BranchName::read_gid).collect())
}
