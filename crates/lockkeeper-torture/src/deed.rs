//! What a round does to the numbers that its locks protect: it adds to them, reads them twice, or leaves them alone.
//!
//! Permits protect no number: several hold at once by right, so that no resource could tell one of them from a late one.

use crate::Trouble;
use crate::calls::{Calls, Seen};

/// A lock's name and its fence.
type Held = (String, u64);

pub(crate) enum Deed {
    /// Alone: read when it begins, one more when it ends. One for each lock.
    Write(Vec<(Held, Seen)>),
    /// Beside others: what was read when it begins must be there when it ends.
    Read(Held, Seen),
    /// Nothing is protected.
    Nothing,
}

impl Deed {
    /// The first half of a writer's.
    pub(crate) async fn of_writer(held: &[Held], calls: &mut Calls) -> Result<Self, Trouble> {
        let mut all = Vec::new();
        for it in held {
            all.push((it.clone(), calls.get(&it.0, it.1).await?));
        }
        Ok(Deed::Write(all))
    }

    /// The first half of a reader's.
    pub(crate) async fn of_reader(held: &[Held], calls: &mut Calls) -> Result<Self, Trouble> {
        let Some(it) = held.first() else { return Ok(Deed::Nothing) };
        Ok(Deed::Read(it.clone(), calls.look(&it.0, it.1).await?))
    }

    /// The second half, after which the round is done.
    pub(crate) async fn end(self, may_write: bool, calls: &mut Calls) -> Result<(), Trouble> {
        match self {
            Deed::Write(all) if may_write => {
                for ((key, fence), seen) in &all {
                    calls.put(key, *fence, *seen).await?;
                }
            }
            Deed::Read((key, fence), seen) => calls.look_again(&key, fence, seen).await?,
            Deed::Write(_) | Deed::Nothing => {}
        }
        calls.tick().await
    }
}
