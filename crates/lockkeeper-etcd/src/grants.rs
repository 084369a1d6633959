//! What this process was granted, and how far it has seen the store's history: both tell whether the store went back.
//!
//! A snapshot that was restored is a history that ends earlier. If the latest write of ours that still shows is there,
//! all earlier ones are; so one key stands for all that we hold.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use lockkeeper_core::ClaimId;
use lockkeeper_core::kit::locked;

/// How far we have seen the store's revisions come, by answers to writes. Acquire and Release are more than enough: whatever is read
/// here was answered before, and an old value only means that a store that went back is noticed by the next beat.
#[derive(Debug, Default)]
pub(crate) struct History(AtomicI64);

impl History {
    /// A write was answered at this revision.
    pub(crate) fn saw(&self, revision: i64) {
        self.0.fetch_max(revision, Ordering::AcqRel);
    }

    /// No write that is sent from now on is answered at a smaller one, unless the store went back.
    pub(crate) fn reached(&self) -> i64 {
        self.0.load(Ordering::Acquire)
    }

    /// The store went back to this revision; nothing of what was seen before counts any more.
    pub(crate) fn went_back_to(&self, revision: i64) {
        self.0.store(revision, Ordering::Release);
    }
}

/// What a claim was granted.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    /// The revision that created its key: its number in line.
    pub(crate) own: i64,
    pub(crate) counter: u64,
    pub(crate) key: Bytes,
    /// The revision of the last write to its key: the one that let it in, or by which it went on as a reader.
    pub(crate) written_at: i64,
}

/// The grants of this process. A claim that asks twice must hear the same counter twice.
#[derive(Debug, Default)]
pub(crate) struct Grants(Mutex<HashMap<ClaimId, Granted>>);

impl Grants {
    /// A claim was let in.
    pub(crate) fn remember(&self, id: ClaimId, granted: Granted) {
        locked(&self.0).insert(id, granted);
    }

    /// The key of a claim that was let in was written once more.
    pub(crate) fn rewrote(&self, id: ClaimId, revision: i64) {
        if let Some(granted) = locked(&self.0).get_mut(&id) {
            granted.written_at = revision;
        }
    }

    /// The counter of a claim that was let in with this number in line.
    pub(crate) fn remembered(&self, id: ClaimId, own: i64) -> Option<u64> {
        locked(&self.0).get(&id).filter(|it| it.own == own).map(|it| it.counter)
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        locked(&self.0).remove(&id);
    }

    /// The latest.
    pub(crate) fn newest(&self) -> Option<Granted> {
        locked(&self.0).values().max_by_key(|it| it.written_at).cloned()
    }
}
