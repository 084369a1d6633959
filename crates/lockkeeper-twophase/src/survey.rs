//! For people who look after a log: what is in doubt, recovery on demand, and rulings by hand.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::inspect::Finding;

use crate::error::{Error, Result};
use crate::id::{BranchName, TransactionId};
use crate::log::{BranchRecord, Damage, Decided, Decision, ParticipantRecord, Ruling, Server};
use crate::office::{Desk, TwoPhase, Verdict};
use crate::participant::{ANSWER_MAX, Settled, timed};
use crate::phases::note_damage;
use crate::recover::{self, Left};

/// Whose findings are those of the log's own server. No participant has such a name.
const LOG: &str = "the log";

/// A transaction of which some branch is prepared or has not followed the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InDoubt {
    /// Its name.
    pub id: TransactionId,
    /// What was decided; `None` if nothing was, which means abort once its coordinator is gone.
    pub ruling: Option<Ruling>,
    /// The word that its caller gave along, if it is decided.
    pub note: String,
    /// Whether somebody holds its seat, who finishes it without help.
    pub attended: bool,
    /// The participants with a branch, and whether it is prepared there. `None` if the participant could not be asked.
    pub branches: Vec<(String, Option<bool>)>,
}

/// All that a log and its participants say about unfinished transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// What is in doubt.
    pub transactions: Vec<InDoubt>,
    /// What did the opposite of what was decided, ever.
    pub damages: Vec<Damage>,
    /// Participants that could not be asked, also because they are not named here and the log knows them.
    pub unreachable: Vec<Left>,
    /// What the doctor found at each participant, the worst first. `the log` is the server of the log, if it is in one where
    /// nobody takes part.
    pub findings: Vec<(String, Finding)>,
    /// Participants that the log knows.
    pub participants: Vec<ParticipantRecord>,
}

impl TwoPhase {
    /// Look at the log and at all participants. Changes nothing in them. Of each seat with something in doubt the lock is asked
    /// for, and given back: an office that starts in that moment takes another seat.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bad names; [`Error::Unavailable`] if the log or the lock store does not answer.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn survey(self) -> Result<Survey> {
        survey(&self.ready()?).await
    }

    /// Finish what the holders of all free seats left. Tells what could not be finished, and the seats that somebody holds.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Unsupported`] as [`TwoPhase::start`]; [`Error::Unavailable`].
    ///
    /// # Cancel safety
    /// If dropped, some may be finished and others not; seats are given back.
    pub async fn recover(self) -> Result<(Vec<Left>, Vec<u32>)> {
        let desk = Arc::new(self.ready()?);
        desk.meet_all().await?;
        recover::every_seat(&desk).await
    }

    /// What became of a transaction, without a seat.
    ///
    /// # Errors
    /// As [`Office::verdict`](crate::Office::verdict).
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn verdict(self, id: &TransactionId) -> Result<Verdict> {
        self.ready()?.verdict(id).await
    }

    /// Rule by hand about a transaction whose coordinator is gone, and make its branches follow. Against the log only if
    /// `against` says so, which leaves a damage in the log: some branches may have done otherwise already. The log says abort
    /// as soon as recovery has begun to roll it back, or somebody was told so.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the log says otherwise, if somebody holds its seat, or if it is to be committed and a participant
    /// cannot be asked; [`Error::Unavailable`].
    ///
    /// # Cancel safety
    /// If dropped, some branches may follow and others not. Repeat it.
    pub async fn resolve(self, id: &TransactionId, ruling: Ruling, against: bool) -> Result<Vec<Left>> {
        self.rule(id, None, ruling, against).await
    }

    /// As [`TwoPhase::resolve`], about one participant's branch. The others are not told, and nothing is decided: unless the
    /// log says the same, this leaves a damage there.
    ///
    /// # Errors
    /// As [`TwoPhase::resolve`]; [`Error::Invalid`] if it has no branch there that is in doubt.
    ///
    /// # Cancel safety
    /// If dropped, the branch may or may not follow. Repeat it.
    pub async fn resolve_branch(
        self,
        id: &TransactionId,
        participant: &str,
        ruling: Ruling,
        against: bool,
    ) -> Result<Vec<Left>> {
        self.rule(id, Some(participant), ruling, against).await
    }

    async fn rule(
        self,
        id: &TransactionId,
        only: Option<&str>,
        ruling: Ruling,
        against: bool,
    ) -> Result<Vec<Left>> {
        let desk = self.ready()?;
        desk.is_of_this_log(id)?;
        desk.meet_all().await?;
        let Some((fence, guard)) = desk.take(id.seat()).await? else {
            return Err(held(id));
        };
        let left = resolve(&desk, id, only, (ruling, against), fence).await;
        drop(guard.release().await);
        left
    }

    /// Stop trying to tell a decision to participants that are lost for good. Who answers is told once more; each of the others
    /// is kept as a damage, and returned.
    ///
    /// One that comes back all the same is told by the next sweep, for as long as the log remembers the decision.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the log has no decision about it that is unfinished, or if somebody holds its seat;
    /// [`Error::Unavailable`].
    ///
    /// # Cancel safety
    /// If dropped, it may stay unfinished. Repeat it.
    pub async fn give_up(self, id: &TransactionId) -> Result<Vec<String>> {
        let desk = self.ready()?;
        let record = desk.log.look(id).await?.0.filter(|it| !it.finished);
        let Some(record) = record else {
            return Err(Error::invalid(format!(
                "the log has no decision about {id} that somebody must still hear"
            )));
        };
        desk.meet_all().await?;
        let Some((_, guard)) = desk.take(id.seat()).await? else {
            return Err(held(id));
        };
        let given_up = give_up(&desk, &record).await;
        drop(guard.release().await);
        given_up
    }

    /// Delete a finished decision from the log before its time. `false` if there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not finished, or if it left a damage: who was given up may come back, and must find what was
    /// decided; [`Error::Unavailable`].
    ///
    /// # Cancel safety
    /// If dropped, it may or may not be deleted.
    pub async fn forget(self, id: &TransactionId) -> Result<bool> {
        let desk = self.ready()?;
        let (record, _) = desk.log.look(id).await?;
        if record.as_ref().is_some_and(|it| !it.finished) {
            return Err(Error::invalid(format!("{id} is not finished; recover it, or resolve it by hand")));
        }
        if record.is_some() && desk.log.damages().await?.iter().any(|it| it.id == *id) {
            return Err(Error::invalid(format!(
                "{id} left a damage; its decision is kept for as long as that, because a participant that was given up may come back"
            )));
        }
        Ok(desk.log.forget(std::time::Duration::ZERO, Some(id.clone())).await? == 1)
    }
}

