//! The walk of a request: stand in the local line, represent the process at the store, hold.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::api::guard::{Guard, Waited};
use crate::api::recall::recall;
use crate::api::request::{Attempt, Contending, LockRequest, Progress, Won};
use crate::clock::{Moment, Span};
use crate::engine::ask::Ask;
use crate::engine::background::InRuntime;
use crate::engine::contest::{self, Contest};
use crate::engine::hold::Hold;
use crate::engine::keeper::Keeper;
use crate::engine::leave::{Leave, release, step_down};
use crate::engine::line::{Arrival, Before};
use crate::engine::rounds;
use crate::engine::shared::Engine;
use crate::engine::waiter::{Call, Waiter};
use crate::engine::warm::arrive;
use crate::error::{Error, Result, Stage};
use crate::key::Key;
use crate::observe::{Event, GrantedBy};
use crate::spi::claim::Load;

impl LockRequest {
    /// The short way: an ordinary mutex that never ends by itself, free, in a store that is not asked. Whatever is not as
    /// usual goes the long way, which finds the same and says what is wrong.
    #[inline]
    fn take_free(&self, engine: &Engine) -> Option<Hold> {
        let Ok(key) = &self.key else { return None };
        let ordinary = self.ask.load == Load::MUTEX
            && engine.order.is_none()
            && self.ask.max_hold == Span::ENDLESS
            && self.ask.at_least == Span::ZERO;
        let allowed =
            engine.profile.takes(self.ask.ttl) && engine.is_here() && engine.background.is_started();
        if !ordinary || !allowed {
            return None;
        }
        let now = engine.is_observed().then(|| engine.clock.now());
        engine.queue.take_free(key, &self.ask, now)
    }

    /// The first poll: a lock that is free in this process's own store is had at once.
    fn start(&mut self, engine: &Arc<Engine>) -> Poll<Result<Won>> {
        // A hold that never ends by itself, in a store that is not asked, needs no time.
        let timeless = engine.queue.is_whole_lock()
            && self.ask.max_hold == Span::ENDLESS
            && self.ask.at_least == Span::ZERO;
        self.started = if timeless { Moment::from_nanos(0) } else { engine.clock.now() };
        let key = match self.checked_key(engine) {
            Ok(key) => key,
            Err(error) => {
                self.started = Moment::NEVER;
                return Poll::Ready(Err(error));
            }
        };
        if engine.is_observed() {
            engine.observe(&Event::Arrived { key, patient: true });
        }
        self.progress = match begin(self, engine, key, self.started)? {
            Start::Held(held, by) => return Poll::Ready(Ok(Won { held, by, waited: Waited::NOT })),
            Start::Busy => {
                debug_assert!(false, "only a try finds a lock busy");
                return Poll::Ready(Err(Error::Closed));
            }
            Start::Represent(keeper, leaving) => {
                Progress::Contending(contend(self, engine, key, self.started, (keeper, leaving)))
            }
            Start::Wait(waiter) => {
                if timeless {
                    self.started = engine.clock.now();
                }
                Progress::Standing(waiter, None)
            }
        };
        Poll::Pending
    }

    /// Resolve when called from the local line, or when the wait is over.
    fn poll_called(&mut self, engine: &Engine, cx: &mut Context<'_>) -> Poll<Result<Call>> {
        let Progress::Standing(waiter, timer) = &mut self.progress else {
            debug_assert!(false, "only who stands in line is called");
            return Poll::Pending;
        };
        if let Poll::Ready(call) = waiter.poll_called(cx) {
            return Poll::Ready(Ok(call));
        }
        let until = self.started.after(self.wait.into());
        if until == Moment::NEVER {
            return Poll::Pending;
        }
        let timer = timer.get_or_insert_with(|| Box::new(engine.clock.sleep_until(until)));
        ready!(engine.background.with_runtime(|| Pin::new(&mut **timer).poll(cx)));
        let key = self.key.as_ref().map_err(|it| (**it).clone())?;
        let waited = engine.clock.now() - self.started;
        Poll::Ready(Err(match engine.queue.before(key, waiter) {
            Before::Others(ahead) => Error::TimedOut { stage: Stage::Local, waited, ahead },
            Before::Outage(fault) => fault.into(),
        }))
    }

