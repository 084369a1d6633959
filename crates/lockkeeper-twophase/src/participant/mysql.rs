//! MySQL and MariaDB: XA branches with a witness row each, and what an unknown branch really means.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_sql::mysql_async::prelude::Queryable as _;
use lockkeeper_sql::mysql_async::{Conn, Error as DriverError, Opts, OptsBuilder, Row, Value};

use super::{ANSWER_MAX, Answer, Order, Settled, Trouble, Vote, WITNESS, timed};
use crate::error::{Error, Result};
use crate::id::{BranchName, random};
use crate::log::Ruling;
use crate::observe::{Observer, Point};
use crate::transaction::Isolation;

/// `XAER_NOTA`: finished, never there, or still attached to the session that prepared it.
const NOTA: u16 = 1397;
/// `XAER_RMERR` on listing: the right `XA_RECOVER_ADMIN` is missing.
const NOT_ALLOWED: u16 = 1401;
/// `XA_RBROLLBACK`: it was rolled back.
const ROLLED_BACK: u16 = 1402;
/// A row lock was not had in time.
const LOCK_WAIT: u16 = 1205;
/// A shutdown, `KILL`, `KILL QUERY`, the limits of a statement's time on MariaDB and on MySQL, and that of an idle session there.
const INTERRUPTED: [u16; 6] = [1053, 1927, 1317, 1969, 3024, 4031];
/// There is no such savepoint.
const NO_SAVEPOINT: u16 = 1305;
/// For how long a session may be idle, in seconds: of that only pools take notice, but the driver would ask.
const IDLE_MAX: usize = 8 * 3600;
/// The mark of a branch that is never prepared.
const PLAIN: &str = "lockkeeper_2pc_branch";

/// What our statements rely on, whatever the server or its `init_connect` choose: each commits by itself, a commit begins
/// nothing, answers are whole, and changes by a part of a key are allowed.
const OURS: &str = "SET SESSION autocommit = 1, SESSION completion_type = 0, SESSION sql_select_limit = 18446744073709551615, \
                    SESSION sql_safe_updates = 0; \
                    SELECT @@SESSION.autocommit, @@SESSION.completion_type, CONNECTION_ID(), @@SESSION.max_allowed_packet";

/// Wait for nobody long, and keep nobody out of the gaps between rows.
const CALM: &str =
    "SET SESSION innodb_lock_wait_timeout = 2; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// The way to a database.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) opts: Opts,
    /// The largest message that the server takes, as the last session that asked was told; 0 if there was none. Relaxed: a
    /// number that stands for itself.
    largest: Arc<AtomicUsize>,
}

impl Way {
    pub(super) fn new(opts: Opts) -> Self {
        Way { opts: OptsBuilder::from_opts(opts).prefer_socket(false).into(), largest: Arc::default() }
    }

    /// A session that is ready for anything.
    pub(super) async fn connect(&self) -> Result<Conn, Trouble> {
        let mut conn = Conn::new(self.opts.clone()).await?;
        let answer = run(&mut conn, OURS).await?;
        heed(&answer)?;
        self.largest.store(told(&answer, 3).parse().unwrap_or(0), Ordering::Relaxed);
        Ok(conn)
    }

    /// A session that is told with its first message what we rely on. Nor does the driver ask anything if it need not.
    pub(super) async fn dial(&self) -> Result<Conn, Trouble> {
        let mut opts = OptsBuilder::from_opts(self.opts.clone());
        let largest = self.largest.load(Ordering::Relaxed);
        if largest > 0 && self.opts.max_allowed_packet().is_none() {
            opts = OptsBuilder::wait_timeout(opts.max_allowed_packet(Some(largest)), Some(IDLE_MAX));
        }
        Ok(Conn::new(opts).await?)
    }
}

/// A column of the first row.
fn told(answer: &Answer, at: usize) -> &str {
    answer.rows.first().and_then(|it| it.get(at)?.as_deref()).unwrap_or_default()
}

/// Whether a session answered to [`OURS`] as it must.
fn heed(answer: &Answer) -> Result<(), Trouble> {
    let shown = [told(answer, 0), told(answer, 1)];
    if shown == ["1", "NO_CHAIN"] {
        return Ok(());
    }
    Err(Trouble::Said(format!(
        "its sessions have autocommit and completion_type {shown:?} and not 1 and NO_CHAIN, although they were set; \
         something between us and the server changes it, perhaps a proxy"
    )))
}

