//! A place in a line of the database: each verb is one statement, which calls one function.
//!
//! Whoever waits keeps its place by one statement of its process, which does not touch the line. It waits for the
//! last before it that does not fit beside it (see `crate::ahead`), which for a mutex is whoever stands right before. Where
//! it cannot, or that one stays for long, it listens for its call if it is near the front; far behind,
//! where calling would only wake it for others, it looks now and then, at a pace that follows how fast the line moves.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper_core::backend::{Grant, Place, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Load};
use tokio_postgres::types::Type;

use super::ahead::Ahead;
use super::crowd::{First, LEAVING, Leaving, Looking, Position, Seen, TAKING, Told, Turning, odd};
use super::keeper::{Keeper, Near};
use super::pace::Approach;
use super::session::Param;
use super::{NAME, Store};
use crate::ahead::{Bell, Permit, Watch};
use crate::name::{hash, micros_up, span};
use crate::patience::patience;

/// The shortest time after which asking again is worthwhile.
const RECHECK_MIN: Duration = Duration::from_millis(1);

/// With fewer than so many before it, a claim listens for its call.
const NEAR: i64 = 16;

/// Whoever holds for less than this does not begin to listen, unless its lock may be idle: every process that listens costs
/// whoever calls another.
const HELD_LONG: Duration = Duration::from_millis(500);