fn held(id: &TransactionId) -> Error {
    Error::invalid(format!(
        "somebody holds the seat {} of {id} and finishes it without help; stop that process first",
        id.seat()
    ))
}

async fn give_up(desk: &Desk, record: &Decision) -> Result<Vec<String>> {
    let mut given_up = Vec::new();
    for it in &record.branches {
        let name = BranchName { id: record.id.clone(), n: it.n, participant: it.participant.clone() };
        let settled = async {
            let mut session = desk.connect(&name.participant).await.map_err(|it| it.to_string())?;
            let settled = session.settle(&name, record.ruling, it.proof.as_deref()).await;
            settled.map_err(|it| it.to_string())
        };
        let found = match settled.await {
            Ok(Settled::Done) => continue,
            Ok(Settled::Damaged(found)) => found,
            Ok(Settled::Pending(why)) | Err(why) => {
                given_up.push(name.participant.clone());
                format!("given up by hand: {why}")
            }
        };
        note_damage(desk, &record.id, &name.participant, record.ruling, &found).await?;
    }
    desk.log.finish(&record.id).await?;
    Ok(given_up)
}

/// What participants say of themselves.
struct Asked {
    prepared: Vec<BranchName>,
    unreachable: Vec<Left>,
    findings: Vec<(String, Finding)>,
}

