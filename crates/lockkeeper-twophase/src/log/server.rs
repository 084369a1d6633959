//! The log in a database server: one task asks, and the decisions that wait together share one flush.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::inspect::Finding;
use tokio::sync::{mpsc, oneshot};

use super::dialect::Dialect;
use super::{BranchRecord, Cause, Damage, Decided, Decision, ParticipantRecord, Ruling};
use crate::error::{Error, Result};
use crate::id::{LogId, TransactionId, random};
use crate::observe::{Observer, Point};
use crate::participant::{ANSWER_MAX, Answer, Participant, Session, Trouble, timed};

const VERSION: i64 = 1;
/// How many decisions share a flush at most, and how many rows are forgotten together.
const MANY: usize = 512;
/// How often a seat is tried that others take at the same time.
const TRIES: usize = 100;

/// Only those that did no damage.
const UNDAMAGED: &str = "AND id NOT IN (SELECT id FROM lockkeeper_2pc_damage)";
const COLUMNS: &str = "id, verdict, note, branches, decided, finished";

enum Job {
    Decide(Decision, u64, oneshot::Sender<Decided>),
    Finish(TransactionId, oneshot::Sender<Result<(), Cause>>),
    Run(String, oneshot::Sender<Result<Answer, Cause>>),
}

/// A log in a database. Clones share the task.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    jobs: mpsc::UnboundedSender<Job>,
    pub(crate) dialect: Dialect,
    pub(super) place: String,
    way: Participant,
}

impl Server {
    /// Open the log in this database, and with `make` make it if there is none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a log of another version, which is not touched; [`Error::Unavailable`].
    pub(super) async fn open(way: Participant, observer: Observer, make: bool) -> Result<(Server, LogId)> {
        let (dialect, place) = (way.dialect(), way.place());
        let (jobs, inbox) = mpsc::unbounded_channel();
        tokio::spawn(serve(Link { way: way.clone(), dialect, session: None }, inbox, observer));
        let server = Server { jobs, dialect, place, way };
        let id = server.found_or_made(make).await?;
        Ok((server, id))
    }

    async fn found_or_made(&self, make: bool) -> Result<LogId> {
        let refused = |what: &str| Error::unsupported(format!("the log {} {what}", self.place));
        // Look before anything is written: a log of another version is not ours to touch.
        if !self.run(self.dialect.is_made("lockkeeper_2pc_log")).await?.rows.is_empty() {
            let found = self.run("SELECT version FROM lockkeeper_2pc_log".into()).await?;
            let version = found.rows.first().map(|it| number(it, 0));
            if let Some(version) = version.filter(|it| *it != VERSION) {
                return Err(refused(&format!(
                    "has format version {version}, and this program knows {VERSION}; nothing was touched, use the program that wrote it"
                )));
            }
            // The row is written when all tables are there.
            if version.is_some() {
                return self.name(refused).await;
            }
        }
        if !make {
            return Err(self.unavailable(Arc::new(std::io::Error::other("there is no log"))));
        }
        self.run(self.dialect.tables()).await?;
        let drawn = LogId::draw()?;
        let row = format!("VALUES (1, '{}', {VERSION}, 0)", drawn.0);
        self.run(self.dialect.insert("log", &row)).await?;
        self.name(refused).await
    }

    async fn name(&self, refused: impl Fn(&str) -> Error) -> Result<LogId> {
        let found = self.run("SELECT id FROM lockkeeper_2pc_log WHERE one = 1".into()).await?;
        let id = found.rows.first().and_then(|it| LogId::read(text(it, 0)));
        id.ok_or_else(|| refused("has a name that no log has; is it one?"))
    }

    async fn run(&self, sql: String) -> Result<Answer> {
        let (told, answer) = oneshot::channel();
        // If the task is gone, so is the office's runtime.
        let _ = self.jobs.send(Job::Run(sql, told));
        answer.await.unwrap_or_else(|_| Err(ended())).map_err(|it| self.unavailable(it))
    }

    fn unavailable(&self, source: Cause) -> Error {
        Error::Unavailable { what: format!("the log {}", self.place), source }
    }

    pub(super) async fn decide(&self, record: Decision, fence: u64) -> Decided {
        let (told, answer) = oneshot::channel();
        if self.jobs.send(Job::Decide(record, fence, told)).is_err() {
            return Decided::Failed(ended());
        }
        answer.await.unwrap_or_else(|_| Decided::Unsure(ended()))
    }

    /// Waits for a decision under way, because both have the same key.
    pub(super) async fn rule_abort(&self, abort: Decision) -> Result<Ruling> {
        self.run(self.dialect.ruled(&abort)).await?;
        Ok(self.row(&abort.id).await?.map_or(Ruling::Abort, |it| it.ruling))
    }

