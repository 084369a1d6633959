//! The phases after the work: vote, decide, commit or roll back. They run in the office, whoever goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::{Clock, Moment};
use tokio::task::JoinHandle;

use crate::error::{BoxError, Error, Result};
use crate::id::{BranchName, TransactionId};
use crate::log::{BranchRecord, Cause, Damage, Decided, Decision, Inside, Ruling};
use crate::observe::{Observer, Point};
use crate::office::{Active, Desk};
use crate::participant::{ANSWER_MAX, Settled, Trouble, Vote, timed};
use crate::rollback::{UNDO_MAX, roll_back, settle_doubt};
use crate::transaction::{Committed, Ways};
use crate::work::Open;

/// A transaction whose work is done.
pub(crate) struct Plan {
    pub(crate) desk: Arc<Desk>,
    pub(crate) active: Active,
    pub(crate) note: String,
    pub(crate) open: Vec<Open>,
    pub(crate) until: Moment,
    /// Nobody waits for the decision any more. Only ever set. `SeqCst` is more than enough: who goes away while it is looked at is like
    /// one who goes away after the decision.
    pub(crate) unwanted: Arc<AtomicBool>,
    /// Work in the log's own file.
    pub(crate) inside: Option<Inside>,
    /// One participant may commit it alone.
    pub(crate) lone: bool,
    pub(crate) ways: Ways,
}

/// A branch after its vote.
pub(crate) struct Voted {
    pub(crate) open: Open,
    pub(crate) vote: Result<Vote, Trouble>,
}

pub(crate) async fn conclude(plan: Plan) -> Result<Committed> {
    let Plan { desk, active, note, open, until, unwanted, inside, lone, ways } = plan;
    let id = active.id.clone();
    let asked = open.len();
    let mut voted = vote(&desk, open, until, lone, ways.keep_readers).await;
    if let Some((whose, reason)) = refusal(&mut voted) {
        return Err(refused(&desk, active, voted, Some(&whose), reason).await);
    }
    if voted.len() < asked {
        let reason = "a vote was lost with the task that asked for it".into();
        return Err(refused(&desk, active, voted, None, reason).await);
    }
    let branches: Vec<BranchRecord> = voted.iter().filter_map(record).collect();
    voted.retain(|it| !matches!(it.vote, Ok(Vote::ReadOnly)));
    desk.observer.tell(Point::AllPrepared, Some(&id), None);
    if voted.is_empty() && inside.is_none() {
        return Ok(Committed { id, pending: Vec::new() });
    }
    let (ruling, decided, finished) = (Ruling::Commit, time_of_day().as_secs(), branches.is_empty());
    let record = Decision { id: id.clone(), ruling, note, branches, decided, finished };
    if unwanted.load(Ordering::SeqCst) {
        let gone: Cause = Arc::from(BoxError::from("the caller went away before the decision"));
        if record.finished {
            // Nobody has promised, so nobody can have ruled.
            roll_back(&desk, active, voted).await;
            return Err(Error::aborted(&id, None, gone));
        }
        return follow(&desk, active, voted, (record, None), Decided::Unsure(gone), ways.answer_early).await;
    }
    let own = voted.iter().position(|it| matches!(it.vote, Ok(Vote::Ready)));
    let decided = match own.map(|at| voted.swap_remove(at).open) {
        Some(own) if desk.is_home(&own.name.participant) => {
            let whose = own.name.participant.clone();
            let decided = decide_inside(&desk, own, &record).await;
            return follow(&desk, active, voted, (record, Some(whose)), decided, ways.answer_early).await;
        }
        Some(own) => return once(&desk, active, own).await,
        None => match desk.log.file() {
            Some(file) => file.decide_with(record.clone(), id.fence(), inside).await,
            None => desk.log.decide(record.clone()).await,
        },
    };
    follow(&desk, active, voted, (record, None), decided, ways.answer_early).await
}

