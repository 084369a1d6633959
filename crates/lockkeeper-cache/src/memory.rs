//! A cache in this process.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Moment};

use crate::cache::{Cache, Found};
use crate::error::CacheError;

/// A cache in this process, of a bounded number of entries. When it is full, whatever expires first makes room.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_cache::CacheError> {
/// use lockkeeper_cache::{Cache as _, MemoryCache};
///
/// let cache = MemoryCache::new(10_000);
/// cache.put("product/42", Some(&"a lamp"), Duration::from_secs(60)).await?;
/// let found = cache.get("product/42").await?.expect("it was just put there");
/// assert_eq!(found.value, Some("a lamp"));
/// assert!(found.expires_in <= Duration::from_secs(60));
/// assert_eq!(cache.len(), 1);
/// # Ok(())
/// # }
/// ```
pub struct MemoryCache<V> {
    clock: Clock,
    entries_max: usize,
    shelves: Mutex<Shelves<V>>,
}

struct Shelves<V> {
    entries: HashMap<Arc<str>, Entry<V>>,
    /// The same keys, first to expire first.
    ends: BTreeSet<(Moment, Arc<str>)>,
}

struct Entry<V> {
    value: Option<V>,
    ends: Moment,
}

impl<V> fmt::Debug for MemoryCache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCache").field("entries", &self.len()).finish_non_exhaustive()
    }
}

impl<V> MemoryCache<V> {
    /// An empty cache for at most so many entries.
    pub fn new(entries_max: usize) -> Self {
        MemoryCache::with_clock(entries_max, Clock::boot())
    }

    /// The same on another clock. For tests.
    pub fn with_clock(entries_max: usize, clock: Clock) -> Self {
        let shelves = Shelves { entries: HashMap::new(), ends: BTreeSet::new() };
        MemoryCache { clock, entries_max: entries_max.max(1), shelves: Mutex::new(shelves) }
    }

    /// How many entries it holds, expired ones that nobody asked for included.
    pub fn len(&self) -> usize {
        locked(&self.shelves).entries.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V> Shelves<V> {
    fn remove(&mut self, key: &str) {
        if let Some((key, entry)) = self.entries.remove_entry(key) {
            self.ends.remove(&(entry.ends, key));
        }
    }

    /// Remove what has expired, and more if there is no room.
    fn make_room(&mut self, now: Moment, entries_max: usize) {
        while let Some((ends, key)) = self.ends.first()
            && (*ends <= now || entries_max <= self.entries.len())
        {
            self.entries.remove(key);
            self.ends.pop_first();
        }
    }
}

impl<V: Clone + Send + Sync> Cache<V> for MemoryCache<V> {
    async fn get(&self, key: &str) -> Result<Option<Found<V>>, CacheError> {
        let now = self.clock.now();
        let shelves = locked(&self.shelves);
        let entry = shelves.entries.get(key).filter(|it| now < it.ends);
        Ok(entry.map(|it| Found { value: it.value.clone(), expires_in: it.ends - now }))
    }

    async fn put(&self, key: &str, value: Option<&V>, expires_in: Duration) -> Result<(), CacheError> {
        let now = self.clock.now();
        let mut shelves = locked(&self.shelves);
        shelves.remove(key);
        shelves.make_room(now, self.entries_max);
        let (key, ends): (Arc<str>, _) = (key.into(), now.after(expires_in));
        shelves.ends.insert((ends, key.clone()));
        shelves.entries.insert(key, Entry { value: value.cloned(), ends });
        Ok(())
    }

    async fn remove(&self, key: &str) -> Result<(), CacheError> {
        locked(&self.shelves).remove(key);
        Ok(())
    }
}
