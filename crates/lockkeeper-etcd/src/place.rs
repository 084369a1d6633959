//! A place in a line: a key of ours under our lease. The line is the order in which its keys were created.
//!
//! ```text
//!          join (one write)                told, and proven by a write
//!   out ──────────────────▶ in line ─────────────────────────────────▶ inside
//!    ▲ ▲                     │    ▲ those before us watched               │
//!    │ └── leave ────────────┴────│───────────────────────────────────────┤
//!    └──── key gone: lease lost, or broken by hand ───────────────────────┘
//! ```
//!
//! Whoever shares enters without a look at those who enter beside it, so one leave lets in all who fit. The counter is the
//! revision of a transaction that wrote our key, *and* saw in the same step that nobody keeps us out. Hence, however slow
//! we are: every exclusive grant before ours was written by one who has gone since, at a smaller revision; and whoever
//! comes behind and wants the room for itself writes after our key is gone, at a larger one. Of those who are inside
//! together the counters differ, in no order.

mod going;
mod listening;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::admission;
use lockkeeper_core::backend::{Fault, Grant, Place, Renewal, Result, Turn};
use lockkeeper_core::record::{Record, segment_of};
use lockkeeper_core::{Claim, Load, Moment};

use crate::connection::Failed;
use crate::fault::{self, NAME};
use crate::fences::Floor;
use crate::grants::Granted;
use crate::linger;
use crate::lower;
use crate::session::Lease;
use crate::store::Store;
use crate::stray;
use crate::wake::Watch;
use crate::wire::{
    Answer as _, KeyValue, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, created_at,
    delete, newest, nobody_in, oldest_first, one, put, range, touch, written_at,
};

const TAKING: &str = "taking the lock";
const RENEWING: &str = "renewing the lock";

/// A place in a line of [`Etcd`](crate::Etcd).
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct EtcdPlace {
    store: Arc<Store>,
    claim: Claim,
    /// What the names of all keys of this line begin with.
    line: Bytes,
    /// Our key, while we have a lease.
    key: Bytes,
    /// The lease of our key, once we have asked. It stays until we have left for sure, and so does our key's name.
    lease: Option<Arc<Lease>>,
    /// A request to create our key went unanswered, so it may still be under way.
    unsure: bool,
    /// The revision that created our key, once we know it: our number in line.
    revision: Option<i64>,
    /// Our counter, from the write that let us in, while we are inside. Not that of our key: where several share
    /// a room, or wait for rooms of different size, the line's order is not the order of grants.
    counter: Option<u64>,
    /// When those whom we watch are gone we are most likely inside.
    next: bool,
    wanted: bool,
    /// How many are before us, at most: those who come later stand behind.
    ahead: u64,
    /// Outside, those who keep us out; inside, our own key, and the line unless we know that we are wanted.
    watches: Vec<Watch>,
    /// Whom we watch while we wait.
    watched: Vec<Blocker>,
    /// As of which revision we know the line while we are inside, and when we looked.
    seen: (i64, Moment),
    /// While we are inside: somebody called us when we last heard something.
    called: bool,
}

/// What a look at the line is worth.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Worth {
    /// A read, which may be old: good enough to go on waiting.
    Read,
    /// A write that changes nothing but goes through the log, so that only a living leader can answer it.
    Write,
    /// A write to our own key, whose revision makes our counter if it finds us inside.
    Enter(Floor),
}

/// The key of one who keeps us out, and what it weighs if it is worth asking again when that changes.
type Blocker = (Bytes, Option<Load>);

/// What a look at the line said.
struct Look {
    revision: i64,
    /// Those who keep us out; empty if we are inside, or may enter.
    blockers: Vec<Blocker>,
    /// The only one of them had the room for itself: when it goes we are most likely inside.
    next: bool,
    ahead: u64,
    wanted: bool,
    /// The capacity that others name, if it is another than ours.
    theirs: Option<u32>,
    /// For who only tries: whether somebody who keeps us out may be idle, if the look tells.
    idle: Option<bool>,
    /// What the write that may have let us in is worth as a fence, if it is.
    counter: Option<u64>,
}

