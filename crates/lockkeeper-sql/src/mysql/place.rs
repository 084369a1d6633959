//! A place in a line of the database: a free lock is taken and given back by one statement on one row; whatever
//! concerns others is one call of a procedure; a place in line is kept, and a grant learnt, by one's own row.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Grant, Place, Renewal, Result, Turn};
use lockkeeper_core::kit::Pace;
use lockkeeper_core::{Claim, Load, Moment};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::ahead::{Ahead, Glimpse, name_of};
use super::alone::{Left, Take};
use super::fault::Trouble;
use super::herald::{Herald, name_behind};
use super::known::Known;
use super::line::{Mark, Seen, View, What, linger};
use super::link::{Ask, Link};
use super::text::{bytes, optional, text};
use super::{NAME, Store};
use crate::ahead::{Bell, Permit, Watch};
use crate::name::{NameHash, hash, micros_up, printable, span};

pub(super) const TAKING: &str = "taking the lock";
pub(super) const LEAVING: &str = "giving the lock back";
const LINGERING: &str = "giving the lock back later";
const LOWERING: &str = "sharing what is held";

/// The server's clock in microseconds.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// Where the store knows us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// Nowhere: we have not asked yet.
    Nowhere,
    /// We took the lock when it was free, and stand in its row unless somebody has come since.
    Alone,
    /// In the line, and we hold.
    Held,
    /// In the line, and we wait.
    Waiting,
    /// Nobody can tell.
    Unknown,
}

/// A claim's place in a line of [`Mysql`](super::Mysql).
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct MysqlPlace {
    pub(super) store: Arc<Store>,
    pub(super) claim: Arc<Claim>,
    lock: NameHash,
    pub(super) whereabouts: Whereabouts,
    /// Our number in line, or of our grant.
    seq: i64,
    /// Nobody in the line has a smaller number.
    pub(super) head: i64,
    /// How many wait before us.
    pub(super) before: i64,
    /// When a holder before us expires, unless it is renewed.
    pub(super) expires_at: Moment,
    /// When the line last moved.
    pub(super) moved_at: Moment,
    /// When the procedure was last asked.
    pub(super) asked_at: Moment,
    /// The procedure must be asked: a look does not suffice.
    pub(super) must_ask: bool,
    /// We have compared our word about the capacity with that of others.
    compared: bool,
    /// What a look has found out.
    pub(super) found: Option<Grant>,
    /// Somebody waits behind us, as we know already.
    pub(super) knows_wanted: bool,
    /// While we hold: the last look was answered.
    pub(super) called: bool,
    pub(super) pace: Pace,
    /// Rings when it may be our turn.
    pub(super) bell: Arc<Bell>,
    /// Waits for whoever stands right before us.
    pub(super) watch: Option<Watch>,
    /// What it saw when that one had gone.
    pub(super) glimpse: Glimpse,
    /// The way whose session holds a named lock for whoever stands behind us.
    named: Option<(Arc<Link>, Permit)>,
    /// We look for others who wait as we do.
    pub(super) herald: Option<Herald>,
    /// Those for whom we looked are being called.
    pub(super) calling: Option<JoinHandle<()>>,
}

impl MysqlPlace {
    pub(super) fn new(store: Arc<Store>, claim: Claim) -> Self {
        let nobody_asked = Moment::from_nanos(0);
        MysqlPlace {
            lock: hash(&claim.key),
            store,
            claim: Arc::new(claim),
            whereabouts: Whereabouts::Nowhere,
            seq: 0,
            head: 0,
            before: 0,
            expires_at: nobody_asked,
            moved_at: nobody_asked,
            asked_at: nobody_asked,
            must_ask: false,
            compared: false,
            found: None,
            knows_wanted: false,
            called: true,
            pace: Pace::new(),
            bell: Arc::default(),
            watch: None,
            glimpse: Glimpse::default(),
            named: None,
            herald: None,
            calling: None,
        }
    }

    /// How we are found again.
    pub(super) fn mark(&self, view: View) -> Mark {
        let id = *self.claim.id.as_bytes();
        let (ttl, load) = (self.claim.ttl, self.claim.load);
        Mark { lock: self.lock, id, seq: self.seq, head: self.head, ttl, load, view }
    }

