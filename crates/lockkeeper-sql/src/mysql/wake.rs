//! How `changed` resolves: MySQL cannot call anybody, so whoever waits looks at the line.
//!
//! A look takes no lock and writes nothing. The next in line looks at a pace that follows how long others hold;
//! those behind look less often.

use std::time::Duration;

use super::place::{MysqlPlace, NOW, RECHECK_MIN, bytes};
use crate::name::span;

/// A holder is in no hurry to hear that somebody wants the lock: its renewals tell it, too.
const PAUSE_HOLDING: Duration = Duration::from_millis(100);

impl MysqlPlace {
    /// Pause and look until asking is worthwhile.
    pub(super) async fn look_until_changed(&mut self) {
        let clock = self.store.links.clock.clone();
        if !self.waiting && self.knows_wanted {
            // There is nothing left to hear but that it is lost, which the renewals tell.
            return std::future::pending().await;
        }
        let mut pause = if self.waiting { self.pace.last() } else { PAUSE_HOLDING };
        loop {
            clock.sleep(pause).await;
            match self.look().await {
                None => return,
                Some(longer) => pause = longer,
            }
        }
    }

    /// Look at the line: how long to pause if nothing has changed.
    async fn look(&mut self) -> Option<Duration> {
        let most = self.claim.ttl / 3;
        let (lock, id) = (bytes(&self.lock), bytes(self.claim.id.as_bytes()));
        let sql = format!(
            "SELECT COALESCE(MAX(m.held), \
             (SELECT 1 FROM lockkeeper_lock WHERE `lock` = {lock} AND id = {id} AND expires > {NOW}), -1), \
             COALESCE(SUM(NOT c.held AND c.seq < m.seq), 0), \
             COALESCE(SUM(NOT c.held AND m.seq < c.seq), 0), \
             COALESCE(MIN(IF(c.seq < m.seq, c.expires, NULL)), 9223372036854775807) - {NOW} \
             FROM lockkeeper_claim AS c LEFT JOIN lockkeeper_claim AS m ON m.`lock` = c.`lock` AND m.id = {id} \
             WHERE c.`lock` = {lock}"
        );
        let seen = self.store.links.numbers("looking", &sql).await;
        let Ok([state, waiting_before, waiting_behind, expiry]) = seen.as_deref() else {
            // Let the next `turn` meet the fault: it can tell it.
            return Some(most);
        };
        match (self.waiting, state) {
            (true, 0) if 0 < *expiry => {
                let pause = self.pace.pause(self.store.links.clock.now(), *waiting_before, most);
                Some(pause.min(span(*expiry)).max(RECHECK_MIN))
            }
            (false, 1) if *waiting_behind == 0 => Some(PAUSE_HOLDING.max(self.claim.ttl / 10)),
            _ => None,
        }
    }
}
