//! A place in a lock's line on Redis: each verb is one script.
//!
//! A waiter learns that it was made holder by message and needs no further trip. Its deadline is then
//! counted from when it last asked: the appointment came after that ask had been served, and runs for a
//! whole ttl. The message names the ask it follows, so a late one from an earlier appointment is not
//! believed.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Grant, Place, Renewal, Result, Turn};
use lockkeeper_core::{Claim, ClaimId, Moment};
use redis::Value;

use crate::record;
use crate::script::Call;
use crate::store::Store;
use crate::wake::{Seat, Word};

const TAKING: &str = "taking the lock";
const LEAVING: &str = "giving the lock back";

/// The head of the line asks this long after a holder's expiry; each behind it a little later.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
const STAGGER: Duration = Duration::from_millis(5);

/// One claim's place in the line of one lock.
#[derive(Debug)]
pub struct RedisPlace {
    store: Arc<Store>,
    claim: Claim,
    id: ClaimId,
    main: String,
    tag: u8,
    /// What the store keeps about us.
    record: Vec<u8>,
    ttl_ms: u64,
    /// How often we asked.
    asks: u64,
    /// When we asked last.
    asked_at: Moment,
    /// A `turn` of this id may still be on its way: its outcome was unknown, or it was sent twice.
    doubt: bool,
    /// The last answer was to wait.
    waiting: bool,
    /// We gave up; a further `turn` begins anew under another id.
    left: bool,
    seat: Option<Arc<Seat>>,
}

impl RedisPlace {
    pub(crate) fn new(store: Arc<Store>, claim: Claim) -> Self {
        let (main, tag) = store.main_key(&claim.key);
        let ttl_ms = whole_ms(claim.ttl);
        RedisPlace {
            id: claim.id,
            main,
            tag,
            record: record::claim(&claim, store.process(), ttl_ms),
            ttl_ms,
            asks: 0,
            asked_at: Moment::from_nanos(0),
            doubt: false,
            waiting: false,
            left: false,
            seat: None,
            store,
            claim,
        }
    }

    /// The store, and the names of lock and claim in it.
    pub(crate) fn known_as(&self) -> (&Store, &str, &[u8; 16]) {
        (&self.store, &self.main, self.id.as_bytes())
    }

    /// The grant that a message brought, if it is fresh enough to be used without asking.
    fn granted_by_word(&mut self, now: Moment) -> Option<Grant> {
        let word = self.seat.as_ref()?.take_word()?;
        let grant = self.believe(word, now)?;
        self.waiting = false;
        Some(grant)
    }

    fn believe(&self, word: Word, now: Moment) -> Option<Grant> {
        // With replicas to be asked, or a server to be mistrusted, only an ask of our own will do.
        if !self.waiting || self.left || word.ask != self.asks || !self.store.trusts_words() {
            return None;
        }
        if self.store.must_outdo(word.counter).is_some() {
            return None;
        }
        let valid_for = self.asked_at.after(self.claim.ttl) - now;
        (self.claim.ttl / 2 <= valid_for).then_some(Grant::new(word.counter, valid_for).wanted(word.wanted))
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
        let turn = self.ask_to_outdo(None).await?;
        let counter = match turn {
            Turn::Held(grant) => self.store.must_outdo(grant.counter),
            Turn::Wait { .. } => None,
        };
        match counter {
            Some(_) => self.ask_to_outdo(counter).await,
            None => Ok(turn),
        }
    }

    /// Ask; if we hold, under a counter larger than `smaller`.
    async fn ask_to_outdo(&mut self, smaller: Option<u64>) -> Result<Turn> {
        self.asks += 1;
        self.asked_at = self.store.now();
        record::set_ask(&mut self.record, self.asks);
        let (mut ttl, mut counter) = ([0; 20], [0; 20]);
        let args: [&[u8]; 4] = [
            &self.record,
            digits(self.ttl_ms, &mut ttl),
            if self.claim.patient { b"1" } else { b"0" },
            digits(smaller.unwrap_or(0), &mut counter),
        ];
        let call = Call { keys: &[&self.main], args: if smaller.is_some() { &args } else { &args[..3] } };
        let repeats = self.store.commands().repeats();
        let answer = self.store.turn(TAKING, !self.waiting && smaller.is_none(), &call).await;
        self.doubt |=
            answer.as_ref().is_err_and(Fault::is_transient) || repeats != self.store.commands().repeats();
        self.read(answer?)
    }

