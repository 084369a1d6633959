//! Going on as a reader: what is held weighs less from now on, where it stands.

use std::sync::Arc;

use lockkeeper_core::{Claim, Load};

use crate::fault::Result;
use crate::line::Tx;
use crate::work::Verb;

/// See [`Place::lower`](lockkeeper_core::backend::Place::lower).
#[derive(Debug)]
pub(crate) struct Lower(pub(crate) Arc<Claim>, pub(crate) Load);

impl Verb for Lower {
    type Answer = bool;
    const DOING: &'static str = "sharing what is held";

    fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let Lower(claim, load) = self;
        let mut line = tx.line(&claim.key)?;
        let me = line.position(claim.id).filter(|at| line.entries[*at].held);
        if let Some(at) = me {
            tx.lower(&claim.key, line.entries[at].seq, *load)?;
            // What stands behind the first who did not fit was not read.
            line = tx.line(&claim.key)?;
        }
        // Those who fit beside it are holders before they hear of it.
        tx.settle(&claim.key, &mut line)?;
        Ok(me.is_some())
    }

    fn may_grant(&self) -> bool {
        true
    }
}
