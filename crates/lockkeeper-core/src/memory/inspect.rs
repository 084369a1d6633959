//! The operator's view of the store inside this process.

use crate::clock::Moment;
use crate::fence::Fence;
use crate::key::Key;
use crate::kit::locked;
use crate::memory::{Entry, Memory, Row};
use crate::spi::backend::Result;
use crate::spi::inspect::{Broken, Finding, Inspect, LockInfo, Occupant};

impl Inspect for Memory {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let now = self.0.clock.now();
        let mut infos = Vec::new();
        for shard in &self.0.shards {
            let mut shard = locked(shard);
            for row in shard.rows.iter_mut().filter(|it| it.key.as_str().starts_with(prefix)) {
                row.forget_expired(now);
                infos.extend(info(row, now));
            }
        }
        infos.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(infos)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        Ok(self.with_row(key, |row, now| info(row, now)))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        Ok(self.with_row(key, |row, now| {
            let held = row.held.len();
            (0..held).map(|_| occupant(&row.take_away(0), now)).collect()
        }))
    }

    async fn break_holder(&self, key: &Key, fence: Fence) -> Result<Broken> {
        Ok(self.with_row(key, |row, now| {
            let at = row.held.iter().position(|it| it.counter == fence.counter());
            at.map_or(Broken::Changed, |at| Broken::Lost(occupant(&row.take_away(at), now)))
        }))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

fn info(row: &Row, now: Moment) -> Option<LockInfo> {
    let holders: Vec<_> = row.held.iter().map(|it| occupant(it, now)).collect();
    let waiters: Vec<_> = row.line.iter().map(|it| occupant(it, now)).collect();
    let anybody = !(holders.is_empty() && waiters.is_empty());
    anybody.then(|| LockInfo::new(row.key.clone(), holders, waiters))
}

fn occupant(entry: &Entry, now: Moment) -> Occupant {
    Occupant::new((*entry.label).clone(), entry.expires_at - now)
        .since(Some(now - entry.since))
        .fence((entry.counter != 0).then(|| Fence::of_grant(entry.counter)))
        .load(entry.load)
}
