//! How guards came: from the store, from the holder before in the same process, or again after they had stayed idle.
//!
//! The torture counts grants; this tells how many of them a store had a part in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper::observe::{Event, GrantedBy, Observer};

/// Told by the locker before the guard is with its caller; asked once by the caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct How(Arc<Mutex<HashMap<(String, u64), GrantedBy>>>);

impl How {
    /// In a word, for the guard of this key with this fence.
    pub(crate) fn came(&self, key: &str, fence: u64) -> &'static str {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match told.remove(&(key.to_owned(), fence)) {
            Some(GrantedBy::Store) => "store",
            Some(GrantedBy::HandOn) => "hand-on",
            Some(GrantedBy::Warm) => "warm",
            // Readers of a process share a fence, and the first who asks takes what was told of all.
            _ => "joined",
        }
    }
}

impl Observer for How {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Granted { key, fence, by, .. } = event {
            let at = (key.as_str().to_owned(), fence.get());
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(at, *by);
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::Result;

    use super::*;

    #[test]
    fn each_way_has_its_word_and_is_told_once() -> Result<()> {
        let how = How::default();
        let locker = lockkeeper::open_blocking("memory:")?.locker.warm(true).observer(how.clone()).build();
        let words = || -> Result<[&'static str; 2]> {
            let guard = locker.lock("k").blocking()?;
            let fence = guard.fence().get();
            guard.release_blocking()?;
            Ok([how.came("k", fence), how.came("k", fence)])
        };
        assert_eq!(words()?, ["store", "joined"]);
        assert_eq!(words()?, ["warm", "joined"]);
        Ok(())
    }
}
