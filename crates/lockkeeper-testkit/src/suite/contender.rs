//! A contender: somebody who wants a lock, keeps book of what the store owes him, and says when it errs.
//!
//! A contender never trusts time to be short. It knows until when the store must keep what it has, and
//! calls a surprise after that moment a stall of the machine, not a fault of the store.

use std::future::Future;
use std::time::Duration;

use lockkeeper_core::backend::{Grant, Lease, Place, Renewal, Result as Answer, Turn};
use lockkeeper_core::clock::Sleep;
use lockkeeper_core::fence::COUNTER_MAX;
use lockkeeper_core::{Claim, Clock, Moment};

use super::trial::Failure;
use crate::history::{History, What};

/// Until when the store must keep what nobody has asked for.
const NEVER_ASKED: Moment = Moment::from_nanos(0);

/// Somebody who wants a lock.
#[derive(Debug)]
pub struct Contender<P> {
    /// The claim, as the store was told it.
    pub claim: Claim,
    place: P,
    lease: Lease,
    history: History,
    clock: Clock,
    patience: Duration,
    safe_until: Moment,
}

impl<P: Place> Contender<P> {
    pub(super) fn new(
        place: P,
        claim: Claim,
        lease: Lease,
        history: History,
        clock: Clock,
        patience: Duration,
    ) -> Self {
        let safe_until = NEVER_ASKED;
        Contender { claim, place, lease, history, clock, patience, safe_until }
    }

    /// Until when the store must keep what we have, the lock or the place, without hearing from us.
    pub fn safe_until(&self) -> Moment {
        self.safe_until
    }

    /// The bare place, for verbs that need no book-keeping.
    pub fn place(&mut self) -> &mut P {
        &mut self.place
    }

    /// Ask once, whatever comes back.
    ///
    /// # Errors
    /// [`Failure`] if the answer is one that no store may give, or none comes.
    pub async fn ask_once(&mut self) -> Result<Answer<Turn>, Failure> {
        let asked = self.history.ask();
        let answer = in_time(&self.clock, self.patience, "`turn`", self.place.turn()).await?;
        match &answer {
            Ok(Turn::Held(grant)) => {
                check(grant)?;
                let valid_until = asked.at.after(grant.valid_for);
                self.safe_until = valid_until;
                self.history.note(&self.claim, What::Granted { asked, fence: grant.counter, valid_until });
            }
            Ok(Turn::Wait { recheck, .. }) => {
                if self.claim.patient && self.lease == Lease::Claim && self.claim.ttl <= *recheck {
                    let ttl = self.claim.ttl;
                    return Err(Failure::broken(format!(
                        "told to ask again after {recheck:?}, when the place, with a ttl of {ttl:?}, is forgotten"
                    )));
                }
                self.safe_until = asked.at.after(self.claim.ttl);
                self.history.note(&self.claim, What::Waits { asked });
            }
            Err(_) => {}
        }
        Ok(answer)
    }

