//! Work that several want at the same time: done once, by a task of its own, for all of them.
//!
//! Whoever began it may stop being polled at any time, because its runtime stands still. The task goes on, and
//! nobody else waits for a lock that the first one holds.

use std::fmt;
use std::future::Future;
use std::sync::Mutex;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use lockkeeper_core::backend::Fault;
use lockkeeper_core::kit::locked;

use crate::fault;

type Work<T> = Shared<BoxFuture<'static, Result<T, Fault>>>;

pub(crate) struct Joint<T>(Mutex<Option<Work<T>>>);

impl<T> Default for Joint<T> {
    fn default() -> Self {
        Joint(Mutex::default())
    }
}

impl<T> fmt::Debug for Joint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Joint")
    }
}

impl<T: Clone + Send + Sync + 'static> Joint<T> {
    /// Wait for the work that is under way, or begin it on the present runtime.
    pub(crate) async fn join<F>(&self, doing: &'static str, begin: impl FnOnce() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let work = {
            let mut under_way = locked(&self.0);
            match under_way.as_ref().filter(|it| it.peek().is_none()) {
                Some(work) => work.clone(),
                None => under_way.insert(start(begin())).clone(),
            }
        };
        work.await.map_err(|it| it.while_doing(doing))
    }
}

fn start<T: Clone + Send + Sync + 'static>(
    work: impl Future<Output = Result<T, Fault>> + Send + 'static,
) -> Work<T> {
    let task = tokio::spawn(work);
    let done = task.map(|done| {
        let gone = |_| Err(Fault::transient(fault::NAME, "connecting", "the runtime is shutting down"));
        done.unwrap_or_else(gone)
    });
    done.boxed().shared()
}