    pub(super) async fn rule_abort_all(&self, aborts: Vec<Decision>) -> Result<()> {
        for some in aborts.chunks(MANY) {
            let rows: Vec<String> = some.iter().map(|it| self.dialect.ruled(it)).collect();
            self.run(format!("BEGIN; {}; COMMIT", rows.join("; "))).await?;
        }
        Ok(())
    }

    pub(super) async fn raise(&self, seat: u32, fence: u64, beyond: bool) -> Result<Option<u64>> {
        for _ in 0..TRIES {
            let found = format!("SELECT fence FROM lockkeeper_2pc_seat WHERE seat = {seat}");
            let newest = self.run(found).await?.rows.first().map(|it| number(it, 0));
            let next = match newest.map(i64::cast_unsigned) {
                Some(newest) if fence <= newest && beyond => newest + 1,
                Some(newest) if fence <= newest => return Ok(None),
                _ => fence,
            };
            let kept = next.cast_signed();
            // Only if it is still what was read. Waits for the decisions that are being written in its epoch.
            let sql = match newest {
                Some(newest) => format!(
                    "UPDATE lockkeeper_2pc_seat SET fence = {kept} WHERE seat = {seat} AND fence = {newest}"
                ),
                None => self.dialect.insert("seat", &format!("VALUES ({seat}, {kept})")),
            };
            if self.run(sql).await?.changed == 1 {
                return Ok(Some(next));
            }
        }
        Err(self.unavailable(Arc::new(std::io::Error::other("too many take this seat at the same time"))))
    }

    pub(super) async fn seats(&self) -> Result<Vec<(u32, u64)>> {
        let answer = self.run("SELECT seat, fence FROM lockkeeper_2pc_seat ORDER BY seat".into()).await?;
        let seat = |it: &Row| Some((u32::try_from(number(it, 0)).ok()?, number(it, 1).cast_unsigned()));
        Ok(answer.rows.iter().filter_map(seat).collect())
    }

    pub(super) async fn note(&self, it: ParticipantRecord) -> Result<ParticipantRecord> {
        let place = self.dialect.text(&it.place);
        let (name, kind, identity) = (&it.name, &it.kind, &it.identity);
        let row = format!("VALUES ('{name}', '{kind}', {place}, '{identity}')");
        self.run(self.dialect.insert("participant", &row)).await?;
        let moved = format!(
            "UPDATE lockkeeper_2pc_participant SET place = {place} WHERE name = '{name}' AND identity = '{identity}'"
        );
        self.run(moved).await?;
        let noted = self.participants().await?.into_iter().find(|noted| noted.name == it.name);
        Ok(noted.unwrap_or(it))
    }

    pub(super) async fn participants(&self) -> Result<Vec<ParticipantRecord>> {
        let sql = "SELECT name, kind, place, identity FROM lockkeeper_2pc_participant ORDER BY name";
        let record = |it: &Row| ParticipantRecord {
            name: text(it, 0),
            kind: text(it, 1),
            place: text(it, 2),
            identity: text(it, 3),
        };
        Ok(self.run(sql.into()).await?.rows.iter().map(record).collect())
    }

    pub(super) async fn unfinished(&self, seat: Option<u32>) -> Result<Vec<Decision>> {
        let seat = seat.map_or_else(String::new, |it| format!("AND seat = {it}"));
        let sql =
            format!("SELECT {COLUMNS} FROM lockkeeper_2pc_verdict WHERE finished = 0 {seat} ORDER BY id");
        Ok(self.run(sql).await?.rows.iter().filter_map(decision).collect())
    }

    async fn row(&self, id: &TransactionId) -> Result<Option<Decision>> {
        let answer =
            self.run(format!("SELECT {COLUMNS} FROM lockkeeper_2pc_verdict WHERE id = '{id}'")).await?;
        Ok(answer.rows.first().and_then(decision))
    }

    pub(super) async fn look(&self, id: &TransactionId) -> Result<(Option<Decision>, bool)> {
        // The row first: who deletes it raises the mark with it.
        let found = self.row(id).await?;
        Ok((found, id.begun() <= self.forgotten().await?))
    }

    pub(super) async fn forgotten(&self) -> Result<u64> {
        let mark = self.run("SELECT forgotten FROM lockkeeper_2pc_log WHERE one = 1".into()).await?;
        Ok(mark.rows.first().map_or(i64::MAX, |it| number(it, 0)).cast_unsigned())
    }

    pub(super) async fn looks(&self, ids: Vec<TransactionId>) -> Result<Vec<Decision>> {
        let mut rows = Vec::new();
        for some in ids.chunks(MANY) {
            let some: Vec<String> = some.iter().map(|it| format!("'{it}'")).collect();
            let sql =
                format!("SELECT {COLUMNS} FROM lockkeeper_2pc_verdict WHERE id IN ({})", some.join(", "));
            rows.extend(self.run(sql).await?.rows.iter().filter_map(decision));
        }
        Ok(rows)
    }