    /// A named lock that others can wait for, unless we have one. Not if nobody is kept out by us alone, as in a room for
    /// several that is not for all, nor where somebody stands between who may give our session to others.
    fn permit(&self, way: &Link) -> Option<Permit> {
        let Claim { load, patient, .. } = *self.claim;
        let keeps_out = load.weight == load.capacity || load.capacity == u32::MAX;
        let wanted = patient && keeps_out && self.named.is_none() && way.is_direct();
        wanted.then(|| self.store.chairs.permit()).flatten()
    }

    fn turn_sql(&self, bell: u8) -> String {
        let (claim, label) = (&self.claim, &self.claim.label);
        format!(
            "CALL lockkeeper_turn_4({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {bell})",
            bytes(&self.lock),
            bytes(claim.id.as_bytes()),
            text(claim.key.as_str()),
            micros_up(claim.ttl),
            claim.load.weight,
            claim.load.capacity,
            claim.patient,
            text(&printable(&label.host)),
            label.pid,
            optional(label.owner.as_deref()),
            optional(label.note.as_deref()),
        )
    }

    /// Ask the procedure, which may change the line.
    async fn ask_procedure(&mut self, way: &Arc<Link>) -> Result<Turn> {
        let links = &self.store.links;
        let permit = self.permit(way);
        let bell = match (&self.named, &permit) {
            (Some(_), _) => 2,
            (None, Some(_)) => 1,
            (None, None) if self.claim.patient && way.is_direct() => 3,
            (None, None) => 0,
        };
        let (herald, herald_permit) = self.ask_for_herald(bell);
        let (ask, patience) = (Ask::Text(self.turn_sql(bell | herald)), links.patience(self.claim.ttl));
        let reply = links.try_ask(way, &ask, patience).await.map_err(|it| it.fault(TAKING))?;
        // Whoever must ask no longer knows whom it looks for.
        self.call_followers();
        let row = reply.rows.first().and_then(|it| it.first());
        let numbers: Option<Vec<i64>> = row.and_then(|row| (0..9).map(|at| row.get_opt(at)?.ok()).collect());
        let Some([held, counter, wanted, seq, ahead, before, expiry, alone, bell]) = numbers.as_deref()
        else {
            return Err(Trouble::Refused("the answer has another form than expected".into()).fault(TAKING));
        };
        self.bell.answered();
        if let Some(permit) = permit.filter(|_| *bell != 0) {
            self.named = Some((way.clone(), permit));
        }
        let whom = |at: usize| row.and_then(|it| it.get_opt::<Option<Vec<u8>>, _>(at)?.ok()).flatten();
        let (stands_before, blocker) = (whom(9), whom(10));
        let is_herald = row.and_then(|it| it.get_opt::<i64, _>(11)?.ok()) == Some(1);
        (self.seq, self.before, self.must_ask, self.knows_wanted) = (*seq, *before, false, *wanted != 0);
        self.asked_at = self.store.links.clock.now();
        self.watch = None;
        let crowded = *held == 0 || *alone == 0;
        self.store.known.note(self.lock, if crowded { Known::Crowded } else { Known::Used });
        if *held != 0 {
            self.whereabouts = if *alone != 0 { Whereabouts::Alone } else { Whereabouts::Held };
            let ttl = self.claim.ttl;
            return Ok(Turn::Held(grant(counter.unsigned_abs(), ttl, *wanted != 0, reply.sent_at)));
        }
        self.whereabouts = if self.claim.patient { Whereabouts::Waiting } else { Whereabouts::Unknown };
        (self.expires_at, self.moved_at) = (self.asked_at.after(span(*expiry)), self.asked_at);
        if let Ok(before) = u64::try_from(self.before) {
            self.pace.saw(self.asked_at, before);
        }
        let named_after = match (stands_before, blocker, herald_permit) {
            (None, Some(blocker), Some(permit)) if is_herald => {
                self.herald = Some(Herald::new(way.clone(), blocker, permit));
                None
            }
            (before, blocker, _) => before.map(|it| name_of(&it)).or(blocker.map(|it| name_behind(&it))),
        };
        self.wait_for(named_after);
        let (wait, theirs) = (self.wait(u64::try_from(*ahead).ok()), self.theirs(way).await);
        Ok(wait.theirs(theirs))
    }

    /// Wait for whoever holds this named lock.
    fn wait_for(&mut self, name: Option<String>) {
        if let (Some(name), Ok(runtime)) = (name, Handle::try_current()) {
            self.glimpse = Glimpse::default();
            let ahead = Ahead { name, own: self.mark(View::Near), glimpse: self.glimpse.clone() };
            self.watch = Some(Watch::begin(self.store.clone(), &runtime, ahead, self.bell.clone()));
        }
    }

