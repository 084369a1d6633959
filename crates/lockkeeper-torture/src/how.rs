//! How guards came: from the store, from the holder before in the same process, or again after they had stayed idle.
//!
//! The torture counts grants; this tells how many of them a store had a part in.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper::observe::{Answer, Event, GrantedBy, Observer, Verb};
use lockkeeper::spi::{Clock, Moment};

use crate::log::Log;

/// Told by the locker before the guard is with its caller; asked once by the caller.
#[derive(Clone)]
pub(crate) struct How(Arc<Shared>);

struct Shared {
    clock: Clock,
    log: Arc<Log>,
    came: Mutex<HashMap<(String, u64), GrantedBy>>,
    /// Since when our place in the store's line of a lock is known to be there.
    stands: Mutex<HashMap<String, Moment>>,
}

impl fmt::Debug for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("How").finish_non_exhaustive()
    }
}

impl How {
    pub(crate) fn new(clock: Clock, log: Arc<Log>) -> Self {
        How(Arc::new(Shared { clock, log, came: Mutex::default(), stands: Mutex::default() }))
    }

    /// In a word, for the guard of this key with this fence.
    pub(crate) fn came(&self, key: &str, fence: u64) -> &'static str {
        let mut told = self.0.came.lock().unwrap_or_else(PoisonError::into_inner);
        match told.remove(&(key.to_owned(), fence)) {
            Some(GrantedBy::Store) => "store",
            Some(GrantedBy::HandOn) => "hand-on",
            Some(GrantedBy::Warm) => "warm",
            // Readers of a process share a fence, and the first who asks takes what was told of all.
            _ => "joined",
        }
    }

    /// The store has told us to wait: our place is there. Whoever asks later comes later.
    fn stands(&self, key: &str) {
        let mut stands = self.0.stands.lock().unwrap_or_else(PoisonError::into_inner);
        if !stands.contains_key(key) {
            stands.insert(key.to_owned(), self.0.clock.now());
        }
    }

    /// The place may be another from now on; since when the old one was there.
    fn stands_no_more(&self, key: &str) -> Option<Moment> {
        self.0.stands.lock().unwrap_or_else(PoisonError::into_inner).remove(key)
    }
}

impl Observer for How {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Asked { key, verb: Verb::Turn, answer: Answer::Wait, .. } => self.stands(key.as_str()),
            Event::Granted { key, fence, by, .. } => {
                let at = (key.as_str().to_owned(), fence.get());
                self.0.came.lock().unwrap_or_else(PoisonError::into_inner).insert(at, *by);
                if *by == GrantedBy::Store
                    && let Some(from) = self.stands_no_more(key.as_str())
                {
                    self.0.log.stood(from, self.0.clock.now(), key.as_str());
                }
            }
            // Whoever goes away may have had the place, and the next of us begins at the end of the line.
            Event::Withdrawn { key, .. }
            | Event::TimedOut { key, .. }
            | Event::Failed { key, .. }
            | Event::Faulted { key, .. }
            | Event::Lost { key, .. } => drop(self.stands_no_more(key.as_str())),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::Result;

    use super::*;

    fn how(folder: &tempfile::TempDir) -> (How, std::path::PathBuf) {
        let path = folder.path().join("w.history");
        let log = Log::create(&path).map(Arc::new);
        (How::new(Clock::boot(), log.unwrap_or_else(|it| panic!("{it}"))), path)
    }

    #[test]
    fn each_way_has_its_word_and_is_told_once() -> Result<()> {
        let folder = tempfile::tempdir().unwrap_or_else(|it| panic!("{it}"));
        let (how, _) = how(&folder);
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

    #[test]
    fn how_long_a_process_stood_in_line_counts_from_the_first_time_it_was_told_to_wait() {
        let folder = tempfile::tempdir().unwrap_or_else(|it| panic!("{it}"));
        let (how, _) = how(&folder);
        let clock = Clock::boot();
        how.stands("k");
        let told = clock.now();
        while clock.now() == told {}
        how.stands("k");
        assert!(how.stands_no_more("k").is_some_and(|since| since <= told));
        assert!(how.stands_no_more("k").is_none(), "the next place is a new one");
    }
}