    pub(super) async fn finish_all(&self, ids: &[TransactionId]) -> Result<()> {
        for some in ids.chunks(MANY) {
            let some: Vec<String> = some.iter().map(|it| format!("'{it}'")).collect();
            self.run(self.dialect.finish_all(&some)).await?;
        }
        Ok(())
    }

    pub(super) async fn finish(&self, id: &TransactionId) -> Result<()> {
        let (told, answer) = oneshot::channel();
        let _ = self.jobs.send(Job::Finish(id.clone(), told));
        answer.await.unwrap_or_else(|_| Err(ended())).map_err(|it| self.unavailable(it))
    }

    pub(super) async fn forget(&self, older_than: Duration, only: Option<TransactionId>) -> Result<usize> {
        let before = time_of_day().saturating_sub(older_than).as_secs();
        let only = only.map_or_else(String::new, |it| format!("AND id = '{it}'"));
        let mut count = 0;
        loop {
            let old = format!(
                "SELECT id FROM lockkeeper_2pc_verdict WHERE finished = 1 AND decided <= {before} {only} {UNDAMAGED} LIMIT {MANY}"
            );
            let ids: Vec<String> = self.run(old).await?.rows.iter().map(|it| text(it, 0)).collect();
            if ids.is_empty() {
                return Ok(count);
            }
            let begun = ids.iter().filter_map(|it| Some(it.parse::<TransactionId>().ok()?.begun())).max();
            let quoted: Vec<String> = ids.iter().map(|it| format!("'{}'", it.replace('\'', "''"))).collect();
            let sql = format!(
                "BEGIN; {}; DELETE FROM lockkeeper_2pc_verdict WHERE finished = 1 AND id IN ({}) {UNDAMAGED}; COMMIT",
                mark(begun.unwrap_or(0)),
                quoted.join(", ")
            );
            self.run(sql).await?;
            count += ids.len();
        }
    }

    pub(super) async fn forget_until(&self, begun: u64) -> Result<()> {
        self.run(mark(begun)).await.map(drop)
    }

    pub(super) async fn damage(&self, it: Damage) -> Result<()> {
        let (found, seen) = (self.dialect.text(&it.found), it.seen);
        let row = format!("VALUES ('{}', '{}', '{}', {found}, {seen})", it.id, it.participant, it.expected);
        self.run(self.dialect.insert("damage", &row)).await.map(drop)
    }

    pub(super) async fn damages(&self) -> Result<Vec<Damage>> {
        let sql =
            "SELECT id, participant, expected, found, seen FROM lockkeeper_2pc_damage ORDER BY seen, id";
        let damage = |it: &Row| {
            let (id, participant, found) = (text(it, 0).parse().ok()?, text(it, 1), text(it, 3));
            let (expected, seen) = (Ruling::read(&text(it, 2)), number(it, 4).cast_unsigned());
            Some(Damage { id, participant, expected, found, seen })
        };
        Ok(self.run(sql.into()).await?.rows.iter().filter_map(damage).collect())
    }

    /// What the settings of its server mean.
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>> {
        let mut session = self.way.connect().await?;
        let found = timed(ANSWER_MAX, session.findings_of_log()).await;
        found.map_err(|it| self.unavailable(Arc::new(it)))
    }

    /// Whether this session sees what the log writes now: then it is the same database, not a copy of it.
    pub(crate) async fn is_seen_by(&self, session: &mut Session) -> Result<bool> {
        let token = format!("{:016x}{:016x}", random()?, random()?);
        self.run(self.dialect.insert("proof", &format!("VALUES ('{token}')"))).await?;
        let sql = format!("SELECT token FROM lockkeeper_2pc_proof WHERE token = '{token}'");
        // An error: there is no such table here.
        let seen = timed(ANSWER_MAX, session.run(&sql)).await.is_ok_and(|it| !it.rows.is_empty());
        self.run(format!("DELETE FROM lockkeeper_2pc_proof WHERE token = '{token}'")).await?;
        Ok(seen)
    }
}

type Row = Vec<Option<String>>;

fn text(row: &Row, at: usize) -> String {
    row.get(at).cloned().flatten().unwrap_or_default()
}

fn number(row: &Row, at: usize) -> i64 {
    text(row, at).parse().unwrap_or(0)
}

