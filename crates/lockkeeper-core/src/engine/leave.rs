//! Giving back: a guard to the queue, a tenure to the store, a place in the store's line.
//!
//! ```text
//!  release ─▶ queue: the next of us has it ─────────────────────────────▶ (held)
//!                    nobody ─▶ leave_in_caller ─▶ confirmed ────────────▶ (gone)
//!  drop, loss ──────────────▶ leave_in_background ─▶ leave_until_confirmed, or the store has forgotten us
//! ```

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::calls::Calls;
use crate::engine::exit::Ending;
use crate::engine::hold::Hold;
use crate::engine::keeper::Keeper;
use crate::engine::line::Release;
use crate::engine::queue::Alone;
use crate::engine::shared::Engine;
use crate::engine::since::Since;
use crate::engine::tenure::{End, Tenure};
use crate::error::{Error, LostReason, Result};
use crate::key::Key;
use crate::observe::{Answer, CooledBy, Event, Verb};
use crate::spi::backend::{self, Fault, Lease};
use crate::spi::erased::{DynPlace, Step};

/// What we were doing, as a fault tells it.
const GIVING_BACK: &str = "giving the lock back";

/// A guard is given back without waiting for the store.
#[inline]
pub(crate) fn release(engine: &Arc<Engine>, held: &Hold) {
    if !is_plain(engine, held) {
        return release_by_rules(engine, held);
    }
    let alone = engine.queue.release_alone(held);
    if let Alone::Not = alone {
        return release_by_rules(engine, held);
    }
    if engine.is_observed() {
        // Nobody else can end what nobody else has.
        let tenure = &held.tenure;
        let since = if let Alone::Unheard = alone { tenure.held_since() } else { tenure.end_hold() };
        tell_released(engine, held, false, since);
    }
    if let Alone::Over = alone {
        leave_in_background(engine, &held.tenure);
    }
}

#[inline(never)]
fn release_by_rules(engine: &Arc<Engine>, held: &Hold) {
    if give_back(engine, held) {
        leave_in_background(engine, &held.tenure);
    }
}

/// Whether only the queue and observers need know that it is given back: the way of nearly every in-process lock. Any
/// other goes through [`give_back`].
#[inline]
fn is_plain(engine: &Engine, held: &Hold) -> bool {
    let tenure = &held.tenure;
    tenure.is_private && engine.order.is_none() && tenure.kept_until() == NOW
}

/// Give a guard back to the queue. `true` if the tenure is over and the store must be told.
pub(crate) fn give_back(engine: &Arc<Engine>, held: &Hold) -> bool {
    let tenure = &held.tenure;
    if let (Some(order), Some(owner)) = (&engine.order, &held.owner) {
        order.given_back(owner, &tenure.key);
    }
    if tenure.is_private && tenure.kept_until() != NOW && engine.clock.now() < tenure.kept_until() {
        release_later(engine, held);
        return false;
    }
    // Who is next may begin its own hold before we have told the end of ours.
    let since = if engine.is_observed() { tenure.held_since() } else { Since::UNTOLD };
    let alone = engine.queue.release_alone(held);
    let handed_on = if let Alone::Not = alone {
        match engine.queue.release(held) {
            Release::StillHeld | Release::Stale => return false,
            Release::Ended => false,
            Release::Over(calls) => {
                engine.tell(calls);
                false
            }
            Release::HandedOn(calls) => {
                engine.tell(calls);
                tenure.guard_over();
                true
            }
        }
    } else {
        false
    };
    if engine.is_observed() {
        tell_released(engine, held, handed_on, if handed_on { since } else { tenure.end_hold() });
    }
    !handed_on && !matches!(alone, Alone::Unheard)
}

