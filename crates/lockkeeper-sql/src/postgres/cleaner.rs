//! The cleaner: now and then one of all processes removes what dead ones left. Each then also looks whether its server is
//! still the one that all should use.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::Clock;
use tokio_postgres::types::Type;

use super::keeper::Keeper;
use super::session::Param;
use super::way::Way;
use crate::name::micros_up;
use crate::retry;

const CLEANING: &str = "cleaning";

/// For how long a lock's row stays after its last use. Its counter does not need it: that never falls behind
/// the clock. Longer than any clock is likely to be set back.
const IDLE: Duration = Duration::from_secs(3600);

/// The most lines in one statement: it goes by the connection of the renewals and must not hold them up.
const MOST: i64 = 100;

/// The pause between two such statements, for as long as there is more to remove.
const BREATH: Duration = Duration::from_millis(20);

/// Clean as often as the options say, until the keeper is gone.
pub(crate) fn start(keeper: &Arc<Keeper>) {
    let weak = Arc::downgrade(keeper);
    keeper.runtime().spawn(clean_on(weak));
}

async fn clean_on(weak: Weak<Keeper>) {
    let clock = Clock::boot();
    while let Some(every) = weak.upgrade().map(|it| it.way().shared.options.common.clean_every) {
        // Not all processes of a deployment at the same moment.
        clock.sleep(retry::pause(0, every, every)).await;
        let Some(keeper) = weak.upgrade() else { return };
        let way = keeper.way().clone();
        drop(keeper);
        way.shared.dialer.look().await;
        while clean(&way).await {
            clock.sleep(BREATH).await;
        }
    }
}

/// Clean a little now, unless somebody did so shortly before and left nothing. `true` if there is more to remove.
pub(crate) async fn clean(way: &Arc<Way>) -> bool {
    let common = &way.shared.options.common;
    let params: [Param<'_>; 3] =
        [(&micros_up(common.clean_every), Type::INT8), (&micros_up(IDLE), Type::INT8), (&MOST, Type::INT8)];
    // A fault here is met again by the next verb, which can tell it.
    let answer = way.ask(CLEANING, &way.shared.sql.clean, &params, common.timeout).await;
    let removed = answer.and_then(|it| it.numbers(CLEANING)).unwrap_or_default();
    removed.iter().any(|it| MOST <= *it)
}
