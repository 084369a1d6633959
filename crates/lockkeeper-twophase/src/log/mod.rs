//! The log: what was decided, by whom, and for which participants. Everything that must outlive a coordinator.

mod dialect;
mod server;
mod sqlite;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::id::{LogId, TransactionId};
use crate::observe::Observer;
use crate::participant::Participant;

pub(crate) use dialect::Dialect;
pub(crate) use server::Server;
pub(crate) use sqlite::{File, Inside};

/// What a row of the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ruling {
    /// Commit every branch.
    Commit,
    /// Roll every branch back. No row says the same.
    Abort,
}

impl Ruling {
    fn word(self) -> &'static str {
        match self {
            Ruling::Commit => "commit",
            Ruling::Abort => "abort",
        }
    }

    /// Whatever is not a commit is an abort.
    fn read(word: &str) -> Self {
        if word == Ruling::Commit.word() { Ruling::Commit } else { Ruling::Abort }
    }
}

impl fmt::Display for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A branch as the log knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BranchRecord {
    /// Its number in the transaction.
    pub n: u32,
    /// Whose it is.
    pub participant: String,
    /// The transaction's number on PostgreSQL, by which the server tells whether it is still under way. What proves a commit is
    /// its witness row.
    pub proof: Option<String>,
}

impl BranchRecord {
    /// `0.orders=745` or `1.stock`: names have neither blanks nor `=`.
    fn written(&self) -> String {
        let proof = self.proof.as_ref().map_or_else(String::new, |it| format!("={it}"));
        format!("{}.{}{proof}", self.n, self.participant)
    }

    fn read(text: &str) -> Option<Self> {
        let (name, proof) =
            text.split_once('=').map_or((text, None), |(name, proof)| (name, Some(proof.to_owned())));
        let (n, participant) = name.split_once('.')?;
        Some(BranchRecord { n: n.parse().ok()?, participant: participant.to_owned(), proof })
    }

    fn all_written(branches: &[BranchRecord]) -> String {
        branches.iter().map(BranchRecord::written).collect::<Vec<_>>().join(" ")
    }

    fn read_all(text: &str) -> Vec<Self> {
        text.split_whitespace().filter_map(BranchRecord::read).collect()
    }
}

/// A decision as the log knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// The transaction.
    pub id: TransactionId,
    /// What was decided.
    pub ruling: Ruling,
    /// The word that the caller gave along.
    pub note: String,
    /// The branches that were prepared.
    pub branches: Vec<BranchRecord>,
    /// When, in seconds since 1970, by the clock of whoever decided.
    pub decided: u64,
    /// Whether every branch is ended.
    pub finished: bool,
}

/// A participant as the log knows it. Its URL holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParticipantRecord {
    /// Its name.
    pub name: String,
    /// `postgres` or `mysql`.
    pub kind: String,
    /// Where it is.
    pub place: String,
    /// The number that its database drew for itself.
    pub identity: String,
}

/// A branch that did not do what was decided. Never deleted by us.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The transaction.
    pub id: TransactionId,
    /// Whose branch.
    pub participant: String,
    /// What was decided.
    pub expected: Ruling,
    /// What was found.
    pub found: String,
    /// When, in seconds since 1970.
    pub seen: u64,
}

/// What became of an attempt to decide.
#[derive(Debug)]
pub(crate) enum Decided {
    /// It is durable.
    Written,
    /// Somebody else has the seat.
    Stale,
    /// Nothing was written.
    Failed(Cause),
    /// Nobody knows whether it was written.
    Unsure(Cause),
}

/// Why a log did not do what was asked.
pub(crate) type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// A log that is open. Clones share what serves it.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) id: LogId,
    home: Home,
}

#[derive(Clone, Debug)]
enum Home {
    File(File),
    Server(Server),
}

/// The same question to either kind.
macro_rules! ask {
    ($log:expr, $it:ident => $question:expr) => {
        match &$log.home {
            Home::File($it) => $question.await,
            Home::Server($it) => $question.await,
        }
    };
}

impl Log {
    /// The log in this file. It is made if there is none.
    pub(crate) async fn in_file(path: &Path, observer: Observer) -> Result<Log> {
        let (file, id) = File::open(path, observer).await?;
        Ok(Log { id, home: Home::File(file) })
    }

    /// The log in this database. With `make` its tables are made if there are none.
    pub(crate) async fn in_database(way: Participant, observer: Observer, make: bool) -> Result<Log> {
        let (server, id) = Server::open(way, observer, make).await?;
        Ok(Log { id, home: Home::Server(server) })
    }

    /// The server in which it lives, if it does not live in a file.
    pub(crate) fn server(&self) -> Option<&Server> {
        if let Home::Server(it) = &self.home { Some(it) } else { None }
    }

    /// Where the server is in which it lives, without secrets.
    pub(crate) fn place(&self) -> Option<&str> {
        self.server().map(|it| it.place.as_str())
    }

    /// The file in which it lives.
    pub(crate) fn file(&self) -> Option<&File> {
        if let Home::File(it) = &self.home { Some(it) } else { None }
    }