/// A guard is given back, and its lock stays with this process.
pub(crate) fn kept(engine: &Engine, held: &Hold, since: Since) {
    let tenure = &held.tenure;
    if let (Some(order), Some(owner)) = (&engine.order, &held.owner) {
        order.given_back(owner, &tenure.key);
    }
    tenure.guard_over();
    if let Some(began) = since.began() {
        let (key, fence, held) = (&tenure.key, held.fence, engine.clock.now() - began);
        engine.observe(&Event::Released { key, fence, handed_on: false, held });
    }
}

/// Tell observers that a hold is over. Not if its loss was told before, nor if its caller went away before it had the guard.
#[inline(never)]
fn tell_released(engine: &Engine, held: &Hold, handed_on: bool, since: Since) {
    let Some(began) = since.began() else { return };
    let (key, fence, held_for) = (&held.tenure.key, held.fence, engine.clock.now() - began);
    // The holder is told of a loss first, and may have let go before observers are told: that is a loss all the same.
    engine.observe(&match held.tenure.lost() {
        Some(reason) => Event::Lost { key, fence, reason, held: Some(held_for) },
        None => Event::Released { key, fence, handed_on, held: held_for },
    });
}

/// Tell observers of a loss. Not if the lock had been given back meanwhile.
#[cold]
fn tell_lost(engine: &Engine, tenure: &Tenure, reason: LostReason) {
    let since = tenure.end_hold();
    if !since.is_over() {
        let held = since.began().map(|it| engine.clock.now() - it);
        engine.observe(&Event::Lost { key: &tenure.key, fence: tenure.fence(), reason, held });
    }
}

/// Where the line is the whole lock, nobody but we can keep it until its time is over.
fn release_later(engine: &Arc<Engine>, held: &Hold) {
    let (later, held) = (engine.clone(), held.clone());
    engine.background.spawn_untracked(Box::pin(async move {
        later.clock.sleep_until(held.tenure.kept_until()).await;
        release(&later, &held);
    }));
}

/// A tenure is lost: tell its holder first, then the queue, and only then the store.
pub(crate) fn lose(engine: &Arc<Engine>, tenure: &Arc<Tenure>, reason: LostReason) {
    if !tenure.lose(reason) {
        return;
    }
    if engine.is_observed() {
        tell_lost(engine, tenure, reason);
    }
    engine.tell(engine.queue.detach(tenure));
    leave_in_background(engine, tenure);
}

/// Give back what is idle. `false` if it is not, or not any more: then nothing has happened.
pub(crate) fn cool(engine: &Arc<Engine>, tenure: &Arc<Tenure>, by: CooledBy) -> bool {
    if !engine.queue.cool(tenure) {
        return false;
    }
    engine.observe(&Event::Cooled { key: &tenure.key, by });
    leave_in_background(engine, tenure);
    true
}

/// Give back all that is idle, because the locker or the process ends.
pub(crate) fn cool_all(engine: &Arc<Engine>) {
    for tenure in engine.queue.idle() {
        cool(engine, &tenure, CooledBy::Closed);
    }
}

impl Ending for Engine {
    fn begin_to_end(self: Arc<Self>) {
        // A fork has the list of its parent, and nothing of what is on it.
        if self.is_here() {
            let engine = self.clone();
            self.background.spawn(async move { cool_all(&engine) });
        }
    }
}

/// Refuse new requests, call off the waiting, take back what is held, and leave the store.
pub(crate) fn close(engine: &Arc<Engine>) {
    engine.closed.store(true, Ordering::Release);
    cool_all(engine);
    let (called, tenures) = engine.queue.close();
    called.into_iter().for_each(Calls::wake);
    engine.closing.notify_waiters();
    for tenure in tenures {
        lose(engine, &tenure, LostReason::Closed);
    }
}

/// The next local caller goes on from this place; if there is none, the place is given up.
pub(crate) fn step_down(engine: &Arc<Engine>, key: &Key, keeper: Option<Keeper>) {
    let (unwanted, calls) = engine.queue.step_down(key, keeper);
    engine.tell(calls);
    let Some(Keeper { place, claim, spoke_at: Some(spoke_at) }) = unwanted else {
        return;
    };
    let (engine, key) = (engine.clone(), key.clone());
    engine.clone().background.spawn(async move {
        let forgotten_at = spoke_at.after(claim.ttl);
        let _ = leave_until_confirmed(&engine, &key, place, NOW, forgotten_at).await;
    });
}