    /// Ask until there is an answer. A store may fail for a moment, also a healthy one.
    ///
    /// # Errors
    /// If it fails for good.
    pub async fn ask(&mut self) -> Result<Turn, Failure> {
        let give_up = self.clock.now().after(self.patience);
        loop {
            match self.ask_once().await? {
                Ok(turn) => return Ok(turn),
                Err(fault) if fault.is_transient() && self.clock.now() < give_up => self.pause().await,
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Ask and fail to get an answer, because the script says so.
    ///
    /// # Errors
    /// If there is one.
    pub async fn asks_in_vain(&mut self) -> Result<(), Failure> {
        match self.ask_once().await? {
            Err(_) => Ok(()),
            Ok(turn) => Err(Failure::broken(format!("a call that chaos took away was answered: {turn:?}"))),
        }
    }

    /// Wait for our turn as the keeper does: ask, then sleep until something changed or the recheck is due.
    ///
    /// # Errors
    /// If it never comes.
    pub async fn takes(&mut self) -> Result<Grant, Failure> {
        let give_up = self.clock.now().after(self.patience);
        loop {
            match self.ask().await? {
                Turn::Held(grant) if self.clock.now() < self.safe_until => return Ok(grant),
                // The answer came too late to be true. Ask again.
                Turn::Held(_) => {}
                Turn::Wait { recheck, .. } => tokio::select! {
                    // A `changed` that is always ready must not spin.
                    () = self.place.changed() => self.clock.sleep(Duration::from_millis(1)).await,
                    () = self.clock.sleep(recheck) => {}
                },
            }
            if give_up < self.clock.now() {
                let patience = self.patience;
                return Err(Failure::broken(format!("a free lock was not granted within {patience:?}")));
            }
        }
    }

    /// Take what is free: the first answer is a grant.
    ///
    /// # Errors
    /// If it is not; `why` says why it should have been.
    pub async fn takes_at_once(&mut self, why: &str) -> Result<Grant, Failure> {
        let kept_until = self.safe_until;
        match self.ask().await? {
            Turn::Held(grant) => Ok(grant),
            Turn::Wait { .. } if kept_until != NEVER_ASKED && kept_until <= self.clock.now() => {
                Err(Failure::Stalled("told to wait, but perhaps its place was forgotten before".to_owned()))
            }
            Turn::Wait { ahead, .. } => {
                Err(Failure::broken(format!("told to wait ({ahead:?} ahead), but {why}")))
            }
        }
    }

    /// Ask, and be told to wait, as somebody else is in the way until `safe_until`.
    ///
    /// # Errors
    /// If the lock is given to us all the same; `why` says who was in the way.
    pub async fn must_wait(&mut self, safe_until: Moment, why: &str) -> Result<(), Failure> {
        match self.ask().await? {
            Turn::Wait { .. } => Ok(()),
            Turn::Held(grant) if self.clock.now() < safe_until => {
                Err(Failure::broken(format!("granted ({}) although {why}", grant.counter)))
            }
            Turn::Held(_) => Err(Failure::Stalled(format!("granted, but perhaps no longer true that {why}"))),
        }
    }

    /// Keep asking until `until`, and be told to wait each time.
    ///
    /// # Errors
    /// If the lock is given to us before; `why` says why it must not be.
    pub async fn must_wait_until(&mut self, until: Moment, why: &str) -> Result<(), Failure> {
        loop {
            let asked_at = self.clock.now();
            match self.ask().await? {
                Turn::Held(grant) if self.clock.now() < until => {
                    let early = until - self.clock.now();
                    return Err(Failure::broken(format!(
                        "granted ({}) {early:?} too early: {why}",
                        grant.counter
                    )));
                }
                _ if until <= asked_at => return Ok(()),
                _ => self.pause().await,
            }
        }
    }

    /// Renew once, whatever comes back.
    ///
    /// # Errors
    /// If no answer comes.
    pub async fn renew_once(&mut self) -> Result<Answer<Renewal>, Failure> {
        let asked_at = self.clock.now();
        let answer = in_time(&self.clock, self.patience, "`renew`", self.place.renew()).await?;
        match &answer {
            Ok(Renewal::Held { valid_for, .. }) => {
                let valid_until = asked_at.after(*valid_for);
                // What comes back after the deadline revives nothing, in the checker's eyes as in ours.
                if self.clock.now() < self.safe_until {
                    self.safe_until = self.safe_until.max(valid_until);
                }
                self.history.note(&self.claim, What::Extended { valid_until });
            }
            Ok(Renewal::Lost) => self.history.note(&self.claim, What::Lost),
            Err(_) => {}
        }
        Ok(answer)
    }

    /// Renew until there is an answer.
    ///
    /// # Errors
    /// If the store fails for good.
    pub async fn renew(&mut self) -> Result<Renewal, Failure> {
        let give_up = self.clock.now().after(self.patience);
        loop {
            match self.renew_once().await? {
                Ok(renewal) => return Ok(renewal),
                Err(fault) if fault.is_transient() && self.clock.now() < give_up => self.pause().await,
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Renew, and still hold. Answers whether somebody waits behind us.
    ///
    /// # Errors
    /// If the store says that it is lost while it must not be; `why` says why.
    pub async fn must_still_hold(&mut self, why: &str) -> Result<bool, Failure> {
        let safe_until = self.safe_until;
        match self.renew().await? {
            Renewal::Held { wanted, .. } => Ok(wanted),
            Renewal::Lost if self.clock.now() < safe_until => {
                Err(Failure::broken(format!("the lock was lost before its time although {why}")))
            }
            Renewal::Lost => Err(Failure::Stalled(format!("lost, but perhaps by expiry; {why}"))),
        }
    }

    /// Renew, and be told that there is nothing to renew.
    ///
    /// # Errors
    /// If there is; `why` says why there must not be.
    pub async fn must_be_lost(&mut self, why: &str) -> Result<(), Failure> {
        match self.renew().await? {
            Renewal::Lost => Ok(()),
            Renewal::Held { .. } => Err(Failure::broken(format!("a renewal was confirmed although {why}"))),
        }
    }

    /// Leave once, whatever comes back.
    ///
    /// # Errors
    /// If no answer comes.
    pub async fn leave_once(&mut self) -> Result<Answer<()>, Failure> {
        self.history.note(&self.claim, What::Leaves);
        let answer = in_time(&self.clock, self.patience, "`leave`", self.place.leave()).await?;
        if answer.is_ok() {
            self.safe_until = Moment::from_nanos(0);
            self.history.note(&self.claim, What::Left);
        }
        Ok(answer)
    }

    /// Leave, and be told that we have left.
    ///
    /// # Errors
    /// If the store fails for good.
    pub async fn leaves(&mut self) -> Result<(), Failure> {
        let give_up = self.clock.now().after(self.patience);
        loop {
            match self.leave_once().await? {
                Ok(()) => return Ok(()),
                Err(fault) if fault.is_transient() && self.clock.now() < give_up => self.pause().await,
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Begin to listen for a change and stop half-way, as the keeper does when something else comes first.
    pub async fn listens_briefly(&mut self) {
        tokio::select! {
            biased;
            () = self.place.changed() => {}
            () = tokio::task::yield_now() => {}
        }
    }

    /// Listen, and be notified while it is surely ours. A short ttl may be too short for a slow machine.
    ///
    /// # Errors
    /// If nothing is heard; `why` says what there was to hear.
    pub async fn is_notified(&mut self, why: &str) -> Result<(), Failure> {
        let (until, ttl) = (self.safe_until, self.claim.ttl);
        tokio::select! {
            () = self.place.changed() => Ok(()),
            () = self.clock.sleep_until(until) => {
                let what = format!("the holder heard nothing in {ttl:?}, but {why}");
                Err(if ttl < Duration::from_secs(3) { Failure::Stalled(what) } else { Failure::Broken(what) })
            }
        }
    }

    /// No `async fn`: a future that borrows a place could not move between threads.
    fn pause(&self) -> Sleep {
        self.clock.sleep((self.claim.ttl / 20).min(Duration::from_millis(200)))
    }

    pub(super) fn crash(self) -> P {
        self.history.note(&self.claim, What::Crashed);
        self.place
    }
}

/// The answer of `call`, or a failure that names the hang.
pub(super) async fn in_time<T>(
    clock: &Clock,
    patience: Duration,
    what: &str,
    call: impl Future<Output = T>,
) -> Result<T, Failure> {
    tokio::select! {
        answer = call => Ok(answer),
        () = clock.sleep(patience) => Err(Failure::broken(format!("{what} did not answer within {patience:?}"))),
    }
}

/// What no grant may say.
fn check(grant: &Grant) -> Result<(), Failure> {
    if COUNTER_MAX < grant.counter {
        return Err(Failure::broken(format!("the counter {} is above COUNTER_MAX", grant.counter)));
    }
    if grant.valid_for.is_zero() {
        return Err(Failure::broken("granted for no time at all"));
    }
    Ok(())
}
