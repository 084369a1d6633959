//! The operator's view: who holds what, who waits, and breaking a lock by hand.

use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Broken, Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::record::segment_of;
use lockkeeper_core::{Fence, Key};

use crate::lines::{Found, Lines, occupants};
use crate::wire::{TxnRequest, created_at, delete};
use crate::{Etcd, doctor, fault};

const LOOKING: &str = "looking at the locks";
const BREAKING: &str = "breaking the lock";

fn line_of(key: &Key) -> String {
    format!("{}/", segment_of(key.as_str()))
}

impl Inspect for Etcd {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        Ok(Lines::read(&self.0, &segment_of(prefix), LOOKING).await?.infos(&self.0).await)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        Ok(Lines::read(&self.0, &line_of(key), LOOKING).await?.infos(&self.0).await.pop())
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let Some(mut line) = Lines::read(&self.0, &line_of(key), BREAKING).await?.lines.remove(key) else {
            return Ok(Vec::new());
        };
        line.claims.truncate(line.inside());
        let mut broken = Vec::new();
        for holder in line.claims {
            if self.take_away(&holder).await? {
                broken.push(holder);
            }
        }
        Ok(occupants(&self.0, broken).await)
    }

    async fn break_holder(&self, key: &Key, fence: Fence) -> Result<Broken> {
        let Some(mut line) = Lines::read(&self.0, &line_of(key), BREAKING).await?.lines.remove(key) else {
            return Ok(Broken::Changed);
        };
        line.claims.truncate(line.inside());
        let seen = occupants(&self.0, line.claims.clone()).await;
        for (holder, occupant) in line.claims.iter().zip(seen) {
            // Its key is its own: nobody else stands there, whoever holds the lock by now.
            if occupant.fence == Some(fence) && self.take_away(holder).await? {
                return Ok(Broken::Lost(occupant));
            }
        }
        Ok(Broken::Changed)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(&self.0).await
    }
}

impl Etcd {
    /// Remove a holder's key, if it is still the one that was seen.
    async fn take_away(&self, holder: &Found) -> Result<bool> {
        let txn = TxnRequest {
            compare: vec![created_at(&holder.kv.key, holder.kv.create_revision)],
            success: vec![delete(&holder.kv.key)],
            failure: Vec::new(),
        };
        let answer = self.0.connection.txn(txn).await.map_err(|it| fault::from_status(BREAKING, &it))?;
        Ok(answer.succeeded)
    }
}
