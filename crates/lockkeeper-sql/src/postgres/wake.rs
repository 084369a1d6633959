//! Who waits for a message. A message names a claim; it is a hint: whoever hears it asks.

use lockkeeper_core::ClaimId;
use lockkeeper_core::kit::Bells;

/// The bells of all claims of a process that wait or hold.
pub(crate) type Wake = Bells;

/// A message came: ring for the claim that it names.
pub(crate) fn deliver(wake: &Wake, payload: &str) {
    if let Some(id) = ClaimId::from_hex(payload) {
        wake.ring(id);
    }
}
