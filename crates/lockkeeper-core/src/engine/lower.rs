//! Lowering: the tenure of one who writes becomes one of readers, where it stands.
//!
//! ```text
//!  begin ─▶ the only guard? ─▶ the store: weigh less ─▶ confirmed, or unknown for too long ─▶ queue: readers of us join
//! ```
//!
//! From the moment at which the store may have heard of it, whoever wrote is a reader, whatever the answer is: that is
//! true in either case. An unknown answer is asked for again in the background, and until then others only wait longer.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::engine::hold::Hold;
use crate::engine::leave::{leave_with, lose};
use crate::engine::line::Lowering;
use crate::engine::renewal::listen;
use crate::engine::shared::Engine;
use crate::engine::tenure::{Returned, Tenure};
use crate::error::{Error, LostReason, Result};
use crate::observe::{Answer, Event, Verb};
use crate::spi::claim::Load;

/// Before a store that failed is asked again.
const PAUSE: Duration = Duration::from_millis(5);

/// Begin to share what this guard holds. What comes back resolves when the store has answered; `None` if it is not asked.
///
/// # Errors
/// If it cannot be shared: then nothing has changed.
pub(crate) fn begin(engine: &Arc<Engine>, held: &Hold) -> Result<Option<oneshot::Receiver<()>>> {
    let tenure = &held.tenure;
    if !tenure.is_private && !engine.profile.lowers {
        let what = "let a writer go on as a reader: release the lock and read, or use another store";
        return Err(Error::unsupported(engine.profile.name, what));
    }
    match engine.queue.begin_lowering(tenure) {
        Lowering::Begun => {}
        Lowering::Nested => {
            return Err(Error::invalid(format!(
                "its owner holds \"{}\" more than once; give the inner guards back before the outer one is downgraded",
                tenure.key
            )));
        }
        Lowering::Gone => {
            let reason = tenure.lost().unwrap_or(LostReason::Expired);
            return Err(Error::Lost { fence: held.fence, reason });
        }
    }
    if tenure.is_private {
        share(engine, tenure);
        return Ok(None);
    }
    let (told, answered) = oneshot::channel();
    engine.background.spawn(lower(engine.clone(), tenure.clone(), told));
    Ok(Some(answered))
}

/// Readers of this process may join from now on. Twice is harmless.
pub(crate) fn share(engine: &Engine, tenure: &Arc<Tenure>) {
    engine.tell(engine.queue.lowered(tenure));
    // The guard that wrote is over: whoever awaits its loss is told.
    tenure.guard_over();
}

/// Say it to the store until it answers, or the tenure is over.
async fn lower(engine: Arc<Engine>, tenure: Arc<Tenure>, told: oneshot::Sender<()>) {
    let give_up = engine.clock.now().after(engine.settings.outage_max);
    let (mut told, mut pause) = (Some(told), PAUSE);
    while let Some(place) = tenure.take_when_resting().await {
        let asked_at = engine.now_if_observed();
        let (place, answer) = place.lower_dyn(Load::READER).await;
        engine.answered(&tenure.key, Verb::Lower, asked_at, Answer::to_lower(&answer));
        if let Returned::Ended(place) = tenure.bring_back(place) {
            return leave_with(&engine, &tenure, place).await;
        }
        listen(&engine, &tenure);
        renew_soon(&engine, &tenure);
        let (is_known, is_over) = match &answer {
            Ok(true) => (true, false),
            Ok(false) => {
                lose(&engine, &tenure, LostReason::Taken);
                return;
            }
            Err(fault) => {
                engine.observe(&Event::Faulted { key: &tenure.key, verb: Verb::Lower, fault });
                (!fault.is_transient(), give_up <= engine.clock.now())
            }
        };
        if (is_known || is_over)
            && let Some(told) = told.take()
        {
            share(&engine, &tenure);
            let _ = told.send(());
        }
        if is_known {
            return;
        }
        engine.clock.sleep(pause).await;
        pause = (pause * 2).min(tenure.ttl / 10).max(PAUSE);
    }
}

/// A round that came while the place was out renewed nothing.
fn renew_soon(engine: &Engine, tenure: &Tenure) {
    let now = engine.clock.now();
    if tenure.valid_until() < now.after(tenure.ttl / 2) {
        tenure.set_renew_at(now);
        engine.schedule.no_later_than(now);
    }
}
