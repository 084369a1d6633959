//! A place in a line of the database: each verb is one statement, which calls one function.
//!
//! Whoever waits keeps its place by one statement of its process, which does not touch the line. Near the front it
//! listens for its call; far behind, where calling would only wake it for others, it looks now and then, at a pace
//! that follows how fast the line moves.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Claim;
use lockkeeper_core::backend::{Grant, Place, Renewal, Result, Turn};
use tokio::sync::Notify;

use super::crowd::{First, LEAVING, Leaving, Looking, Seen, Standing, TAKING, Told, Turning};
use super::keeper::{Keeper, Near};
use super::{NAME, Store};
use crate::name::{hash, span};
use crate::pace::Pace;
use crate::patience::patience;

/// The shortest time after which asking again is worthwhile.
const RECHECK_MIN: Duration = Duration::from_millis(1);

/// With fewer than so many before it, a claim listens for its call.
const NEAR: i64 = 16;

/// What decides when to look again.
#[derive(Clone, Copy)]
struct Line {
    ahead_waiting: i64,
    /// For how long whoever was let in last has held.
    held_for: Duration,
}

impl Line {
    fn of(seen: &Seen) -> Self {
        Line { ahead_waiting: seen.ahead_waiting, held_for: seen.held_for }
    }
}

/// A claim's place in a line of [`Postgres`](super::Postgres).
#[derive(Debug)]
pub struct PostgresPlace {
    store: Arc<Store>,
    at: Standing,
    /// What keeps us. `None` until we have asked.
    keeper: Option<Arc<Keeper>>,
    /// Rings when a message names us.
    bell: Option<Arc<Notify>>,
    near: Option<Near>,
    /// We have asked before.
    known: bool,
    /// We wait, and nobody has told us otherwise.
    waiting: bool,
    pace: Pace,
}

impl PostgresPlace {
    pub(super) fn new(store: Arc<Store>, claim: Claim) -> Self {
        PostgresPlace {
            at: Standing { lock: hash(&claim.key), claim: Arc::new(claim), seq: 0 },
            store,
            keeper: None,
            bell: None,
            near: None,
            known: false,
            waiting: false,
            pace: Pace::new(),
        }
    }

    fn patience(&self) -> Duration {
        patience(self.at.claim.ttl, self.store.links.shared.options.common.timeout)
    }

    /// What keeps us, ready for renewals.
    async fn ready(&mut self) -> Result<Arc<Keeper>> {
        let keeper = match &self.keeper {
            Some(keeper) => keeper.clone(),
            None => self.keeper.insert(self.store.links.keeper(TAKING)?).clone(),
        };
        keeper.ready(TAKING).await?;
        Ok(keeper)
    }

    /// The full question, which locks the line.
    async fn ask(&mut self, keeper: &Arc<Keeper>) -> Result<Told> {
        let links = &self.store.links;
        links.shared.note_ttl(self.at.claim.ttl);
        let asked = Turning { at: self.at.clone(), wake: keeper.wake() };
        let first = !std::mem::replace(&mut self.known, true);
        let told = if first { links.ask(TAKING, self.patience(), First(asked.clone())).await? } else { None };
        match told {
            Some(told) => Ok(told),
            None => links.ask(TAKING, self.patience(), asked).await,
        }
    }

    fn held(&mut self, told: &Told) -> Turn {
        (self.waiting, self.near) = (false, None);
        let grant = Grant::new(told.counter, self.at.claim.ttl).wanted(told.wanted);
        Turn::Held(grant.sent_at(told.sent_at))
    }

    /// Told to wait behind so many: listen, or see how long nothing is to be expected. `true` if we can be called
    /// from now on but could not when we asked.
    async fn settle_down(&mut self, keeper: &Arc<Keeper>, line: Line, could_hear: bool) -> bool {
        let ahead_waiting = line.ahead_waiting;
        self.pace(keeper, line);
        if keeper.is_deaf() {
            self.near = None;
            return false;
        }
        if NEAR <= ahead_waiting {
            self.near = None;
            keeper.far();
            return false;
        }
        if self.near.is_none() {
            self.near = Some(Near::new(keeper));
        }
        !could_hear && keeper.listen().await
    }

    /// How long to pause before the next look.
    fn pace(&mut self, keeper: &Keeper, line: Line) -> Duration {
        let (now, most) = (self.store.links.shared.clock.now(), self.at.claim.ttl / 3);
        let near = if keeper.is_deaf() { 1 } else { NEAR };
        if line.ahead_waiting == 0 {
            return self.pace.pause(now, 0, most);
        }
        self.pace.until_near(now, line.ahead_waiting, near, line.held_for, most)
    }

