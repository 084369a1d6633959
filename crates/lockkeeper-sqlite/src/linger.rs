//! Giving a lock back later: the file keeps it for a stated time, whether its holder lives or not.

use lockkeeper_core::Claim;

use crate::fault::Result;
use crate::line::Tx;
use crate::work::Verb;

/// See [`Place::linger`](lockkeeper_core::backend::Place::linger). The claim's ttl is the time for which it is kept.
#[derive(Debug)]
pub(crate) struct Linger(pub(crate) Claim);

impl Verb for Linger {
    type Answer = ();
    const DOING: &'static str = "giving the lock back later";

    fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let line = tx.line(&self.0.key)?;
        let Some(me) = line.position(self.0.id).map(|at| line.entries[at]).filter(|it| it.held) else {
            return Ok(());
        };
        tx.extend(&self.0, me.seq)?;
        // Those who wait reckoned with another end.
        tx.touched.push(self.0.key.clone());
        Ok(())
    }

    /// What was promised to be kept waits for the disk, as a grant does.
    fn may_grant(&self) -> bool {
        true
    }
}
