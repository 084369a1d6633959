//! Recovery: whoever takes a seat finishes what its last holder left, and every office looks at abandoned seats.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::kit::locked;

use crate::error::Result;
use crate::id::{TransactionId, ending};
use crate::office::Desk;
use crate::participant::{ANSWER_MAX, WITNESSES, timed};
use crate::sweep::sweep;

/// The first pause before what was left is tried again; it doubles.
const FIRST: Duration = Duration::from_millis(100);

/// Something that could not be finished yet. It is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// The transaction, if it is known; `None` if the participant could not even be asked.
    pub id: Option<TransactionId>,
    /// Who has not done its part.
    pub participant: String,
    /// Why not.
    pub why: String,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => write!(f, "{id} at {}: {}", self.participant, self.why),
            None => write!(f, "{}: {}", self.participant, self.why),
        }
    }
}

/// Look at abandoned seats, and try again what was left, for as long as the office is there.
pub(crate) async fn sweeper(desk: Arc<Desk>, every: Duration) {
    let clock = Clock::boot();
    let mut pause = FIRST;
    let mut next = clock.now().after(every);
    loop {
        let calm = locked(&desk.left).0.is_empty();
        let due = if calm { next } else { next.min(clock.now().after(pause)) };
        pause = if calm { FIRST } else { pause.saturating_mul(2).min(every) };
        // Whichever ends first: the next round looks at everything.
        let _ = clock.within(due, std::pin::pin!(desk.wake.notified())).await;
        let left = sweep(&desk, desk.own(), true).await.unwrap_or_else(|it| vec![of_log(&it)]);
        locked(&desk.left).0 = left;
        if next <= clock.now() {
            next = clock.now().after(every);
            let left = others(&desk).await.unwrap_or_else(|it| vec![of_log(&it)]);
            locked(&desk.left).1 = left;
            // Not forgotten now is forgotten later.
            drop(desk.log.forget(desk.remember, None).await);
            drop(forget_marks(&desk).await);
        }
    }
}

/// Forget the transactions that participants committed alone, when they are old enough. First the log says so.
async fn forget_marks(desk: &Desk) -> Result<()> {
    let until = time_of_day().saturating_sub(desk.remember).as_secs();
    let (beginning, ending) = (format!("lk1.{}.", desk.log.id.0), ending(until));
    for name in desk.participants.keys() {
        let Ok(mut session) = desk.connect(name).await else { continue };
        loop {
            let Ok(old) = timed(ANSWER_MAX, session.old_marks(&beginning, &ending)).await else { break };
            if old.is_empty() {
                break;
            }
            desk.log.forget_until(until.saturating_sub(1)).await?;
            // Only of so many there may be more.
            let forgotten = timed(ANSWER_MAX, session.forget_marks(&old)).await;
            if forgotten.is_err() || old.len() < WITNESSES {
                break;
            }
        }
    }
    Ok(())
}

fn of_log(error: &crate::error::Error) -> Left {
    Left { id: None, participant: String::from("the log or the lock store"), why: error.to_string() }
}

/// Finish what the holders of other seats left who are gone.
pub(crate) async fn others(desk: &Arc<Desk>) -> Result<Vec<Left>> {
    let mut left = Vec::new();
    for (seat, _) in desk.log.seats().await? {
        if seat == desk.own().0 {
            continue;
        }
        let Some((fence, guard)) = desk.take(seat).await? else { continue };
        left.extend(sweep(desk, (seat, fence), false).await?);
        // Its ttl frees it as well.
        drop(guard.release().await);
    }
    Ok(left)
}

/// As long as an office has no seat of its own, `own` is 0 and no seat is left out by that.
pub(crate) async fn every_seat(desk: &Arc<Desk>) -> Result<(Vec<Left>, Vec<u32>)> {
    let (mut left, mut busy) = (Vec::new(), Vec::new());
    for (seat, _) in desk.log.seats().await? {
        match desk.take(seat).await? {
            Some((fence, guard)) => {
                left.extend(sweep(desk, (seat, fence), false).await?);
                drop(guard.release().await);
            }
            None => busy.push(seat),
        }
    }
    Ok((left, busy))
}