    /// What others say about the room, where permits are counted. Asked once, by whoever waits, and only to be told: a
    /// fault does not matter.
    async fn theirs(&mut self, way: &Arc<Link>) -> Option<u32> {
        let Load { capacity, .. } = self.claim.load;
        if !self.claim.load.is_counted() || std::mem::replace(&mut self.compared, true) {
            return None;
        }
        let ask = Ask::Text(format!(
            "SELECT COALESCE(MIN(capacity), 0) FROM lockkeeper_claim WHERE `lock` = {} \
             AND capacity NOT IN ({capacity}, 1, {})",
            bytes(&self.lock),
            u32::MAX
        ));
        let links = &self.store.links;
        let reply = links.try_ask(way, &ask, links.patience(self.claim.ttl)).await.ok()?;
        let theirs: i64 = reply.rows.first()?.first()?.get_opt(0)?.ok()?;
        u32::try_from(theirs).ok().filter(|it| *it != 0)
    }

    /// Keep our place by our own row alone, with all places of this process.
    async fn keep(&mut self) -> Result<Option<Turn>> {
        let seen = self.store.keep(self.mark(View::Far)).await?;
        self.understand(seen);
        if self.must_ask {
            return Ok(None);
        }
        if let Some(grant) = self.found.take() {
            return Ok(Some(Turn::Held(grant)));
        }
        Ok(Some(self.wait(u64::try_from(self.before + 1).ok())))
    }

    /// Whoever waits looks at the line meanwhile; its place must be kept.
    fn wait(&self, ahead: Option<u64>) -> Turn {
        Turn::wait(self.claim.ttl / 3, ahead)
    }

    /// Learn from a look.
    pub(super) fn understand(&mut self, seen: Seen) {
        match seen.what {
            What::Gone => self.must_ask = true,
            What::Held { counter, left, wanted, .. } => {
                self.knows_wanted = wanted;
                self.call_followers();
                // Who must be told its counter, or has little time left, asks.
                if counter == 0 || left < self.claim.ttl / 2 {
                    self.must_ask = true;
                } else {
                    self.whereabouts = Whereabouts::Held;
                    self.found = Some(grant(counter, left, wanted, seen.sent_at));
                }
            }
            What::Waiting { head, before, expiry, still, wanted } => {
                let now = self.store.links.clock.now();
                self.head = head;
                if let Some(herald) = &mut self.herald {
                    herald.is_followed = wanted;
                }
                if let Some(before) = before {
                    self.before = before;
                    self.pace.saw(now, u64::try_from(before).unwrap_or(0));
                    (self.expires_at, self.moved_at) = (now.after(span(expiry)), now.before(still));
                    // The holder has gone without a word, and we are the next to live: somebody must let us in.
                    self.must_ask = before == 0 && expiry <= 0;
                }
            }
        }
    }
}

impl MysqlPlace {
    /// Give back the named lock, if a session of ours has it: those who wait for it look again.
    fn free_named_lock(&mut self, patience: Duration) {
        let Some((holder, _permit)) = self.named.take() else { return };
        // If it fails, the session has ended, and the lock with it.
        let free = Ask::Text(format!("DO RELEASE_LOCK({})", name_of(self.claim.id.as_bytes())));
        let runtime = holder.runtime.clone();
        runtime.spawn(async move { holder.send(free, patience, Moment::from_nanos(0)).await.is_ok() });
    }

    async fn next_turn(&mut self) -> Result<Turn> {
        if let Some(grant) = self.found.take() {
            return Ok(Turn::Held(grant));
        }
        let links = &self.store.links;
        links.note_ttl(self.claim.ttl);
        links.ready_to_renew(TAKING).await?;
        let way = links.commands();
        // Whatever comes of it, from now on others may be there because of us.
        match std::mem::replace(&mut self.whereabouts, Whereabouts::Unknown) {
            // Where others are, only the procedure can help.
            Whereabouts::Nowhere if self.store.known.of(&self.lock) != Some(Known::Crowded) => {
                let take = Take { lock: self.lock, claim: self.claim.clone() };
                if let Some(taken) = self.store.take_free(way.clone(), take).await? {
                    self.whereabouts = Whereabouts::Alone;
                    self.seq = i64::try_from(taken.counter).unwrap_or(i64::MAX);
                    return Ok(Turn::Held(grant(taken.counter, self.claim.ttl, false, taken.sent_at)));
                }
            }
            Whereabouts::Waiting if !self.must_ask => {
                self.whereabouts = Whereabouts::Waiting;
                if let Some(turn) = self.keep().await? {
                    return Ok(turn);
                }
                self.whereabouts = Whereabouts::Unknown;
            }
            _ => {}
        }
        self.ask_procedure(&way).await
    }
}