    /// Write a decision, unless the seat has a newer holder. Forced to the disk before the answer.
    pub(crate) async fn decide(&self, record: Decision) -> Decided {
        let fence = record.id.fence();
        self.decide_as(record, fence).await
    }

    /// As [`Log::decide`], by whoever holds the seat with this fence now.
    pub(crate) async fn decide_as(&self, record: Decision, fence: u64) -> Decided {
        ask!(self, it => it.decide(record, fence))
    }

    /// Rule abort unless something is ruled already. Tells what is ruled now.
    pub(crate) async fn rule_abort(&self, id: &TransactionId) -> Result<Ruling> {
        let abort = abort(id, false);
        ask!(self, it => it.rule_abort(abort))
    }

    /// As [`Log::rule_abort`], of many in one flush: nobody rules otherwise by hand any more. What stands there now. A sweep
    /// that finds a branch prepared looks the row up, so these need not be listed as unfinished.
    pub(crate) async fn rule_abort_all(
        &self,
        ids: Vec<TransactionId>,
    ) -> Result<HashMap<TransactionId, Decision>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let aborts: Vec<Decision> = ids.iter().map(|it| abort(it, true)).collect();
        ask!(self, it => it.rule_abort_all(aborts))?;
        self.looks(ids).await
    }

    /// Take a seat with this fence. From now on its older holders cannot decide. `None` if a newer one was here.
    ///
    /// `beyond`: our lock is valid and yet its fence is not the newest, so the lock store has forgotten what it gave before.
    /// The log remembers: we are the next.
    pub(crate) async fn raise(&self, seat: u32, fence: u64, beyond: bool) -> Result<Option<u64>> {
        ask!(self, it => it.raise(seat, fence, beyond))
    }

    /// Every seat that was ever taken, with its newest fence.
    pub(crate) async fn seats(&self) -> Result<Vec<(u32, u64)>> {
        ask!(self, it => it.seats())
    }

    /// The newest fence of a seat, 0 if nobody ever had it.
    pub(crate) async fn newest(&self, seat: u32) -> Result<u64> {
        Ok(self.seats().await?.into_iter().find(|it| it.0 == seat).map_or(0, |it| it.1))
    }

    /// Note a participant, or learn what is noted under its name.
    pub(crate) async fn note(&self, record: ParticipantRecord) -> Result<ParticipantRecord> {
        ask!(self, it => it.note(record))
    }

    pub(crate) async fn participants(&self) -> Result<Vec<ParticipantRecord>> {
        ask!(self, it => it.participants())
    }

    /// The decisions of a seat, or of all, that some branch has not followed yet.
    pub(crate) async fn unfinished(&self, seat: Option<u32>) -> Result<Vec<Decision>> {
        ask!(self, it => it.unfinished(seat))
    }

    /// What is decided about a transaction, and whether decisions as old as this one have been forgotten.
    pub(crate) async fn look(&self, id: &TransactionId) -> Result<(Option<Decision>, bool)> {
        ask!(self, it => it.look(id))
    }

    /// The rows of those that have one.
    pub(crate) async fn looks(&self, ids: Vec<TransactionId>) -> Result<HashMap<TransactionId, Decision>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = ask!(self, it => it.looks(ids))?;
        Ok(rows.into_iter().map(|it| (it.id.clone(), it)).collect())
    }

    /// As [`Log::finish`], of many.
    pub(crate) async fn finish_all(&self, ids: &[TransactionId]) -> Result<()> {
        ask!(self, it => it.finish_all(ids))
    }

    /// Every branch has followed. Not forced where that can be chosen: if this is lost, the next look finds every branch ended
    /// and says so again.
    pub(crate) async fn finish(&self, id: &TransactionId) -> Result<()> {
        ask!(self, it => it.finish(id))
    }

    /// Until when what was begun may be forgotten, in seconds since 1970.
    pub(crate) async fn forgotten(&self) -> Result<u64> {
        ask!(self, it => it.forgotten())
    }

    /// Forget what was finished and decided longer ago than this, or this one alone. How many were forgotten. Not what did
    /// damage: who was given up may come back, and must find what was decided.
    pub(crate) async fn forget(&self, older_than: Duration, only: Option<TransactionId>) -> Result<usize> {
        ask!(self, it => it.forget(older_than, only))
    }

    /// From now on nothing is known of what was begun until then, in seconds since 1970, unless there is a row.
    pub(crate) async fn forget_until(&self, begun: u64) -> Result<()> {
        ask!(self, it => it.forget_until(begun))
    }

    /// Keep the evidence.
    pub(crate) async fn damage(&self, damage: Damage) -> Result<()> {
        ask!(self, it => it.damage(damage))
    }

    pub(crate) async fn damages(&self) -> Result<Vec<Damage>> {
        ask!(self, it => it.damages())
    }
}

/// No branch stands in it: whoever has one finds the row by its name.
fn abort(id: &TransactionId, finished: bool) -> Decision {
    let (ruling, decided) = (Ruling::Abort, lockkeeper_core::clock::time_of_day().as_secs());
    Decision { id: id.clone(), ruling, note: String::new(), branches: Vec::new(), decided, finished }
}
