//! When the log is lost: what its branches say of each other, and what can be done without guessing.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::id::{BranchName, LogId, TransactionId};
use crate::log::Ruling;
use crate::office::{Desk, TwoPhase};
use crate::participant::{ANSWER_MAX, Session, Settled, timed};

/// A transaction of a lost log of which some branch is still prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Orphan {
    /// Its name.
    pub id: TransactionId,
    /// The participants whose branch is prepared.
    pub prepared: Vec<String>,
    /// The participants whose branch has committed, as its witness proves. If there is one, commit was decided: nobody commits
    /// before that.
    pub committed: Vec<String>,
    /// What was done, or would be.
    pub fate: Fate,
}

/// What becomes of an [`Orphan`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// Somebody has committed, so the others do.
    Commit,
    /// Nothing is done, and this is why.
    Nothing(String),
}

impl TwoPhase {
    /// Look at the transactions of a log that is lost, by the name that stands in the names of their branches, and finish what
    /// can be finished without it: where one branch has committed, the others commit. Where nobody has acted, nobody knows
    /// what was decided, and nothing is done: a person must end those branches. With `dry_run` nothing is done at all.
    ///
    /// Name every participant that took part, and the lock store that the lost log's offices used.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the log that is open, and for what is no name of a log; [`Error::Unavailable`] if a participant
    /// or the lock store does not answer: then nothing is done.
    ///
    /// # Cancel safety
    /// If dropped, some may be finished and others not. Repeat it.
    pub async fn recover_without_log(self, lost: &str, dry_run: bool) -> Result<Vec<Orphan>> {
        let desk = self.ready()?;
        let lost = LogId::read(lost.to_owned()).ok_or_else(|| {
            Error::invalid(format!(
                "{lost:?} is no name of a log; it stands behind `lk1.` in the names of branches"
            ))
        })?;
        if lost == desk.log.id {
            return Err(Error::invalid("this log is here; recover with it, not without"));
        }
        desk.meet_all().await?;
        let mut found = Found::look(&desk, &lost).await?;
        let mut orphans = Vec::new();
        for (id, prepared) in std::mem::take(&mut found.prepared) {
            let held = desk.locker.try_lock(lost.seat(id.seat())).note("recovery without the log").await?;
            let committed: Vec<String> =
                found.witnesses.iter().filter(|it| it.0 == id).map(|it| it.1.clone()).collect();
            let fate = match (&held, committed.is_empty()) {
                (None, _) => {
                    Fate::Nothing(format!("somebody holds its seat {}; stop that process first", id.seat()))
                }
                (_, true) => Fate::Nothing("nobody has committed, so nobody knows what was decided".into()),
                (_, false) if dry_run => Fate::Commit,
                (_, false) => found.commit(&prepared).await,
            };
            let prepared = prepared.into_iter().map(|it| it.participant).collect();
            orphans.push(Orphan { id, prepared, committed, fate });
            if let Some(guard) = held {
                drop(guard.release().await);
            }
        }
        Ok(orphans)
    }
}

/// What the participants say.
struct Found {
    prepared: BTreeMap<TransactionId, Vec<BranchName>>,
    /// Who has committed which.
    witnesses: BTreeSet<(TransactionId, String)>,
    sessions: BTreeMap<String, Session>,
}

impl Found {
    async fn look(desk: &Desk, lost: &LogId) -> Result<Self> {
        let mut found =
            Found { prepared: BTreeMap::new(), witnesses: BTreeSet::new(), sessions: BTreeMap::new() };
        for (name, participant) in &desk.participants {
            let mut session = desk.connect(name).await?;
            let listed = timed(ANSWER_MAX, session.list()).await.map_err(|it| participant.trouble(&it))?;
            for it in listed.into_iter().filter(|it| it.participant == *name && it.id.log() == lost.0) {
                found.prepared.entry(it.id.clone()).or_default().push(it);
            }
            found.sessions.insert(name.clone(), session);
        }
        // After the lists, so that what was prepared then and has committed since is seen.
        for (name, session) in &mut found.sessions {
            let ids: Vec<&TransactionId> = found.prepared.keys().collect();
            let asked = timed(ANSWER_MAX, session.witnessed(&ids)).await;
            let seen = asked.map_err(|it| Error::unavailable(name, it))?;
            found.witnesses.extend(seen.into_iter().map(|it| (it, name.clone())));
        }
        Ok(found)
    }

    async fn commit(&mut self, branches: &[BranchName]) -> Fate {
        for it in branches {
            let Some(session) = self.sessions.get_mut(&it.participant) else { continue };
            let why = match timed(ANSWER_MAX, session.settle(it, Ruling::Commit, None)).await {
                Ok(Settled::Done) => continue,
                Ok(Settled::Pending(why) | Settled::Damaged(why)) => why,
                Err(error) => error.to_string(),
            };
            return Fate::Nothing(format!("{}: {why}", it.participant));
        }
        Fate::Commit
    }
}
