//! The walk of a request: stand in the local line, represent the process at the store, hold.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::api::guard::{Guard, Timings};
use crate::api::request::{Attempt, Contending, LockRequest, Progress};
use crate::clock::{Moment, Span};
use crate::engine::background::InRuntime;
use crate::engine::contest::{self, Contest};
use crate::engine::hold::Hold;
use crate::engine::keeper::Keeper;
use crate::engine::leave::{release, step_down};
use crate::engine::line::Arrival;
use crate::engine::rounds;
use crate::engine::shared::Engine;
use crate::engine::waiter::{Call, Waiter};
use crate::error::{Error, Result, Stage};
use crate::key::Key;
use crate::observe::{Event, GrantedBy};
use crate::spi::claim::Load;

impl LockRequest {
    /// The first poll: a lock that is free in this process's own store is had at once.
    fn start(&mut self) -> Poll<Result<Guard>> {
        // A hold that never ends by itself, in a store that is not asked, needs no time.
        let timeless = self.engine.queue.is_whole_lock() && self.ask.max_hold == Span::ENDLESS;
        self.started = if timeless { Moment::from_nanos(0) } else { self.engine.clock.now() };
        let key = self.checked_key()?;
        self.progress = match begin(self, key, self.started)? {
            Start::Held(held, by) => {
                return Poll::Ready(Ok(guard(self.engine.clone(), held, by, Timings::default())));
            }
            Start::Busy => {
                debug_assert!(false, "only a try finds a lock busy");
                return Poll::Ready(Err(Error::Closed));
            }
            Start::Represent(keeper) => Progress::Contending(contend(self, key, self.started, keeper)),
            Start::Wait(waiter) => {
                if timeless {
                    self.started = self.engine.clock.now();
                }
                Progress::Standing(waiter, None)
            }
        };
        Poll::Pending
    }

    /// Resolve when called from the local line, or when the wait is over.
    fn poll_called(&mut self, cx: &mut Context<'_>) -> Poll<Result<Call>> {
        let Progress::Standing(waiter, timer) = &mut self.progress else {
            debug_assert!(false, "only who stands in line is called");
            return Poll::Pending;
        };
        if let Poll::Ready(call) = waiter.poll_called(cx) {
            return Poll::Ready(Ok(call));
        }
        let (engine, until) = (&self.engine, self.started.after(self.wait.into()));
        if until == Moment::NEVER {
            return Poll::Pending;
        }
        let timer = timer.get_or_insert_with(|| Box::new(engine.clock.sleep_until(until)));
        ready!(engine.background.with_runtime(|| Pin::new(&mut **timer).poll(cx)));
        let key = self.key.as_ref().map_err(|it| (**it).clone())?;
        let (ahead, waited) = (engine.queue.ahead_of(key, waiter), engine.clock.now() - self.started);
        engine.observe(&Event::TimedOut { key, stage: Stage::Local, waited });
        Poll::Ready(Err(Error::TimedOut { stage: Stage::Local, waited, ahead }))
    }

    /// Called from the local line: to hold, or to go to the store for everybody.
    fn called(&mut self, call: Call) -> Poll<Result<Guard>> {
        let engine = &self.engine;
        let now = engine.clock.now();
        let keeper = match call {
            Call::Closed => return Poll::Ready(Err(Error::Closed)),
            Call::Held(held, by) => {
                let timings = Timings { local: now - self.started, ..Timings::default() };
                return Poll::Ready(Ok(guard(engine.clone(), held, by, timings)));
            }
            Call::Represent(keeper) => keeper,
        };
        let key = self.checked_key()?;
        match represent(self, key, keeper, now)? {
            Ok(held) => {
                let timings = Timings { local: now - self.started, ..Timings::default() };
                Poll::Ready(Ok(guard(engine.clone(), held, GrantedBy::Store, timings)))
            }
            Err(keeper) => {
                self.progress = Progress::Contending(contend(self, key, now, keeper));
                Poll::Pending
            }
        }
    }
}

impl Future for LockRequest {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Guard>> {
        let it = &mut *self;
        if let Progress::Fresh = it.progress
            && let Poll::Ready(answer) = it.start()
        {
            return Poll::Ready(answer);
        }
        if let Progress::Standing(..) = it.progress {
            let call = ready!(it.poll_called(cx))?;
            if let Poll::Ready(answer) = it.called(call) {
                return Poll::Ready(answer);
            }
        }
        let Progress::Contending(future) = &mut it.progress else {
            debug_assert!(false, "whoever neither holds nor stands in line contends");
            return Poll::Pending;
        };
        it.engine.background.with_runtime(|| future.as_mut().poll(cx))
    }
}

