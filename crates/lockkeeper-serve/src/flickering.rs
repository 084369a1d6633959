//! For tests: the view of a store that can be seen or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::{Key, Memory};

/// Hidden and looked at by one test, which does one after the other: Relaxed is enough.
#[derive(Clone, Debug)]
pub(crate) struct Flickering {
    store: Memory,
    is_hidden: Arc<AtomicBool>,
}

impl Flickering {
    pub(crate) fn of(store: &Memory) -> Self {
        Flickering { store: store.clone(), is_hidden: Arc::default() }
    }

    pub(crate) fn hide(&self, yes: bool) {
        self.is_hidden.store(yes, Ordering::Relaxed);
    }

    fn can_see(&self) -> Result<()> {
        let hidden = self.is_hidden.load(Ordering::Relaxed);
        if hidden { Err(Fault::transient("test", "looking", "it cannot be seen")) } else { Ok(()) }
    }
}

impl Inspect for Flickering {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.can_see()?;
        Inspect::list(&self.store, prefix).await
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        self.can_see()?;
        Inspect::show(&self.store, key).await
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        Inspect::break_lock(&self.store, key).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Inspect::doctor(&self.store).await
    }
}
