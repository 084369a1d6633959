//! Taking back what a node forgot, while a majority of the others still remembers it.
//!
//! A node that restarted empty is one vote less. Left so, the next restart of another would cost the lock,
//! although at no time a majority was gone. It is taken back as it would be taken at first: only once the
//! restart guard allows it to vote, and under our counter, so that whoever comes next is told of a larger one.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Place, Renewal, Result, Turn};
use lockkeeper_core::node::{Node, RaiseCounter, Standing};

use crate::NAME;

/// Which vote to take back.
pub(crate) struct Retake<B> {
    pub(crate) node: Arc<B>,
    /// The counter of our grant.
    pub(crate) counter: u64,
    /// How long the node must have remembered everything; `None` if it may vote however young.
    pub(crate) age_min: Option<Duration>,
}

impl<B: Node> Retake<B> {
    /// Take the lock at this node if it is free there and the node may vote. If anything is unclear, leave.
    pub(crate) async fn run(self, place: &mut B::Place) -> Result<Renewal> {
        if !self.is_old(&self.node.standing().await?) {
            return Ok(Renewal::Lost);
        }
        let grant = match place.turn().await? {
            Turn::Held(grant) => grant,
            Turn::Wait { .. } => return Ok(Renewal::Lost),
        };
        // Asked after the answer to `turn`: what it tells is true of that answer.
        let (raised, standing) = tokio::join!(place.raise(self.counter), self.node.standing());
        let confirmed = matches!(raised, Ok(Some(it)) if self.counter <= it);
        if confirmed && standing.as_ref().is_ok_and(|it| self.is_old(it)) {
            return Ok(Renewal::held(grant.valid_for, false));
        }
        place.leave().await?;
        Err(raised.err().or(standing.err()).unwrap_or_else(|| {
            Fault::transient(NAME, "taking back a node", "it forgot again while it was asked")
        }))
    }

    fn is_old(&self, standing: &Standing) -> bool {
        self.age_min.is_none_or(|min| standing.remembers.is_none_or(|age| min < age))
    }
}
