//! A claim that could never be served is refused before it blocks the line.

use lockkeeper_core::Claim;
use lockkeeper_core::backend::{Fault, Result};

/// Refuse a claim that is heavier than the room it names: it would wait for ever, and all others behind it. And one
/// that weighs nothing, which would keep nobody out.
pub(crate) fn check(backend: &'static str, doing: &'static str, claim: &Claim) -> Result<()> {
    let (weight, capacity) = (claim.load.weight, claim.load.capacity);
    let what = match weight {
        0 => "a claim of weight 0 is none; ask for at least 1".to_owned(),
        1.. if weight <= capacity => return Ok(()),
        _ => format!(
            "a claim of weight {weight} never fits into a capacity of {capacity}; ask for less or name a larger room"
        ),
    };
    Err(Fault::permanent(backend, doing, what))
}
