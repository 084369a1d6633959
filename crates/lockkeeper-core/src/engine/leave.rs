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
use crate::engine::hold::Hold;
use crate::engine::keeper::Keeper;
use crate::engine::line::{Calls, Release};
use crate::engine::shared::Engine;
use crate::engine::tenure::{End, Tenure};
use crate::error::{Error, LostReason, Result};
use crate::key::Key;
use crate::observe::Event;
use crate::spi::backend::{self, DynPlace, Fault, Lease};

/// What we were doing, as a fault tells it.
const GIVING_BACK: &str = "giving the lock back";

/// A guard is given back without waiting for the store.
pub(crate) fn release(engine: &Arc<Engine>, held: &Hold) {
    if give_back(engine, held) {
        leave_in_background(engine, &held.tenure);
    }
}

/// Give a guard back to the queue. `true` if the tenure is over and the store must be told.
pub(crate) fn give_back(engine: &Engine, held: &Hold) -> bool {
    let tenure = &held.tenure;
    let handed_on = match engine.queue.release(held) {
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
    };
    engine.observe(&Event::Released { key: &tenure.key, fence: held.fence, handed_on });
    !handed_on
}

/// A tenure is lost: tell its holder first, then the queue, and only then the store.
pub(crate) fn lose(engine: &Arc<Engine>, tenure: &Arc<Tenure>, reason: LostReason) {
    if !tenure.lose(reason) {
        return;
    }
    engine.observe(&Event::Lost { key: &tenure.key, fence: tenure.fence(), reason });
    engine.tell(engine.queue.detach(tenure));
    leave_in_background(engine, tenure);
}

/// Refuse new requests, call off the waiting, take back what is held, and leave the store.
pub(crate) fn close(engine: &Arc<Engine>) {
    engine.closed.store(true, Ordering::Release);
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
        let _ = leave_until_confirmed(&engine, &key, place, spoke_at.after(claim.ttl)).await;
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
    match tenure.end() {
        End::Nothing => Ended::Nothing,
        End::Out => Ended::Out,
        End::Leave(mut place) => {
            if !place.leave_at_once_dyn() {
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
    let answer = leave_until_confirmed(engine, &tenure.key, place, forgotten_at).await;
    tenure.tell_left(answer);
}

/// Say `leave` until it is confirmed, or refused for good, or until the store has forgotten us by itself.
pub(crate) async fn leave_until_confirmed(
    engine: &Engine,
    key: &Key,
    mut place: Box<dyn DynPlace>,
    forgotten_at: Moment,
) -> backend::Result<()> {
    let mut pause = Duration::from_millis(10);
    loop {
        let answer;
        (place, answer) = place.leave_dyn().await;
        let Err(fault) = answer else {
            engine.observe(&Event::Left { key });
            return Ok(());
        };
        engine.observe(&Event::Faulted { key, fault: &fault });
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

/// End a tenure and leave a store that answers at once. What comes back must be awaited, if anything.
pub(crate) fn leave_in_caller(engine: &Arc<Engine>, tenure: &Arc<Tenure>) -> Option<Leave> {
    let leave = |verb| Leave { engine: engine.clone(), tenure: tenure.clone(), verb };
    match end(engine, tenure) {
        Ended::Nothing => None,
        Ended::Out => Some(leave(None)),
        Ended::Leave(place) => Some(leave(Some(place.leave_dyn()))),
    }
}

/// A leave in the caller's own task. If it is dropped or fails, the background goes on.
pub(crate) struct Leave {
    engine: Arc<Engine>,
    tenure: Arc<Tenure>,
    /// `None` while the place is out for a renewal, whose end leaves with it.
    verb: Option<backend::Step<()>>,
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
        if answer.is_ok() {
            self.engine.observe(&Event::Left { key: &self.tenure.key });
        } else {
            spawn_leaving(&self.engine, &self.tenure, place);
        }
        Poll::Ready(answer)
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        let Some(verb) = self.verb.take() else { return };
        let (engine, tenure) = (self.engine.clone(), self.tenure.clone());
        self.engine.background.spawn(async move {
            if let (place, Err(_)) = verb.await {
                leave_with(&engine, &tenure, place).await;
            }
        });
    }
}
