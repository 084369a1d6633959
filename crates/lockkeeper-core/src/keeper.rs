//! The keeper: owns one place in the store's line for life. Only this file and the rounds call the SPI.
//!
//! The first verbs run in the caller's own task, because a change of thread costs more than a script on a
//! nearby server. No verb but `changed` is ever dropped half-way: when the caller goes away in the
//! middle of one, verb and place move to the background and are finished there.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::{self, DynPlace, Fault, Grant, Lease, Reach, Turn};
use crate::claim::{Claim, ClaimId, Label, Load};
use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::{Error, Result, Stage};
use crate::key::Key;
use crate::observe::Event;
use crate::queue::{Ask, Held, Release};
use crate::tenure::{End, Tenure};

/// A place in the store's line, not yet granted.
pub(crate) struct Keeper {
    place: Box<dyn DynPlace>,
    pub(crate) ttl: Duration,
    /// Whether its claim may stand in line; a try's may not.
    pub(crate) patient: bool,
    /// When the store last may have heard from it; `None` if never.
    spoke_at: Option<Moment>,
}

impl Keeper {
    /// Make a place for a fresh claim. The store has not heard of it yet.
    pub(crate) fn enter(engine: &Engine, key: &Key, ask: &Ask, label: Arc<Label>) -> Result<Self> {
        let id = if engine.profile.reach == Reach::Process { ClaimId::local() } else { ClaimId::random()? };
        let load = Load::MUTEX;
        let claim = Claim { key: key.clone(), id, ttl: ask.ttl, load, patient: ask.patient, label };
        let place = engine.backend.enter_dyn(claim);
        Ok(Keeper { place, ttl: ask.ttl, patient: ask.patient, spoke_at: None })
    }

    /// Hold without asking a store that nobody else can reach.
    pub(crate) fn hold_privately(engine: &Engine, key: &Key, ask: &Ask, now: Moment) -> Held {
        let counter = engine.private_counter.fetch_add(1, Ordering::Relaxed) + 1;
        let tenure = Arc::new(Tenure::private(key.clone(), ask.ttl, counter));
        let fence = tenure.fence();
        Held::new(tenure, fence, now, ask.max_hold)
    }

    /// Take the lock without waiting for anything, where the store is inside this process and it is free.
    pub(crate) fn at_once(
        mut self,
        engine: &Engine,
        key: &Key,
        ask: &Ask,
        now: Moment,
    ) -> Result<Held, Keeper> {
        let Some(turn) = self.place.turn_at_once_dyn(now) else {
            return Err(self);
        };
        self.spoke_at = Some(now);
        let Turn::Held(grant) = turn else { return Err(self) };
        let valid_until = engine.deadline(now, grant.valid_for);
        let tenure = Tenure::new(key.clone(), self.ttl, self.place, &grant, now, valid_until);
        let fence = tenure.fence();
        Ok(Held::new(Arc::new(tenure), fence, now, ask.max_hold))
    }
}

/// A caller representing its process at the store. Dropping it passes the part to the next in line.
pub(crate) struct Contest<'a> {
    engine: &'a Arc<Engine>,
    key: &'a Key,
    ask: &'a Ask,
    step: Step,
    /// Places ahead of us when last told.
    ahead: Option<u64>,
    /// Since when the store gives no usable answer, and its last fault.
    outage: Option<(Moment, Fault)>,
}

enum Step {
    Resting(Keeper),
    Asking { asked_at: Moment, ttl: Duration, patient: bool, verb: backend::Step<Turn> },
    Over,
}

/// Why a wait at the store went on or ended.
enum Woken {
    Heard,
    RecheckDue,
    OutOfTime,
    Closed,
}

impl<'a> Contest<'a> {
    pub(crate) fn new(engine: &'a Arc<Engine>, key: &'a Key, ask: &'a Ask, keeper: Keeper) -> Self {
        Contest { engine, key, ask, step: Step::Resting(keeper), ahead: None, outage: None }
    }

