//! The lines as they lie in the store: claims, what is not ours among them, and the fences of those inside.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::admission;
use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{LockInfo, Occupant};
use lockkeeper_core::record::{Record, key_of};
use lockkeeper_core::{Fence, Key};

use crate::fault;
use crate::fences::base_of;
use crate::lower::counter_in;
use crate::store::Store;
use crate::wire::kv_client::KvClient;
use crate::wire::lease_client::LeaseClient;
use crate::wire::{KeyValue, LeaseTimeToLiveRequest, RangeRequest, RangeResponse, one, range_end};

/// Keys read at a time.
const PAGE: i64 = 1000;

/// One claim as it lies in the store.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) kv: KeyValue,
    record: Record,
}

/// One line: the claims in it in their order, and what stands among them and is not ours.
#[derive(Default)]
pub(crate) struct Line {
    pub(crate) claims: Vec<Found>,
    foreign: Vec<KeyValue>,
}

/// All that was found below a prefix.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) lines: BTreeMap<Key, Line>,
    /// What is in no line at all.
    pub(crate) elsewhere: Vec<String>,
}

impl Lines {
    /// Read what lies below `<prefix>/locks/` and begins with `from` there.
    pub(crate) async fn read(store: &Store, from: &str, doing: &'static str) -> Result<Self> {
        let root = format!("{}/locks/", store.prefix());
        let prefix = Bytes::from(format!("{root}{from}"));
        let (mut lines, mut next, end) = (Lines::default(), prefix.clone(), range_end(&prefix));
        loop {
            let page = RangeRequest { range_end: end.clone(), limit: PAGE, ..one(&next) };
            let page = read(store, page).await.map_err(|it| fault::from_status(doing, &it))?;
            if let Some(last) = page.kvs.last() {
                next = [&last.key[..], b"\0"].concat().into();
            }
            page.kvs.into_iter().for_each(|kv| lines.add(kv, root.len()));
            if !page.more {
                break;
            }
        }
        for line in lines.lines.values_mut() {
            line.claims.sort_by_key(|it| it.kv.create_revision);
        }
        Ok(lines)
    }

    fn add(&mut self, kv: KeyValue, root: usize) {
        let name = std::str::from_utf8(&kv.key[root..]).unwrap_or_default();
        let Some(key) = name.split_once('/').and_then(|it| key_of(it.0)) else {
            return self.elsewhere.push(shown(&kv.key));
        };
        let record = Record::read(&kv.value).filter(|it| it.key == key);
        let line = self.lines.entry(key).or_default();
        match record {
            Some(record) => line.claims.push(Found { kv, record }),
            None => line.foreign.push(kv),
        }
    }

    /// The locks, by name.
    pub(crate) async fn infos(self, store: &Store) -> Vec<LockInfo> {
        let leases = leases(store, self.lines.values().flat_map(|it| &it.claims)).await;
        let inside = self.lines.values().flat_map(|it| it.claims[..it.inside()].iter());
        let fences = fences(store, inside.map(|it| it.kv.mod_revision).collect()).await;
        let info = |(key, line): (Key, Line)| {
            let (inside, foreign) = (line.inside(), line.foreign_names());
            let mut occupants = line.claims.into_iter().enumerate().map(|(at, it)| {
                let fence = fence_of(&it, &fences).filter(|_| at < inside);
                occupant(it, &leases).fence(fence)
            });
            let holders = occupants.by_ref().take(inside).collect();
            let mut info = LockInfo::new(key, holders, occupants.collect());
            info.foreign = foreign;
            info
        };
        self.lines.into_iter().map(info).collect()
    }
}

impl Line {
    /// How many claims, counted from the front, are inside. Whoever wants all of the room is kept out by whatever was
    /// there before.
    pub(crate) fn inside(&self) -> usize {
        let loads: Vec<_> = self.claims.iter().map(|it| it.record.load).collect();
        let first = self.foreign.iter().map(|it| it.create_revision).min().unwrap_or(i64::MAX);
        let free = |it: &&Found| it.record.load.capacity != 1 || it.kv.create_revision < first;
        admission::inside(&loads).min(self.claims.iter().take_while(free).count())
    }

