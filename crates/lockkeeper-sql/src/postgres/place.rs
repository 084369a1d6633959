//! A place in a line of the database: each verb is one statement, which calls one function.
//!
//! Whoever waits keeps its place by one statement of its process, which does not touch the line. It waits for whoever
//! stands right before it (see `crate::ahead`). Where it cannot, it listens for its call if it is near the front; far behind,
//! where calling would only wake it for others, it looks now and then, at a pace that follows how fast the line moves.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper_core::Claim;
use lockkeeper_core::backend::{Grant, Place, Renewal, Result, Turn};

use super::crowd::{First, LEAVING, Leaving, Looking, Position, Seen, TAKING, Told, Turning};
use super::keeper::{Keeper, Near};
use super::{NAME, Store};
use crate::ahead::{Bell, Permit, Watch};
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
    at: Position,
    /// What keeps us. `None` until we have asked.
    keeper: Option<Arc<Keeper>>,
    /// Rings when it may be our turn.
    bell: Option<Arc<Bell>>,
    near: Option<Near>,
    /// Waits for whoever stands right before us.
    watch: Option<Watch>,
    /// We hold a bell for whoever stands behind us.
    permit: Option<Permit>,
    /// We have asked before.
    known: bool,
    /// We wait, and nobody has told us otherwise.
    waiting: bool,
    pace: Pace,
}

impl PostgresPlace {
    pub(super) fn new(store: Arc<Store>, claim: Claim) -> Self {
        PostgresPlace {
            at: Position { lock: hash(&claim.key), claim: Arc::new(claim), seq: 0, bell: 0 },
            store,
            keeper: None,
            bell: None,
            near: None,
            watch: None,
            permit: None,
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
        let wanted = self.may_watch(keeper) && self.at.bell == 0;
        let permit = wanted.then(|| links.shared.chairs.permit()).flatten();
        let first = !std::mem::replace(&mut self.known, true);
        let (at, wake, bell) = (self.at.clone(), keeper.wake(), permit.is_some());
        let asked = Turning { at, wake, bell, fresh: Arc::new(AtomicBool::new(first)) };
        let told = if first { links.ask(TAKING, self.patience(), First(asked.clone())).await? } else { None };
        let told = match told {
            Some(told) => told,
            None => links.ask(TAKING, self.patience(), asked).await?,
        };
        if told.bell != 0 {
            (self.at.bell, self.permit) = (told.bell, permit);
        }
        self.at.seq = told.seq;
        Ok(told)
    }

    /// Whether waiting for one other, and being waited for, serves us: not in a room that others may share, nor where
    /// a pooler may give our session to somebody else.
    fn may_watch(&self, keeper: &Keeper) -> bool {
        let Claim { load, patient, .. } = *self.at.claim;
        patient && load.weight == load.capacity && !keeper.is_deaf()
    }

    fn held(&mut self, told: &Told) -> Turn {
        (self.waiting, self.near, self.watch) = (false, None, None);
        let grant = Grant::new(told.counter, self.at.claim.ttl).wanted(told.wanted);
        Turn::Held(grant.sent_at(told.sent_at))
    }

    /// Told to wait behind so many: listen, or see how long nothing is to be expected. `true` if we can be called
    /// from now on but could not when we asked.
    async fn settle_down(&mut self, keeper: &Arc<Keeper>, line: Line, could_hear: bool) -> bool {
        let ahead_waiting = line.ahead_waiting;
        self.pace(keeper, line);
        if self.is_watching() {
            self.near = None;
            keeper.far();
            return false;
        }
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

    fn is_watching(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_on)
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
                return Ok(Some(self.wait(seen.front, Some(seen.ahead_waiting + 1))));
            }
            // Once more: we may have been called before we could hear.
        }
    }

    fn wait(&self, front: i64, ahead: Option<i64>) -> Turn {
        let recheck = span(front).min(self.at.claim.ttl / 3).max(RECHECK_MIN);
        Turn::wait(recheck, ahead.and_then(|it| u64::try_from(it).ok()))
    }

    async fn look(&mut self) -> std::result::Result<Seen, Duration> {
        let looking = Looking(self.at.clone());
        let seen = self.store.links.ask("looking", self.patience(), looking).await;
        // Let the next `turn` meet a fault: it can tell it.
        seen.map_err(|_| self.at.claim.ttl / 3)
    }

    /// Look at the line until asking is worthwhile.
    async fn look_on(&mut self, keeper: &Arc<Keeper>, bell: &Bell) {
        let clock = self.store.links.shared.clock.clone();
        let mut pause = self.pace.last();
        loop {
            tokio::select! {
                () = bell.heard() => return,
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
        let bell = match &self.bell {
            Some(bell) => bell.clone(),
            // Before we ask: a message that comes right after the answer must find us.
            None => self.bell.insert(self.store.links.shared.wake.hear(self.at.claim.id)).clone(),
        };
        if self.waiting && !bell.is_called() {
            // We were called to listen by a look: from now on we hear.
            if self.near.is_some() {
                keeper.listen().await;
            }
            if let Some(turn) = self.keep(&keeper).await? {
                return Ok(turn);
            }
        }
        let could_hear = keeper.is_listening();
        bell.answered();
        let told = self.ask(&keeper).await?;
        if told.held {
            return Ok(self.held(&told));
        }
        if !self.at.claim.patient {
            self.at.seq = 0;
            return Ok(self.wait(told.front, told.ahead));
        }
        self.waiting = true;
        let before = told.before.filter(|_| self.may_watch(&keeper));
        self.watch = before.map(|it| Watch::begin(keeper.clone(), keeper.runtime(), it, bell));
        let line = Line { ahead_waiting: told.ahead_waiting, held_for: Duration::ZERO };
        if self.settle_down(&keeper, line, could_hear).await && self.keep(&keeper).await?.is_none() {
            // Called before we could hear.
            let told = self.ask(&keeper).await?;
            if told.held {
                return Ok(self.held(&told));
            }
        }
        Ok(self.wait(told.front, told.ahead))
    }

    async fn changed(&mut self) {
        let (Some(bell), Some(keeper)) = (self.bell.clone(), self.keeper.clone()) else {
            return std::future::pending().await;
        };
        // The holder hears that it is wanted by its renewals, too; only those who wait need to look.
        if !self.waiting || self.is_watching() || (self.near.is_some() && keeper.is_listening()) {
            return bell.heard().await;
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
        (self.waiting, self.near, self.watch) = (false, None, None);
        let by = self.store.links.ask(LEAVING, self.patience(), Leaving(self.at.clone())).await?;
        if self.at.bell != 0 && by != self.at.bell {
            self.store.links.silence(self.at.bell, self.at.claim.id);
        }
        (self.at.seq, self.at.bell, self.permit) = (0, 0, None);
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