    /// Called from the local line: to hold, or to go to the store for everybody.
    fn called(&mut self, engine: &Arc<Engine>, call: Call) -> Poll<Result<Won>> {
        let now = engine.clock.now();
        let waited = Waited::in_lines(now - self.started, Duration::ZERO);
        let keeper = match call {
            Call::Closed => return Poll::Ready(Err(Error::Closed)),
            Call::Held(held, by) => return Poll::Ready(Ok(Won { held, by, waited })),
            Call::Represent(keeper) => keeper,
        };
        let key = self.checked_key(engine)?;
        match represent(self, engine, key, keeper, now, true)? {
            Ok(held) => Poll::Ready(Ok(Won { held, by: GrantedBy::Store, waited })),
            Err(keeper) => {
                self.progress = Progress::Contending(contend(self, engine, key, now, (keeper, None)));
                Poll::Pending
            }
        }
    }

    /// As far as it can go now.
    fn walk(&mut self, engine: &Arc<Engine>, cx: &mut Context<'_>) -> Poll<Result<Won>> {
        if let Progress::Fresh = self.progress
            && let Poll::Ready(answer) = self.start(engine)
        {
            return Poll::Ready(answer);
        }
        if let Progress::Standing(..) = self.progress {
            let call = ready!(self.poll_called(engine, cx))?;
            if let Poll::Ready(answer) = self.called(engine, call) {
                return Poll::Ready(answer);
            }
        }
        let Progress::Contending(future) = &mut self.progress else {
            debug_assert!(false, "whoever neither holds nor stands in line contends");
            return Poll::Pending;
        };
        engine.background.with_runtime(|| future.as_mut().poll(cx))
    }

    /// One poll, after the short way was no way. Apart, so that the short one fits into its caller.
    #[inline(never)]
    fn walk_on(&mut self, engine: Arc<Engine>, cx: &mut Context<'_>) -> Poll<Result<Guard>> {
        let answer = match self.walk(&engine, cx) {
            Poll::Ready(Ok(won)) => return Poll::Ready(Ok(guard(engine, won, ARRIVAL_TOLD))),
            Poll::Ready(Err(error)) => {
                if engine.is_observed() {
                    self.tell_not_had(&engine, Some(&error));
                }
                Poll::Ready(Err(error))
            }
            Poll::Pending => Poll::Pending,
        };
        self.engine = Some(engine);
        answer
    }

    #[inline(never)]
    fn go_away(&mut self, engine: &Arc<Engine>) {
        if engine.is_observed() {
            self.tell_not_had(engine, None);
        }
        let (Progress::Standing(waiter, _), Ok(key)) = (&self.progress, &self.key) else { return };
        let (called, others) = engine.queue.withdraw(key, waiter);
        engine.tell(others);
        match called {
            None | Some(Call::Closed) => {}
            Some(Call::Held(held, _)) => release(engine, &held),
            Some(Call::Represent(keeper)) => step_down(engine, key, keeper),
        }
    }

    /// Tell observers that the caller got an error, or went away; nothing if it had never arrived or has been told.
    #[cold]
    fn tell_not_had(&mut self, engine: &Engine, error: Option<&Error>) {
        let started = std::mem::replace(&mut self.started, Moment::NEVER);
        if let (Ok(key), true) = (&self.key, started != Moment::NEVER) {
            let stage =
                if let Progress::Contending(_) = self.progress { Stage::Remote } else { Stage::Local };
            not_had(engine, key, started, stage, error);
        }
    }
}

impl Future for LockRequest {
    type Output = Result<Guard>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Guard>> {
        let Some(engine) = self.engine.take() else {
            debug_assert!(false, "a request was polled after its answer");
            return Poll::Pending;
        };
        if let Progress::Fresh = self.progress
            && let Some(held) = self.take_free(&engine)
        {
            let won = Won { held, by: GrantedBy::Store, waited: Waited::NOT };
            return Poll::Ready(Ok(guard(engine, won, NOTHING_TOLD)));
        }
        self.walk_on(engine, cx)
    }
}

/// A caller that goes away gives up its place in the local line, or what it was just called for.
impl Drop for LockRequest {
    #[inline]
    fn drop(&mut self) {
        // Whoever has a guard gave the engine to it.
        if let Some(engine) = self.engine.take() {
            self.go_away(&engine);
        }
    }
}

impl IntoFuture for Attempt {
    type Output = Result<Option<Guard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Option<Guard>>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Attempt(mut request) = self;
        Box::pin(async move {
            let engine = request.engine.take().ok_or(Error::Closed)?;
            let attempt = attempt(&engine, request);
            let won = InRuntime::new(&engine.background, attempt).await?;
            Ok(won.map(|it| guard(engine, it, ARRIVAL_TOLD)))
        })
    }
}

/// A try: one look at the local line and, if nobody is there, one at the store.
async fn attempt(engine: &Arc<Engine>, request: LockRequest) -> Result<Option<Won>> {
    let (key, ask) = (request.checked_key(engine)?.clone(), request.ask.clone());
    let started = engine.clock.now();
    let caller = Trying::arrive(engine, &key, started);
    let answer = try_once(engine, request, &key, &ask, started).await;
    caller.told(&answer);
    answer
}