impl EtcdPlace {
    pub(crate) fn new(store: Arc<Store>, claim: Claim) -> Self {
        let line = format!("{}/locks/{}/", store.prefix(), segment_of(claim.key.as_str()));
        let (line, key) = (Bytes::from(line), Bytes::new());
        EtcdPlace {
            store,
            claim,
            line,
            key,
            lease: None,
            unsure: false,
            revision: None,
            counter: None,
            next: false,
            wanted: false,
            ahead: u64::MAX,
            watches: Vec::new(),
            watched: Vec::new(),
            seen: (0, Moment::from_nanos(0)),
            called: true,
        }
    }

    fn now(&self) -> Moment {
        self.store.connection.clock.now()
    }

    /// Nobody else can be beside us: one predecessor is all we need to know of. Others need to know the line.
    fn is_alone(&self) -> bool {
        self.claim.load.capacity == 1
    }

    /// Our key is gone, or will be with its lease.
    fn reset(&mut self) {
        (self.revision, self.ahead) = (None, u64::MAX);
        self.watches.clear();
        if self.counter.take().is_some() {
            self.store.grants.forget(self.claim.id);
        }
    }

    /// A write let us in, unless its revision is no good as a fence: then another must, and `false` is the answer.
    fn enter(&mut self, own: i64, look: &Look) -> bool {
        self.watches.clear();
        self.counter = look.counter;
        if let Some(counter) = look.counter {
            let granted = Granted { own, counter, key: self.key.clone(), written_at: look.revision };
            self.store.grants.remember(self.claim.id, granted);
        }
        look.counter.is_some()
    }

    /// Our lease, or a new one if we have none that lives.
    async fn lease(&mut self) -> Result<Arc<Lease>> {
        if let Some(lease) = self.lease.as_ref().filter(|it| !it.proof.is_lost()) {
            return Ok(lease.clone());
        }
        self.reset();
        let lease = self.store.sessions.lease(self.claim.ttl).await?;
        let number = lease.names.take(&self.line, self.claim.id);
        let name = format!("{:016x}-{number}", lease.id);
        self.key = [&self.line[..], name.as_bytes()].concat().into();
        self.lease = Some(lease.clone());
        Ok(lease)
    }

    /// Take our place: one write that creates our key unless it is there, and tells who is before us.
    ///
    /// `None` if we must ask again: the lease was lost, or what we knew of it was old.
    async fn join(&mut self, lease: &Lease, floor: Floor) -> Result<Option<Look>> {
        let value = Record::text_of(&self.claim);
        let mut compare = vec![created_at(&self.key, 0), written_at(&lease.marker, lease.epoch())];
        let mut line = if self.is_alone() { newest(&self.line, None) } else { oldest_first(&self.line) };
        // Who only tries wants to know whether the one in its way may be idle.
        line.keys_only &= self.claim.patient;
        let success = if self.is_alone() {
            if !self.claim.patient {
                compare.push(nobody_in(&self.line));
            }
            // The newest before our key is there is our predecessor.
            vec![range(line.clone()), put(&self.key, value, lease.id), range(self.store.fences.look())]
        } else {
            vec![put(&self.key, value, lease.id), range(line.clone()), range(self.store.fences.look())]
        };
        // Who only tries wants to know at once who is there. Others seldom come here, and ask then: what is not in the
        // request need not be sent, logged and copied to the other nodes for every lock.
        let failure = if self.claim.patient { Vec::new() } else { self.what_is_there(lease, Some(line)) };
        let sure = !std::mem::replace(&mut self.unsure, true);
        let txn = TxnRequest { compare, success, failure };
        let connection = self.store.connection.clone();
        let (answer, sent) = match connection.txn_counted(connection.patience(), txn).await {
            Ok(answer) => answer,
            Err(Failed { status, sent }) => {
                // What was refused was not done.
                self.unsure = !sure || sent != 0;
                if fault::is_lease_gone(&status) {
                    lease.proof.lose();
                    return Ok(None);
                }
                return Err(fault::from_status(TAKING, &status));
            }
        };
        // What an earlier request will do is not known any better than before.
        self.unsure = !sure || 1 < sent;
        if answer.succeeded {
            let at = usize::from(!self.is_alone());
            let others = answer.range(at).ok_or_else(|| fault::garbled(TAKING))?;
            let own = answer.revision();
            let mut look = self.look(own, own, others);
            self.revision = Some(own);
            // Nobody in the way at the very write that created our key: it has let us in.
            if look.blockers.is_empty() {
                look.counter = self.store.fences.counter(answer.range(2), own, floor, &connection);
                self.enter(own, &look);
            }
            return Ok((self.counter.is_some() || !look.blockers.is_empty()).then_some(look));
        }
        if !self.claim.patient {
            return self.find_again(lease, &answer).await;
        }
        let mut success = self.what_is_there(lease, None);
        success.push(self.nothing());
        let look = TxnRequest { success, ..TxnRequest::default() };
        let answer = connection.txn(look).await.map_err(|it| fault::from_status(TAKING, &it))?;
        self.find_again(lease, &answer).await
    }

