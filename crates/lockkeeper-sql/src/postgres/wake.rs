//! Who waits for a sign: a message that names a claim, or that whoever stood before it has gone. It is a hint: whoever
//! hears it asks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use lockkeeper_core::ClaimId;

use super::way::locked;
use crate::ahead::Bell;

/// The bells of all claims of a process that wait or hold.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    bells: Mutex<HashMap<ClaimId, Arc<Bell>>>,
}

impl Wake {
    /// Hear messages for this claim from now on, until it is removed.
    pub(crate) fn bell(&self, id: ClaimId) -> Arc<Bell> {
        locked(&self.bells).entry(id).or_default().clone()
    }

    /// Hear no more.
    pub(crate) fn remove(&self, id: ClaimId) {
        locked(&self.bells).remove(&id);
    }

    pub(crate) fn ring(&self, payload: &str) {
        let bell = ClaimId::from_hex(payload).and_then(|id| locked(&self.bells).get(&id).cloned());
        if let Some(bell) = bell {
            bell.call();
        }
    }

    /// Messages may have been missed, or the way of waiting has changed.
    pub(crate) fn ring_all(&self) {
        let bells: Vec<_> = locked(&self.bells).values().cloned().collect();
        for bell in bells {
            bell.ring();
        }
    }
}
