//! The operator's view: who holds what, who waits, and breaking a lock by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::admission;
use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::record::{Record, segment_of};
use lockkeeper_core::{Fence, Key};

use crate::fault;
use crate::wire::kv_client::KvClient;
use crate::wire::lease_client::LeaseClient;
use crate::wire::{
    KeyValue, LeaseTimeToLiveRequest, RangeRequest, TxnRequest, created_at, delete, one, range_end,
};
use crate::{Etcd, doctor};

const LOOKING: &str = "looking at the locks";
const BREAKING: &str = "breaking the lock";
/// Keys read at a time.
const PAGE: i64 = 1000;

/// One claim as it lies in the store.
struct Found {
    kv: KeyValue,
    record: Record,
}

impl Etcd {
    /// All claims whose keys begin with `prefix`, by key.
    async fn claims(&self, prefix: String, doing: &'static str) -> Result<Vec<Found>> {
        let prefix = Bytes::from(prefix);
        let (mut found, mut from, end) = (Vec::new(), prefix.clone(), range_end(&prefix));
        loop {
            let page = RangeRequest { range_end: end.clone(), limit: PAGE, ..one(&from) };
            let call = |channel, request| async move { KvClient::new(channel).range(request).await };
            let page = self.0.connection.call(page, call).await;
            let page = page.map_err(|it| fault::from_status(doing, &it))?;
            if let Some(last) = page.kvs.last() {
                from = [&last.key[..], b"\0"].concat().into();
            }
            let claims = page.kvs.into_iter();
            found.extend(claims.filter_map(|kv| Some(Found { record: Record::read(&kv.value)?, kv })));
            if !page.more {
                return Ok(found);
            }
        }
    }

    /// How long each lease has left, as the leader knows it.
    async fn leases(&self, found: &[Found]) -> BTreeMap<i64, Duration> {
        let mut left = BTreeMap::new();
        for id in found.iter().map(|it| it.kv.lease) {
            if left.contains_key(&id) {
                continue;
            }
            let ask = LeaseTimeToLiveRequest { id, keys: false };
            let call =
                |channel, request| async move { LeaseClient::new(channel).lease_time_to_live(request).await };
            let answer = self.0.connection.call(ask, call).await;
            let seconds = answer.map_or(0, |it| u64::try_from(it.ttl).unwrap_or(0));
            left.insert(id, Duration::from_secs(seconds));
        }
        left
    }

    fn line_of(&self, key: &Key) -> String {
        format!("{}/locks/{}/", self.0.prefix(), segment_of(key.as_str()))
    }
}

/// The locks of these claims.
fn infos(found: Vec<Found>, leases: &BTreeMap<i64, Duration>) -> Vec<LockInfo> {
    let mut lines: BTreeMap<Key, Vec<Found>> = BTreeMap::new();
    for claim in found {
        lines.entry(claim.record.key.clone()).or_default().push(claim);
    }
    let info = |(key, line): (Key, Vec<Found>)| {
        let (inside, line) = in_order(line);
        let mut occupants = line.into_iter().enumerate().map(|(at, it)| {
            let valid_for = leases.get(&it.kv.lease).copied().unwrap_or_default();
            occupant(it, valid_for, at < inside)
        });
        let holders = occupants.by_ref().take(inside).collect();
        LockInfo::new(key, holders, occupants.collect())
    };
    lines.into_iter().map(info).collect()
}

/// A line in its order, and how many of it are inside.
fn in_order(mut line: Vec<Found>) -> (usize, Vec<Found>) {
    line.sort_by_key(|it| it.kv.create_revision);
    let loads: Vec<_> = line.iter().map(|it| it.record.load).collect();
    (admission::inside(&loads), line)
}

fn occupant(found: Found, valid_for: Duration, holds: bool) -> Occupant {
    // The write that let it in was the last to its key.
    let counter = u64::try_from(found.kv.mod_revision).unwrap_or(0);
    Occupant::new(found.record.label, valid_for)
        .fence(holds.then(|| Fence::of_grant(counter)))
        .load(found.record.load)
}

impl Inspect for Etcd {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let range = format!("{}/locks/{}", self.0.prefix(), segment_of(prefix));
        let found = self.claims(range, LOOKING).await?;
        let leases = self.leases(&found).await;
        Ok(infos(found, &leases))
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let found = self.claims(self.line_of(key), LOOKING).await?;
        let leases = self.leases(&found).await;
        Ok(infos(found, &leases).pop())
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let found = self.claims(self.line_of(key), BREAKING).await?;
        let leases = self.leases(&found).await;
        let (inside, line) = in_order(found);
        let mut broken = Vec::new();
        for holder in line.into_iter().take(inside) {
            let txn = TxnRequest {
                compare: vec![created_at(&holder.kv.key, holder.kv.create_revision)],
                success: vec![delete(&holder.kv.key)],
                failure: Vec::new(),
            };
            let answer = self.0.connection.txn(txn).await.map_err(|it| fault::from_status(BREAKING, &it))?;
            if answer.succeeded {
                let valid_for = leases.get(&holder.kv.lease).copied().unwrap_or_default();
                broken.push(occupant(holder, valid_for, true));
            }
        }
        Ok(broken)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(&self.0.connection).await
    }
}
