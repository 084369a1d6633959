//! Who waits for a sign: a message that names a claim, or that whoever stood before it has gone. It is a hint: whoever
//! hears it asks.

use lockkeeper_core::ClaimId;
use lockkeeper_core::kit::Bells;

use crate::ahead::Bell;

/// The bells of all claims of a process that wait or hold.
pub(crate) type Wake = Bells<Bell>;

/// A message came: call the claim that it names.
pub(crate) fn deliver(wake: &Wake, payload: &str) {
    if let Some(bell) = ClaimId::from_hex(payload).and_then(|id| wake.of(id)) {
        bell.call();
    }
}