/// `None` for a row that somebody else made: it is left alone.
fn decision(row: &Row) -> Option<Decision> {
    Some(Decision {
        id: text(row, 0).parse().ok()?,
        ruling: Ruling::read(&text(row, 1)),
        note: text(row, 2),
        branches: BranchRecord::read_all(&text(row, 3)),
        decided: number(row, 4).cast_unsigned(),
        finished: number(row, 5) != 0,
    })
}

fn mark(begun: u64) -> String {
    format!("UPDATE lockkeeper_2pc_log SET forgotten = GREATEST(forgotten, {begun}) WHERE one = 1")
}

fn ended() -> Cause {
    Arc::new(std::io::Error::other("the office's runtime has ended"))
}

/// One session, which is replaced when it fails.
struct Link {
    way: Participant,
    dialect: Dialect,
    session: Option<Session>,
}

/// Why there is no answer.
enum Unheard {
    /// Nothing was sent.
    Unsent(Cause),
    /// It was sent, and may have been done.
    Sent(Cause),
}

impl Unheard {
    fn cause(self) -> Cause {
        match self {
            Unheard::Unsent(cause) | Unheard::Sent(cause) => cause,
        }
    }
}

impl Link {
    async fn session(&mut self) -> Result<&mut Session, Cause> {
        if self.session.is_none() {
            let mut session = self.way.connect().await.map_err(|it| Arc::new(it) as Cause)?;
            let greeted = timed(ANSWER_MAX, session.run(self.dialect.greeting())).await;
            greeted.map_err(|it| Arc::new(it) as Cause)?;
            self.session = Some(session);
        }
        self.session.as_mut().ok_or_else(ended)
    }

    /// Once, in the session that there is, or in a new one.
    async fn once(&mut self, sql: &str) -> Result<Answer, Unheard> {
        let session = self.session().await.map_err(Unheard::Unsent)?;
        let answer = timed(ANSWER_MAX, session.run(sql)).await;
        answer.map_err(|it| {
            // Whatever it was in the middle of ends with it.
            self.session = None;
            Unheard::Sent(Arc::new(it))
        })
    }

    /// For what may be done twice: a session that was left from before may have died meanwhile.
    async fn ask(&mut self, sql: &str) -> Result<Answer, Cause> {
        let old = match &mut self.session {
            Some(session) => timed(ANSWER_MAX, session.run(sql)).await,
            None => return self.once(sql).await.map_err(Unheard::cause),
        };
        match old {
            Ok(answer) => Ok(answer),
            Err(error) => {
                self.session = None;
                if error.is_answer() || matches!(error, Trouble::Silent) {
                    return Err(Arc::new(error));
                }
                self.once(sql).await.map_err(Unheard::cause)
            }
        }
    }
}

/// Do what comes, until every clone of the log is gone.
async fn serve(mut link: Link, mut inbox: mpsc::UnboundedReceiver<Job>, observer: Observer) {
    let mut waiting = Vec::new();
    while inbox.recv_many(&mut waiting, MANY).await > 0 {
        let (mut decisions, mut finished, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for job in waiting.drain(..) {
            match job {
                Job::Decide(record, fence, told) => decisions.push((record, fence, told)),
                Job::Finish(id, told) => finished.push((id, told)),
                Job::Run(sql, told) => others.push((sql, told)),
            }
        }
        decide_all(&mut link, decisions, &observer).await;
        finish_all(&mut link, finished).await;
        for (sql, told) in others {
            let _ = told.send(link.ask(&sql).await);
        }
    }
}

/// One message, one transaction and one flush for all that wait. Each is checked for itself.
async fn decide_all(
    link: &mut Link,
    all: Vec<(Decision, u64, oneshot::Sender<Decided>)>,
    observer: &Observer,
) {
    if all.is_empty() {
        return;
    }
    for (record, ..) in &all {
        observer.tell(Point::Deciding, Some(&record.id), None);
    }
    let sql = link.dialect.decide_all(all.iter().map(|(record, fence, _)| (record, *fence)));
    let answer = link.once(&sql).await;
    for (record, _, told) in all {
        let _ = told.send(match &answer {
            Ok(answer) if answer.rows.iter().any(|it| text(it, 0) == record.id.as_str()) => Decided::Written,
            Ok(_) => Decided::Stale,
            Err(Unheard::Unsent(cause)) => Decided::Failed(cause.clone()),
            Err(Unheard::Sent(cause)) => Decided::Unsure(cause.clone()),
        });
    }
}

async fn finish_all(link: &mut Link, all: Vec<(TransactionId, oneshot::Sender<Result<(), Cause>>)>) {
    if all.is_empty() {
        return;
    }
    let ids: Vec<String> = all.iter().map(|it| format!("'{}'", it.0)).collect();
    let answer = link.ask(&link.dialect.finish_all(&ids)).await.map(drop);
    for (_, told) in all {
        let _ = told.send(answer.clone());
    }
}
