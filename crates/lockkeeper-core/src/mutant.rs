//! Mistakes that the test kit plants to see whether its checkers notice. Not compiled into a release.

use crate::backend::Grant;
use crate::queue::Ask;

/// A deliberate mistake in the core.
///
/// ```
/// use lockkeeper_core::mutant::Mutant;
/// use lockkeeper_core::{Locker, Memory};
///
/// let wrong = Locker::builder(Memory::default()).mutant(Mutant::SameFenceOnHandOn).build();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// Deadlines count from the answer, not from before the request.
    DeadlineFromReply,
    /// A hand-on keeps the fence of the guard before.
    SameFenceOnHandOn,
    /// A sign from the store is taken for a grant.
    WakeUpBelieved,
    /// A grant whose deadline has passed is given to the caller.
    LateGrantAccepted,
}

/// The grant that a believer in wake-ups makes up.
pub(crate) fn believed(ask: &Ask) -> Grant {
    Grant::new(1 << 40, ask.ttl).wanted(true)
}
