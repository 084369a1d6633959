//! Places: what the engine calls, turned into verbs for the connection's thread.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Place, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Clock, Load};
use tokio::sync::oneshot;

use crate::line::Spot;
use crate::linger::Linger;
use crate::lower::Lower;
use crate::verb::{AskLeave, AskRenew, AskTurn};
use crate::wake::{Mood, Watch};
use crate::worker::Worker;

/// A place in a line of an SQLite file.
#[derive(Debug)]
pub struct SqlitePlace {
    worker: Worker,
    claim: Arc<Claim>,
    told: Told,
    has_asked: bool,
}

/// What the file told us last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Wait { spot: Spot, waiting_before: u64 },
    Held { spot: Option<Spot>, wanted: bool },
}

impl Told {
    /// Where the claim should stand.
    fn spot(self) -> Option<Spot> {
        match self {
            Told::Nothing => None,
            Told::Wait { spot, .. } => Some(spot),
            Told::Held { spot, .. } => spot,
        }
    }
}

impl SqlitePlace {
    pub(crate) fn new(worker: Worker, claim: Claim) -> Self {
        let claim = Arc::new(worker.marked(claim));
        SqlitePlace { worker, claim, told: Told::Nothing, has_asked: false }
    }
}

impl Place for SqlitePlace {
    async fn turn(&mut self) -> Result<Turn> {
        let waits = match self.told {
            Told::Wait { spot, .. } => Some(spot),
            Told::Nothing | Told::Held { .. } => None,
        };
        let is_new = !std::mem::replace(&mut self.has_asked, true);
        let answer = self.worker.ask(AskTurn::new(self.claim.clone(), waits).first(is_new)).await?;
        self.told = match (answer.turn, answer.spot) {
            (Turn::Held(grant), spot) => Told::Held { spot, wanted: grant.wanted },
            (Turn::Wait { .. }, Some(spot)) => Told::Wait { spot, waiting_before: answer.waiting_before },
            (Turn::Wait { .. }, None) => Told::Nothing,
        };
        Ok(answer.turn)
    }

    async fn changed(&mut self) {
        let mood = match self.told {
            Told::Nothing => return std::future::pending().await,
            Told::Wait { spot, waiting_before } => Mood::Waiting { spot, waiting_before },
            Told::Held { wanted, .. } => Mood::Holding { knows_wanted: wanted },
        };
        let (wake, woken) = oneshot::channel();
        self.worker.watch(Watch::new(self.claim.clone(), mood, wake, Clock::boot().now()));
        if woken.await.is_err() {
            // The thread has ended; the next verb says so. Resolving now would make a busy loop.
            std::future::pending::<()>().await;
        }
        if let Told::Held { wanted, .. } = &mut self.told {
            *wanted = true;
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        if let Told::Wait { .. } = self.told {
            // Whoever left may have let us in without our knowing; only `turn` may take that.
            return Ok(Renewal::Lost);
        }
        let renewal = self.worker.ask(AskRenew(self.claim.clone())).await?;
        self.told = match renewal {
            Renewal::Held { wanted, .. } => Told::Held { spot: self.told.spot(), wanted },
            Renewal::Lost => Told::Nothing,
        };
        Ok(renewal)
    }

    async fn linger(&mut self, span: Duration) -> Result<()> {
        self.worker.ask(Linger((*self.claim).clone().ttl(span))).await?;
        self.told = Told::Nothing;
        Ok(())
    }

    async fn lower(&mut self, load: Load) -> Result<bool> {
        if let Told::Wait { .. } = self.told {
            return Ok(false);
        }
        self.claim = Arc::new((*self.claim).clone().load(load));
        self.worker.ask(Lower(self.claim.clone(), load)).await
    }

    async fn leave(&mut self) -> Result<()> {
        let (claim, spot) = (self.claim.clone(), self.told.spot());
        let wanted = matches!(self.told, Told::Held { wanted: true, .. });
        self.worker.ask(AskLeave { claim, spot, wanted }).await?;
        self.told = Told::Nothing;
        Ok(())
    }
}