fn code(error: &DriverError) -> Option<u16> {
    match error {
        DriverError::Server(it) => Some(it.code),
        _ => None,
    }
}

/// Whether this says nothing about the statement: a broken connection, or one that was ended or interrupted in the middle.
pub(super) fn was_interrupted(error: &DriverError) -> bool {
    code(error).is_none_or(|it| INTERRUPTED.contains(&it))
}

pub(super) async fn meet(conn: &mut Conn) -> Result<String> {
    let trouble = |it: DriverError| Error::unavailable("a participant", it);
    let version: Option<String> = conn.query_first("SELECT VERSION()").await.map_err(trouble)?;
    check_version(&version.unwrap_or_default())?;
    let galera: Option<(String, String)> =
        conn.query_first("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").await.map_err(trouble)?;
    if galera.is_some_and(|it| it.1 == "ON") {
        return Err(Error::unsupported("this is a Galera cluster, which has no XA transactions"));
    }
    let engine = "SELECT support FROM information_schema.engines WHERE engine = 'InnoDB'";
    let engine: Option<String> = conn.query_first(engine).await.map_err(trouble)?;
    if !engine.is_some_and(|it| it == "YES" || it == "DEFAULT") {
        return Err(Error::unsupported("it has no InnoDB, and no other engine can prepare"));
    }
    list(conn).await.map_err(|it| match it {
        Trouble::Mysql(it) if code(&it) == Some(NOT_ALLOWED) => Error::unsupported(
            "its user may not list prepared branches, so nothing could be recovered: GRANT XA_RECOVER_ADMIN ON *.*",
        ),
        other => Error::unavailable("a participant", other),
    })?;
    let identity = format!("{:016x}", random()?);
    conn.query_drop(table()).await.map_err(trouble)?;
    lockkeeper_sql::mysql::MysqlFences.create(conn).await.map_err(trouble)?;
    conn.query_drop(format!("INSERT IGNORE INTO {WITNESS} VALUES ('identity', 0, '{identity}')"))
        .await
        .map_err(trouble)?;
    let found = format!("SELECT what FROM {WITNESS} WHERE id = 'identity' AND n = 0");
    let found: Option<String> = conn.query_first(found).await.map_err(trouble)?;
    found.ok_or_else(|| {
        Error::unsupported(format!("the table {WITNESS} holds no identity; is there a trigger on it?"))
    })
}

fn table() -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {WITNESS} (id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, \
         n INT NOT NULL, what VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, PRIMARY KEY (id, n)) \
         ENGINE = InnoDB"
    )
}

/// `10.11.14-MariaDB-0+deb12u2` or `9.7.4`.
pub(super) fn check_version(text: &str) -> Result<()> {
    let mut numbers = text.split(|it: char| !it.is_ascii_digit()).map(|it| it.parse().unwrap_or(0_u32));
    let version = [(); 3].map(|()| numbers.next().unwrap_or(0));
    let (oldest, name) =
        if text.contains("MariaDB") { ([10, 5, 0], "MariaDB 10.5") } else { ([8, 0, 29], "MySQL 8.0.29") };
    if version < oldest {
        return Err(Error::unsupported(format!("{name} or newer is needed, and this is {text}")));
    }
    Ok(())
}

/// Statements in one message.
pub(super) async fn run(conn: &mut Conn, sql: &str) -> Result<Answer, Trouble> {
    let mut result = conn.query_iter(sql).await?;
    let mut rows: Vec<Row> = Vec::new();
    loop {
        rows.extend(result.collect::<Row>().await?);
        if result.is_empty() {
            break;
        }
    }
    let changed = result.affected_rows();
    // The error of a statement behind the first is told only here; unheard, it would meet the next message.
    result.drop_result().await?;
    let text = |row: Row| {
        let text = |it: Value| match it {
            Value::Bytes(it) => Some(String::from_utf8_lossy(&it).into_owned()),
            Value::NULL => None,
            other => Some(other.as_sql(true)),
        };
        row.unwrap().into_iter().map(text).collect()
    };
    Ok(Answer { rows: rows.into_iter().map(text).collect(), changed })
}

