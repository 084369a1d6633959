//! Memos at the far end of a post: letters that outlive their senders, and signs that are late or never come.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::backend::{Backend, Result};
use lockkeeper_core::memos::{DynMemos, Memo, Swap};

use super::post::Post;

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The memos of a store behind a post.
pub(super) struct PostedMemos<B> {
    pub(super) memos: Arc<dyn DynMemos>,
    pub(super) post: Post<B>,
}

impl<B> fmt::Debug for PostedMemos<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostedMemos").field(&self.memos).finish()
    }
}

impl<B: Backend> DynMemos for PostedMemos<B> {
    fn read<'a>(&'a self, key: &'a Key) -> Boxed<'a, Result<Option<Memo>>> {
        let (memos, key) = (self.memos.clone(), key.clone());
        Box::pin(self.post.carry(async move { memos.read(&key).await }))
    }

    fn swap<'a>(
        &'a self,
        key: &'a Key,
        seen: Option<u64>,
        value: &'a [u8],
        keep: Duration,
    ) -> Boxed<'a, Result<Swap>> {
        let (memos, key, value) = (self.memos.clone(), key.clone(), value.to_vec());
        Box::pin(self.post.carry(async move { memos.swap(&key, seen, &value, keep).await }))
    }

    fn changed<'a>(&'a self, key: &'a Key, seen: Option<u64>) -> Boxed<'a, ()> {
        Box::pin(async move {
            let Some(delay) = self.post.draw_sign() else { return std::future::pending().await };
            self.memos.changed(key, seen).await;
            self.post.clock.sleep(delay).await;
        })
    }
}