    /// Keep our place and see how the line stands. `None` if it is time to ask.
    async fn keep(&mut self, keeper: &Arc<Keeper>) -> Result<Option<Turn>> {
        loop {
            let wake = if self.near.is_some() { keeper.wake() } else { None };
            let could_hear = wake.is_some();
            let seen = keeper.keep(self.at.clone(), wake).await?;
            if !seen.waits {
                return Ok(None);
            }
            if !self.settle_down(keeper, Line::of(&seen), could_hear).await {
                // Those who wait, and at least one who is inside.
                return Ok(Some(self.wait(seen.front, seen.ahead_waiting + 1)));
            }
            // Once more: we may have been called before we could hear.
        }
    }

    fn wait(&self, front: i64, ahead: i64) -> Turn {
        let recheck = span(front).min(self.at.claim.ttl / 3).max(RECHECK_MIN);
        Turn::wait(recheck, u64::try_from(ahead).ok())
    }

    async fn look(&mut self) -> std::result::Result<Seen, Duration> {
        let looking = Looking(self.at.clone());
        let seen = self.store.links.ask("looking", self.patience(), looking).await;
        // Let the next `turn` meet a fault: it can tell it.
        seen.map_err(|_| self.at.claim.ttl / 3)
    }

    /// Look at the line until asking is worthwhile.
    async fn look_on(&mut self, keeper: &Arc<Keeper>, bell: &Notify) {
        let clock = self.store.links.shared.clock.clone();
        let mut pause = self.pace.last();
        loop {
            tokio::select! {
                () = bell.notified() => return,
                () = clock.sleep(pause) => {}
            }
            pause = match self.look().await {
                Ok(seen) if !seen.waits => return,
                // The next `turn` begins to listen.
                Ok(seen) if seen.ahead_waiting < NEAR && !keeper.is_deaf() => {
                    self.near = Some(Near::new(keeper));
                    return;
                }
                Ok(seen) => {
                    let pause = self.pace(keeper, Line::of(&seen));
                    pause.min(span(seen.front)).max(RECHECK_MIN)
                }
                Err(longer) => longer,
            };
        }
    }
}

impl Place for PostgresPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.at.claim.check_load(NAME)?;
        let keeper = self.ready().await?;
        if self.bell.is_none() {
            // Before we ask: a message that comes right after the answer must find us.
            self.bell = Some(self.store.links.shared.wake.hear(self.at.claim.id));
        }
        if self.waiting {
            // We were called to listen by a look: from now on we hear.
            if self.near.is_some() {
                keeper.listen().await;
            }
            if let Some(turn) = self.keep(&keeper).await? {
                return Ok(turn);
            }
        }
        let could_hear = keeper.is_listening();
        let told = self.ask(&keeper).await?;
        if told.held {
            self.at.seq = told.seq;
            return Ok(self.held(&told));
        }
        if !self.at.claim.patient {
            self.at.seq = 0;
            return Ok(self.wait(told.front, told.ahead));
        }
        (self.at.seq, self.waiting) = (told.seq, true);
        let line = Line { ahead_waiting: told.ahead_waiting, held_for: Duration::ZERO };
        if self.settle_down(&keeper, line, could_hear).await && self.keep(&keeper).await?.is_none() {
            // Called before we could hear.
            let told = self.ask(&keeper).await?;
            if told.held {
                self.at.seq = told.seq;
                return Ok(self.held(&told));
            }
            self.at.seq = told.seq;
        }
        Ok(self.wait(told.front, told.ahead))
    }

    async fn changed(&mut self) {
        let (Some(bell), Some(keeper)) = (self.bell.clone(), self.keeper.clone()) else {
            return std::future::pending().await;
        };
        // The holder hears that it is wanted by its renewals, too; only those who wait need to look.
        if !self.waiting || (self.near.is_some() && keeper.is_listening()) {
            return bell.notified().await;
        }
        self.look_on(&keeper, &bell).await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let keeper = match &self.keeper {
            Some(keeper) => keeper.clone(),
            // Never granted: nothing to renew, which the server says.
            None => self.keeper.insert(self.store.links.keeper("renewing the lock")?).clone(),
        };
        keeper.renew(self.at.clone()).await
    }

    async fn leave(&mut self) -> Result<()> {
        if !self.known {
            return Ok(());
        }
        self.store.links.ask(LEAVING, self.patience(), Leaving(self.at.clone())).await?;
        (self.waiting, self.near, self.at.seq) = (false, None, 0);
        Ok(())
    }
}

impl Drop for PostgresPlace {
    fn drop(&mut self) {
        if self.bell.is_some() {
            self.store.links.shared.wake.forget(self.at.claim.id);
        }
    }
}
