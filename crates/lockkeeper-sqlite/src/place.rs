//! Places: what the engine calls, turned into verbs for the connection's thread.

use std::sync::Arc;

use lockkeeper_core::backend::{Place, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Clock};
use tokio::sync::oneshot;

use crate::line::Spot;
use crate::verb::{AskLeave, AskRenew, AskTurn};
use crate::wake::{Mood, Watch};
use crate::wire::Wire;

/// A place in a line of an SQLite file.
#[derive(Debug)]
pub struct SqlitePlace {
    wire: Wire,
    claim: Arc<Claim>,
    told: Told,
}

/// What the file told us last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Wait { spot: Spot, waiting_before: u64 },
    Held { wanted: bool },
}

impl SqlitePlace {
    pub(crate) fn new(wire: Wire, claim: Claim) -> Self {
        let claim = Arc::new(wire.marked(claim));
        SqlitePlace { wire, claim, told: Told::Nothing }
    }
}

impl Place for SqlitePlace {
    async fn turn(&mut self) -> Result<Turn> {
        let waits = match self.told {
            Told::Wait { spot, .. } => Some(spot),
            Told::Nothing | Told::Held { .. } => None,
        };
        let answer = self.wire.ask(AskTurn::new(self.claim.clone(), waits)).await?;
        self.told = match (answer.turn, answer.spot) {
            (Turn::Held(grant), _) => Told::Held { wanted: grant.wanted },
            (Turn::Wait { .. }, Some(spot)) => Told::Wait { spot, waiting_before: answer.waiting_before },
            (Turn::Wait { .. }, None) => Told::Nothing,
        };
        Ok(answer.turn)
    }

    async fn changed(&mut self) {
        let mood = match self.told {
            Told::Nothing => return std::future::pending().await,
            Told::Wait { spot, waiting_before } => Mood::Waiting { spot, waiting_before },
            Told::Held { wanted } => Mood::Holding { knows_wanted: wanted },
        };
        let (wake, woken) = oneshot::channel();
        self.wire.watch(Watch::new(self.claim.clone(), mood, wake, Clock::boot().now()));
        if woken.await.is_err() {
            // The thread has ended; the next verb says so. Resolving now would make a busy loop.
            std::future::pending::<()>().await;
        }
        if let Told::Held { wanted } = &mut self.told {
            *wanted = true;
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        if let Told::Wait { .. } = self.told {
            // Whoever left may have let us in without our knowing; only `turn` may take that.
            return Ok(Renewal::Lost);
        }
        let renewal = self.wire.ask(AskRenew(self.claim.clone())).await?;
        self.told = match renewal {
            Renewal::Held { wanted, .. } => Told::Held { wanted },
            Renewal::Lost => Told::Nothing,
        };
        Ok(renewal)
    }

    async fn leave(&mut self) -> Result<()> {
        let wanted = self.told == Told::Held { wanted: true };
        self.wire.ask(AskLeave { claim: self.claim.clone(), wanted }).await?;
        self.told = Told::Nothing;
        Ok(())
    }
}