    /// A write that leaves no trace but goes through the log, so that a read beside it is not old.
    fn nothing(&self) -> RequestOp {
        delete(&Bytes::from(format!("{}/nothing", self.store.prefix())))
    }

    /// Our key, the marker, and perhaps the line.
    fn what_is_there(&self, lease: &Lease, line: Option<RangeRequest>) -> Vec<RequestOp> {
        [one(&self.key), one(&lease.marker)].into_iter().chain(line).map(range).collect()
    }

    /// Our key is there already, or our lease is not what we thought, or a try found somebody.
    async fn find_again(&mut self, lease: &Lease, answer: &TxnResponse) -> Result<Option<Look>> {
        let found = |at| answer.range(at).map(|it| it.kvs.first()).ok_or_else(|| fault::garbled(TAKING));
        let Some(marker) = found(1)? else {
            lease.proof.lose();
            return Ok(None);
        };
        lease.set_epoch(marker.mod_revision);
        if let Some(own) = found(0)? {
            if own.lease == lease.id && load(own) != Some(self.claim.load) {
                let removed = stray::remove_one(&self.store.connection, own).await;
                removed.map_err(|it| fault::from_status(TAKING, &it))?;
            } else if own.lease == lease.id {
                self.revision = Some(own.create_revision);
                // Another place of this process may have been told of this very grant.
                self.counter = self.store.grants.remembered(self.claim.id, own.create_revision);
            }
            // Under another lease it is what a lost one left behind; it goes with it.
            return Ok(None);
        }
        if self.claim.patient || !self.is_alone() {
            return Ok(None);
        }
        let others = answer.range(2).ok_or_else(|| fault::garbled(TAKING))?;
        if others.kvs.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.look(0, answer.revision(), others)))
    }

    /// Look at the line from our place. `None` if our key is gone.
    async fn look_again(
        &self,
        own: i64,
        worth: Worth,
        patience: Duration,
        doing: &'static str,
    ) -> Result<Option<Look>> {
        let line = if self.is_alone() { newest(&self.line, Some(own)) } else { oldest_first(&self.line) };
        let (mut success, mut failure) = (vec![range(line)], Vec::new());
        match worth {
            Worth::Read => {}
            Worth::Write => success.push(self.nothing()),
            Worth::Enter(_) => success.extend([touch(&self.key), range(self.store.fences.look())]),
        }
        failure.extend((worth != Worth::Read).then(|| self.nothing()));
        let txn = TxnRequest { compare: vec![created_at(&self.key, own)], success, failure };
        let connection = &self.store.connection;
        let answer = connection.txn_counted(patience, txn).await;
        let answer = answer.map_err(|it| fault::from_status(doing, &it.status))?.0;
        if !answer.succeeded {
            return Ok(None);
        }
        let others = answer.range(0).ok_or_else(|| fault::garbled(doing))?;
        let mut look = self.look(own, answer.revision(), others);
        if let (Worth::Enter(floor), true) = (worth, look.blockers.is_empty()) {
            look.counter = self.store.fences.counter(answer.range(2), look.revision, floor, connection);
        }
        Ok(Some(look))
    }

    /// Reckon with what was read at `revision`. `own` is when our key was created; 0 if it was not.
    fn look(&self, own: i64, revision: i64, others: &RangeResponse) -> Look {
        if self.is_alone() {
            let blockers: Vec<Blocker> = others.kvs.iter().map(|it| (it.key.clone(), None)).collect();
            // After we joined the count includes us; before, those are all.
            let all = u64::try_from(others.count).unwrap_or(0);
            let ahead = if own == revision || own == 0 { all } else { all.saturating_sub(1) };
            let wanted = own != revision && blockers.is_empty() && 1 < all;
            // The only one before us holds; of more than one we see the last, who waits.
            let idle = self.met_idle(others.kvs.iter().filter(|_| all == 1));
            return Look { revision, blockers, next: true, ahead, wanted, theirs: None, idle, counter: None };
        }
        let line: Vec<(&KeyValue, Load)> = others.kvs.iter().filter_map(|it| Some((it, load(it)?))).collect();
        let at = line.iter().position(|it| it.0.key == self.key).unwrap_or(line.len());
        let loads: Vec<Load> = line.iter().map(|it| it.1).collect();
        let blockers = admission::blockers(&loads[..at], self.claim.load);
        let next = matches!(blockers[..], [one] if loads[one].capacity <= loads[one].weight);
        let idle = self.met_idle(blockers.iter().map(|it| line[*it].0));
        // Whoever takes all waits until they are gone; a sharer may also fit in when one of them weighs less.
        let shares = !self.claim.load.is_exclusive();
        let blocker = |it: usize| (line[it].0.key.clone(), shares.then_some(loads[it]));
        let blockers = blockers.into_iter().map(blocker).collect();
        let wanted = admission::inside(&loads) < loads.len();
        let ahead = u64::try_from(at).unwrap_or(u64::MAX);
        let theirs = self.claim.load.differing(loads);
        Look { revision, blockers, next, ahead, wanted, theirs, idle, counter: None }
    }

    /// Ask until we know: am I inside? Answers what the last look said.
    async fn ask(&mut self) -> Result<(Arc<Lease>, Look)> {
        let patience = self.store.connection.patience();
        // Each way round is a lease lost, a key gone or a store that went back, which do not happen often.
        for _ in 0..6 {
            let lease = self.lease().await?;
            let floor = self.store.fences.floor(&self.store.connection).await?;
            let Some(own) = self.revision else {
                if let Some(look) = self.join(&lease, floor).await? {
                    return Ok((lease, look));
                }
                continue;
            };
            // A recheck without a sign is only read: most of those who wait are not next. And where one of several
            // goes, that seldom lets us in.
            let is_next = self.watches.is_empty() || self.next && self.is_told();
            if self.counter.is_none() && !is_next {
                let look = self.look_again(own, Worth::Read, patience, TAKING).await?;
                if let Some(look) = look.filter(|it| !it.blockers.is_empty()) {
                    return Ok((lease, look));
                }
            }
            let worth = if self.counter.is_some() { Worth::Write } else { Worth::Enter(floor) };
            match self.look_again(own, worth, patience, TAKING).await? {
                Some(look) if self.counter.is_some() || !look.blockers.is_empty() => {
                    return Ok((lease, look));
                }
                Some(look) => {
                    if self.enter(own, &look) {
                        return Ok((lease, look));
                    }
                }
                None => self.reset(),
            }
        }
        Err(Fault::transient(NAME, TAKING, "our lease, or the store, is lost again and again"))
    }

    /// For how long from `called_at` the lease is proven; a proof that is getting old is waited for.
    async fn fresh_proof(&self, lease: &Lease, called_at: Moment) -> Duration {
        let connection = &self.store.connection;
        // Not for all that is left: an answer that comes too late helps nobody.
        let most = ((lease.proof.proven_until() - called_at) / 2).min(connection.options.timeout);
        tokio::select! {
            () = lease.proof.when_proven_beyond(called_at.after(lease.ttl * 2 / 5)) => {}
            () = connection.clock.sleep_until(called_at.after(most)) => {}
        }
        lease.proof.proven_until() - called_at
    }
}

