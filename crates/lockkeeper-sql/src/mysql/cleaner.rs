//! The cleaner: now and then one of all processes removes what dead ones left.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::Clock;

use super::Store;
use crate::name::micros_up;
use crate::retry;

/// For how long a lock's row stays after its last use. Its counter does not need it: that never falls behind
/// the clock. Longer than any clock is likely to be set back.
const IDLE: Duration = Duration::from_secs(3600);

/// Clean as often as the options say, until the store is gone.
pub(crate) fn start(store: &Arc<Store>) {
    let (weak, every) = (Arc::downgrade(store), store.links.options.common.clean_every);
    store.links.home().spawn(clean(weak, every));
}

async fn clean(weak: Weak<Store>, every: Duration) {
    let clock = Clock::boot();
    loop {
        // Not all processes of a deployment at the same moment.
        clock.sleep(retry::pause(0, every, every)).await;
        let Some(store) = weak.upgrade() else { return };
        let sql = format!("CALL lockkeeper_clean_2({}, {})", micros_up(every), micros_up(IDLE));
        // A fault here is met again by the next verb, which can tell it.
        let _ = store.links.ask("cleaning", &sql).await;
    }
}
