//! A place in a lock's line on Redis: each verb is one script.
//!
//! A waiter learns that it was made holder by message and needs no further trip. Its deadline is then
//! counted from when it last asked: the appointment came after that ask had been served, and runs for a
//! whole ttl. The message names the ask it follows, so a late one from an earlier appointment is not
//! believed.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Grant, Place, Renewal, Result, Turn};
use lockkeeper_core::{Claim, ClaimId, Load, Moment};
use redis::Value;

use crate::desk::Desk;
use crate::options::Replicas;
use crate::record;
use crate::renewal::Answer;
use crate::script::{Call, Script};
use crate::store::{Errand, Store};
use crate::wake::{Bell, Holding, Word};

const TAKING: &str = "taking the lock";
const LEAVING: &str = "giving the lock back";
const LINGERING: &str = "giving the lock back later";
const LOWERING: &str = "sharing what is held";
const LISTENING: &str = "listening for wake-ups";

/// The head of the line asks this long after a holder's expiry; each behind it a little later.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
const STAGGER: Duration = Duration::from_millis(5);

/// As long as Redis counts.
const LINGER_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// One claim's place in the line of one lock.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and any may be true with any other"
)]
pub struct RedisPlace {
    store: Arc<Store>,
    claim: Claim,
    id: ClaimId,
    main: Arc<str>,
    tag: u8,
    /// Where the largest counter is kept.
    mark: Arc<str>,
    /// What the store keeps about us.
    record: Vec<u8>,
    ttl_ms: u64,
    /// How often we asked.
    asks: u64,
    /// When we asked last.
    asked_at: Moment,
    /// The largest counter that this process had seen when it asked last.
    floor: u64,
    /// A `turn` of this id may still be on its way: one went unanswered, however often it was sent.
    doubt: bool,
    /// The last ask was one to stand in line if need be.
    joins: bool,
    /// We stand in line, as the last answer said.
    waiting: bool,
    /// We gave up; a further `turn` begins anew under another id.
    left: bool,
    bell: Option<Arc<Bell>>,
    /// What rang it last was a call.
    called: bool,
    /// Where messages find us since we asked last.
    desk: Option<Arc<Desk>>,
}

impl RedisPlace {
    pub(crate) fn new(store: Arc<Store>, claim: Claim) -> Self {
        let (main, tag) = store.main_key(&claim.key);
        let ttl_ms = whole_ms(claim.ttl);
        RedisPlace {
            id: claim.id,
            main: main.into(),
            mark: store.mark_key(tag),
            tag,
            record: record::claim(&claim, ttl_ms),
            ttl_ms,
            asks: 0,
            asked_at: Moment::from_nanos(0),
            floor: 0,
            doubt: false,
            joins: false,
            waiting: false,
            left: false,
            bell: None,
            called: false,
            desk: None,
            store,
            claim,
        }
    }