/// End a tenure that no line holds any more, and leave the store without waiting for it.
pub(crate) fn leave_in_background(engine: &Arc<Engine>, tenure: &Arc<Tenure>) {
    if let Ended::Leave(place) = end(engine, tenure) {
        spawn_leaving(engine, tenure, place);
    }
}

/// Go on leaving with this place in the background.
pub(crate) fn spawn_leaving(engine: &Arc<Engine>, tenure: &Arc<Tenure>, place: Box<dyn DynPlace>) {
    let (engine, tenure) = (engine.clone(), tenure.clone());
    engine.clone().background.spawn(async move { leave_with(&engine, &tenure, place).await });
}

/// What is left to do after a tenure has ended.
enum Ended {
    Leave(Box<dyn DynPlace>),
    /// Whoever brings the place back leaves with it.
    Out,
    Nothing,
}

/// End a tenure, and leave a store that is inside this process at once.
fn end(engine: &Engine, tenure: &Arc<Tenure>) -> Ended {
    // Whoever awaits the loss has a share in the tenure: if ours is the only one, there is nobody to tell.
    if tenure.is_private && Arc::strong_count(tenure) == 1 {
        return Ended::Nothing;
    }
    let ended = tenure.end();
    engine.warmth.ended(tenure);
    match ended {
        End::Nothing => Ended::Nothing,
        End::Out => Ended::Out,
        End::Leave(mut place) => {
            let lingers = tenure.lingers_until();
            if (lingers != NOW && engine.clock.now() < lingers) || !place.leave_at_once_dyn() {
                return Ended::Leave(place);
            }
            engine.observe(&Event::Left { key: &tenure.key });
            Ended::Nothing
        }
    }
}

/// Leave with the place of an ended tenure, and tell whoever waits for the answer.
pub(crate) async fn leave_with(engine: &Engine, tenure: &Tenure, place: Box<dyn DynPlace>) {
    // The store last heard from us at most a ttl before the deadline we knew of; one ttl more is safe.
    let forgotten_at = tenure.valid_until().max(engine.clock.now()).after(tenure.ttl);
    let lingers = tenure.lingers_until();
    let answer = leave_until_confirmed(engine, &tenure.key, place, lingers, forgotten_at).await;
    tenure.tell_left(answer);
}

/// For who leaves at once.
pub(crate) const NOW: Moment = Moment::from_nanos(0);

/// The last verb of a place: leave, or let the store keep it until then.
fn farewell(engine: &Engine, place: Box<dyn DynPlace>, lingers: Moment) -> Step<()> {
    let now = if lingers == NOW { NOW } else { engine.clock.now() };
    if now < lingers { place.linger_dyn(lingers - now) } else { place.leave_dyn() }
}