/// Somebody cannot promise: everything is rolled back, unless somebody took our seat and ruled otherwise by hand.
async fn refused(
    desk: &Arc<Desk>,
    active: Active,
    voted: Vec<Voted>,
    by: Option<&str>,
    reason: BoxError,
) -> Error {
    let id = active.id.clone();
    // As long as the seat is ours nobody can have ruled, and most of the time it is: then nothing is written. Rows stay locked
    // meanwhile, so a log that is silent is not waited for long.
    let seat = id.seat();
    let newest = async { desk.log.newest(seat).await.map_err(|it| Trouble::Said(it.to_string())) };
    let promised = voted.iter().any(|it| matches!(it.vote, Ok(Vote::Prepared(_))));
    let taken = promised && timed(UNDO_MAX, newest).await.is_ok_and(|it| it != id.fence());
    if taken && matches!(desk.log.rule_abort(&id).await, Ok(Ruling::Commit)) {
        // The end of the sessions rolls back what has not promised, and frees for others what has.
        drop(voted);
        drop(active);
        desk.wake.notify_one();
        let source = format!("somebody ruled by hand to commit it, and not all can: {reason}");
        return Error::Unknown { id, source: Arc::from(BoxError::from(source)) };
    }
    roll_back(desk, active, voted).await;
    Error::aborted(&id, by, reason)
}

/// The commit of the branch that lives where the log does is the decision.
async fn decide_inside(desk: &Desk, own: Open, record: &Decision) -> Decided {
    let Open { name, mut session, .. } = own;
    desk.observer.tell(Point::Deciding, Some(&name.id), Some(&name.participant));
    let sql = session.dialect().decide_inside(record);
    match timed(ANSWER_MAX, session.run(&sql)).await {
        Ok(_) => Decided::Written,
        // Also if it was refused: the log tells what is ruled.
        Err(error) => Decided::Unsure(Arc::new(error)),
    }
}

/// Do what was decided, and find out what was if nobody said so. `own` is the branch whose commit was to be the decision.
async fn follow(
    desk: &Arc<Desk>,
    active: Active,
    voted: Vec<Voted>,
    (record, own): (Decision, Option<String>),
    decided: Decided,
    early: bool,
) -> Result<Committed> {
    let id = record.id.clone();
    let mut lost = None;
    let doubt = match decided {
        Decided::Written => None,
        Decided::Failed(error) => {
            roll_back(desk, active, voted).await;
            return Err(Error::aborted(&id, None, error));
        }
        // Whoever took the seat may have ruled by hand to commit, while we stood still.
        Decided::Stale => Some(Arc::from(BoxError::from("another coordinator took its seat"))),
        Decided::Unsure(error) => {
            desk.observer.tell(Point::Doubted, Some(&id), None);
            Some(error)
        }
    };
    if let Some(error) = doubt {
        let ruled = match desk.log.rule_abort(&id).await {
            Ok(Ruling::Commit) => not_ours(desk, &record, own).await.map(Some),
            Ok(Ruling::Abort) => Ok(None),
            Err(error) => Err(error),
        };
        match ruled {
            Ok(Some(whose)) => lost = whose,
            Ok(None) => return Err(ruled_out(desk, active, voted, error).await),
            Err(_) => {
                // MariaDB lets nobody end a branch while the session that prepared it lives.
                drop(voted);
                desk.handle.spawn(settle_doubt(desk.clone(), active));
                return Err(Error::Unknown { id, source: error });
            }
        }
    }
    desk.observer.tell(Point::Decided, Some(&id), None);
    if early {
        let pending = voted.iter().map(|it| it.open.name.participant.clone()).collect();
        let desk = desk.clone();
        // What goes wrong is in the log, and the sweep goes on with it.
        desk.handle.clone().spawn(async move { drop(carry_out(&desk, active, voted, record, lost).await) });
        return Ok(Committed { id, pending });
    }
    carry_out(desk, active, voted, record, lost).await
}

/// The branch whose commit was to be the decision, if it was somebody else who decided: then it has not committed.
async fn not_ours(desk: &Desk, record: &Decision, own: Option<String>) -> Result<Option<String>> {
    if own.is_none() {
        return Ok(None);
    }
    let told = |it: &Decision| (it.note.clone(), it.branches.clone(), it.decided);
    let (found, _) = desk.log.look(&record.id).await?;
    Ok(own.filter(|_| found.as_ref().map(told) != Some(told(record))))
}

/// It was not decided, and the log says abort now. Perhaps because our seat was taken.
async fn ruled_out(desk: &Arc<Desk>, active: Active, voted: Vec<Voted>, error: Cause) -> Error {
    let id = active.id.clone();
    roll_back(desk, active, voted).await;
    // The sweep finishes the row.
    desk.wake.notify_one();
    match desk.log.newest(id.seat()).await {
        Ok(newest) if newest != id.fence() => {
            desk.observer.tell(Point::Superseded, Some(&id), None);
            Error::Superseded { id }
        }
        _ => Error::aborted(&id, None, error),
    }
}