/// What is prepared at each participant, why it could not be asked, and what its settings mean.
async fn ask(desk: &Desk) -> Result<Asked> {
    let unreachable = desk.unnamed().await?;
    let mut asked = Asked { prepared: Vec::new(), unreachable, findings: Vec::new() };
    for (name, participant) in &desk.participants {
        let at_home = desk.log.place() == Some(participant.place().as_str());
        let looked = async {
            let mut session = participant.connect().await?;
            let trouble = |it| participant.trouble(&it);
            let found = timed(ANSWER_MAX, session.findings(at_home)).await.map_err(trouble)?;
            let listed = timed(ANSWER_MAX, session.list()).await.map_err(trouble);
            Ok::<_, Error>((found, listed))
        };
        let left = |it: &Error| Left { id: None, participant: name.clone(), why: it.to_string() };
        match looked.await {
            Ok((found, listed)) => {
                asked.findings.extend(found.into_iter().map(|it| (name.clone(), it)));
                match listed {
                    Ok(listed) => {
                        asked.prepared.extend(listed.into_iter().filter(|it| it.participant == *name));
                    }
                    Err(error) => asked.unreachable.push(left(&error)),
                }
            }
            Err(error) => asked.unreachable.push(left(&error)),
        }
    }
    asked.prepared.retain(|it| it.id.log() == desk.log.id.0);
    Ok(asked)
}

/// What the doctor found where the log is, if no participant is there.
async fn findings_of_log(desk: &Desk) -> Vec<(String, Finding)> {
    let apart =
        |_: &&Server| !desk.participants.values().any(|known| Some(&*known.place()) == desk.log.place());
    let Some(server) = desk.log.server().filter(apart) else { return Vec::new() };
    let found = server.findings().await.unwrap_or_else(|error| {
        let what = format!("its settings cannot be asked: {error}");
        vec![Finding::warning(what, "whether it keeps what was decided is not known", "look again")]
    });
    found.into_iter().map(|it| (String::from(LOG), it)).collect()
}

async fn survey(desk: &Desk) -> Result<Survey> {
    let Asked { prepared, unreachable, mut findings } = ask(desk).await?;
    findings.extend(findings_of_log(desk).await);
    findings.sort_by_key(|it| std::cmp::Reverse(it.1.severity));
    let mut found: BTreeMap<TransactionId, InDoubt> = BTreeMap::new();
    for record in desk.log.unfinished(None).await? {
        let asked = |it: &str| {
            desk.participants.contains_key(it) && !unreachable.iter().any(|left| left.participant == it)
        };
        let branches = record
            .branches
            .iter()
            .map(|it| (it.participant.clone(), asked(&it.participant).then_some(false)));
        let doubt = InDoubt {
            id: record.id.clone(),
            ruling: Some(record.ruling),
            note: record.note,
            attended: false,
            branches: branches.collect(),
        };
        found.insert(record.id, doubt);
    }
    for branch in prepared {
        let (ruling, note) = match desk.log.look(&branch.id).await?.0 {
            Some(record) => (Some(record.ruling), record.note),
            None => (None, String::new()),
        };
        let id = branch.id.clone();
        let doubt = found.entry(id.clone());
        let doubt =
            doubt.or_insert_with(|| InDoubt { id, ruling, note, attended: false, branches: Vec::new() });
        doubt.branches.retain(|it| it.0 != branch.participant);
        doubt.branches.push((branch.participant, Some(true)));
    }
    let mut transactions: Vec<InDoubt> = found.into_values().collect();
    let mut held: BTreeMap<u32, bool> = BTreeMap::new();
    for it in &mut transactions {
        it.branches.sort();
        let seat = it.id.seat();
        if let Entry::Vacant(unknown) = held.entry(seat) {
            unknown.insert(is_held(desk, seat).await?);
        }
        it.attended = held.get(&seat).copied().unwrap_or(false);
    }
    let (damages, participants) = (desk.log.damages().await?, desk.log.participants().await?);
    Ok(Survey { transactions, damages, unreachable, findings, participants })
}

/// Whether somebody sits there. Asking takes the lock for a moment if nobody does; the log is not told.
async fn is_held(desk: &Desk, seat: u32) -> Result<bool> {
    match desk.locker.try_lock(desk.log.id.seat(seat)).not_reentrant().await? {
        None => Ok(true),
        Some(guard) => {
            drop(guard.release().await);
            Ok(false)
        }
    }
}

