//! How guards came: from the store, from the holder before in the same process, or again after they had stayed idle.
//!
//! The torture counts grants; this tells how many of them a store had a part in.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::observe::{Answer, Event, GrantedBy, Observer, Verb};
use lockkeeper::spi::{Clock, Moment};

use crate::log::Log;

/// Told by the locker before the guard is with its caller; asked once by the caller.
#[derive(Clone)]
pub(crate) struct How(Arc<Shared>);

struct Shared {
    clock: Clock,
    log: Arc<Log>,
    /// Of the locks: for so long a place is promised after it was asked for.
    ttl: Duration,
    came: Mutex<HashMap<(String, u64), GrantedBy>>,
    /// Our places in the store's lines.
    stands: Mutex<HashMap<String, Stand>>,
}

/// A place in the store's line of a lock.
#[derive(Clone, Copy)]
struct Stand {
    /// Since when it is known to be there.
    since: Moment,
    /// When it was asked for last.
    asked: Moment,
}

impl fmt::Debug for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("How").finish_non_exhaustive()
    }
}

impl How {
    pub(crate) fn new(clock: Clock, log: Arc<Log>, ttl: Duration) -> Self {
        How(Arc::new(Shared { clock, log, ttl, came: Mutex::default(), stands: Mutex::default() }))
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

    /// The store has told us to wait, when we asked at this moment: our place is there. Whoever asks later comes later.
    fn stands(&self, key: &str, asked: Moment) {
        let now = self.0.clock.now();
        let mut stands = self.0.stands.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever has not asked for longer than a place is kept may have another by now.
        let kept = stands.get(key).filter(|it| now < it.asked.after(self.0.ttl));
        let since = kept.map_or(now, |it| it.since);
        stands.insert(key.to_owned(), Stand { since, asked });
    }

    /// The place may be another from now on; since when and until when the old one was surely there.
    fn stands_no_more(&self, key: &str) -> Option<(Moment, Moment)> {
        let mut stands = self.0.stands.lock().unwrap_or_else(PoisonError::into_inner);
        let Stand { since, asked } = stands.remove(key)?;
        Some((since, self.0.clock.now().min(asked.after(self.0.ttl))))
    }
}

impl Observer for How {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Asked { key, verb: Verb::Turn, answer: Answer::Wait, took, .. } => {
                self.stands(key.as_str(), self.0.clock.now().before(*took));
            }
            Event::Granted { key, fence, by, .. } => {
                let at = (key.as_str().to_owned(), fence.get());
                self.0.came.lock().unwrap_or_else(PoisonError::into_inner).insert(at, *by);
                if *by == GrantedBy::Store
                    && let Some((from, until)) = self.stands_no_more(key.as_str())
                {
                    self.0.log.stood(from, until, key.as_str());
                }
            }
            // Whoever goes away may have had the place, and the next of us begins at the end of the line. A try that is told to
            // wait never had one.
            Event::Busy { key, .. }
            | Event::Withdrawn { key, .. }
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
        let log = log.unwrap_or_else(|it| panic!("{it}"));
        (How::new(Clock::boot(), log, Duration::from_secs(60)), path)
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
        let now = Clock::boot().now();
        how.stands("k", now);
        let told = Clock::boot().now();
        while Clock::boot().now() == told {}
        how.stands("k", Clock::boot().now());
        assert!(how.stands_no_more("k").is_some_and(|(since, until)| since <= told && told < until));
        assert!(how.stands_no_more("k").is_none(), "the next place is a new one");
    }

    #[test]
    fn a_place_that_was_not_asked_for_within_its_ttl_is_taken_for_no_place() {
        let folder = tempfile::tempdir().unwrap_or_else(|it| panic!("{it}"));
        let (how, _) = how(&folder);
        let (clock, ttl) = (Clock::boot(), how.0.ttl);
        let long_ago = clock.now().before(ttl * 2);
        how.stands("k", long_ago);
        assert!(
            how.stands_no_more("k").is_some_and(|(since, until)| until < since),
            "the answer came when the place may have been gone"
        );
        how.stands("k", long_ago);
        let between = clock.now();
        while clock.now() == between {}
        how.stands("k", clock.now());
        assert!(how.stands_no_more("k").is_some_and(|(since, _)| between < since), "it may be another");
    }

    #[test]
    fn a_try_that_is_told_to_wait_stands_nowhere() -> Result<()> {
        let folder = tempfile::tempdir().unwrap_or_else(|it| panic!("{it}"));
        let (how, path) = how(&folder);
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let one = lockkeeper::open_blocking(&url)?.locker.build();
        let two = lockkeeper::open_blocking(&url)?.locker.observer(how.clone()).build();
        let held = one.lock("k").blocking()?;
        assert!(two.try_lock("k").blocking()?.is_none());
        assert!(how.stands_no_more("k").is_none(), "others may be given it as often as they like");
        held.release_blocking()?;
        two.lock("k").blocking()?.release_blocking()?;
        let said = std::fs::read_to_string(path).unwrap_or_else(|it| panic!("{it}"));
        assert!(!said.contains("stood"), "{said}");
        Ok(())
    }
}