    /// Ask and wait until the lock is ours. `None` for a try that did not get it.
    pub(crate) async fn win(mut self, started: Moment, until: Moment) -> Result<Option<Held>> {
        // A wait of zero means not to wait for others; the answer of the store is awaited all the same.
        let answer_until = if until <= started { Moment::NEVER } else { until };
        loop {
            if self.engine.is_closed() {
                return Err(Error::Closed);
            }
            let pause = match self.ask_store(answer_until).await {
                None => return self.out_of_time(started),
                Some((asked_at, Ok(Turn::Held(grant)))) => match self.accept(asked_at, &grant)? {
                    Some(held) => return Ok(Some(held)),
                    None => continue,
                },
                Some((_, Ok(Turn::Wait { recheck, ahead }))) => {
                    (self.ahead, self.outage) = (ahead, None);
                    if !self.ask.patient {
                        self.not_this_time();
                        return Ok(None);
                    }
                    recheck
                }
                Some((asked_at, Err(fault))) => self.bear(asked_at, fault)?,
            };
            match self.rest(pause, until).await {
                // A sign is a hint, never a grant: the loop asks again.
                #[cfg(feature = "mutants")]
                Woken::Heard if self.engine.mutant == Some(crate::mutant::Mutant::WakeUpBelieved) => {
                    if let Some(held) =
                        self.accept(self.engine.clock.now(), &crate::mutant::believed(self.ask))?
                    {
                        return Ok(Some(held));
                    }
                }
                Woken::Heard | Woken::RecheckDue => {}
                Woken::OutOfTime => return self.out_of_time(started),
                Woken::Closed => return Err(Error::Closed),
            }
        }
    }

    /// One `turn`, at most until the budget or the patience with a silent store ends.
    async fn ask_store(&mut self, until: Moment) -> Option<(Moment, backend::Result<Turn>)> {
        let Step::Resting(keeper) = std::mem::replace(&mut self.step, Step::Over) else {
            return None;
        };
        let (asked_at, ttl, patient) = (self.engine.clock.now(), keeper.ttl, keeper.patient);
        self.step = Step::Asking { asked_at, ttl, patient, verb: keeper.place.turn_dyn() };
        let patience = asked_at.after(self.engine.settings.outage_max);
        let mut timer = None;
        let answer = poll_fn(|cx| {
            let Step::Asking { verb, .. } = &mut self.step else {
                return Poll::Ready(None);
            };
            if let Poll::Ready(answer) = verb.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            // A timer costs more than a quick answer: make one only when the answer is not there.
            let timer = timer.get_or_insert_with(|| self.engine.clock.sleep_until(until.min(patience)));
            Pin::new(timer).poll(cx).map(|()| None)
        })
        .await;
        if let Some((place, answer)) = answer {
            self.step = Step::Resting(Keeper { place, ttl, patient, spoke_at: Some(asked_at) });
            return Some((asked_at, answer));
        }
        if self.outage.is_none() && patience < until {
            let fault =
                Fault::transient(self.engine.profile.name, "taking the lock", "the store does not answer");
            self.outage = Some((asked_at, fault));
        }
        None
    }

    /// The store says it is ours: it is, if there is still time left to use it.
    fn accept(&mut self, asked_at: Moment, grant: &Grant) -> Result<Option<Held>> {
        self.engine.check_counter(grant.counter)?;
        self.outage = None;
        let (now, valid_until) = (self.engine.clock.now(), self.engine.deadline(asked_at, grant.valid_for));
        #[cfg(feature = "mutants")]
        let now = match self.engine.mutant {
            Some(crate::mutant::Mutant::LateGrantAccepted) => asked_at,
            _ => now,
        };
        if valid_until <= now {
            return Ok(None);
        }
        let Step::Resting(keeper) = std::mem::replace(&mut self.step, Step::Over) else {
            return Ok(None);
        };
        let (key, ttl) = (self.key.clone(), keeper.ttl);
        let tenure = Arc::new(Tenure::new(key, ttl, keeper.place, grant, asked_at, valid_until));
        let held = Held::new(tenure.clone(), tenure.fence(), now, self.ask.max_hold);
        if self.engine.queue.seat(held.clone(), self.ask.owner.clone()).is_err() {
            self.engine.end(&tenure);
            return Err(Error::Closed);
        }
        self.engine.rounds.expect(&held, self.engine);
        Ok(Some(held))
    }

    /// The outcome is unknown. Asking again by the same claim id finds out; how long to pause before.
    fn bear(&mut self, asked_at: Moment, fault: Fault) -> Result<Duration> {
        self.engine.observe(&Event::Faulted { key: self.key, fault: &fault });
        if !fault.is_transient() {
            return Err(fault.into());
        }
        let since = self.outage.as_ref().map_or(asked_at, |it| it.0);
        let lasted = self.engine.clock.now() - since;
        if self.engine.settings.outage_max <= lasted || (!self.ask.patient && self.outage.is_some()) {
            return Err(fault.into());
        }
        self.outage = Some((since, fault));
        // Long outages are asked about less often; a short one is over soon.
        let (shortest, longest) = (Duration::from_millis(5), self.ask.ttl / 10);
        Ok((lasted / 4).min(longest).max(shortest))
    }

