//! Bells: a message from the store names a claim, and here is found who waits to hear it.

use std::array;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::locked::locked;
use crate::spi::claim::ClaimId;

/// The bells of all claims of a process that may hear something, by claim.
///
/// A bell is a [`Notify`], or whatever of your own that a message should reach. It is a hint and no grant: whoever hears
/// it asks the store. Ring all of them when messages may have been missed, after a lost connection.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::ClaimId;
/// use lockkeeper_core::kit::Bells;
///
/// let bells = Bells::default();
/// let id = ClaimId::random()?;
/// let bell = bells.hear(id); // before asking, so that no message comes too early
/// bells.ring(id);
/// bell.notified().await;
/// bells.ring_all();
/// bell.notified().await;
/// bells.forget(id); // with its place
/// assert!(bells.of(id).is_none());
/// # Ok(())
/// # }
/// ```
pub struct Bells<T = Notify>([Mutex<Shard<T>>; SHARDS]);

type Shard<T> = HashMap<ClaimId, Arc<T>, foldhash::fast::RandomState>;

/// Every place of a store comes by here twice, on whatever thread its caller is.
const SHARDS: usize = 16;

/// A shard with less room than this keeps it.
const ROOM: usize = 64;

impl<T> Default for Bells<T> {
    fn default() -> Self {
        Bells(array::from_fn(|_| Mutex::default()))
    }
}

impl<T> Bells<T> {
    fn shard(&self, id: ClaimId) -> MutexGuard<'_, Shard<T>> {
        let mixed = id.as_bytes().iter().fold(0, |all, it| all ^ it);
        locked(&self.0[usize::from(mixed) % SHARDS])
    }

    fn len(&self) -> usize {
        self.0.iter().map(|it| locked(it).len()).sum()
    }
}

impl<T> fmt::Debug for Bells<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bells").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T: Default> Bells<T> {
    /// The bell of this claim, which is there from now on until it is forgotten.
    pub fn hear(&self, id: ClaimId) -> Arc<T> {
        self.shard(id).entry(id).or_default().clone()
    }
}

impl<T> Bells<T> {
    /// The bell of this claim, if it has one.
    pub fn of(&self, id: ClaimId) -> Option<Arc<T>> {
        self.shard(id).get(&id).cloned()
    }

    /// Every bell there is.
    pub fn all(&self) -> Vec<Arc<T>> {
        let of = |it: &Mutex<Shard<T>>| locked(it).values().cloned().collect::<Vec<_>>();
        self.0.iter().flat_map(of).collect()
    }

    /// This claim has no bell any more.
    pub fn forget(&self, id: ClaimId) {
        let mut bells = self.shard(id);
        bells.remove(&id);
        // The memory of a crowd goes with the crowd.
        if ROOM < bells.capacity() && bells.len() < bells.capacity() / 8 {
            bells.shrink_to_fit();
        }
    }
}

impl Bells {
    /// Tell this claim, if it has a bell.
    pub fn ring(&self, id: ClaimId) {
        if let Some(bell) = self.of(id) {
            bell.notify_one();
        }
    }

    /// Tell everybody.
    pub fn ring_all(&self) {
        for bell in self.all() {
            bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn id(number: u32) -> ClaimId {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        ClaimId::from_bytes(bytes)
    }

    fn has_rung(bell: &Notify) -> bool {
        pin!(bell.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_bell_is_rung_for_its_own_claim_and_remembers_one_ring() {
        let bells = Bells::default();
        let (one, other) = (bells.hear(id(1)), bells.hear(id(2)));
        bells.ring(id(1));
        bells.ring(id(1));
        bells.ring(id(3));
        assert!(has_rung(&one) && !has_rung(&one) && !has_rung(&other));
        bells.ring_all();
        assert!(has_rung(&one) && has_rung(&other));
        assert!(Arc::ptr_eq(&one, &bells.hear(id(1))), "a claim has one bell");
    }

    #[test]
    fn nobody_rings_for_a_claim_that_is_forgotten_and_a_crowd_leaves_no_memory_behind() {
        let bells: Bells<u32> = Bells::default();
        for number in 0..5000 {
            bells.hear(id(number));
        }
        assert_eq!(bells.all().len(), 5000);
        for number in 0..5000 {
            bells.forget(id(number));
        }
        assert!(bells.of(id(1)).is_none() && bells.all().is_empty());
        assert!(bells.0.iter().all(|it| locked(it).capacity() <= ROOM));
    }
}
