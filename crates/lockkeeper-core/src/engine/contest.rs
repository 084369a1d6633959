//! The contest: one caller represents its process at the store, asks, waits and asks again.
//!
//! The first verbs run in the caller's own task, because a change of thread costs more than a script on a
//! nearby server. No verb but `changed` is ever dropped half-way: when the caller goes away in the
//! middle of one, verb and place move to the background and are finished there.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::ask::Ask;
use crate::engine::finish::Finisher;
use crate::engine::grant::{self, Useless, tenure_of};
use crate::engine::hold::Hold;
use crate::engine::keeper::{Keeper, Shape};
use crate::engine::leave::{Leave, step_down};
use crate::engine::shared::Engine;
use crate::error::{Error, Result, Stage};
use crate::key::Key;
use crate::observe::{Answer, Event, Verb};
use crate::spi::backend::{self, Fault, Grant, Reach, Turn};
use crate::spi::claim::{Claim, ClaimId, Label};
use crate::spi::erased::Step;

/// Make a place for a fresh claim. The store has not heard of it yet.
pub(crate) fn enter(engine: &Engine, key: &Key, ask: &Ask, label: Arc<Label>) -> Result<Keeper> {
    let id = if engine.profile.reach == Reach::Process { ClaimId::local() } else { ClaimId::random()? };
    let (ttl, load, patient) = (ask.ttl, ask.load, ask.patient);
    // Others elsewhere may want to know where we come from; in this process they know.
    let trace = if engine.profile.reach == Reach::Process { None } else { engine.trace(key) };
    // What stays with us may be idle, and others should see so.
    let warm = ask.warm && engine.profile.recalls();
    let label = match engine.profile.reach {
        Reach::Process if warm => Arc::new(label.warmed()),
        _ if warm || trace.is_some() => Arc::new(label.made_ready(trace, warm)),
        _ => label,
    };
    let claim = Claim { key: key.clone(), id, ttl, load, patient, label };
    Ok(Keeper::new(engine.backend.enter_dyn(claim), Shape { ttl, load, patient }))
}

/// Ask a store that is inside this process, without waiting for anything. The keeper, if that is not enough.
pub(crate) fn at_once(
    engine: &Arc<Engine>,
    key: &Key,
    ask: &Ask,
    mut keeper: Keeper,
    now: Moment,
) -> Result<Result<Hold>, Keeper> {
    let Some(turn) = keeper.place.turn_at_once_dyn(now) else { return Err(keeper) };
    let keeper = keeper.spoke(now);
    let Turn::Held(grant) = turn else { return Err(keeper) };
    match tenure_of(engine, key, keeper, (now, engine.clock.now()), &grant) {
        Ok(tenure) => Ok(grant::seat(engine, ask, tenure, now)),
        Err(Useless::Late(keeper)) => Err(keeper),
        Err(Useless::Unfit(keeper, error)) => {
            step_down(engine, key, Some(keeper));
            Ok(Err(error))
        }
    }
}

/// A caller representing its process at the store. Dropping it passes the part to the next in line.
pub(crate) struct Contest<'a> {
    engine: &'a Arc<Engine>,
    key: &'a Key,
    ask: &'a Ask,
    phase: Phase,
    /// Places ahead of us when last told.
    ahead: Option<u64>,
    /// Since when the store gives no usable answer, and its last fault.
    outage: Option<(Moment, Fault)>,
    /// The line of our process was told that the store answers.
    told_of_answer: bool,
    /// It was told that others name another capacity.
    differs: bool,
    /// There once the store was asked who holds, and as long as we wait.
    waits: Option<Arc<()>>,
    /// It was told that names take turns.
    takes_turns: bool,
    /// Whether somebody in our way may be idle, if the store could tell.
    may_be_idle: Option<bool>,
    /// It is asked again after so long, whatever it says.
    ask_within: Duration,
}

