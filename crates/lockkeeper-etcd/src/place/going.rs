//! What is left of a place in the store, and what a place does that is dropped.

use std::sync::Arc;

use super::EtcdPlace;
use crate::leave::Parting;
use crate::session::Lease;

impl EtcdPlace {
    /// What is left of us in the store.
    pub(super) fn parting(&self, lease: Arc<Lease>) -> Parting {
        let (line, key, id) = (self.line.clone(), self.key.clone(), self.claim.id);
        Parting { lease, line, key, id, revision: self.revision, unsure: self.unsure }
    }
}

/// A place that is dropped without a word, because its caller and its keeper are gone, leaves by itself.
impl Drop for EtcdPlace {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        if lease.names.is_shared(&self.line, self.claim.id) {
            return lease.names.give_back(&self.line, self.claim.id);
        }
        let parting = self.parting(lease);
        self.reset();
        let (connection, store) = (self.store.connection.clone(), Arc::downgrade(&self.store));
        connection.clone().driver.spawn(parting.by_itself(connection, store));
    }
}