    /// Wait for a sign from the store, at most `pause`.
    async fn rest(&mut self, pause: Duration, until: Moment) -> Woken {
        let clock = &self.engine.clock;
        let Step::Resting(keeper) = &mut self.step else {
            return Woken::OutOfTime;
        };
        let mut closing = pin!(self.engine.closing.notified());
        let mut changed = keeper.place.changed_dyn();
        let recheck_at = clock.now().after(pause);
        let mut timer = clock.sleep_until(recheck_at.min(until));
        poll_fn(|cx| {
            if self.engine.is_closed() || closing.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Woken::Closed);
            }
            if changed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Woken::Heard);
            }
            let due = Pin::new(&mut timer).poll(cx);
            due.map(|()| if until <= recheck_at { Woken::OutOfTime } else { Woken::RecheckDue })
        })
        .await
    }

    /// A try was told that somebody else is first: nothing of us is left there.
    fn not_this_time(&mut self) {
        self.step = Step::Over;
        step_down(self.engine, self.key, None);
    }

    fn out_of_time(&mut self, started: Moment) -> Result<Option<Held>> {
        if let Some((_, fault)) = self.outage.take() {
            return Err(fault.into());
        }
        let waited = self.engine.clock.now() - started;
        self.engine.observe(&Event::TimedOut { key: self.key, stage: Stage::Remote, waited });
        Err(Error::TimedOut { stage: Stage::Remote, waited, ahead: self.ahead })
    }
}

impl Drop for Contest<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::Over => {}
            Step::Resting(keeper) => step_down(self.engine, self.key, Some(keeper)),
            Step::Asking { asked_at, ttl, patient, verb } => {
                let duty = Duty { engine: self.engine.clone(), key: self.key.clone(), done: false };
                self.engine.background.spawn(duty.finish(asked_at, ttl, patient, verb));
            }
        }
    }
}

/// The background represents the process at the store until a `turn` is answered. Should that verb panic, the
/// part still passes to the next caller: a line without a representative would wait for ever.
struct Duty {
    engine: Arc<Engine>,
    key: Key,
    done: bool,
}

impl Duty {
    async fn finish(mut self, asked_at: Moment, ttl: Duration, patient: bool, verb: backend::Step<Turn>) {
        let patience = asked_at.after(ttl.max(self.engine.settings.outage_max));
        let outcome = in_time(&self.engine, verb, patience).await;
        self.done = true;
        match outcome {
            Ok((place, answer)) => {
                let keeper = Keeper { place, ttl, patient, spoke_at: Some(asked_at) };
                adopt(&self.engine, &self.key, keeper, asked_at, answer);
            }
            Err(verb) => outrun(&self.engine, &self.key, ttl, verb),
        }
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if !self.done {
            step_down(&self.engine, &self.key, None);
        }
    }
}

/// The answer of `verb`, or the verb itself, unfinished, if none comes in time.
async fn in_time(
    engine: &Engine,
    mut verb: backend::Step<Turn>,
    until: Moment,
) -> Result<(Box<dyn DynPlace>, backend::Result<Turn>), backend::Step<Turn>> {
    let mut timer = engine.clock.sleep_until(until);
    let answer = poll_fn(|cx| match verb.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => Pin::new(&mut timer).poll(cx).map(|()| None),
    });
    let answer = answer.await;
    answer.ok_or(verb)
}

/// A `turn` that is not answered must not hold up those behind it: they go to the store without it. If it
/// is ever answered, what it got is given up.
fn outrun(engine: &Arc<Engine>, key: &Key, ttl: Duration, verb: backend::Step<Turn>) {
    step_down(engine, key, None);
    let (weak, key) = (Arc::downgrade(engine), key.clone());
    engine.background.spawn_untracked(Box::pin(async move {
        let (place, _) = verb.await;
        let Some(engine) = weak.upgrade() else { return };
        let forgotten_at = engine.clock.now().after(ttl);
        let _ = leave(&engine, &key, place, forgotten_at).await;
    }));
}