    /// The names of what is not ours.
    pub(crate) fn foreign_keys(&self) -> impl Iterator<Item = String> {
        self.foreign.iter().map(|it| shown(&it.key))
    }

    /// What is not ours, and what to do.
    fn foreign_names(&self) -> Vec<String> {
        let named = |it| format!("the key {it} is no claim of ours and keeps others out; delete it");
        self.foreign_keys().map(named).collect()
    }
}

/// Somebody as an operator sees him, without a fence.
fn occupant(found: Found, leases: &BTreeMap<i64, Duration>) -> Occupant {
    let valid_for = leases.get(&found.kv.lease).copied().unwrap_or_default();
    Occupant::new(found.record.label, valid_for).load(found.record.load)
}

/// Those who were inside of a line, as an operator sees them.
pub(crate) async fn occupants(store: &Store, found: Vec<Found>) -> Vec<Occupant> {
    let leases = leases(store, &found).await;
    let fences = fences(store, found.iter().map(|it| it.kv.mod_revision).collect()).await;
    let fence = |it: &Found| fence_of(it, &fences);
    found.into_iter().map(|it| (fence(&it), it)).map(|it| occupant(it.1, &leases).fence(it.0)).collect()
}

/// That of the write that let it in: the last to its key, or else what it says itself.
fn fence_of(found: &Found, fences: &BTreeMap<i64, Fence>) -> Option<Fence> {
    let told = counter_in(&found.kv.value).map(Fence::of_grant);
    told.or_else(|| fences.get(&found.kv.mod_revision).copied())
}

async fn read(store: &Store, range: RangeRequest) -> std::result::Result<RangeResponse, tonic::Status> {
    let call = |channel, request| async move { KvClient::new(channel).range(request).await };
    store.connection.call(range, call).await
}

/// How long each lease has left, as the leader knows it.
async fn leases<'a>(store: &Store, found: impl IntoIterator<Item = &'a Found>) -> BTreeMap<i64, Duration> {
    let ids: Vec<i64> = found.into_iter().map(|it| it.kv.lease).collect();
    let mut left = BTreeMap::new();
    for id in ids {
        if left.contains_key(&id) {
            continue;
        }
        let ask = LeaseTimeToLiveRequest { id, keys: false };
        let call =
            |channel, request| async move { LeaseClient::new(channel).lease_time_to_live(request).await };
        let answer = store.connection.call(ask, call).await;
        let seconds = answer.map_or(0, |it| u64::try_from(it.ttl).unwrap_or(0));
        left.insert(id, Duration::from_secs(seconds));
    }
    left
}

/// The fences that belong to the writes at these revisions, each with the base of its time. What the store has
/// compacted away is not known any more.
async fn fences(store: &Store, mut revisions: Vec<i64>) -> BTreeMap<i64, Fence> {
    revisions.sort_unstable_by(|one, other| other.cmp(one));
    revisions.dedup();
    let (mut fences, mut known) = (BTreeMap::new(), None::<(i64, u64)>);
    for (at, revision) in revisions.into_iter().enumerate() {
        if known.is_none_or(|it| revision < it.0) {
            // The present one first: it is there also when all else is compacted.
            let mut kvs = Vec::new();
            if at == 0 {
                kvs = read(store, store.fences.look()).await.map_or(Vec::new(), |it| it.kvs);
            }
            if kvs.first().is_none_or(|it| revision < it.mod_revision) {
                let then = RangeRequest { revision, ..store.fences.look() };
                kvs = read(store, then).await.map_or(Vec::new(), |it| it.kvs);
            }
            known = kvs.first().and_then(|it| Some((it.mod_revision, base_of(it)?)));
        }
        if let Some((_, base)) = known.filter(|it| it.0 <= revision) {
            let counter = base.saturating_add(u64::try_from(revision).unwrap_or(0));
            fences.insert(revision, Fence::of_grant(counter));
        }
    }
    fences
}

/// A name in the store, for people.
fn shown(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}