/// A caller that goes away gives up its place in the local line, or what it was just called for.
impl Drop for LockRequest {
    fn drop(&mut self) {
        let (Progress::Standing(waiter, _), Ok(key)) = (&self.progress, &self.key) else { return };
        let (called, others) = self.engine.queue.withdraw(key, waiter);
        self.engine.tell(others);
        match called {
            None | Some(Call::Closed) => {}
            Some(Call::Held(held, _)) => release(&self.engine, &held),
            Some(Call::Represent(keeper)) => step_down(&self.engine, key, keeper),
        }
    }
}

impl IntoFuture for Attempt {
    type Output = Result<Option<Guard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Option<Guard>>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let engine = self.0.engine.clone();
        Box::pin(async move { InRuntime::new(&engine.background, attempt(self.0)).await })
    }
}

/// A try: one look at the local line and, if nobody is there, one at the store.
async fn attempt(request: LockRequest) -> Result<Option<Guard>> {
    let (engine, key, ask) = (request.engine.clone(), request.checked_key()?.clone(), request.ask.clone());
    let started = engine.clock.now();
    let start = begin(&request, &key, started);
    drop(request);
    let keeper = match start? {
        Start::Held(held, by) => return Ok(Some(guard(engine, held, by, Timings::default()))),
        Start::Busy => return Ok(None),
        Start::Wait(_) => {
            debug_assert!(false, "a try does not stand in line");
            return Ok(None);
        }
        Start::Represent(keeper) => keeper,
    };
    let won = Contest::new(&engine, &key, &ask, keeper).win(started, Moment::NEVER).await?;
    let timings = Timings { remote: engine.clock.now() - started, ..Timings::default() };
    Ok(won.map(|held| guard(engine, held, GrantedBy::Store, timings)))
}

/// What the first step led to.
enum Start {
    Held(Hold, GrantedBy),
    Represent(Keeper),
    Wait(Arc<Waiter>),
    Busy,
}

/// Arrive at the local line.
fn begin(request: &LockRequest, key: &Key, now: Moment) -> Result<Start> {
    let (engine, ask) = (&request.engine, &request.ask);
    engine.check_process()?;
    engine.background.start()?;
    match engine.queue.arrive(key, ask, now) {
        Arrival::Held(held) => {
            rounds::include(engine, &held.tenure, held.until);
            Ok(Start::Held(held, GrantedBy::Store))
        }
        Arrival::Joined(held, due) => {
            engine.schedule.no_later_than(due);
            Ok(Start::Held(held, GrantedBy::Sharing))
        }
        Arrival::InTheWay(load) => Err(in_the_way(load)),
        Arrival::Represent => Ok(match represent(request, key, None, now)? {
            Ok(held) => Start::Held(held, GrantedBy::Store),
            Err(keeper) => Start::Represent(keeper),
        }),
        Arrival::Reentered(held) => Ok(Start::Held(held, GrantedBy::Reentry)),
        Arrival::Wait(waiter) => Ok(Start::Wait(waiter)),
        Arrival::Busy => Ok(Start::Busy),
        Arrival::TooDeep => Err(too_deep(engine)),
        Arrival::Full => {
            engine.observe(&Event::Refused { key });
            Err(Error::Full { waiters: engine.queue.bounds().waiters_max })
        }
        Arrival::Closed => Err(Error::Closed),
    }
}

/// This caller goes to the store for all of us, perhaps from a place that another began. It holds already if the store
/// is inside this process and the lock is free there; otherwise it must contend.
fn represent(
    request: &LockRequest,
    key: &Key,
    keeper: Option<Keeper>,
    now: Moment,
) -> Result<Result<Hold, Keeper>> {
    let (engine, ask) = (&request.engine, &request.ask);
    let entered = keeper.map_or_else(|| contest::enter(engine, key, ask, request.label()), Ok);
    match entered {
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
    let how = if load == Load::READER {
        "reads it already".to_owned()
    } else {
        format!("holds {load} of it already")
    };
    Error::invalid(format!(
        "this owner {how} and would wait for itself; release that first, or take the lock for writing from the start"
    ))
}

/// The contest at the store, as a future that owns all it needs.
fn contend(request: &LockRequest, key: &Key, called_at: Moment, keeper: Keeper) -> Contending {
    let (engine, key, ask) = (request.engine.clone(), key.clone(), request.ask.clone());
    let (started, until) = (request.started, request.started.after(request.wait.into()));
    Box::pin(async move {
        let won = Contest::new(&engine, &key, &ask, keeper).win(started, until).await?;
        debug_assert!(won.is_some(), "only a try comes back without the lock and without an error");
        let held = won.ok_or(Error::Closed)?;
        let timings = Timings { local: called_at - started, remote: engine.clock.now() - called_at };
        Ok(guard(engine, held, GrantedBy::Store, timings))
    })
}

fn guard(engine: Arc<Engine>, held: Hold, by: GrantedBy, timings: Timings) -> Guard {
    let Timings { local, remote } = timings;
    engine.observe(&Event::Granted { key: &held.tenure.key, fence: held.fence, by, local, remote });
    Guard::new(engine, held, timings)
}