/// In a session that was told nothing yet: all goes in one message.
pub(super) async fn begin(
    conn: &mut Conn,
    branch: &BranchName,
    left: Duration,
    plain: bool,
    isolation: Option<Isolation>,
) -> Result<String, Trouble> {
    // The transaction ends first: a wait that ends before it undoes its statement alone, and half a branch could be prepared.
    let seconds = left.as_millis().div_ceil(1000).saturating_add(1).min(1_000_000);
    let patience = format!("SET SESSION innodb_lock_wait_timeout = {seconds}");
    // The mark is gone if the work ends the transaction by itself.
    let begin = if plain {
        format!("START TRANSACTION; SAVEPOINT {PLAIN}")
    } else {
        format!("XA START {}", branch.xid())
    };
    // Of the session, which is nobody else's: inside of a branch it is too late to choose.
    let level = isolation
        .map_or_else(String::new, |it| format!("SET SESSION TRANSACTION ISOLATION LEVEL {}; ", it.words()));
    let answer = run(conn, &format!("{OURS}; {patience}; {level}{begin}")).await?;
    heed(&answer)?;
    // The whole session: a driver that was interrupted cannot go on with it. By the number that the server itself knows: behind
    // a proxy the greeting tells the proxy's.
    let number = told(&answer, 2).parse().unwrap_or_else(|_| u64::from(conn.id()));
    Ok(format!("KILL {number}"))
}

pub(super) async fn ready(conn: &mut Conn) -> Result<Vote, Trouble> {
    match conn.query_drop(format!("RELEASE SAVEPOINT {PLAIN}")).await {
        Ok(()) => Ok(Vote::Ready),
        Err(error) if code(&error) == Some(NO_SAVEPOINT) => Err(Trouble::Said(
            "the work ended its transaction by itself; what it committed stays committed".into(),
        )),
        Err(error) => Err(error.into()),
    }
}

/// The newest fence of the resource, and the newest of those who share it, after the first was raised.
pub(super) async fn raise(
    conn: &mut Conn,
    hash: &[u8; 32],
    name: &str,
    number: i64,
) -> Result<(i64, i64), Trouble> {
    let insert = "INSERT INTO lockkeeper_fence (resource, name, fence) VALUES (?, ?, ?) \
                  ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))";
    conn.exec_drop(insert, (hash.as_slice(), name, number)).await?;
    let seen = "SELECT fence, shared FROM lockkeeper_fence WHERE resource = ? FOR UPDATE";
    // No answer where there must be one is no leave to write.
    Ok(conn.exec_first(seen, (hash.as_slice(),)).await?.unwrap_or((i64::MAX, i64::MAX)))
}

pub(super) async fn vote(conn: &mut Conn, branch: &BranchName, observer: &Observer) -> Result<Vote, Trouble> {
    let (xid, id, n) = (branch.xid(), &branch.id, branch.n);
    observer.tell(Point::Preparing, Some(id), Some(&branch.participant));
    // What tells a commit from a loss when the branch is gone.
    let witness = format!("INSERT INTO {WITNESS} VALUES ('{id}', {n}, '{}')", branch.participant);
    conn.query_drop(format!("{witness}; XA END {xid}")).await?;
    observer.tell(Point::Ended, Some(id), Some(&branch.participant));
    let prepared = run(conn, &format!("XA PREPARE {xid}; XA RECOVER")).await?;
    if prepared.rows.iter().any(|it| listed(it).as_ref() == Some(branch)) {
        return Ok(Vote::Prepared(None));
    }
    Err(Trouble::Said("the server did not prepare the branch, without an error".into()))
}

pub(super) async fn undo(conn: &mut Conn, branch: &BranchName) {
    // Each may fail, because the branch has ended or is gone; the end of the session does the same.
    drop(conn.query_drop("ROLLBACK").await);
    drop(conn.query_drop(format!("XA END {}", branch.xid())).await);
    drop(conn.query_drop(format!("XA ROLLBACK {}", branch.xid())).await);
}

pub(super) async fn commit(conn: &mut Conn, branch: &BranchName) -> Result<(), Trouble> {
    Ok(conn.query_drop(format!("XA COMMIT {}", branch.xid())).await?)
}

/// All orders and one look at what became of them, in one message. Whoever did not simply follow is told and looked into by
/// itself.
pub(super) async fn settle_all(conn: &mut Conn, orders: &[Order]) -> Vec<Result<Settled, Trouble>> {
    match timed(ANSWER_MAX, tell_all(conn, orders)).await {
        Ok(seen) => look_closer(conn, orders, &seen).await,
        // Unknown, attached or rolled back: which of them, and what does it mean? Those before it have followed.
        Err(error) if error.is_answer() => settle_each(conn, orders).await,
        Err(error) => {
            let rest = orders.iter().skip(1).map(|_| Err(Trouble::Silent));
            std::iter::once(Err(error)).chain(rest).collect()
        }
    }
}