/// The caller went away in the middle of a `turn`, which has now answered.
fn adopt(engine: &Arc<Engine>, key: &Key, keeper: Keeper, asked_at: Moment, answer: backend::Result<Turn>) {
    let (Ok(Turn::Held(grant)), now) = (answer, engine.clock.now()) else {
        return step_down(engine, key, Some(keeper));
    };
    let valid_until = engine.deadline(asked_at, grant.valid_for);
    if valid_until <= now || engine.check_counter(grant.counter).is_err() {
        return step_down(engine, key, Some(keeper));
    }
    let ttl = keeper.ttl;
    let tenure = Arc::new(Tenure::new(key.clone(), ttl, keeper.place, &grant, asked_at, valid_until));
    let waker = match engine.queue.seat_next(&tenure, now) {
        Release::HandedOn(waker, held) => {
            engine.rounds.expect(&held, engine);
            waker
        }
        Release::Over(waker) => {
            engine.end(&tenure);
            waker
        }
        Release::StillHeld | Release::Stale => None,
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The next local caller goes on from this place; if there is none, the place is given up.
pub(crate) fn step_down(engine: &Arc<Engine>, key: &Key, keeper: Option<Keeper>) {
    let (unwanted, waker) = engine.queue.step_down(key, keeper);
    if let Some(waker) = waker {
        waker.wake();
    }
    let Some(Keeper { place, ttl, spoke_at: Some(spoke_at), .. }) = unwanted else {
        return;
    };
    let (engine, key) = (engine.clone(), key.clone());
    engine.clone().background.spawn(async move {
        let _ = leave(&engine, &key, place, spoke_at.after(ttl)).await;
    });
}

/// Leave with the place of an ended tenure, and tell whoever waits for the answer.
pub(crate) async fn see_out(engine: &Engine, tenure: &Tenure, place: Box<dyn DynPlace>) {
    // The store last heard from us at most a ttl before the deadline we knew of; one ttl more is safe.
    let forgotten_at = tenure.valid_until().max(engine.clock.now()).after(tenure.ttl);
    let answer = leave(engine, &tenure.key, place, forgotten_at).await;
    tenure.tell_left(answer);
}

/// Say `leave` until it is confirmed, or until the store has forgotten us by itself.
async fn leave(
    engine: &Engine,
    key: &Key,
    mut place: Box<dyn DynPlace>,
    forgotten_at: Moment,
) -> backend::Result<()> {
    let mut pause = Duration::from_millis(10);
    loop {
        let answer;
        (place, answer) = place.leave_dyn().await;
        match answer {
            Ok(()) => {
                engine.observe(&Event::Left { key });
                return Ok(());
            }
            Err(fault) => {
                engine.observe(&Event::Faulted { key, fault: &fault });
                // A session keeps our place alive as long as the process lives: there is no end to trying.
                let expires = engine.profile.lease == Lease::Claim;
                if expires && (forgotten_at <= engine.clock.now() || !fault.is_transient()) {
                    engine.observe(&Event::Abandoned { key });
                    return Err(fault);
                }
            }
        }
        engine.clock.sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// One polite `leave` in the caller's own task. If it takes too long or the caller goes away, the
/// background goes on.
pub(crate) async fn leave_politely(engine: &Arc<Engine>, tenure: &Arc<Tenure>) -> Result<()> {
    let mut place = match tenure.end() {
        End::Leave(place) => place,
        End::Nothing => return Ok(()),
        End::Out => {
            let left = tenure.when_left();
            return within_patience(engine, async { left.await.unwrap_or(Ok(())) }).await;
        }
    };
    if place.leave_at_once_dyn() {
        engine.observe(&Event::Left { key: &tenure.key });
        return Ok(());
    }
    within_patience(engine, Leaving { engine, tenure, verb: Some(place.leave_dyn()) }).await
}

async fn within_patience(engine: &Engine, leaving: impl Future<Output = backend::Result<()>>) -> Result<()> {
    let mut leaving = pin!(leaving);
    let deadline = engine.clock.now().after(engine.settings.outage_max);
    let mut timer = None;
    let answer = poll_fn(|cx| {
        if let Poll::Ready(answer) = leaving.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        let timer = timer.get_or_insert_with(|| engine.clock.sleep_until(deadline));
        Pin::new(timer).poll(cx).map(|()| None)
    })
    .await;
    let silent =
        || Fault::transient(engine.profile.name, "giving the lock back", "the store does not answer");
    answer.unwrap_or_else(|| Err(silent())).map_err(Error::from)
}

/// A leave in the caller's task that moves to the background when it is dropped or fails.
struct Leaving<'a> {
    engine: &'a Arc<Engine>,
    tenure: &'a Arc<Tenure>,
    verb: Option<backend::Step<()>>,
}

impl Future for Leaving<'_> {
    type Output = backend::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(verb) = &mut self.verb else {
            return Poll::Ready(Ok(()));
        };
        let Poll::Ready((place, answer)) = verb.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.verb = None;
        if answer.is_ok() {
            self.engine.observe(&Event::Left { key: &self.tenure.key });
        } else {
            let (engine, tenure) = (self.engine.clone(), self.tenure.clone());
            self.engine.background.spawn(async move { see_out(&engine, &tenure, place).await });
        }
        Poll::Ready(answer)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Some(verb) = self.verb.take() else { return };
        let (engine, tenure) = (self.engine.clone(), self.tenure.clone());
        self.engine.background.spawn(async move {
            if let (place, Err(_)) = verb.await {
                see_out(&engine, &tenure, place).await;
            }
        });
    }
}