/// Say `leave` until it is confirmed, or refused for good, or until the store has forgotten us by itself.
pub(crate) async fn leave_until_confirmed(
    engine: &Engine,
    key: &Key,
    mut place: Box<dyn DynPlace>,
    lingers: Moment,
    forgotten_at: Moment,
) -> backend::Result<()> {
    let mut pause = Duration::from_millis(10);
    loop {
        let (answer, asked_at);
        asked_at = engine.now_if_observed();
        (place, answer) = farewell(engine, place, lingers).await;
        tell_left(engine, key, asked_at, &answer);
        let Err(fault) = answer else { return Ok(()) };
        // A session keeps our place alive as long as the process lives, so time does not end the trying there. An
        // answer that stays the same does, everywhere.
        let forgotten = engine.profile.lease == Lease::Claim && forgotten_at <= engine.clock.now();
        if forgotten || !fault.is_transient() {
            engine.observe(&Event::Abandoned { key });
            return Err(fault);
        }
        engine.clock.sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Tell observers what the store said to a leave.
fn tell_left(engine: &Engine, key: &Key, asked_at: Moment, answer: &backend::Result<()>) {
    engine.answered(key, Verb::Leave, asked_at, Answer::to_leave(answer));
    match answer {
        Ok(()) => engine.observe(&Event::Left { key }),
        Err(fault) => engine.observe(&Event::Faulted { key, verb: Verb::Leave, fault }),
    }
}

/// End a tenure and leave a store that answers at once. What comes back must be awaited, if anything.
pub(crate) fn leave_in_caller(engine: &Arc<Engine>, tenure: &Arc<Tenure>) -> Option<Leave> {
    let asked_at = engine.now_if_observed();
    let leave = |verb| Leave { engine: engine.clone(), tenure: tenure.clone(), asked_at, verb };
    match end(engine, tenure) {
        Ended::Nothing => None,
        Ended::Out => Some(leave(None)),
        Ended::Leave(place) => Some(leave(Some(farewell(engine, place, tenure.lingers_until())))),
    }
}

/// A leave in the caller's own task. If it is dropped or fails, the background goes on.
pub(crate) struct Leave {
    engine: Arc<Engine>,
    tenure: Arc<Tenure>,
    /// For observers.
    asked_at: Moment,
    /// `None` while the place is out for a renewal, whose end leaves with it.
    verb: Option<Step<()>>,
}

impl Leave {
    /// The store's answer, within the patience that the locker has with a store.
    pub(crate) async fn confirmed(mut self) -> Result<()> {
        let engine = self.engine.clone();
        let until = engine.clock.now().after(engine.settings.outage_max);
        let answer = if self.verb.is_some() {
            engine.clock.within(until, pin!(self.answer())).await
        } else {
            let left = self.tenure.when_left();
            engine.clock.within(until, pin!(left)).await.map(|it| it.unwrap_or(Ok(())))
        };
        let silent = || Fault::transient(engine.profile.name, GIVING_BACK, "the store does not answer");
        answer.unwrap_or_else(|| Err(silent())).map_err(Error::from)
    }

    async fn answer(&mut self) -> backend::Result<()> {
        std::future::poll_fn(|cx| self.poll_verb(cx)).await
    }

    fn poll_verb(&mut self, cx: &mut Context<'_>) -> Poll<backend::Result<()>> {
        let Some(verb) = &mut self.verb else {
            debug_assert!(false, "a leave was asked again after its answer");
            return Poll::Ready(Ok(()));
        };
        let Poll::Ready((place, answer)) = Pin::new(verb).poll(cx) else { return Poll::Pending };
        self.verb = None;
        tell_left(&self.engine, &self.tenure.key, self.asked_at, &answer);
        if answer.is_err() {
            spawn_leaving(&self.engine, &self.tenure, place);
        }
        Poll::Ready(answer)
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        let Some(verb) = self.verb.take() else { return };
        let (engine, tenure, asked_at) = (self.engine.clone(), self.tenure.clone(), self.asked_at);
        self.engine.background.spawn(async move {
            let (place, answer) = verb.await;
            tell_left(&engine, &tenure.key, asked_at, &answer);
            if answer.is_err() {
                leave_with(&engine, &tenure, place).await;
            }
        });
    }
}

/// The last locker and guard are gone: nobody will take again what is idle. It is said once, because nobody is left to repeat
/// it; a store that does not hear it forgets the claim in time.
impl Drop for Engine {
    fn drop(&mut self) {
        self.schedule.stop();
        let idle = if self.is_here() { self.queue.idle() } else { Vec::new() };
        for tenure in idle {
            self.observe(&Event::Cooled { key: &tenure.key, by: CooledBy::Closed });
            if let End::Leave(place) = tenure.end() {
                self.background.spawn(async move {
                    let _ = place.leave_dyn().await;
                });
            }
        }
    }
}