/// Witnesses as two looks saw them after the orders: those that are committed, and those that are there at all.
#[derive(Default)]
struct Seen {
    committed: HashSet<(String, u32)>,
    there: HashSet<(String, u32)>,
}

impl Seen {
    /// Whether that alone proves that the order was followed. Also after an OK: MariaDB says so of a branch that it lost, whose
    /// rows are there, and are not committed.
    fn proves(&self, order: &Order) -> bool {
        let witness = (order.branch.id.to_string(), order.branch.n);
        match order.ruling {
            Ruling::Commit => self.committed.contains(&witness),
            Ruling::Abort => !self.there.contains(&witness),
        }
    }
}

/// Give all orders. Fails at the first that is not followed, and those behind it are not given.
async fn tell_all(conn: &mut Conn, orders: &[Order]) -> Result<Seen, Trouble> {
    let mut all: Vec<String> = orders.iter().map(Order::words).collect();
    for (ruling, mark, look) in [
        // Only what is committed, also where the server chooses otherwise for its sessions.
        (Ruling::Commit, "c", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SELECT"),
        // A plain look that waits for nobody, and sees also what nobody has committed.
        (Ruling::Abort, "t", "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; SELECT"),
    ] {
        let ids = orders.iter().filter(|it| it.ruling == ruling).map(|it| format!("'{}'", it.branch.id));
        let ids: Vec<String> = ids.collect();
        if !ids.is_empty() {
            all.push(format!("{look} '{mark}', id, n FROM {WITNESS} WHERE id IN ({})", ids.join(", ")));
        }
    }
    let mut seen = Seen::default();
    for row in run(conn, &all.join("; ")).await?.rows {
        if let [Some(mark), Some(id), Some(n)] = &row[..] {
            let set = if mark == "c" { &mut seen.committed } else { &mut seen.there };
            set.insert((id.clone(), n.parse().unwrap_or(u32::MAX)));
        }
    }
    Ok(seen)
}

/// What became of orders that the server confirmed. What the looks do not prove is looked at with a lock.
async fn look_closer(conn: &mut Conn, orders: &[Order], seen: &Seen) -> Vec<Result<Settled, Trouble>> {
    let unclear: Vec<&Order> = orders.iter().filter(|it| !seen.proves(it)).collect();
    let mut found = witnessed(conn, &unclear).await.into_iter();
    let mut settled = Vec::new();
    for it in orders {
        settled.push(if seen.proves(it) {
            Ok(Settled::Done)
        } else {
            found.next().unwrap_or(Err(Trouble::Silent)).map(|found| judge(it.ruling, found))
        });
    }
    settled
}

/// Each order by itself, then a look with a lock at what became of them.
async fn settle_each(conn: &mut Conn, orders: &[Order]) -> Vec<Result<Settled, Trouble>> {
    let mut all = Vec::new();
    for it in orders {
        let broken = matches!(all.last(), Some(Err(_)));
        all.push(if broken { Err(Trouble::Silent) } else { timed(ANSWER_MAX, tell(conn, it)).await });
    }
    let ended = orders.iter().zip(&all).filter(|it| matches!(it.1, Ok(Told::Ended))).map(|it| it.0);
    let mut found = witnessed(conn, &ended.collect::<Vec<_>>()).await.into_iter();
    let mut settled = Vec::new();
    for (order, told) in orders.iter().zip(all) {
        settled.push(match told {
            Ok(Told::Ended) => found.next().unwrap_or(Err(Trouble::Silent)).map(|it| judge(order.ruling, it)),
            Ok(Told::Attached) => Ok(Settled::Pending(
                "the session that prepared it is still connected, and MariaDB lets nobody else end it".into(),
            )),
            Err(error) => Err(error),
        });
    }
    settled
}

impl Order {
    /// As these servers are told.
    fn words(&self) -> String {
        let word = if self.ruling == Ruling::Commit { "COMMIT" } else { "ROLLBACK" };
        format!("XA {word} {}", self.branch.xid())
    }
}

/// What a branch that was told to end has done.
enum Told {
    /// It is not there any more, now or before.
    Ended,
    /// It belongs to a session that lives.
    Attached,
}

async fn tell(conn: &mut Conn, order: &Order) -> Result<Told, Trouble> {
    match conn.query_drop(order.words()).await {
        Ok(()) => Ok(Told::Ended),
        Err(error) if code(&error) == Some(NOTA) => {
            Ok(if list(conn).await?.contains(&order.branch) { Told::Attached } else { Told::Ended })
        }
        Err(error) if code(&error) == Some(ROLLED_BACK) => Ok(Told::Ended),
        Err(error) => Err(error.into()),
    }
}

fn judge(ruling: Ruling, witnessed: Option<bool>) -> Settled {
    match (ruling, witnessed) {
        (_, None) => Settled::Pending(
            "it is not listed, and its rows are still locked; restart the server, which then lists it again"
                .into(),
        ),
        (Ruling::Commit, Some(true)) | (Ruling::Abort, Some(false)) => Settled::Done,
        (Ruling::Commit, Some(false)) => Settled::Damaged("rolled back by somebody else".into()),
        (Ruling::Abort, Some(true)) => Settled::Damaged("committed by somebody else".into()),
    }
}

/// For each whether its witness is committed; `None` if the row is locked. A locking read waits for a commit under way.
async fn witnessed(conn: &mut Conn, orders: &[&Order]) -> Vec<Result<Option<bool>, Trouble>> {
    if let Some(found) = all_witnessed(conn, orders).await {
        return found;
    }
    // One of them is locked. Which?
    let mut each = Vec::new();
    for it in orders {
        let found = timed(ANSWER_MAX, look(conn, &[it])).await;
        each.push(match found {
            Ok(found) => Ok(Some(!found.is_empty())),
            Err(Trouble::Mysql(error)) if code(&error) == Some(LOCK_WAIT) => Ok(None),
            Err(error) => Err(error),
        });
    }
    each
}

/// The same for all at once; `None` if that does not work.
async fn all_witnessed(conn: &mut Conn, orders: &[&Order]) -> Option<Vec<Result<Option<bool>, Trouble>>> {
    if orders.is_empty() {
        return Some(Vec::new());
    }
    let found = timed(ANSWER_MAX, look(conn, orders)).await.ok()?;
    let is_there = |it: &Order| found.contains(&(it.branch.id.to_string(), it.branch.n));
    Some(orders.iter().map(|it| Ok(Some(is_there(it)))).collect())
}

/// The witnesses of these that are there. Waits for nobody long, and keeps nobody out of the gaps between rows.
async fn look(conn: &mut Conn, orders: &[&Order]) -> Result<Vec<(String, u32)>, Trouble> {
    // Each by its whole key, so that nothing but its own row is waited for, and all in one message.
    let look = |it: &&Order| {
        let (id, n) = (&it.branch.id, it.branch.n);
        format!("SELECT id, n FROM {WITNESS} WHERE id = '{id}' AND n = {n} FOR UPDATE")
    };
    let sql = format!("{CALM}; {}", orders.iter().map(look).collect::<Vec<_>>().join("; "));
    let text = |row: &[Option<String>], at: usize| row.get(at).cloned().flatten().unwrap_or_default();
    let rows = run(conn, &sql).await?.rows;
    Ok(rows.iter().map(|it| (text(it, 0), text(it, 1).parse().unwrap_or(u32::MAX))).collect())
}

pub(super) async fn list(conn: &mut Conn) -> Result<Vec<BranchName>, Trouble> {
    Ok(run(conn, "XA RECOVER").await?.rows.iter().filter_map(|it| listed(it)).collect())
}

/// Four columns: format, the lengths of both names, and the names, which are cut by their lengths. Ours are ASCII.
fn listed(row: &[Option<String>]) -> Option<BranchName> {
    let length = row.get(1)?.as_ref()?.parse().ok()?;
    let (id, qualifier) = row.get(3)?.as_ref()?.split_at_checked(length)?;
    BranchName::read(id, qualifier)
}

/// Delete without keeping anybody out.
pub(super) async fn forget(conn: &mut Conn, sql: &str) -> Result<(), Trouble> {
    run(conn, &format!("{CALM}; {sql}")).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused_by_name() {
        for good in
            ["10.11.14-MariaDB-0+deb12u2", "10.5.1-MariaDB", "11.4.2-MariaDB", "8.0.29", "9.7.4", "8.4.0"]
        {
            assert!(check_version(good).is_ok(), "{good}");
        }
        for (old, said) in [
            ("10.4.34-MariaDB", "MariaDB 10.5"),
            ("8.0.28", "MySQL 8.0.29"),
            ("5.7.44-log", "8.0.29"),
            ("", "MySQL"),
        ] {
            let error = check_version(old).unwrap_err();
            assert!(matches!(&error, Error::Unsupported { what } if what.contains(said)), "{old}: {error}");
        }
    }
}