/// What was asked for at `sent_at` and lasts so long from then.
fn grant(counter: u64, left: Duration, wanted: bool, sent_at: Moment) -> Grant {
    Grant::new(counter, left).wanted(wanted).sent_at(sent_at)
}

impl Place for MysqlPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.claim.check_load(NAME)?;
        let turn = self.next_turn().await;
        self.followers_are_called().await;
        turn
    }

    async fn changed(&mut self) {
        self.look_until_changed().await;
    }

    fn was_called(&self) -> bool {
        self.called
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let view = if self.whereabouts == Whereabouts::Held { View::Near } else { View::Alone };
        let seen = self.store.renew(self.mark(view)).await?;
        let What::Held { left, wanted, alone, .. } = seen.what else { return Ok(Renewal::Lost) };
        if self.whereabouts == Whereabouts::Alone && !alone {
            self.whereabouts = Whereabouts::Held;
        }
        self.knows_wanted = wanted;
        Ok(Renewal::held(left.min(self.claim.ttl), wanted).sent_at(seen.sent_at))
    }

    async fn leave(&mut self) -> Result<()> {
        let whereabouts = std::mem::replace(&mut self.whereabouts, Whereabouts::Unknown);
        (self.found, self.watch) = (None, None);
        self.call_followers();
        if whereabouts == Whereabouts::Nowhere {
            self.whereabouts = whereabouts;
            return Ok(());
        }
        let way = self.store.links.commands();
        if whereabouts == Whereabouts::Alone && !self.knows_wanted {
            let left = self.store.give_back(way.clone(), self.mark(View::Alone)).await?;
            if left == Left::Done {
                return Ok(());
            }
        }
        let (lock, id) = (bytes(&self.lock), bytes(self.claim.id.as_bytes()));
        let sql = format!("CALL lockkeeper_leave_4({lock}, {id}, {}, {})", self.seq, self.named.is_some());
        let ask = Ask::Text(sql);
        let links = &self.store.links;
        let patience = links.patience(self.claim.ttl);
        let reply = links.try_ask(&way, &ask, patience).await.map_err(|it| it.fault(LEAVING))?;
        let freed: Option<i64> = reply.rows.first().and_then(|it| it.first()?.get_opt(0)?.ok());
        if freed == Some(1) {
            self.named = None;
        }
        self.free_named_lock(patience);
        Ok(())
    }

    async fn linger(&mut self, span: Duration) -> Result<()> {
        if self.whereabouts == Whereabouts::Nowhere {
            return Ok(());
        }
        let links = &self.store.links;
        let patience = links.patience(self.claim.ttl);
        let ask = Ask::Text(linger(&self.mark(View::Alone), span));
        links.try_ask(&links.commands(), &ask, patience).await.map_err(|it| it.fault(LINGERING))?;
        // Nobody waits for one who will not be heard of again.
        self.free_named_lock(patience);
        Ok(())
    }

    async fn lower(&mut self, load: Load) -> Result<bool> {
        if let Whereabouts::Nowhere | Whereabouts::Waiting = self.whereabouts {
            return Ok(false);
        }
        self.claim = Arc::new((*self.claim).clone().load(load));
        let (lock, id, Load { weight, capacity, .. }) =
            (bytes(&self.lock), bytes(self.claim.id.as_bytes()), load);
        let ask = Ask::Text(format!("CALL lockkeeper_lower_4({lock}, {id}, {weight}, {capacity})"));
        let links = &self.store.links;
        let patience = links.patience(self.claim.ttl);
        let reply =
            links.try_ask(&links.commands(), &ask, patience).await.map_err(|it| it.fault(LOWERING))?;
        let held: Option<i64> = reply.rows.first().and_then(|it| it.first()?.get_opt(0)?.ok());
        let Some(held) = held else {
            return Err(Trouble::Refused("the answer has another form than expected".into()).fault(LOWERING));
        };
        // Those who waited for our end are inside now, or wait for others.
        self.free_named_lock(patience);
        Ok(held != 0)
    }
}