/// The only one that wrote commits by itself. A mark in the same commit tells whoever asks later.
async fn once(desk: &Desk, active: Active, own: Open) -> Result<Committed> {
    let Open { name, mut session, .. } = own;
    let (id, whose) = (active.id.clone(), name.participant.as_str());
    desk.observer.tell(Point::Committing, Some(&id), Some(whose));
    let answer = timed(ANSWER_MAX, session.commit_once(&name)).await;
    drop(session);
    if let Err(error) = answer {
        desk.observer.tell(Point::Unanswered, Some(&id), Some(whose));
        let asked = async {
            let mut session = desk.connect(whose).await.map_err(|it| Trouble::Said(it.to_string()))?;
            session.close_door(&id).await
        };
        match timed(ANSWER_MAX, asked).await {
            Ok(true) => {}
            Ok(false) => return Err(Error::aborted(&id, Some(whose), error)),
            Err(_) => return Err(Error::Unknown { id, source: Arc::new(error) }),
        }
    }
    desk.observer.tell(Point::Committed, Some(&id), Some(whose));
    Ok(Committed { id, pending: Vec::new() })
}

/// Everybody's vote. If nobody but one wrote, and it may go alone, that one need not promise.
async fn vote(desk: &Arc<Desk>, open: Vec<Open>, until: Moment, lone: bool, keep: bool) -> Vec<Voted> {
    let (open, mut voted) = if !keep && (lone || open.len() == 1) {
        let asked = each(desk, open, until, Question::Wrote).await;
        let (writers, rest): (Vec<Voted>, _) =
            asked.into_iter().partition(|it| matches!(it.vote, Ok(Vote::Ready)));
        (writers.into_iter().map(|it| it.open).collect(), rest)
    } else {
        (open, Vec::new())
    };
    if voted.iter().any(|it| it.vote.is_err()) {
        voted.extend(open.into_iter().map(|open| Voted { open, vote: Ok(Vote::Ready) }));
        return voted;
    }
    let alone = lone && open.len() == 1;
    voted.extend(each(desk, open, until, Question::Promises { alone, keep }).await);
    voted
}

/// What branches are asked.
#[derive(Clone, Copy)]
enum Question {
    /// Who wrote is ready, who did not has ended.
    Wrote,
    /// Whether it promises, or is ready to go alone.
    Promises { alone: bool, keep: bool },
}

/// All at once, each in a task of its own.
async fn each(desk: &Arc<Desk>, open: Vec<Open>, until: Moment, question: Question) -> Vec<Voted> {
    let votes: Vec<JoinHandle<Voted>> = open
        .into_iter()
        .map(|mut open| {
            let observer = desk.observer.clone();
            desk.handle.spawn(async move {
                let left = until - Clock::boot().now();
                let vote = timed(left, answer(&mut open, question, &observer)).await;
                if matches!(vote, Ok(Vote::Prepared(_))) {
                    observer.tell(Point::Prepared, Some(&open.name.id), Some(&open.name.participant));
                }
                Voted { open, vote }
            })
        })
        .collect();
    let mut voted = Vec::new();
    for it in votes {
        // A task that ends otherwise takes its session along, which rolls back; the sweep does the rest.
        if let Ok(it) = it.await {
            voted.push(it);
        }
    }
    voted
}

async fn answer(open: &mut Open, question: Question, observer: &Observer) -> Result<Vote, Trouble> {
    match question {
        Question::Wrote if open.session.end_reader(&open.name).await? => Ok(Vote::ReadOnly),
        Question::Wrote => Ok(Vote::Ready),
        Question::Promises { alone, .. } if alone || open.plain => open.session.ready(&open.name).await,
        Question::Promises { keep, .. } => open.session.vote(&open.name, observer, keep).await,
    }
}

/// The first no, if there is one.
fn refusal(voted: &mut [Voted]) -> Option<(String, BoxError)> {
    let no = voted.iter_mut().find(|it| it.vote.is_err())?;
    let kept = match &no.vote {
        Err(it) if it.is_refusal() => Trouble::Said(it.to_string()),
        _ => Trouble::Silent,
    };
    let reason = std::mem::replace(&mut no.vote, Err(kept));
    Some((no.open.name.participant.clone(), reason.err()?.into()))
}

fn record(voted: &Voted) -> Option<BranchRecord> {
    let Ok(Vote::Prepared(proof)) = &voted.vote else { return None };
    let name = &voted.open.name;
    Some(BranchRecord { n: name.n, participant: name.participant.clone(), proof: proof.clone() })
}