enum Phase {
    Resting(Keeper),
    Asking { asked_at: Moment, claim: Shape, verb: Step<Turn> },
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
        let phase = Phase::Resting(keeper);
        Contest {
            engine,
            key,
            ask,
            phase,
            ahead: None,
            outage: None,
            told_of_answer: false,
            differs: false,
            waits: None,
            takes_turns: false,
            may_be_idle: None,
            ask_within: Duration::MAX,
        }
    }

    /// Ask again within this span, for a caller that waits for a moment only: a sign may come late, or never.
    pub(crate) fn asking_within(mut self, span: Duration) -> Self {
        self.ask_within = span;
        self
    }

    /// What was idle here and of no use to us leaves first. Not for long: then we stand behind it, as we would behind anybody.
    pub(crate) async fn after(&mut self, leaving: Option<Leave>, until: Moment) {
        if let Some(leaving) = leaving {
            let now = self.engine.clock.now();
            // Whoever does not wait for others waits for the store.
            let until = if until <= now { Moment::NEVER } else { until }.min(now.after(self.ask.ttl / 10));
            // Dropped or failed, it goes on in the background.
            drop(self.engine.clock.within(until, pin!(leaving.confirmed())).await);
        }
    }

    /// Whether a try that did not get it met somebody who may be idle. A store whose answer does not tell is asked who holds; where
    /// it has no answer to that either, whoever keeps locks expects others to do so, too.
    pub(crate) async fn met_idle(&mut self) -> bool {
        if let Some(told) = self.may_be_idle {
            return told;
        }
        let Some(inspect) = self.engine.backend.inspect_dyn() else { return self.ask.warm };
        match inspect.show(self.key).await {
            Ok(seen) => seen.is_some_and(|it| it.holders.iter().any(|it| it.label.warm)),
            Err(_) => self.ask.warm,
        }
    }

    /// Ask and wait until the lock is ours. `None` for a try that did not get it.
    pub(crate) async fn win(&mut self, started: Moment, until: Moment) -> Result<Option<Hold>> {
        // A wait of zero means not to wait for others; the answer of the store is awaited all the same.
        let answer_until = if until <= started { Moment::NEVER } else { until };
        loop {
            if self.engine.is_closed() {
                return Err(Error::Closed);
            }
            let pause = match self.ask_store(answer_until).await {
                None => return self.out_of_time(started),
                Some((asked_at, now, Ok(Turn::Held(grant)))) => match self.accept(asked_at, now, &grant)? {
                    Some(held) => return Ok(Some(held)),
                    None => continue,
                },
                Some((_, _, Ok(Turn::Wait { recheck, ahead, theirs, crowded, may_be_idle }))) => {
                    (self.ahead, self.may_be_idle) = (ahead, may_be_idle);
                    self.end_outage();
                    self.compare(theirs);
                    self.take_turns(crowded);
                    if !self.ask.patient {
                        self.not_this_time();
                        return Ok(None);
                    }
                    self.ask_who_holds();
                    recheck
                }
                Some((asked_at, _, Err(fault))) => self.retry_after(asked_at, fault)?,
            };
            match self.rest(pause.min(self.ask_within), until).await {
                // A sign is a hint, never a grant: the loop asks again.
                Woken::Heard | Woken::RecheckDue => {}
                Woken::OutOfTime => return self.out_of_time(started),
                Woken::Closed => return Err(Error::Closed),
            }
        }
    }

    /// One `turn`, at most until the budget or the patience with a silent store ends. When it was asked, when that was answered, and how.
    async fn ask_store(&mut self, until: Moment) -> Option<(Moment, Moment, backend::Result<Turn>)> {
        let Phase::Resting(keeper) = std::mem::replace(&mut self.phase, Phase::Over) else {
            debug_assert!(false, "whoever asks has a place");
            return None;
        };
        let (asked_at, claim) = (self.engine.clock.now(), keeper.claim);
        self.phase = Phase::Asking { asked_at, claim, verb: keeper.place.turn_dyn() };
        let (mut now, mut is_silent) = (asked_at, false);
        // The verb stays in `self`, where a drop finds it and hands it to the background.
        let answer = loop {
            let Phase::Asking { verb, .. } = &mut self.phase else {
                debug_assert!(false, "whoever is answered has asked");
                break None;
            };
            let look = self.engine.look_for_silence(asked_at, now);
            let due = until.min(self.engine.patient_until(asked_at)).min(look);
            let answer = self.engine.clock.within(due, verb).await;
            if answer.is_some() {
                break answer;
            }
            now = self.engine.clock.now();
            let impatient = self.engine.patient_until(asked_at) <= now;
            let still = impatient || self.engine.silent_from(asked_at) <= now;
            is_silent = self.tell_silence(asked_at, is_silent, still);
            if impatient || until <= now {
                break None;
            }
        };
        if is_silent && answer.is_some() {
            // A fault now is the first, and an answer ends the outage anyway.
            self.outage = None;
        }
        if let Some((place, answer)) = answer {
            self.engine.answered(self.key, Verb::Turn, asked_at, Answer::to_turn(&answer));
            let now = self.engine.clock.now();
            if answer.is_ok() {
                self.engine.heard(now);
            }
            self.phase = Phase::Resting(Keeper::new(place, claim).spoke(asked_at));
            return Some((asked_at, now, answer));
        }
        None
    }

    /// Whether the store stands still, as far as can be told; others of us are told when that changes.
    fn tell_silence(&mut self, asked_at: Moment, before: bool, now: bool) -> bool {
        if now && self.outage.is_none() {
            self.begin_outage(asked_at, self.engine.silence());
            return true;
        }
        if before && !now {
            self.outage = None;
            self.engine.queue.set_outage(self.key, None);
        }
        before && now
    }

    /// Those of our process who stand behind us hear of it when their time is over.
    fn begin_outage(&mut self, since: Moment, fault: Fault) {
        self.engine.queue.set_outage(self.key, Some(fault.clone()));
        self.outage = Some((since, fault));
        self.told_of_answer = false;
    }

    /// The store answers, and has told us to wait. Another of us may have told the line otherwise before.
    fn end_outage(&mut self) {
        self.outage = None;
        if !std::mem::replace(&mut self.told_of_answer, true) {
            self.engine.queue.set_outage(self.key, None);
        }
    }

    /// Whoever took over in the middle of an outage may be out of time before it hears anything itself.
    fn outage_of_line(&self) -> Option<Fault> {
        if self.told_of_answer { None } else { self.engine.queue.outage(self.key) }
    }

    /// The store says it is ours: it is, if there is still time left to use it.
    fn accept(&mut self, asked_at: Moment, now: Moment, grant: &Grant) -> Result<Option<Hold>> {
        self.outage = None;
        let Phase::Resting(keeper) = std::mem::replace(&mut self.phase, Phase::Over) else {
            debug_assert!(false, "a grant was answered to nobody");
            return Ok(None);
        };
        match tenure_of(self.engine, self.key, keeper, (asked_at, now), grant) {
            Ok(tenure) => grant::seat(self.engine, self.ask, tenure, now).map(Some),
            Err(Useless::Late(keeper)) => {
                self.phase = Phase::Resting(keeper);
                Ok(None)
            }
            Err(Useless::Unfit(keeper, error)) => {
                self.phase = Phase::Resting(keeper);
                Err(error)
            }
        }
    }

    /// The outcome is unknown. Asking again by the same claim id finds out; how long to pause before.
    fn retry_after(&mut self, asked_at: Moment, fault: Fault) -> Result<Duration> {
        self.engine.observe(&Event::Faulted { key: self.key, verb: Verb::Turn, fault: &fault });
        if !fault.is_transient() {
            return Err(fault.into());
        }
        let since = self.outage.as_ref().map_or(asked_at, |it| it.0);
        let lasted = self.engine.clock.now() - since;
        if self.engine.settings.outage_max <= lasted || (!self.ask.patient && self.outage.is_some()) {
            return Err(fault.into());
        }
        self.begin_outage(since, fault);
        // Long outages are asked about less often; a short one is over soon.
        let (shortest, longest) = (Duration::from_millis(5), self.ask.ttl / 10);
        Ok((lasted / 4).min(longest).max(shortest))
    }

    /// Wait for a sign from the store, at most `pause`.
    async fn rest(&mut self, pause: Duration, until: Moment) -> Woken {
        let clock = &self.engine.clock;
        let Phase::Resting(keeper) = &mut self.phase else {
            debug_assert!(false, "whoever waits has a place");
            return Woken::OutOfTime;
        };
        let mut closing = pin!(self.engine.closing.notified());
        let mut changed = keeper.place.changed_dyn();
        let recheck_at = clock.now().after(pause);
        let signs = poll_fn(|cx| {
            if self.engine.is_closed() || closing.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Woken::Closed);
            }
            changed.as_mut().poll(cx).map(|()| Woken::Heard)
        });
        let due = || if until <= recheck_at { Woken::OutOfTime } else { Woken::RecheckDue };
        clock.within(recheck_at.min(until), pin!(signs)).await.unwrap_or_else(due)
    }

    /// Others see the room otherwise: told once.
    fn compare(&mut self, theirs: Option<u32>) {
        if let Some(theirs) = theirs.filter(|_| !std::mem::replace(&mut self.differs, true)) {
            let ours = self.ask.load.capacity;
            self.engine.observe(&Event::Disagreement { key: self.key, ours, theirs });
        }
    }

    /// A caller with a trace wants to know whose trace is in its way. Asked once, and nobody waits for the answer.
    fn ask_who_holds(&mut self) {
        let (engine, key) = (self.engine, self.key);
        if self.waits.is_some() || !engine.is_observed() {
            return;
        }
        let waits = Arc::new(());
        let (still, observed) = (Arc::downgrade(&waits), Arc::downgrade(engine));
        self.waits = Some(waits);
        let Some(inspect) = engine.trace(key).and_then(|_| engine.backend.inspect_dyn()) else { return };
        let key = key.clone();
        engine.background.spawn_untracked(Box::pin(async move {
            let Ok(Some(seen)) = inspect.show(&key).await else { return };
            let (Some(_still), Some(engine)) = (still.upgrade(), observed.upgrade()) else { return };
            // We may hold by now ourselves; and who holds in this process is known here.
            let ours = (&engine.label.host, engine.label.pid);
            let others = seen.holders.iter().map(|it| &it.label).filter(|it| (&it.host, it.pid) != ours);
            for holder in others.filter_map(|it| it.trace) {
                engine.observe(&Event::Behind { key: &key, holder });
            }
        }));
    }

    /// There is no place in the store's line for us yet: told once.
    fn take_turns(&mut self, crowded: bool) {
        if crowded && !std::mem::replace(&mut self.takes_turns, true) {
            self.engine.observe(&Event::TakesTurns { key: self.key });
        }
    }

    /// A try was told that somebody else is first: nothing of us is left there.
    fn not_this_time(&mut self) {
        self.phase = Phase::Over;
        step_down(self.engine, self.key, None);
    }

    fn out_of_time(&mut self, started: Moment) -> Result<Option<Hold>> {
        if let Some(fault) = self.outage.take().map(|it| it.1).or_else(|| self.outage_of_line()) {
            return Err(fault.into());
        }
        let waited = self.engine.clock.now() - started;
        Err(Error::TimedOut { stage: Stage::Remote, waited, ahead: self.ahead })
    }
}

impl Drop for Contest<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Over => {}
            Phase::Resting(keeper) => step_down(self.engine, self.key, Some(keeper)),
            Phase::Asking { asked_at, claim, verb } => {
                let finisher = Finisher::new(self.engine.clone(), self.key.clone());
                self.engine.background.spawn(finisher.finish(asked_at, claim, verb));
            }
        }
    }
}