    fn read(&mut self, answer: Value) -> Result<Turn> {
        let held = |counter, wanted, ttl| Turn::Held(Grant::new(counter, ttl).wanted(wanted));
        let turn = match answer {
            Value::Int(counter) if counter < 1 => return Err(RedisPlace::before_2020()),
            Value::Int(counter) => held(counter.unsigned_abs(), false, self.claim.ttl),
            Value::Array(parts) => match parts.as_slice() {
                [Value::Int(1), Value::Int(counter)] => held(counter.unsigned_abs(), true, self.claim.ttl),
                [Value::Int(0), Value::Int(left), Value::Int(ahead)] => {
                    self.wait(record::ticks(left.unsigned_abs()), ahead.unsigned_abs())
                }
                [Value::Int(-1)] => return Err(self.came_too_late()),
                _ => return Err(self.unexpected()),
            },
            _ => return Err(self.unexpected()),
        };
        self.waiting = matches!(turn, Turn::Wait { .. });
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
        let Some(sync) = self.store.sync() else {
            return Ok(());
        };
        let confirmed = sync.confirm(TAKING, &self.main, self.id.as_bytes(), self.ttl_ms).await;
        if let Err(fault) = confirmed {
            // Whether this succeeds or not, the fault tells that the outcome is not a grant.
            let _ = self.leave().await;
            return Err(fault);
        }
        Ok(())
    }

    /// A `leave` of ours was served although its answer was lost. The next ask begins anew.
    fn came_too_late(&mut self) -> Fault {
        self.forget();
        Fault::transient(
            crate::fault::NAME,
            TAKING,
            "this place had been given up already; asking again takes a new one",
        )
    }

    fn forget(&mut self) {
        (self.left, self.waiting) = (true, false);
        self.store.board().stand_up(self.id);
        self.seat = None;
    }

    fn before_2020() -> Fault {
        let what = "the server's clock is before the year 2020, where fences begin; set it right";
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
        if let Some(grant) = self.granted_by_word(self.store.now()) {
            return Ok(Turn::Held(grant));
        }
        if self.left {
            self.begin_anew()?;
        }
        if let Some(quiet) = self.store.quiet_for(TAKING).await? {
            let recheck = quiet.min(self.claim.ttl / 3).max(Duration::from_millis(1));
            return Ok(Turn::wait(recheck, None));
        }
        if self.seat.is_none() {
            self.seat = Some(self.store.board().sit(self.id));
        }
        let turn = self.ask().await?;
        match turn {
            Turn::Held(_) => self.confirm().await?,
            // In a cluster the first who waits in a slot subscribes; what was said before was not heard.
            Turn::Wait { .. } if self.claim.patient && self.store.must_listen(self.tag) => {
                self.store.listen(self.tag).await?;
                return self.ask().await;
            }
            Turn::Wait { .. } => {}
        }
        Ok(turn)
    }

    async fn changed(&mut self) {
        let Some(seat) = &self.seat else {
            return std::future::pending().await;
        };
        poll_fn(|cx| seat.poll_called(cx)).await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let answer =
            self.store.renewals().renew(&self.main, self.tag, *self.id.as_bytes(), self.ttl_ms).await?;
        Ok(answer.map_or(Renewal::Lost, |wanted| Renewal::held(self.claim.ttl, wanted)))
    }

    async fn leave(&mut self) -> Result<()> {
        if self.asks == 0 || self.left {
            return Ok(());
        }
        self.store.leave(LEAVING, &self.main, self.id.as_bytes(), self.doubt).await?;
        self.forget();
        Ok(())
    }
}

impl Drop for RedisPlace {
    fn drop(&mut self) {
        if self.seat.is_some() {
            self.store.board().stand_up(self.id);
        }
    }
}

/// Rounded up: the store keeps a claim at least as long as we believe.
fn whole_ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
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
