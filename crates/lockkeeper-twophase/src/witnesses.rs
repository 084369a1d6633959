//! Witnesses beside the log: what they prove where it has no row, and when they are forgotten.

use std::collections::BTreeMap;

use futures_util::future::join_all;

use crate::error::Result;
use crate::id::{BranchName, TransactionId};
use crate::log::{Decision, Ruling};
use crate::office::Desk;
use crate::participant::{ANSWER_MAX, Trouble, WITNESSES, timed};
use crate::phases::note_damage;
use crate::survey::write_late;
use crate::sweep::Sessions;

/// The note of a decision that was written again.
const AGAIN: &str = "the log had lost it";

/// Of these transactions, which have no row, those of which some branch has committed: their decisions, written again. Nobody
/// commits before the decision, so there was one. The log was set back, to a backup or to a server that was behind, and that
/// is kept as a damage: what else it has lost nobody knows.
pub(crate) async fn restore(
    desk: &Desk,
    fence: u64,
    undecided: &[TransactionId],
    prepared: &[BranchName],
    sessions: &mut Sessions,
) -> Result<Vec<Decision>> {
    let proven = proven(desk, undecided, sessions).await?;
    let mut restored = Vec::new();
    for (id, whose) in proven {
        let branches: Vec<BranchName> = prepared.iter().filter(|it| it.id == id).cloned().collect();
        // First the row: a damage without one tells of a person who has told one branch alone.
        restored.push(write_late(desk, &id, &branches, fence, AGAIN).await?);
        for participant in whose {
            let found =
                "committed, and the log had no row of it; it was set back, perhaps by a backup or a failover";
            note_damage(desk, &id, &participant, Ruling::Abort, found).await?;
        }
    }
    Ok(restored)
}

/// Who has committed which of these, but for what a person has told one branch alone. A session that does not answer is of no more
/// use.
async fn proven(
    desk: &Desk,
    undecided: &[TransactionId],
    sessions: &mut Sessions,
) -> Result<BTreeMap<TransactionId, Vec<String>>> {
    let mut proven: BTreeMap<TransactionId, Vec<String>> = BTreeMap::new();
    if undecided.is_empty() {
        return Ok(proven);
    }
    let asked = sessions.iter_mut().map(|(name, session)| async move {
        (name.clone(), timed(ANSWER_MAX, session.witnessed(undecided)).await)
    });
    for (name, answer) in join_all(asked).await {
        let Ok(found) = answer else {
            sessions.remove(&name);
            continue;
        };
        for id in found {
            proven.entry(id).or_default().push(name.clone());
        }
    }
    if !proven.is_empty() {
        let damages = desk.log.damages().await?;
        for (id, whose) in &mut proven {
            whose.retain(|name| !damages.iter().any(|it| it.id == *id && it.participant == *name));
        }
        proven.retain(|_, whose| !whose.is_empty());
    }
    Ok(proven)
}

/// Forget the witnesses of transactions about which nobody will ask any more, at all participants at once. What fails is done
/// next time.
pub(crate) async fn forget(
    desk: &Desk,
    sessions: &mut Sessions,
    seat: u32,
    ours: &impl Fn(&TransactionId) -> bool,
) {
    let beginning = format!("lk1.{}.{seat}.", desk.log.id.0);
    // Before the rows: who deletes one raises this with it. A witness without a row that is younger is all that is left of a
    // decision that the log has lost.
    let Ok(until) = desk.log.forgotten().await else { return };
    let of_log = |it: crate::error::Error| Trouble::Said(it.to_string());
    let each = sessions.iter_mut().map(|(name, session)| {
        let beginning = &beginning;
        let forgotten = async move {
            let mut last = String::new();
            loop {
                let found = session.witnesses(beginning, &last).await?;
                let ids: Vec<TransactionId> = found.iter().filter_map(|it| it.parse().ok()).collect();
                let rows = desk.log.looks(ids.clone()).await.map_err(of_log)?;
                let is_over = |it: &TransactionId| {
                    ours(it) && rows.get(it).map_or(it.begun() <= until, |row| row.finished)
                };
                let over: Vec<&TransactionId> = ids.iter().filter(|it| is_over(it)).collect();
                for id in
                    over.iter().filter(|it| rows.get(**it).is_some_and(|row| row.ruling == Ruling::Abort))
                {
                    let found = "committed all the same";
                    note_damage(desk, id, name, Ruling::Abort, found).await.map_err(of_log)?;
                }
                if !over.is_empty() {
                    session.forget(&over.iter().map(|it| it.as_str().to_owned()).collect::<Vec<_>>()).await?;
                }
                // Only of so many there may be more.
                match found.last() {
                    Some(it) if found.len() == WITNESSES => last.clone_from(it),
                    _ => return Ok(()),
                }
            }
        };
        timed(ANSWER_MAX, forgotten)
    });
    drop(join_all(each).await);
}
