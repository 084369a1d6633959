//! Finishing what a caller began: a `turn` whose caller went away goes on in the background.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::grant::{Useless, tenure_of};
use crate::engine::keeper::{Keeper, Shape};
use crate::engine::leave::{NOW, leave_in_background, leave_until_confirmed, step_down};
use crate::engine::line::Release;
use crate::engine::rounds;
use crate::engine::shared::Engine;
use crate::key::Key;
use crate::observe::{Answer, Verb};
use crate::spi::backend::{Grant, Turn};
use crate::spi::erased::Step;

/// The background represents the process at the store until a `turn` is answered. Should that verb panic, the
/// part still passes to the next caller: a line without a representative would wait for ever.
pub(crate) struct Finisher {
    engine: Arc<Engine>,
    key: Key,
    done: bool,
}

impl Finisher {
    pub(crate) fn new(engine: Arc<Engine>, key: Key) -> Self {
        Finisher { engine, key, done: false }
    }

    /// See the verb to its end, or go on without it.
    pub(crate) async fn finish(mut self, asked_at: Moment, claim: Shape, mut verb: Step<Turn>) {
        let patience = asked_at.after(claim.ttl.max(self.engine.settings.outage_max));
        let silent_from = self.engine.silent_from(asked_at).min(patience);
        let mut outcome = self.engine.clock.within(silent_from, &mut verb).await;
        if outcome.is_none() {
            // As if its caller were still there: those behind it are told when their time is over.
            self.engine.queue.set_outage(&self.key, Some(self.engine.silence()));
            outcome = self.engine.clock.within(patience, &mut verb).await;
        }
        self.done = true;
        let Some((place, answer)) = outcome else {
            return go_on_without(&self.engine, &self.key, claim.ttl, verb);
        };
        self.engine.answered(&self.key, Verb::Turn, asked_at, Answer::to_turn(&answer));
        let keeper = Keeper::new(place, claim).spoke(asked_at);
        match answer {
            Ok(Turn::Held(grant)) => give_to_next(&self.engine, &self.key, keeper, asked_at, &grant),
            Ok(Turn::Wait { .. }) => {
                self.engine.queue.set_outage(&self.key, None);
                step_down(&self.engine, &self.key, Some(keeper));
            }
            Err(fault) => {
                self.engine.queue.set_outage(&self.key, Some(fault));
                step_down(&self.engine, &self.key, Some(keeper));
            }
        }
    }
}

impl Drop for Finisher {
    fn drop(&mut self) {
        if !self.done {
            step_down(&self.engine, &self.key, None);
        }
    }
}

/// A `turn` that is not answered must not hold up those behind it: they go to the store without it. If it is ever
/// answered, what it got is given up. It keeps the locker until then: a session may keep its claim alive, and
/// nobody else knows of it.
fn go_on_without(engine: &Arc<Engine>, key: &Key, ttl: Duration, verb: Step<Turn>) {
    step_down(engine, key, None);
    let (engine, key) = (engine.clone(), key.clone());
    engine.clone().background.spawn_untracked(Box::pin(async move {
        let (place, _) = verb.await;
        let forgotten_at = engine.clock.now().after(ttl);
        let _ = leave_until_confirmed(&engine, &key, place, NOW, forgotten_at).await;
    }));
}

/// The lock is ours, and whoever asked for it has gone: the next caller has it, or nobody.
fn give_to_next(engine: &Arc<Engine>, key: &Key, keeper: Keeper, asked_at: Moment, grant: &Grant) {
    let tenure = match tenure_of(engine, key, keeper, (asked_at, engine.clock.now()), grant) {
        Ok(tenure) => tenure,
        Err(Useless::Late(keeper) | Useless::Unfit(keeper, _)) => {
            return step_down(engine, key, Some(keeper));
        }
    };
    match engine.queue.seat_next(&tenure) {
        Release::HandedOn(calls) => {
            rounds::include(engine, &tenure, Moment::NEVER);
            engine.tell(calls);
        }
        Release::Over(calls) => {
            leave_in_background(engine, &tenure);
            engine.tell(calls);
        }
        Release::StillHeld | Release::Ended | Release::Stale => {
            debug_assert!(false, "a tenure that was just granted has had no guard");
        }
    }
}