/// A key that is no claim of ours takes no room.
fn load(kv: &KeyValue) -> Option<Load> {
    Record::read(&kv.value).map(|it| it.load)
}

impl Place for EtcdPlace {
    async fn turn(&mut self) -> Result<Turn> {
        let called_at = self.now();
        self.claim.check_load(NAME)?;
        let (lease, look) = self.ask().await?;
        if !look.blockers.is_empty() {
            if self.claim.patient {
                return Ok(self.wait(&look));
            }
            self.leave().await?;
            return Ok(Turn::wait(self.claim.ttl / 3, Some(look.ahead)).may_be_idle(look.idle));
        }
        (self.wanted, self.seen) = (look.wanted, (look.revision, called_at));
        // The keeper renews after a third of the ttl; a proof that will not last until then is waited for.
        let valid_for = self.fresh_proof(&lease, called_at).await;
        if valid_for < lease.ttl / 20 || lease.proof.is_lost() {
            return Err(Fault::transient(NAME, TAKING, "the lease is in doubt until the next keep-alive"));
        }
        Ok(Turn::Held(Grant::new(self.counter.unwrap_or(0), valid_for).wanted(look.wanted)))
    }

    async fn changed(&mut self) {
        let Some(lease) = self.lease.clone() else {
            return std::future::pending().await;
        };
        self.listen(&lease).await;
    }

