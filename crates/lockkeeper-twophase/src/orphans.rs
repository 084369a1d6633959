//! When the log is lost: what its branches say of each other, and what can be done without guessing.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::id::{BranchName, LogId, TransactionId};
use crate::log::Ruling;
use crate::office::{Desk, TwoPhase};
use crate::participant::{ANSWER_MAX, Session, Settled, timed};

/// A transaction of a lost log of which some branch is still prepared, or one has committed and another perhaps has not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Orphan {
    /// Its name.
    pub id: TransactionId,
    /// The participants whose branch is prepared. If there is none, and not everybody has committed, it may be split: see
    /// [`Orphan::committed`].
    pub prepared: Vec<String>,
    /// The participants whose branch has committed, as its witness proves. If there is one, commit was decided: nobody commits
    /// before that. Witnesses are kept for a while: also of what is well, until an office of its log has forgotten them.
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
    /// what was decided, and nothing is done: a person must end those branches. Where nothing is prepared any more, and some
    /// have committed and others not, nobody knows whether those took part: it is told, for a person to compare. With `dry_run`
    /// nothing is done at all.
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
            let held = desk
                .locker
                .try_lock(lost.seat(id.seat()))
                .not_reentrant()
                .note("recovery without the log")
                .await?;
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
        orphans.extend(found.perhaps_split(&desk, &lost).await?);
        Ok(orphans)
    }
}

/// What the participants say.
#[derive(Default)]
struct Found {
    prepared: BTreeMap<TransactionId, Vec<BranchName>>,
    /// Who has committed which.
    witnesses: BTreeSet<(TransactionId, String)>,
    /// Those that were prepared somewhere.
    named: BTreeSet<TransactionId>,
    sessions: BTreeMap<String, Session>,
}

impl Found {
    async fn look(desk: &Desk, lost: &LogId) -> Result<Self> {
        let mut found = Found::default();
        for (name, participant) in &desk.participants {
            let mut session = desk.connect(name).await?;
            let listed = timed(ANSWER_MAX, session.list()).await.map_err(|it| participant.trouble(&it))?;
            for it in listed.into_iter().filter(|it| it.participant == *name && it.id.log() == lost.0) {
                found.prepared.entry(it.id.clone()).or_default().push(it);
            }
            found.sessions.insert(name.clone(), session);
        }
        // After the lists, so that what was prepared then and has committed since is seen.
        let beginning = format!("lk1.{}.", lost.0);
        for (name, session) in &mut found.sessions {
            let asked = timed(ANSWER_MAX, session.all_witnesses(&beginning)).await;
            let seen = asked.map_err(|it| Error::unavailable(name, it))?;
            found.witnesses.extend(seen.into_iter().map(|it| (it, name.clone())));
        }
        found.named = found.prepared.keys().cloned().collect();
        Ok(found)
    }

    /// Committed at some, not at others, and prepared nowhere. As long as somebody holds the seat it may be on its way.
    async fn perhaps_split(&self, desk: &Desk, lost: &LogId) -> Result<Vec<Orphan>> {
        let mut at: BTreeMap<&TransactionId, Vec<String>> = BTreeMap::new();
        for (id, name) in self.witnesses.iter().filter(|it| !self.named.contains(&it.0)) {
            at.entry(id).or_default().push(name.clone());
        }
        at.retain(|_, it| it.len() < desk.participants.len());
        let mut orphans = Vec::new();
        for (id, committed) in at {
            let seat = desk
                .locker
                .try_lock(lost.seat(id.seat()))
                .not_reentrant()
                .note("recovery without the log")
                .await?;
            let Some(guard) = seat else { continue };
            drop(guard.release().await);
            let others = desk.participants.keys().filter(|it| !committed.contains(it));
            let others: Vec<&str> = others.map(String::as_str).collect();
            let why = format!(
                "committed at {}, not at {}: perhaps damaged, if it took part there; compare them",
                committed.join(", "),
                others.join(", ")
            );
            orphans.push(Orphan {
                id: id.clone(),
                prepared: Vec::new(),
                committed,
                fate: Fate::Nothing(why),
            });
        }
        Ok(orphans)
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
