//! Splitting a hot lock: one resource over several locks, so that several callers work at a time.
//!
//! Stock of 1,000 pieces behind one lock is sold one buyer at a time. As ten buckets of 100 pieces, ten buyers are
//! served at a time, each under the lock of one bucket. `docs/guides/splitting-hot-locks.md` tells when that helps
//! and what it costs.

use std::time::Duration;

use crate::api::guard::Guard;
use crate::api::locker::Locker;
use crate::api::request::LockRequest;
use crate::error::{Error, Result};
use crate::key::Key;

/// The most buckets of one resource.
pub const BUCKETS_MAX: usize = 4096;

/// One resource over several locks.
///
/// ```
/// # use lockkeeper_core::{Locker, Memory};
/// # use lockkeeper_core::buckets::{Buckets, Start};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # let locker = Locker::new(Memory::default());
/// let stock = Buckets::new(&locker, "stock/42", 8)?;
/// let mut sweep = stock.sweep(Start::by("account 7"));
/// while let Some(bucket) = sweep.next_free().await? {
///     // … sell a piece of bucket.index(), under bucket.guard(); if it has one, stop …
///     bucket.guard().check()?;
///     break;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Buckets {
    locker: Locker,
    keys: Vec<Key>,
}

/// Where to look first.
///
/// ```
/// use lockkeeper_core::buckets::Start;
///
/// assert_eq!(Start::by("account 7"), Start::by("account 7"));
/// assert_ne!(Start::by("account 7"), Start::by("account 8"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// Anywhere: spreads callers evenly.
    Random,
    /// This bucket, counted around.
    At(usize),
}

impl Start {
    /// Always the same bucket for the same text or bytes: in every process, on every machine, with every version of
    /// this library. Spreads them evenly, and one caller finds the bucket that it used before.
    ///
    /// A number goes in as text or as bytes of a fixed order: `Start::by(id.to_string())`, `Start::by(id.to_be_bytes())`.
    pub fn by(thing: impl AsRef<[u8]>) -> Self {
        // Half of the bits are plenty for 4096 buckets, and fit everywhere.
        Start::At((mixed(fnv_1a(thing.as_ref())) >> 32) as usize)
    }
}