    fn was_called(&self) -> bool {
        self.called
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let called_at = self.now();
        let (Some(lease), Some(own), Some(_)) = (self.lease.clone(), self.revision, self.counter) else {
            return Ok(Renewal::Lost);
        };
        if lease.proof.is_lost() {
            self.reset();
            return Ok(Renewal::Lost);
        }
        // Afterwards the watch tells; until it does, a renewal costs this lock nothing.
        if self.wanted || self.may_have_changed() {
            // No longer than a share of what is left: then there is time for another connection, and another node.
            let left = lease.proof.proven_until() - called_at;
            let patience = self.store.connection.patience().min(left / 5);
            let Some(look) = self.look_again(own, Worth::Write, patience, RENEWING).await? else {
                self.reset();
                return Ok(Renewal::Lost);
            };
            self.listen_inside(&look, called_at);
        }
        // What the heartbeat of all has proven is ours as well; a stale proof is waited for.
        let valid_for = self.fresh_proof(&lease, called_at).await;
        if lease.proof.is_lost() {
            self.reset();
            return Ok(Renewal::Lost);
        }
        if valid_for.is_zero() {
            return Err(Fault::transient(NAME, RENEWING, "no keep-alive was confirmed in time"));
        }
        Ok(Renewal::held(valid_for, self.wanted))
    }

    async fn leave(&mut self) -> Result<()> {
        self.watches.clear();
        let Some(lease) = self.lease.clone() else {
            return Ok(());
        };
        self.parting(lease).once(&self.store.connection).await?;
        self.unsure = false;
        self.reset();
        self.lease = None;
        Ok(())
    }

    async fn linger(&mut self, span: Duration) -> Result<()> {
        let (until, Some(lease)) = (self.now().after(span), self.lease.clone()) else { return Ok(()) };
        // Whoever waits has nothing to keep.
        if self.counter.is_none() {
            return Ok(());
        }
        let (connection, parting) = (self.store.connection.clone(), self.parting(lease));
        if !linger::keep(&connection, &parting, span).await? {
            return self.leave().await;
        }
        (self.unsure, self.lease) = (false, None);
        self.reset();
        let store = Arc::downgrade(&self.store);
        connection.clone().driver.spawn(linger::leave_at(until, parting, connection, store));
        Ok(())
    }

    async fn lower(&mut self, load: Load) -> Result<bool> {
        let (Some(lease), Some(counter)) = (self.lease.clone(), self.counter) else { return Ok(false) };
        self.claim.load = load;
        // Others are of interest to a reader.
        self.watches.clear();
        let (connection, parting) = (self.store.connection.clone(), self.parting(lease));
        let Some(revision) = lower::rewrite(&connection, &parting, &self.claim, counter).await? else {
            self.reset();
            return Ok(false);
        };
        self.store.grants.rewrote(self.claim.id, revision);
        Ok(true)
    }
}