/// Tell every branch to commit, all at once. What does not answer is left to the sweep.
async fn carry_out(
    desk: &Arc<Desk>,
    active: Active,
    voted: Vec<Voted>,
    record: Decision,
    lost: Option<String>,
) -> Result<Committed> {
    let mut tasks = Vec::new();
    for Voted { open, vote } in voted {
        let proof = vote.ok().and_then(|it| if let Vote::Prepared(proof) = it { proof } else { None });
        let whose = open.name.participant.clone();
        tasks.push((whose, desk.handle.spawn(commit_one(desk.clone(), open, proof))));
    }
    let found = |whose| (whose, "rolled back: it had not promised when somebody ruled by hand".to_owned());
    let (mut pending, mut damaged) = (Vec::new(), lost.map(found).into_iter().collect::<Vec<_>>());
    for (whose, task) in tasks {
        match task.await {
            Ok(Settled::Done) => {}
            Ok(Settled::Damaged(found)) => damaged.push((whose, found)),
            Ok(Settled::Pending(_)) | Err(_) => pending.push(whose),
        }
    }
    let id = record.id.clone();
    for (participant, found) in &damaged {
        if note_damage(desk, &id, participant, Ruling::Commit, found).await.is_err() {
            // The caller hears of it all the same. The sweep finds it again, and notes it.
            pending.push(participant.clone());
        }
    }
    if pending.is_empty() {
        desk.observer.tell(Point::AllCommitted, Some(&id), None);
        if !record.finished {
            // If this is lost the sweep finds every branch ended and says it again.
            drop(desk.log.finish(&id).await);
        }
        desk.observer.tell(Point::Finished, Some(&id), None);
    }
    drop(active);
    if !pending.is_empty() {
        desk.wake.notify_one();
    }
    if damaged.is_empty() {
        return Ok(Committed { id, pending });
    }
    let branches = damaged.into_iter().map(|(whose, found)| format!("{whose} was {found}")).collect();
    Err(Error::Damaged { id, branches })
}

async fn commit_one(desk: Arc<Desk>, open: Open, proof: Option<String>) -> Settled {
    let Open { name, mut session, .. } = open;
    let whose = name.participant.as_str();
    desk.observer.tell(Point::Committing, Some(&name.id), Some(whose));
    let settled = if timed(ANSWER_MAX, session.commit_own(&name)).await.is_ok() {
        Settled::Done
    } else {
        desk.observer.tell(Point::Unanswered, Some(&name.id), Some(whose));
        // The session is of no more use, and on MariaDB its end frees the branch for others.
        drop(session);
        let again = async {
            let mut session = desk.connect(whose).await.map_err(|it| Trouble::Said(it.to_string()))?;
            session.settle(&name, Ruling::Commit, proof.as_deref()).await
        };
        let settled = timed(ANSWER_MAX, again).await;
        let settled = settled.unwrap_or_else(|it| Settled::Pending(it.to_string()));
        beyond_doubt(&desk, &name, Ruling::Commit, settled)
            .await
            .unwrap_or_else(|it| Settled::Pending(it.to_string()))
    };
    if settled == Settled::Done {
        desk.observer.tell(Point::Committed, Some(&name.id), Some(whose));
    }
    settled
}

/// Damage only if nobody has finished the transaction meanwhile: whoever finishes it removes the witnesses that we look for.
pub(crate) async fn beyond_doubt(
    desk: &Desk,
    name: &BranchName,
    expected: Ruling,
    settled: Settled,
) -> Result<Settled> {
    if !matches!(settled, Settled::Damaged(_)) {
        return Ok(settled);
    }
    let (record, forgotten) = desk.log.look(&name.id).await?;
    if record.as_ref().is_some_and(|it| it.ruling != expected) {
        return Ok(Settled::Pending("somebody ruled otherwise meanwhile".into()));
    }
    let finished = record.map_or(forgotten, |it| it.finished);
    if !finished {
        return Ok(settled);
    }
    let noted = desk
        .log
        .damages()
        .await?
        .into_iter()
        .find(|it| it.id == name.id && it.participant == name.participant);
    Ok(noted.map_or(Settled::Done, |it| Settled::Damaged(it.found)))
}

/// Keep the evidence of a branch that did the opposite.
pub(crate) async fn note_damage(
    desk: &Desk,
    id: &TransactionId,
    participant: &str,
    expected: Ruling,
    found: &str,
) -> Result<()> {
    let (participant, found, seen) = (participant.to_owned(), found.to_owned(), time_of_day().as_secs());
    desk.log.damage(Damage { id: id.clone(), participant, expected, found, seen }).await
}