    fn errand(&self, doing: &'static str) -> Errand<'_> {
        Errand { doing, main: &self.main, tag: self.tag, mark: &self.mark }
    }

    fn holding(&self) -> Holding {
        let RedisPlace { main, tag, id, ttl_ms, .. } = self;
        Holding { main: main.clone(), tag: *tag, id: *id, ttl_ms: *ttl_ms }
    }

    /// Call a script that works on this lock for this claim.
    pub(crate) async fn call(&self, doing: &'static str, script: &Script, arg: &[u8]) -> Result<Value> {
        let (store, args) = (&self.store, [self.id.as_bytes().as_slice(), arg]);
        let call = Call { keys: &[&self.main, &self.mark], args: &args };
        store.call(&*store.desk(doing)?, &self.errand(doing), script, &call).await.answer
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The grant that a message brought, if it is fresh enough to be used without asking.
    fn granted_by_word(&mut self) -> Option<Grant> {
        let word = self.bell.as_ref()?.take_word()?;
        let grant = self.believe(word, self.store.now())?;
        self.waiting = false;
        Some(grant)
    }

    fn believe(&self, word: Word, now: Moment) -> Option<Grant> {
        // With replicas to be asked, or a server to be mistrusted, only an ask of our own will do.
        if !self.waiting || self.left || word.ask != self.asks || !self.store.trusts_words() {
            return None;
        }
        // A store that forgot what we know of, and whose clock is behind: it must be told.
        if word.counter <= self.floor {
            return None;
        }
        // The message may have been on its way for long: what is left counts from when we asked, not from now.
        let left = self.asked_at.after(self.claim.ttl) - now;
        let grant = Grant::new(word.counter, left).wanted(word.wanted);
        (self.claim.ttl / 2 <= left).then_some(grant)
    }

    /// Whoever left stands in line anew: an old `leave` that is still under way must not find it.
    fn begin_anew(&mut self) -> Result<()> {
        self.id = ClaimId::random().map_err(|it| {
            Fault::transient(crate::fault::NAME, TAKING, "no random claim id could be drawn").with_source(it)
        })?;
        record::set_id(&mut self.record, self.id.as_bytes());
        (self.left, self.waiting, self.doubt) = (false, false, false);
        Ok(())
    }

    async fn ask(&mut self) -> Result<Turn> {
        // Whoever was told to wait is given its counter after that, by whomever.
        let told = if self.waiting { self.floor } else { 0 };
        self.floor = self.store.largest();
        let turn = self.ask_store(false).await?;
        match turn {
            // It was given by a store that had forgotten what we have seen, while its clock is behind.
            Turn::Held(grant) if grant.counter <= told => self.ask_store(true).await,
            turn => Ok(turn),
        }
    }

    /// Where messages find us: where we ask, unless what we hold may be idle. Then it is on our own thread: the application may stand
    /// still while another wants the lock.
    async fn told_at(&self, desk: &Arc<Desk>) -> Result<Arc<Desk>> {
        if !self.claim.label.warm {
            return Ok(desk.clone());
        }
        let own = self.store.own_desk(TAKING)?;
        if own.hears(self.tag) {
            return Ok(own);
        }
        // Before it asks, so that nobody comes in between.
        let begun = Box::pin(own.begin_to_hear(TAKING, self.tag)).await;
        // In a cluster whoever stays deaf can be a holder all the same, but neither wait nor be idle.
        if own.ears.is_none() {
            begun?;
        }
        Ok(own)
    }

    /// Ask. What is held already is lifted over our floor if `lift` says so.
    async fn ask_store(&mut self, lift: bool) -> Result<Turn> {
        let desk = self.store.desk(TAKING)?;
        let told_at = self.told_at(&desk).await?;
        // Nobody stands in line who does not hear yet: it would be passed over.
        let hears = told_at.ears.as_ref().is_none_or(|it| it.listens_to(self.tag));
        self.joins = self.claim.patient && hears;
        self.asks += 1;
        record::set_ask(&mut self.record, self.asks);
        record::set_process(&mut self.record, &told_at.process);
        self.desk = Some(told_at);
        let (mut ttl, mut least) = ([0; 20], [0; 20]);
        let least = least_counter(self.floor, self.joins, &mut least);
        let args: [&[u8]; 4] = [&self.record, digits(self.ttl_ms, &mut ttl), least, b"1"];
        let args = if lift { &args } else { &args[..3] };
        let call = Call { keys: &[&self.main, &self.mark], args };
        let newcomer = (!self.waiting && !lift).then_some(self.ttl_ms);
        let begun = self.store.now();
        let asked = self.store.turn(&desk, &self.errand(TAKING), newcomer, &call).await;
        self.asked(begun, asked.in_doubt, asked.sent_at);
        self.read(asked.answer?, asked.sent_at)
    }

    /// From when a message counts that names this ask. One that was sent twice may have been served the first time.
    fn asked(&mut self, begun: Moment, in_doubt: bool, sent_at: Moment) {
        self.asked_at = if in_doubt { begun } else { sent_at };
        self.doubt |= in_doubt;
    }

    fn read(&mut self, answer: Value, sent_at: Moment) -> Result<Turn> {
        let held = |counter: i64, wanted, ttl| {
            Turn::Held(Grant::new(counter.unsigned_abs(), ttl).wanted(wanted).sent_at(sent_at))
        };
        let turn = match answer {
            Value::Int(counter) => held(counter, false, self.claim.ttl),
            Value::Array(parts) => match parts.as_slice() {
                [Value::Int(1), Value::Int(counter)] => held(*counter, true, self.claim.ttl),
                [Value::Int(0), Value::Int(left), Value::Int(ahead), seen @ ..] => {
                    let capacity =
                        |it: &Value| if let Value::Int(it) = it { u32::try_from(*it).ok() } else { None };
                    let smallest = seen.first().and_then(capacity).map(|it| Load::new(1, it));
                    let idle = seen.get(1).filter(|_| !self.claim.patient).map(|it| *it == Value::Int(1));
                    self.wait(record::ticks(left.unsigned_abs()), ahead.unsigned_abs())
                        .theirs(self.claim.load.differing(smallest))
                        .may_be_idle(idle)
                }
                [Value::Int(-1)] => return Err(self.came_too_late()),
                [Value::Int(-2)] => return Err(RedisPlace::used_up()),
                _ => return Err(self.unexpected()),
            },
            _ => return Err(self.unexpected()),
        };
        self.waiting = matches!(turn, Turn::Wait { .. }) && (self.waiting || self.joins);
        Ok(turn)
    }

    /// Asking again keeps our place alive and finds what a lost message would have told.
    fn wait(&self, until_expiry: Duration, ahead: u64) -> Turn {
        let behind = STAGGER.saturating_mul(u32::try_from(ahead.saturating_sub(1)).unwrap_or(u32::MAX));
        let recheck = until_expiry + AFTER_EXPIRY + behind;
        Turn::wait(recheck.min(self.claim.ttl / 3).max(Duration::from_millis(1)), Some(ahead))
    }

    /// Let the replicas confirm what was granted, if that was asked for. What they do not confirm is given up.
    async fn confirm(&mut self) -> Result<()> {
        let mut desk = self.store.desk(TAKING)?;
        let Some(sync) = &desk.sync else {
            return Ok(());
        };
        let mut confirmed = sync.confirm(TAKING, &self.holding()).await;
        if confirmed.is_err() && desk.is_stuck() {
            desk = self.store.own_desk(TAKING)?;
            if let Some(sync) = &desk.sync {
                confirmed = sync.confirm(TAKING, &self.holding()).await;
            }
        }
        if let Err(fault) = confirmed {
            // Whether this succeeds or not, the fault tells that the outcome is not a grant.
            let _ = self.leave().await;
            return Err(fault);
        }
        Ok(())
    }

    /// Remember that we hold, so that it can be renewed at once when something changes.
    fn hold(&self, grant: &Grant) {
        self.store.note(grant.counter);
        if let Some(bell) = &self.bell {
            bell.hold(self.holding());
        }
    }

    /// In a cluster a process hears of a slot only after it has subscribed there. Whoever waits, or may be idle, did that before
    /// it asked; whoever holds does it here. `true` if it hears from now on, and did not before, or if it may be idle and is deaf.
    async fn begins_to_hear(&self) -> bool {
        let Some(desk) = &self.desk else { return false };
        let warm = self.claim.label.warm;
        if self.waiting || desk.hears(self.tag) || !warm && desk.ears.is_none() {
            return false;
        }
        // Boxed: what few need would be in every lock that is held.
        let begun = Box::pin(desk.begin_to_hear(LISTENING, self.tag)).await;
        begun.is_ok() || warm
    }

    /// Listen for messages about this lock, if we do not yet.
    async fn listen(&self) -> Result<()> {
        match self.desk.as_ref().and_then(|it| it.ears.as_ref()) {
            Some(ears) => ears.listen_to(LISTENING, self.tag).await,
            None => Ok(()),
        }
    }

    /// A `leave` of ours was served although its answer was lost. The next ask begins anew.
    fn came_too_late(&mut self) -> Fault {
        self.forget();
        let what = "this place had been given up already; asking again takes a new one";
        Fault::transient(crate::fault::NAME, TAKING, what)
    }

    fn forget(&mut self) {
        (self.left, self.waiting) = (true, false);
        self.store.bells().forget(self.id);
        self.bell = None;
    }

    fn used_up() -> Fault {
        let what = "fences are used up: the server's clock is or was after the year 2109, where they end; set it right, \
            and if that does not help remove the key PREFIX:mark (on a cluster PREFIX:{??}:mark)";
        Fault::permanent(crate::fault::NAME, TAKING, what)
    }

    fn unexpected(&self) -> Fault {
        Fault::transient(
            crate::fault::NAME,
            TAKING,
            format!("the script for {:?} gave an answer that is not ours", self.claim.key),
        )
    }
}

impl Place for RedisPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.claim.check_load(crate::fault::NAME)?;
        if let Some(grant) = self.granted_by_word() {
            self.hold(&grant);
            return Ok(Turn::Held(grant));
        }
        if self.left {
            self.begin_anew()?;
        }
        if let Some(quiet) = self.store.quiet_for(TAKING).await? {
            let recheck = quiet.min(self.claim.ttl / 3).max(Duration::from_millis(1));
            return Ok(Turn::wait(recheck, None));
        }
        if self.bell.is_none() {
            self.bell = Some(self.store.bells().hear(self.id));
        }
        // What a renewal needs is there before there is anything to renew.
        self.store.own_desk(TAKING)?.renewals.prepare(self.tag).await?;
        self.store.be_minded();
        let mut turn = self.ask().await?;
        // In a cluster the first who waits in a slot subscribes, and stands in line only then.
        if matches!(turn, Turn::Wait { .. }) && self.claim.patient && !self.joins {
            self.listen().await?;
            turn = self.ask().await?;
        }
        if let Turn::Held(grant) = turn {
            if self.store.options().replicas != Replicas::None {
                Box::pin(self.confirm()).await?;
            }
            self.hold(&grant);
        }
        Ok(turn)
    }