async fn resolve(
    desk: &Desk,
    id: &TransactionId,
    only: Option<&str>,
    (ruling, against): (Ruling, bool),
    fence: u64,
) -> Result<Vec<Left>> {
    let Asked { prepared, unreachable, .. } = ask(desk).await?;
    let prepared: Vec<BranchName> = prepared.into_iter().filter(|it| it.id == *id).collect();
    let (record, forgotten) = desk.log.look(id).await?;
    // Of what is so old the log may have said abort.
    let contradicted =
        record.as_ref().map_or(forgotten && ruling == Ruling::Commit, |it| it.ruling != ruling);
    if contradicted && !against {
        let says = if record.is_some() { "says" } else { "has forgotten such decisions, and may have said" };
        return Err(Error::invalid(format!(
            "the log {says} {} of {id}; to rule otherwise, rule against the log",
            opposite(ruling)
        )));
    }
    if record.is_none() && ruling == Ruling::Abort {
        // Nobody shall rule otherwise about those that cannot be told now, or are not.
        let ruled = desk.log.rule_abort_all(vec![id.clone()]).await?;
        if ruled.get(id).is_some_and(|it| it.ruling == Ruling::Commit) {
            return Err(Error::invalid(format!("somebody ruled to commit {id} at this moment; look again")));
        }
    }
    if record.is_none() && !contradicted && ruling == Ruling::Commit && only.is_none() {
        if let Some(left) = unreachable.first() {
            return Err(Error::invalid(format!(
                "{left}; without it nobody knows whether all branches are prepared"
            )));
        }
        if prepared.is_empty() {
            return Err(Error::invalid(format!("nothing of {id} is prepared, so nothing can be committed")));
        }
        write_late(desk, id, &prepared, fence, "by hand").await?;
    }
    let mut branches: BTreeMap<(u32, String), Option<String>> =
        prepared.into_iter().map(|it| ((it.n, it.participant), None)).collect();
    for it in record.iter().flat_map(|it| &it.branches) {
        branches.insert((it.n, it.participant.clone()), it.proof.clone());
    }
    if let Some(only) = only {
        branches.retain(|it, _| it.1 == only);
        if branches.is_empty() {
            return Err(Error::invalid(format!("{id} has no branch at {only} that is in doubt")));
        }
    }
    // Alone, and nobody decided it.
    let alone = only.is_some() && record.is_none() && ruling == Ruling::Commit;
    let mut left = if only.is_some() { Vec::new() } else { unreachable };
    for ((n, participant), proof) in branches {
        let name = BranchName { id: id.clone(), n, participant };
        let settled = async {
            let mut session = desk.connect(&name.participant).await?;
            let settled = timed(ANSWER_MAX, session.settle(&name, ruling, proof.as_deref())).await;
            settled.map_err(|it| Error::unavailable(&name.participant, std::io::Error::other(it.to_string())))
        };
        match settled.await {
            Ok(Settled::Done) if !contradicted && !alone => {}
            Ok(Settled::Done) => {
                let against = if alone { "alone, and nothing was decided" } else { "against the log" };
                let found = format!("told to {ruling} by hand, {against}");
                note_damage(desk, id, &name.participant, opposite(ruling), &found).await?;
            }
            Ok(Settled::Damaged(found)) => note_damage(desk, id, &name.participant, ruling, &found).await?,
            Ok(Settled::Pending(why)) => {
                left.push(Left { id: Some(id.clone()), participant: name.participant, why });
            }
            Err(error) => {
                left.push(Left {
                    id: Some(id.clone()),
                    participant: name.participant,
                    why: error.to_string(),
                });
            }
        }
    }
    if left.is_empty() && only.is_none() {
        // Does nothing where there is no row.
        desk.log.finish(id).await?;
    }
    Ok(left)
}

fn opposite(ruling: Ruling) -> Ruling {
    match ruling {
        Ruling::Commit => Ruling::Abort,
        Ruling::Abort => Ruling::Commit,
    }
}

/// A commit that the log does not have, in it before any branch is told, so that it cannot be half done.
pub(crate) async fn write_late(
    desk: &Desk,
    id: &TransactionId,
    prepared: &[BranchName],
    fence: u64,
    note: &str,
) -> Result<Decision> {
    let branches = prepared
        .iter()
        .map(|it| BranchRecord { n: it.n, participant: it.participant.clone(), proof: None })
        .collect();
    let record = Decision {
        id: id.clone(),
        ruling: Ruling::Commit,
        note: note.to_owned(),
        branches,
        decided: time_of_day().as_secs(),
        finished: false,
    };
    match desk.log.decide_as(record.clone(), fence).await {
        Decided::Written => Ok(record),
        Decided::Stale => {
            Err(Error::invalid(format!("somebody took the seat of {id} at this moment; look again")))
        }
        Decided::Failed(source) | Decided::Unsure(source) => {
            Err(Error::Unavailable { what: String::from("the log"), source })
        }
    }
}
