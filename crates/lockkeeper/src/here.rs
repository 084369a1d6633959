//! The operator's view of a store, which works in the process that opened the store and says so elsewhere.

use std::fmt;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::inspect::{Broken, Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::{Fence, Key};
use lockkeeper_fork::Origin;

/// A view that knows where it was made. In a fork the connections are the parent's, and no thread moves them.
pub(crate) struct Here<I> {
    inspect: I,
    store: &'static str,
    made_in: Origin,
}

impl<I> Here<I> {
    pub(crate) fn new(inspect: I, store: &'static str) -> Self {
        Here { inspect, store, made_in: Origin::here() }
    }

    fn view(&self, doing: &'static str) -> Result<&I> {
        if self.made_in.is_here() {
            return Ok(&self.inspect);
        }
        let pid = self.made_in.pid();
        let why = format!("it was opened in process {pid} and came here by a fork; open it in this process");
        Err(Fault::permanent(self.store, doing, why))
    }
}

impl<I: fmt::Debug> fmt::Debug for Here<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inspect.fmt(f)
    }
}

impl<I: Inspect> Inspect for Here<I> {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.view("listing the locks")?.list(prefix).await
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        self.view("looking at the lock")?.show(key).await
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        self.view("breaking the lock")?.break_lock(key).await
    }

    async fn break_holder(&self, key: &Key, fence: Fence) -> Result<Broken> {
        self.view("breaking the lock")?.break_holder(key, fence).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.view("looking at the store")?.doctor().await
    }
}
