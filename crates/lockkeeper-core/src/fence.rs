//! The fence: the growing number that lets a resource refuse a writer whose lock is gone.

use std::fmt;

/// How many bits of a fence count the guards of one tenure.
const HAND_ON_BITS: u32 = 16;

/// The most often one tenure can be handed on before its fences run out.
pub(crate) const HAND_ON_MAX: u64 = (1 << HAND_ON_BITS) - 1;

/// The largest counter a store may give: what is left of 64 bits above the count of hand-ons.
pub const COUNTER_MAX: u64 = u64::MAX >> HAND_ON_BITS;

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
/// assert_eq!(u64::from(new), new.get());
/// assert_eq!(Fence::of_grant(new.counter()).counter(), new.counter());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The fence of the guard after `hand_on` hand-ons of the grant numbered `counter`.
    pub(crate) fn new(counter: u64, hand_on: u64) -> Self {
        debug_assert!(counter <= COUNTER_MAX && hand_on <= HAND_ON_MAX);
        Fence((counter << HAND_ON_BITS) | hand_on)
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
        self.0 >> HAND_ON_BITS
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.get()
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fence of those who share: readers, or holders of permits.
///
/// It is larger than that of every exclusive guard before and smaller than that of every one after, so a resource can refuse
/// a reader that comes too late. Between those who share it says nothing. It is a type of its own, so that what checks
/// writers does not take it by mistake.
///
/// ```
/// # use lockkeeper_core::{Locker, Memory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # let locker = Locker::new(Memory::default());
/// let before = locker.lock("prices").await?.fence();
/// let reader = locker.read("prices").await?.fence();
/// let after = locker.lock("prices").await?.fence();
/// assert!(before.get() < reader.get() && reader.get() < after.get());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedFence(Fence);

impl SharedFence {
    pub(crate) fn of(fence: Fence) -> Self {
        SharedFence(fence)
    }

    /// The fence as a plain number, to compare with the largest fence of a writer.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for SharedFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_grant_outranks_every_hand_off_of_an_earlier_one() {
        assert!(Fence::new(7, 0) < Fence::new(7, 1));
        assert!(Fence::new(7, HAND_ON_MAX) < Fence::new(8, 0));
        assert_eq!(Fence::new(COUNTER_MAX, HAND_ON_MAX).get(), u64::MAX);
        assert_eq!(Fence::from_u64(Fence::new(9, 3).get()).counter(), 9);
    }
}