const LINGERING: &str = "giving the lock back later";
const LOWERING: &str = "sharing what is held";

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
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and any may be true with any other"
)]
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
    /// The row says where we can be called, and we listen there since then.
    heard_since: Option<u64>,
    /// We had to wait: a call that let us in may come after we are inside.
    was_let_in: bool,
    /// While we hold: somebody called us when we last heard something.
    called: bool,
    /// We have compared our word about the capacity with that of others.
    compared: bool,
    pace: Approach,
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
            heard_since: None,
            was_let_in: false,
            called: true,
            compared: false,
            pace: Approach::new(),
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
        let load = self.at.claim.load;
        // Whoever shares a room does not hold one up: those behind it may fit beside it.
        let wanted = self.may_watch(keeper) && load.weight == load.capacity && self.at.bell == 0;
        let permit = wanted.then(|| links.shared.chairs.permit()).flatten();
        let first = !std::mem::replace(&mut self.known, true);
        self.heard_since = keeper.listens_since();
        let wake = self.heard_since.map(|_| keeper.channel.clone());
        let (at, bell) = (self.at.clone(), permit.is_some());
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

    /// Whether we can wait for one other: not where a pooler may give our session to somebody else.
    fn may_watch(&self, keeper: &Keeper) -> bool {
        self.at.claim.patient && !keeper.is_deaf()
    }

    fn held(&mut self, told: &Told) -> Turn {
        self.was_let_in = self.waiting;
        (self.waiting, self.near, self.watch) = (false, None, None);
        // Whoever waited until now is kept for as long as it last asked for.
        let ttl = self.at.claim.ttl;
        let valid_for = if told.front == 0 { ttl } else { span(told.front).min(ttl) };
        let grant = Grant::new(told.counter, valid_for).wanted(told.wanted);
        Turn::Held(grant.sent_at(told.sent_at))
    }

    /// Told to wait behind so many: listen, or see how long nothing is to be expected. `true` if we can be called
    /// from now on but could not, or not without a break, since we asked.
    async fn settle_down(&mut self, keeper: &Arc<Keeper>, line: Line, heard_since: Option<u64>) -> bool {
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
        // Nobody ceases to listen from now on. Between our question and now somebody may have.
        let hears = heard_since.is_some() && heard_since == keeper.listens_since();
        !hears && keeper.listen().await
    }

    fn is_watching(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_on)
    }

    /// How long to pause before the next look.
    fn pace(&mut self, keeper: &Keeper, line: Line) -> Duration {
        let (now, most) = (self.store.links.shared.clock.now(), self.at.claim.ttl / 3);
        let near = if keeper.is_deaf() { 1 } else { NEAR };
        if line.ahead_waiting == 0 {
            return self.pace.next(now, most);
        }
        self.pace.until_near(now, line.ahead_waiting, near, line.held_for, most)
    }

    /// Keep our place and see how the line stands. `None` if it is time to ask.
    async fn keep(&mut self, keeper: &Arc<Keeper>) -> Result<Option<Turn>> {
        loop {
            let heard_since = self.near.as_ref().and_then(|_| keeper.listens_since());
            let wake = heard_since.map(|_| keeper.channel.clone());
            let seen = keeper.keep(self.at.clone(), wake).await?;
            if !seen.waits {
                return Ok(None);
            }
            if !self.settle_down(keeper, Line::of(&seen), heard_since).await {
                // Those who wait, and at least one who is inside.
                return Ok(Some(self.wait(seen.front, Some(seen.ahead_waiting + 1))));
            }
            // Once more: we may have been called before we could hear.
        }
    }

    /// What others say about the room, where permits are counted. Asked once, by whoever waits, and only to be told: a
    /// fault does not matter.
    async fn theirs(&mut self) -> Option<u32> {
        let load = self.at.claim.load;
        if !load.is_counted() || std::mem::replace(&mut self.compared, true) {
            return None;
        }
        let (links, ours) = (&self.store.links, i64::from(load.capacity));
        let params: [Param<'_>; 2] = [(&self.at.lock.as_slice(), Type::BYTEA), (&ours, Type::INT8)];
        let rows = links.rows(TAKING, &links.shared.sql.differing, &params).await.ok()?;
        let theirs: Option<i64> = rows.first()?.try_get(0).ok()?;
        u32::try_from(theirs?).ok()
    }

    /// Let go of our bell: those who wait for it look again.
    fn silence(&mut self) {
        if self.at.bell != 0 {
            self.store.links.silence(self.at.bell, self.at.claim.id);
            (self.at.bell, self.permit) = (0, None);
        }
    }

    fn wait(&self, front: i64, ahead: Option<i64>) -> Turn {
        let recheck = span(front).min(self.at.claim.ttl / 3).max(RECHECK_MIN);
        Turn::wait(recheck, ahead.and_then(|it| u64::try_from(it).ok()))
    }

    /// Listen as one who holds: for the first who waits, and for whoever takes the lock away.
    async fn hear(&mut self, keeper: &Arc<Keeper>, bell: &Bell) {
        let may_be_idle = self.at.claim.label.warm;
        let hears = |it: &Self| it.heard_since.is_some() && it.heard_since == keeper.listens_since();
        if !may_be_idle && !hears(self) {
            self.store.links.shared.clock.clone().sleep(HELD_LONG).await;
        }
        if self.near.is_none() {
            self.near = Some(Near::new(keeper));
        }
        bell.hold(true);
        self.called = false;
        loop {
            if !hears(self) {
                // Another connection may take long to open.
                if may_be_idle && !keeper.is_open() {
                    return;
                }
                if !keeper.listen().await && !may_be_idle {
                    return std::future::pending().await;
                }
                let since = keeper.listens_since();
                // Whoever cannot be called must not stay idle, and a fault is for the next verb to tell.
                let news = if since.is_some() { keeper.hear(&self.at).await.ok() } else { None };
                let Some(news) = news else { return };
                // Also if there is news: it is told once, and nobody asks again what the row says.
                self.heard_since = since;
                if news {
                    self.called = true;
                    return;
                }
            }
            bell.heard().await;
            self.called = bell.is_called();
            bell.answered();
            // The call that let us in, and no news?
            if !std::mem::replace(&mut self.was_let_in, false) || keeper.hear(&self.at).await.unwrap_or(true)
            {
                return;
            }
        }
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
        let ahead = before.map(|bell| Ahead { bell, is_near: told.ahead_waiting < NEAR });
        self.watch = ahead.map(|it| Watch::begin(keeper.clone(), keeper.runtime(), it, bell));
        let line = Line { ahead_waiting: told.ahead_waiting, held_for: Duration::ZERO };
        if self.settle_down(&keeper, line, self.heard_since).await && self.keep(&keeper).await?.is_none() {
            // Called before we could hear.
            let told = self.ask(&keeper).await?;
            if told.held {
                return Ok(self.held(&told));
            }
        }
        let theirs = self.theirs().await;
        Ok(self.wait(told.front, told.ahead).theirs(theirs))
    }

    async fn changed(&mut self) {
        let (Some(bell), Some(keeper)) = (self.bell.clone(), self.keeper.clone()) else {
            return std::future::pending().await;
        };
        if !self.waiting {
            return self.hear(&keeper, &bell).await;
        }
        // Only those who wait and cannot be called need to look.
        if self.is_watching() || (self.near.is_some() && keeper.is_listening()) {
            return bell.heard().await;
        }
        self.look_on(&keeper, &bell).await;
    }

    fn was_called(&self) -> bool {
        self.called
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
        if let Some(bell) = &self.bell {
            bell.hold(false);
        }
        let by = self.store.links.ask(LEAVING, self.patience(), Leaving(self.at.clone())).await?;
        if self.at.bell != 0 && by != self.at.bell {
            self.store.links.silence(self.at.bell, self.at.claim.id);
        }
        (self.at.seq, self.at.bell, self.permit) = (0, 0, None);
        Ok(())
    }

    async fn linger(&mut self, span: Duration) -> Result<()> {
        if !self.known {
            return Ok(());
        }
        let (links, id) = (&self.store.links, self.at.claim.id.as_bytes());
        let params: [Param<'_>; 4] = [
            (&self.at.lock.as_slice(), Type::BYTEA),
            (&id.as_slice(), Type::BYTEA),
            (&self.at.seq, Type::INT8),
            (&micros_up(span), Type::INT8),
        ];
        links.rows(LINGERING, &links.shared.sql.linger, &params).await?;
        // Nobody waits for one who will not be heard of again.
        self.silence();
        Ok(())
    }

    async fn lower(&mut self, load: Load) -> Result<bool> {
        if self.at.seq == 0 || self.waiting {
            return Ok(false);
        }
        self.at.claim = Arc::new((*self.at.claim).clone().load(load));
        let (links, id) = (&self.store.links, self.at.claim.id.as_bytes());
        let params: [Param<'_>; 5] = [
            (&self.at.lock.as_slice(), Type::BYTEA),
            (&id.as_slice(), Type::BYTEA),
            (&self.at.seq, Type::INT8),
            (&i64::from(load.weight), Type::INT8),
            (&i64::from(load.capacity), Type::INT8),
        ];
        let rows = links.rows(LOWERING, &links.shared.sql.lower, &params).await?;
        let held: Vec<i64> = rows.first().and_then(|it| it.try_get(0).ok()).ok_or_else(|| odd(LOWERING))?;
        // Those who waited for our end are inside now, or wait for others.
        self.silence();
        Ok(held == [1])
    }
}

impl Drop for PostgresPlace {
    fn drop(&mut self) {
        if self.bell.is_some() {
            self.store.links.shared.wake.forget(self.at.claim.id);
        }
    }
}