/// A hash that is written down and never changes, unlike those of hash maps: FNV-1a of 64 bits.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// FNV-1a of short texts that differ at their ends differs mostly in its lower bits: spread that over all of them, by
/// the last step of Murmur 3, another hash.
fn mixed(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// A bucket that is held.
///
/// ```
/// # use std::time::Duration;
/// # use lockkeeper_core::{Locker, Memory};
/// # use lockkeeper_core::buckets::{Buckets, Start};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # let locker = Locker::new(Memory::default());
/// let stock = Buckets::new(&locker, "stock/42", 8)?;
/// let bucket = stock.lock(Start::At(11), Duration::from_secs(3)).await?;
/// assert_eq!(bucket.index(), 3); // counted around
/// assert_eq!(bucket.guard().key().as_str(), "stock/42#3");
/// bucket.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the bucket is given back when it is dropped"]
pub struct Bucket {
    index: usize,
    guard: Guard,
}

impl Bucket {
    /// Which one, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The guard of its lock.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The guard alone.
    pub fn into_guard(self) -> Guard {
        self.guard
    }

    /// Give it back. See [`Guard::release`].
    ///
    /// # Cancel safety
    /// Once polled the release goes on, even if this future is dropped.
    ///
    /// # Errors
    /// As for [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}

impl Buckets {
    /// The locks `name#0` to `name#(count - 1)`. All processes must agree on the count: two that do not use
    /// different locks for the same piece.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is no key with that ending, or if the count is 0 or beyond [`BUCKETS_MAX`].
    pub fn new(locker: &Locker, name: &str, count: usize) -> Result<Self> {
        if !(1..=BUCKETS_MAX).contains(&count) {
            return Err(Error::invalid(format!("{count} buckets are not allowed; take 1 to {BUCKETS_MAX}")));
        }
        let keys = (0..count).map(|index| Key::new(&format!("{name}#{index}"))).collect::<Result<_>>()?;
        Ok(Buckets { locker: locker.clone(), keys })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// Go through all buckets once, beginning at `start`.
    pub fn sweep(&self, start: Start) -> Sweep<'_> {
        Sweep { buckets: self, first: self.first(start), seen: 0, taken: 0 }
    }

    /// The first bucket from `start` that is free; `None` if all are taken.
    ///
    /// # Cancel safety
    /// As for [`LockRequest`](crate::LockRequest).
    ///
    /// # Errors
    /// As for [`Attempt`](crate::Attempt).
    pub async fn try_lock(&self, start: Start) -> Result<Option<Bucket>> {
        self.sweep(start).next_free().await
    }

    /// The first bucket from `start` that is free; if all are taken, wait for the first one, `wait` at most.
    ///
    /// # Cancel safety
    /// As for [`LockRequest`](crate::LockRequest).
    ///
    /// # Errors
    /// As for [`LockRequest`](crate::LockRequest).
    pub async fn lock(&self, start: Start, wait: Duration) -> Result<Bucket> {
        let index = self.first(start);
        if let Some(bucket) = self.try_lock(Start::At(index)).await? {
            return Ok(bucket);
        }
        let guard = bucket(&self.locker, &self.keys[index]).wait_at_most(wait).await?;
        Ok(Bucket { index, guard })
    }

    fn first(&self, start: Start) -> usize {
        match start {
            Start::At(index) => index % self.count(),
            Start::Random => {
                let mut chance = [0; 4];
                // Without chance everybody begins at the first bucket, which is slow and not wrong.
                let chance = getrandom::fill(&mut chance).map_or(0, |()| u32::from_ne_bytes(chance));
                chance as usize % self.count()
            }
        }
    }
}

/// A bucket that its owner has is not free, also for the same owner: two of its futures would sell the same piece.
fn bucket(locker: &Locker, key: &Key) -> LockRequest {
    locker.lock_key(Ok(key.clone())).not_reentrant()
}

/// One walk through all buckets.
///
/// ```
/// # use lockkeeper_core::{Locker, Memory};
/// # use lockkeeper_core::buckets::{Buckets, Start};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # let locker = Locker::new(Memory::default());
/// let stock = Buckets::new(&locker, "stock/42", 3)?;
/// let _taken = stock.try_lock(Start::At(0)).await?;
/// let mut sweep = stock.sweep(Start::At(0));
/// while let Some(bucket) = sweep.next_free().await? {
///     bucket.release().await?; // empty; on to the next
/// }
/// assert_eq!(sweep.taken(), 1); // so this is no "sold out" yet
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sweep<'a> {
    buckets: &'a Buckets,
    first: usize,
    seen: usize,
    taken: usize,
}

impl Sweep<'_> {
    /// The next bucket that is free; `None` at the end of the walk. Give one back before asking for the next, so
    /// that others can have it.
    ///
    /// # Cancel safety
    /// As for [`LockRequest`](crate::LockRequest).
    ///
    /// # Errors
    /// As for [`Attempt`](crate::Attempt).
    pub async fn next_free(&mut self) -> Result<Option<Bucket>> {
        let Buckets { locker, keys } = self.buckets;
        while self.seen < keys.len() {
            let index = (self.first + self.seen) % keys.len();
            self.seen += 1;
            match bucket(locker, &keys[index]).attempt().await? {
                Some(guard) => return Ok(Some(Bucket { index, guard })),
                None => self.taken += 1,
            }
        }
        Ok(None)
    }

    /// How many buckets were passed over because somebody had them. At the end of a walk that found nothing this
    /// tells "all that I saw are empty" (0) from "try again" (more).
    pub fn taken(&self) -> usize {
        self.taken
    }
}