async fn try_once(
    engine: &Arc<Engine>,
    request: LockRequest,
    key: &Key,
    ask: &Ask,
    started: Moment,
) -> Result<Option<Won>> {
    let (start, label) = (begin(&request, engine, key, started), request.label(engine));
    drop(request);
    let (keeper, leaving) = match start? {
        Start::Held(held, by) => return Ok(Some(Won { held, by, waited: Waited::NOT })),
        Start::Busy => return Ok(None),
        Start::Wait(_) => {
            debug_assert!(false, "a try does not stand in line");
            return Ok(None);
        }
        Start::Represent(keeper, leaving) => (keeper, leaving),
    };
    let mut contest = Contest::new(engine, key, ask, keeper);
    contest.after(leaving, Moment::NEVER).await;
    let mut won = contest.win(started, Moment::NEVER).await?;
    let trip = engine.clock.now() - started;
    if won.is_none() && engine.profile.recalls() && contest.met_idle().await {
        won = recall(engine, key, ask, label, trip).await?;
    }
    let waited = Waited::in_lines(Duration::ZERO, engine.clock.now() - started);
    Ok(won.map(|held| Won { held, by: GrantedBy::Store, waited }))
}

/// What the first step led to.
enum Start {
    Held(Hold, GrantedBy),
    /// Once what is of no use to us has left.
    Represent(Keeper, Option<Leave>),
    Wait(Arc<Waiter>),
    Busy,
}

/// Arrive at the local line.
fn begin(request: &LockRequest, engine: &Arc<Engine>, key: &Key, now: Moment) -> Result<Start> {
    engine.start()?;
    check_order(request, engine, key);
    let mut leaving = None;
    match arrive(engine, key, &request.ask, now, &mut leaving) {
        Arrival::Cooled(_) => {
            debug_assert!(false, "whoever arrives gives back what is of no use to it");
            Err(Error::Closed)
        }
        Arrival::Retaken(held) => {
            engine.schedule.no_later_than(held.until);
            Ok(Start::Held(held, GrantedBy::Warm))
        }
        Arrival::Held(held) => {
            rounds::include(engine, &held.tenure, held.until);
            Ok(Start::Held(held, GrantedBy::Store))
        }
        Arrival::Joined(held, due) => {
            engine.schedule.no_later_than(due);
            Ok(Start::Held(held, GrantedBy::Sharing))
        }
        Arrival::InTheWay(load) => Err(in_the_way(load)),
        Arrival::Represent => Ok(match represent(request, engine, key, None, now, leaving.is_none())? {
            Ok(held) => Start::Held(held, GrantedBy::Store),
            Err(keeper) => Start::Represent(keeper, leaving),
        }),
        Arrival::Reentered(held) => Ok(Start::Held(held, GrantedBy::Reentry)),
        Arrival::Wait(waiter) => Ok(Start::Wait(waiter)),
        Arrival::Busy => Ok(Start::Busy),
        Arrival::TooDeep => Err(too_deep(engine)),
        Arrival::Full => Err(Error::Full { waiters: engine.queue.bounds().waiters_max }),
        Arrival::Closed => Err(Error::Closed),
    }
}

/// Before it waits: afterwards it may be too late to tell.
fn check_order(request: &LockRequest, engine: &Engine, key: &Key) {
    let (Some(order), Some(owner)) = (&engine.order, &request.ask.owner) else { return };
    // A try waits for nobody.
    if !request.ask.patient {
        return;
    }
    for held in order.asked(owner, key) {
        engine.observe(&Event::OutOfOrder { key, held: &held });
    }
}

/// This caller goes to the store for all of us, perhaps from a place that another began. It holds already if the store
/// is inside this process, may be asked now, and the lock is free there; otherwise it must contend.
fn represent(
    request: &LockRequest,
    engine: &Arc<Engine>,
    key: &Key,
    keeper: Option<Keeper>,
    now: Moment,
    at_once: bool,
) -> Result<Result<Hold, Keeper>> {
    let ask = &request.ask;
    let entered = keeper.map_or_else(|| contest::enter(engine, key, ask, request.label(engine)), Ok);
    match entered {
        Ok(keeper) if !at_once => Ok(Err(keeper)),
        Ok(keeper) => match contest::at_once(engine, key, ask, keeper, now) {
            Ok(held) => held.map(Ok),
            Err(keeper) => Ok(Err(keeper)),
        },
        Err(error) => {
            step_down(engine, key, None);
            Err(error)
        }
    }
}

