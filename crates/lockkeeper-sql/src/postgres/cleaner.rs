//! The cleaner: now and then one of all processes removes what dead ones left.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::Clock;
use tokio_postgres::types::Type;

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
        // A fault here is met again by the next verb, which can tell it.
        let _ = store.clean(every, IDLE).await;
    }
}

impl Store {
    /// Clean now, unless somebody did so less than `every` ago. Answers how many claims and idle lock rows went.
    pub(crate) async fn clean(
        &self,
        every: Duration,
        idle: Duration,
    ) -> lockkeeper_core::backend::Result<Vec<i64>> {
        let sql = format!("SELECT {}.lockkeeper_clean_1($1, $2)", self.links.options.schema);
        let params = [(&micros_up(every) as _, Type::INT8), (&micros_up(idle) as _, Type::INT8)];
        self.links.numbers("cleaning", &sql, &params).await
    }
}
