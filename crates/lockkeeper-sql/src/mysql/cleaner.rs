//! The cleaner: now and then one of all processes removes what dead ones left.
//!
//! Also those processes clean that do not live long: a store that is opened when a cleaning is due begins with it. Each
//! time only so many locks are looked at, and the next one goes on from there.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::backend::Result;

use super::Store;
use crate::name::micros_up;
use crate::retry;

/// For how long a lock's row stays after its last use. Its counter does not need it: that never falls behind
/// the clock. Longer than any clock is likely to be set back.
const IDLE: Duration = Duration::from_secs(3600);

/// How many locks are looked at in one go.
const MOST: u32 = 2000;

/// Clean as often as the options say, until the store is gone.
pub(crate) fn start(store: &Arc<Store>) {
    let (weak, every) = (Arc::downgrade(store), store.links.options.common.clean_every);
    store.links.home().spawn(clean(weak, every));
}

/// Look at some of the locks, if that is due. `true` means that there are more to look at.
pub(crate) async fn clean_some(store: &Store) -> Result<bool> {
    let every = micros_up(store.links.options.common.clean_every);
    let sql = format!("CALL lockkeeper_clean_4({every}, {}, {MOST})", micros_up(IDLE));
    let answer = store.links.ask("cleaning", &sql).await?;
    let more: Option<i64> = answer.iter().flatten().find_map(|it| it.get_opt(2)?.ok());
    Ok(more == Some(1))
}

async fn clean(weak: Weak<Store>, every: Duration) {
    let clock = Clock::boot();
    let mut pause = every;
    loop {
        // Not all processes of a deployment at the same moment.
        clock.sleep(retry::pause(0, pause, pause)).await;
        let Some(store) = weak.upgrade() else { return };
        // A fault here is met again by the next verb, which can tell it.
        let more = clean_some(&store).await.unwrap_or(false);
        pause = if more { every / 10 } else { every };
    }
}