fn too_deep(engine: &Engine) -> Error {
    let depth_max = engine.queue.bounds().depth_max;
    Error::invalid(format!(
        "this owner holds the lock {depth_max} times already; release it or raise `depth_max`"
    ))
}

fn in_the_way(load: Load) -> Error {
    if load == Load::READER {
        return Error::invalid(
            "this owner reads it already and would wait for itself; release that first, or take the lock for writing from the start",
        );
    }
    if load.is_exclusive() {
        return Error::invalid(
            "this owner has the lock for itself already and would wait for itself; release that first",
        );
    }
    Error::invalid(format!(
        "this owner holds {load} already and would wait for itself; release some first, or ask for all of them at once"
    ))
}

/// The contest at the store, as a future that owns all it needs.
fn contend(
    request: &LockRequest,
    engine: &Arc<Engine>,
    key: &Key,
    called_at: Moment,
    (keeper, leaving): (Keeper, Option<Leave>),
) -> Contending {
    let (engine, key, ask) = (engine.clone(), key.clone(), request.ask.clone());
    let (started, until) = (request.started, request.started.after(request.wait.into()));
    Box::pin(async move {
        let mut contest = Contest::new(&engine, &key, &ask, keeper);
        contest.after(leaving, until).await;
        let won = contest.win(started, until).await?;
        debug_assert!(won.is_some(), "only a try comes back without the lock and without an error");
        let held = won.ok_or(Error::Closed)?;
        let waited = Waited::in_lines(called_at - started, engine.clock.now() - called_at);
        Ok(Won { held, by: GrantedBy::Store, waited })
    })
}

#[expect(
    clippy::inline_always,
    reason = "a hold that goes through memory costs a tenth of an in-process lock"
)]
#[inline(always)]
fn guard(engine: Arc<Engine>, Won { held, by, waited }: Won, arrival_told: bool) -> Guard {
    if let (Some(order), Some(owner)) = (&engine.order, &held.owner) {
        order.granted(owner, &held.tenure.key);
    }
    if engine.is_observed() {
        tell_granted(&engine, &held, by, waited, arrival_told);
    }
    Guard::new(engine, held, waited)
}

/// Whether observers know already that the caller has arrived. If not, it went the short way, and its hold has begun.
const ARRIVAL_TOLD: bool = true;
const NOTHING_TOLD: bool = false;

#[inline(never)]
fn tell_granted(engine: &Engine, held: &Hold, by: GrantedBy, waited: Waited, arrival_told: bool) {
    let (tenure, fence) = (&held.tenure, held.told_fence());
    let key = &tenure.key;
    let (local, remote) = (waited.local.into(), waited.remote.into());
    if arrival_told {
        let begins = tenure.begin_hold(engine.clock.now());
        engine.observe(&Event::Granted { key, fence, by, begins, local, remote });
    } else {
        let granted = Event::Granted { key, fence, by, begins: true, local, remote };
        engine.observe_at_once(&Event::Arrived { key, patient: true }, &granted);
    }
}

/// Tell observers that a caller got an error, or went away.
#[cold]
fn not_had(engine: &Engine, key: &Key, started: Moment, stage: Stage, error: Option<&Error>) {
    let waited = engine.clock.now() - started;
    engine.observe(&match error {
        None => Event::Withdrawn { key, stage, waited },
        Some(&Error::TimedOut { stage, waited, ahead }) => Event::TimedOut { key, stage, waited, ahead },
        Some(Error::Full { .. }) => Event::Refused { key },
        Some(error) => Event::Failed { key, error, waited },
    });
}

/// A try that observers know of. Dropped before its answer, it went away.
struct Trying<'a> {
    engine: &'a Engine,
    key: &'a Key,
    started: Moment,
    going: bool,
}

impl<'a> Trying<'a> {
    fn arrive(engine: &'a Engine, key: &'a Key, started: Moment) -> Self {
        let going = engine.is_observed();
        if going {
            engine.observe(&Event::Arrived { key, patient: false });
        }
        Trying { engine, key, started, going }
    }

    /// The guard is told of where it is made.
    fn told(mut self, answer: &Result<Option<Won>>) {
        let Trying { engine, key, started, .. } = self;
        let going = std::mem::replace(&mut self.going, false);
        match answer {
            Err(error) if going => not_had(engine, key, started, Stage::Remote, Some(error)),
            Ok(None) if going => {
                engine.observe(&Event::Busy { key, waited: engine.clock.now() - started });
            }
            Err(_) | Ok(_) => {}
        }
    }
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if self.going {
            not_had(self.engine, self.key, self.started, Stage::Remote, None);
        }
    }
}
