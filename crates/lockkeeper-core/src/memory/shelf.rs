//! Where memos inside this process lie.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::key::Key;
use crate::kit::locked;
use crate::spi::memos::{Memo, Swap};

#[derive(Default)]
pub(super) struct Shelf {
    kept: Mutex<Kept>,
    /// Rung with every write; whoever hears it looks whether it was meant.
    pub(super) bell: Notify,
}

#[derive(Default)]
struct Kept {
    memos: HashMap<Key, (Memo, Moment)>,
    /// The last version given to any key.
    version: u64,
}

impl Shelf {
    /// The memo at `now`, and when its time is over.
    pub(super) fn at(&self, key: &Key, now: Moment) -> Option<(Memo, Moment)> {
        locked(&self.kept).memos.get(key).filter(|it| now < it.1).cloned()
    }

    pub(super) fn swap(
        &self,
        key: &Key,
        seen: Option<u64>,
        value: &[u8],
        now: Moment,
        keep: Duration,
    ) -> Swap {
        let mut kept = locked(&self.kept);
        let Kept { memos, version } = &mut *kept;
        memos.retain(|_, it| now < it.1);
        let there = memos.get(key).map(|it| &it.0);
        if there.map(|it| it.version) != seen {
            return Swap::Conflict(there.cloned());
        }
        *version += 1;
        let version = *version;
        if keep.is_zero() {
            memos.remove(key);
        } else {
            memos.insert(key.clone(), (Memo::new(version, value.to_vec()), now.after(keep)));
        }
        drop(kept);
        self.bell.notify_waiters();
        Swap::Done(version)
    }
}
