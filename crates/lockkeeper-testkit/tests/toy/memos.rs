//! Memos of the toy store.

use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::memos::{Memo, Memos, Swap};
use lockkeeper_core::{Key, Moment, backend};

use super::{Flaw, Toy};

/// What is kept, and until when.
pub(super) type Kept = (Memo, Moment);

impl Toy {
    fn memo(&self, key: &Key) -> Option<Memo> {
        let store = locked(&self.store);
        if self.is(Flaw::MemoIsTheLock) && store.rows.get(key.as_str()).is_some_and(|it| !it.held.is_empty())
        {
            return Some(Memo::new(0, Vec::new()));
        }
        let kept = store.memos.get(key.as_str())?;
        (self.clock.now() < kept.1 || self.is(Flaw::MemoNeverForgotten)).then(|| kept.0.clone())
    }
}

impl Memos for Toy {
    async fn read(&self, key: &Key) -> backend::Result<Option<Memo>> {
        Ok(self.memo(key))
    }

    async fn swap(
        &self,
        key: &Key,
        seen: Option<u64>,
        value: &[u8],
        keep: Duration,
    ) -> backend::Result<Swap> {
        let there = self.memo(key);
        if there.as_ref().map(|it| it.version) != seen && !self.is(Flaw::MemoWrittenBlindly) {
            return Ok(Swap::Conflict(there));
        }
        let mut store = locked(&self.store);
        store.versions += 1;
        let repeats = self.is(Flaw::MemoVersionRepeats);
        let version = if repeats { there.map_or(1, |it| it.version + 1) } else { store.versions };
        let keep = if self.is(Flaw::MemoForgottenEarly) { keep / 4 } else { keep };
        if keep.is_zero() {
            if !self.is(Flaw::MemoNotRemoved) {
                store.memos.remove(key.as_str());
            }
        } else if !self.is(Flaw::MemoNotKept) {
            let kept = (Memo::new(version, value.to_vec()), self.clock.now().after(keep));
            store.memos.insert(key.as_str().to_owned(), kept);
        }
        Ok(Swap::Done(version))
    }

    async fn changed(&self, _key: &Key, _seen: Option<u64>) {
        std::future::pending::<()>().await;
    }
}
