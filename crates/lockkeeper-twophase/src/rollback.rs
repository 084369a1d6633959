//! Rolling back: branches that nobody waits for any more, those that have promised, and those of which nobody knows.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_core::Clock;

use crate::id::BranchName;
use crate::log::Ruling;
use crate::observe::Point;
use crate::office::{Active, Desk};
use crate::participant::{Settled, Vote, timed};
use crate::phases::{Voted, beyond_doubt, note_damage};
use crate::work::Open;

/// How long the roll-back of what nobody waits for may take before the end of its session does it.
pub(crate) const UNDO_MAX: Duration = Duration::from_secs(5);
/// How long it may take before the server is told to leave off what it does.
const UNDO_SOON: Duration = Duration::from_millis(250);
/// Between two questions to a log that does not answer.
const DOUBT: Duration = Duration::from_millis(200);

/// Roll back branches that are not prepared, all at once. Some may be in the middle of a statement that nobody waits for any
/// more: their servers are told, or it would go on, and keep its rows locked, for as long as it takes.
pub(crate) async fn abandon(desk: Arc<Desk>, active: Active, open: Vec<Open>) {
    let told = &desk;
    let undone = open.into_iter().map(|mut it| async move {
        let desk = told;
        desk.observer.tell(Point::RollingBack, Some(&it.name.id), Some(&it.name.participant));
        if undo(desk, &mut it).await {
            desk.observer.tell(Point::RolledBack, Some(&it.name.id), Some(&it.name.participant));
        }
    });
    join_all(undone).await;
    desk.observer.tell(Point::Aborted, Some(&active.id), None);
}

/// Whether it has said so. One that does not say so soon is told in another session to leave off what it does.
async fn undo(desk: &Arc<Desk>, open: &mut Open) -> bool {
    let Open { name, session, stop, .. } = open;
    let mut undo = std::pin::pin!(async {
        session.undo(name).await;
        Ok(())
    });
    if timed(UNDO_SOON, undo.as_mut()).await.is_ok() {
        return true;
    }
    let stopped = stop.take().map(|sql| {
        let (desk, whose) = (desk.clone(), name.participant.clone());
        // It goes on if we do not wait for it.
        desk.handle.clone().spawn(async move {
            if let Ok(mut session) = desk.connect(&whose).await {
                drop(timed(UNDO_MAX, session.run(&sql)).await);
            }
        })
    });
    let undone = async {
        if let Some(stopped) = stopped {
            drop(stopped.await);
        }
        undo.await
    };
    // The end of the session does the same, as soon as its statement has ended.
    timed(UNDO_MAX, undone).await.is_ok()
}

/// What became of a branch that was rolled back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undone {
    /// It is.
    Yes,
    /// The end of its session does it.
    Soon,
    /// It may still be prepared.
    Perhaps,
}

/// Roll back what is prepared, and what may be. What does not answer is left to the sweep.
pub(crate) async fn roll_back(desk: &Arc<Desk>, active: Active, voted: Vec<Voted>) {
    let tasks: Vec<_> =
        voted.into_iter().map(|it| desk.handle.spawn(roll_back_one(desk.clone(), it))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.unwrap_or(Undone::Perhaps));
    }
    let id = active.id.clone();
    if all.contains(&Undone::Perhaps) {
        // As long as it is prepared a person could rule to commit it, alone: the others are rolled back.
        let ruled = desk.handle.spawn(settle_doubt(desk.clone(), active));
        // Before the caller hears it, if the log answers soon.
        let ruled = async {
            drop(ruled.await);
            Ok(())
        };
        drop(timed(UNDO_MAX, ruled).await);
    } else {
        drop(active);
        if all.contains(&Undone::Soon) {
            desk.wake.notify_one();
        }
    }
    desk.observer.tell(Point::Aborted, Some(&id), None);
}

async fn roll_back_one(desk: Arc<Desk>, Voted { mut open, vote }: Voted) -> Undone {
    if matches!(vote, Ok(Vote::ReadOnly)) {
        return Undone::Yes;
    }
    desk.observer.tell(Point::RollingBack, Some(&open.name.id), Some(&open.name.participant));
    let undone = if matches!(vote, Ok(Vote::Prepared(_))) {
        let settled = open.session.settle(&open.name, Ruling::Abort, None);
        match timed(UNDO_MAX, settled).await {
            Ok(Settled::Done) => Undone::Yes,
            Ok(settled) => note_if_damaged(&desk, &open.name, settled).await,
            Err(_) => Undone::Perhaps,
        }
    } else {
        undo(&desk, &mut open).await;
        match vote {
            Ok(_) => Undone::Yes,
            Err(it) if it.is_refusal() => Undone::Soon,
            // It may be prepared all the same. The session's end frees it, and the sweep looks for it.
            Err(_) => Undone::Perhaps,
        }
    };
    desk.observer.tell(Point::RolledBack, Some(&open.name.id), Some(&open.name.participant));
    undone
}

/// A branch that did not follow was perhaps committed by somebody else.
async fn note_if_damaged(desk: &Desk, name: &BranchName, settled: Settled) -> Undone {
    if let Ok(Settled::Damaged(found)) = beyond_doubt(desk, name, Ruling::Abort, settled).await {
        // What cannot be noted is told to nobody else: the caller hears that all is rolled back, as it was decided.
        drop(note_damage(desk, &name.id, &name.participant, Ruling::Abort, &found).await);
    }
    Undone::Perhaps
}

/// Nobody knows what the log says, or it must say abort: ask until it has answered. The sweep then does what it says.
pub(crate) async fn settle_doubt(desk: Arc<Desk>, active: Active) {
    while desk.log.rule_abort(&active.id).await.is_err() {
        Clock::boot().sleep(DOUBT).await;
    }
    drop(active);
    desk.wake.notify_one();
}
