//! The fence: the growing number that lets a resource refuse a writer whose lock is gone.

use std::fmt;

use crate::Key;

/// How many bits of a fence count the guards of one tenure.
const HANDOFF_BITS: u32 = 16;

/// The most often one tenure can be handed on before its fences run out.
pub(crate) const HANDOFF_MAX: u64 = (1 << HANDOFF_BITS) - 1;

/// The largest counter a store may give: what is left of 64 bits above the hand-off count.
pub const COUNTER_MAX: u64 = u64::MAX >> HANDOFF_BITS;

/// A number that grows with every guard of one key, also when a guard is handed on inside a process.
///
/// Send it along with every write and let the resource refuse a fence smaller than the largest it
/// has seen. Then a holder that was paused past its deadline cannot do harm when it wakes.
///
/// ```
/// use lockkeeper_core::{Fence, Locker, Memory};
///
/// /// What the resource does, in the same transaction as the write.
/// fn write(largest_seen: &mut Fence, fence: Fence) -> bool {
///     let fresh = *largest_seen <= fence;
///     *largest_seen = fence.max(*largest_seen);
///     fresh
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// let locker = Locker::new(Memory::default());
/// let old = locker.lock("orders/42").await?.fence();
/// let new = locker.lock("orders/42").await?.fence();
///
/// let mut largest_seen = Fence::from_u64(0);
/// assert!(write(&mut largest_seen, new));
/// assert!(!write(&mut largest_seen, old)); // a holder that was paused and woke
/// assert_eq!(Fence::from_u64(new.get()), new); // as it is stored
/// assert_eq!(Fence::of_grant(new.counter()).counter(), new.counter());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The fence of the guard after `handoff` hand-offs of the grant numbered `counter`.
    pub(crate) fn new(counter: u64, handoff: u64) -> Self {
        debug_assert!(counter <= COUNTER_MAX && handoff <= HANDOFF_MAX);
        Fence((counter << HANDOFF_BITS) | handoff)
    }

    /// The fence of the first guard of the grant numbered `counter`; the largest if that is beyond [`COUNTER_MAX`].
    pub fn of_grant(counter: u64) -> Self {
        Fence::new(counter.min(COUNTER_MAX), 0)
    }

    /// The fence as a plain number, to store beside the data it protects.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// A fence read back from where it was stored.
    pub const fn from_u64(value: u64) -> Self {
        Fence(value)
    }

    /// The store's counter within the fence.
    pub const fn counter(self) -> u64 {
        self.0 >> HANDOFF_BITS
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a checker of fences refused an access. The checkers are in the crates of the stores.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Fence, FencedError, Key};
///
/// let (resource, fence, seen) = (Key::new("orders/42")?, Fence::from_u64(7), Fence::from_u64(9));
/// let error: FencedError<std::io::Error> = FencedError::Stale { resource, fence, seen };
/// assert!(error.to_string().contains("roll back"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FencedError<E> {
    /// Somebody with a newer lock was here. Ours is lost: write nothing, roll back.
    #[error("the fence {fence} of {resource:?} is stale: {seen} has been here; the lock is lost, roll back")]
    Stale {
        /// What was to be accessed.
        resource: Key,
        /// Our fence.
        fence: Fence,
        /// The newest fence that was here.
        seen: Fence,
    },
    /// A fence that no lock gives.
    #[error("the fence {fence} is larger than the database can keep")]
    TooLarge {
        /// The fence.
        fence: Fence,
    },
    /// The database said no. Nothing is known about the fence: roll back.
    #[error(transparent)]
    Database(E),
}

impl<E> FencedError<E> {
    /// The fence as databases keep it, for authors of checkers.
    ///
    /// # Errors
    /// [`FencedError::TooLarge`] if it has more bits than they keep.
    pub fn number_of(fence: Fence) -> Result<i64, Self> {
        i64::try_from(fence.get()).map_err(|_| FencedError::TooLarge { fence })
    }

    /// Whether ours is the newest, by what a checker saw after it had raised the resource's fence to ours.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if it saw a newer one.
    pub fn unless_newest(resource: &Key, fence: Fence, seen: i64) -> Result<(), Self> {
        let seen = Fence::from_u64(seen.unsigned_abs());
        if fence < seen {
            return Err(FencedError::Stale { resource: resource.clone(), fence, seen });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_grant_outranks_every_hand_off_of_an_earlier_one() {
        assert!(Fence::new(7, 0) < Fence::new(7, 1));
        assert!(Fence::new(7, HANDOFF_MAX) < Fence::new(8, 0));
        assert_eq!(Fence::new(COUNTER_MAX, HANDOFF_MAX).get(), u64::MAX);
        assert_eq!(Fence::from_u64(Fence::new(9, 3).get()).counter(), 9);
    }
}