    async fn changed(&mut self) {
        let Some(bell) = self.bell.clone() else {
            return std::future::pending().await;
        };
        // Somebody may have come before we could hear of it: then asking is worthwhile.
        if self.begins_to_hear().await {
            self.called = false;
            return;
        }
        bell.rung().await;
        self.called = bell.take_call();
    }

    fn was_called(&self) -> bool {
        self.called
    }

    async fn renew(&mut self) -> Result<Renewal> {
        if self.bell.as_ref().is_some_and(|it| it.has_lost()) {
            return Ok(Renewal::Lost);
        }
        let desk = self.store.own_desk("renewing the lock")?;
        Ok(match desk.renewals.renew(&self.holding()).await? {
            Answer::Lost => Renewal::Lost,
            Answer::Held { wanted, sent_at } => Renewal::held(self.claim.ttl, wanted).sent_at(sent_at),
        })
    }

    async fn lower(&mut self, load: Load) -> Result<bool> {
        if self.asks == 0 || self.left || self.waiting {
            return Ok(false);
        }
        self.claim.load = load;
        record::set_load(&mut self.record, load);
        let lower = &self.store.scripts().lower;
        match self.call(LOWERING, lower, &record::load(load)).await? {
            Value::Int(held) => Ok(held == 1),
            _ => Err(self.unexpected()),
        }
    }

