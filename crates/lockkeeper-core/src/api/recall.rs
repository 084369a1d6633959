//! A try on what may be idle in another process: it stands in line for a moment, so that its holder hears of it.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::ask::Ask;
use crate::engine::contest::{self, Contest};
use crate::engine::hold::Hold;
use crate::engine::leave::step_down;
use crate::engine::line::Arrival;
use crate::engine::shared::Engine;
use crate::engine::warm::arrive;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::spi::backend::Profile;
use crate::spi::claim::Label;

/// How long a try waits for a lock that may be idle elsewhere: where its holder is notified, and where it looks by itself.
const RECALL_WAIT: Duration = Duration::from_millis(50);
const LOOK_WAIT: Duration = Duration::from_millis(150);
/// The longest wait, however far away the store is.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// Stand in line for a moment. `trip` is how long the store took to say that the lock is taken.
pub(super) async fn recall(
    engine: &Arc<Engine>,
    key: &Key,
    ask: &Ask,
    label: Arc<Label>,
    trip: Duration,
) -> Result<Option<Hold>> {
    let now = engine.clock.now();
    let mut leaving = None;
    match arrive(engine, key, ask, now, &mut leaving) {
        Arrival::Represent => {}
        Arrival::Held(held) | Arrival::Retaken(held) | Arrival::Joined(held, _) => return Ok(Some(held)),
        // Others of us have come meanwhile.
        _ => return Ok(None),
    }
    let ask = Ask { patient: true, ..ask.clone() };
    let keeper = contest::enter(engine, key, &ask, label).inspect_err(|_| step_down(engine, key, None))?;
    let span = moment(&engine.profile, trip);
    let until = now.after(span);
    // What was given back in the meantime may not have been told yet: some servers are late with that now and then.
    let mut contest = Contest::new(engine, key, &ask, keeper).asking_within(span / 2);
    contest.after(leaving, until).await;
    match contest.win(now, until).await {
        Err(Error::TimedOut { .. }) => Ok(None),
        answer => answer,
    }
}

/// Our request, the call, the give-back and the grant are four times half a trip; twice that, because others are busy, too.
fn moment(profile: &Profile, trip: Duration) -> Duration {
    let least = if profile.notifies { RECALL_WAIT } else { LOOK_WAIT };
    (trip * 4).clamp(least, WAIT_MAX)
}

#[cfg(test)]
mod tests {
    use crate::spi::backend::Reach;

    use super::*;

    #[test]
    fn a_try_waits_longer_where_the_store_is_far_away_and_never_for_long() {
        let (told, looking) =
            (Profile::new("told", Reach::Network).notifying(), Profile::new("looking", Reach::Network));
        let ms = Duration::from_millis;
        for (trip, at_told, at_looking) in
            [(0, 50, 150), (12, 50, 150), (30, 120, 150), (50, 200, 200), (900, 250, 250)]
        {
            assert_eq!(moment(&told, ms(trip)), ms(at_told), "{trip}");
            assert_eq!(moment(&looking.looking(), ms(trip)), ms(at_looking), "{trip}");
        }
    }
}