    async fn leave(&mut self) -> Result<()> {
        if self.asks == 0 || self.left {
            return Ok(());
        }
        // Not even after a change of the connection, while this is repeated: it would be kept for nobody.
        if let Some(bell) = &self.bell {
            bell.give_back();
        }
        self.store.leave(&self.errand(LEAVING), self.id.as_bytes(), self.doubt).await?;
        self.forget();
        Ok(())
    }

    async fn linger(&mut self, span: Duration) -> Result<()> {
        if self.asks == 0 || self.left {
            return Ok(());
        }
        // From now on nothing may renew it, not even after a change of the connection.
        self.store.bells().forget(self.id);
        self.bell = None;
        let kept = Holding { ttl_ms: whole_ms(span.min(LINGER_MAX)).max(1), ..self.holding() };
        self.store.linger(&self.errand(LINGERING), &kept, self.doubt).await
    }
}

impl Drop for RedisPlace {
    fn drop(&mut self) {
        if self.bell.is_some() {
            self.store.bells().forget(self.id);
        }
    }
}

/// Rounded up: the store keeps a claim at least as long as we believe.
fn whole_ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What a new counter is at least, if this is the largest seen. A minus says that the claim does not join the line.
fn least_counter(floor: u64, joins: bool, buffer: &mut [u8; 20]) -> &[u8] {
    let at = buffer.len() - digits(floor.saturating_add(1), buffer).len();
    match at.checked_sub(1) {
        Some(before) if !joins => {
            buffer[before] = b'-';
            &buffer[before..]
        }
        _ => &buffer[at..],
    }
}

/// A number in decimal digits, without an allocation.
pub(crate) fn digits(mut number: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            return &buffer[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::Key;

    use super::*;
    use crate::options::RedisOptions;

    /// What the allocator hands out quickly, on the systems we know.
    const QUICK: usize = 1024;

    /// A process that stands still asks twice by one number, before and after; it was made holder meanwhile.
    #[test]
    fn no_message_is_believed_that_may_follow_the_first_of_two_sendings() {
        let store = Store::new(RedisOptions::parse("redis://localhost").unwrap()).unwrap();
        let claim = Claim::new(Key::new("k").unwrap(), Duration::from_secs(2)).unwrap();
        let (mut place, begun) = (RedisPlace::new(store, claim), Moment::from_nanos(1));
        let [again, now] = [4000, 4500].map(|it| begun.after(Duration::from_millis(it)));
        (place.asks, place.waiting) = (1, true);
        let word = || Word { counter: 7, ask: 1, wanted: false };
        place.asked(begun, true, again);
        assert!(place.believe(word(), now).is_none(), "the lock may be another's by now");
        place.asked(again, false, again);
        assert_eq!(place.believe(word(), now).unwrap().valid_for, Duration::from_millis(1500));
    }

    #[test]
    fn what_a_crowd_does_for_each_lock_takes_little_memory() {
        let store = Store::new(RedisOptions::parse("redis://localhost").unwrap()).unwrap();
        let claim = Claim::new(Key::new("k").unwrap(), Duration::from_secs(1)).unwrap();
        let mut place = RedisPlace::new(store, claim);
        // A million renewals are under way at once where a million locks are held.
        let turn = size_of_val(&place.turn());
        let leave = size_of_val(&place.leave());
        let sizes = [turn, leave, size_of_val(&place.renew())];
        assert!(sizes.iter().all(|it| *it <= QUICK), "turn, leave, renew: {sizes:?}");
    }
}
