//! The walk of a request: stand in the local line, represent the process at the store, hold.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::clock::{Moment, Sleep};
use crate::engine::Engine;
use crate::error::{Error, Result, Stage};
use crate::guard::{Guard, Timings};
use crate::keeper::{self, Contest, Keeper};
use crate::key::Key;
use crate::observe::{Event, GrantedBy};
use crate::queue::{Arrival, Call, Held, Waiter};
use crate::request::LockRequest;

/// How far a request has come. Only a wait at the store needs a box.
pub(crate) enum Progress {
    Fresh,
    /// In the local line, until then at the longest.
    Standing(Arc<Waiter>, Option<Box<Sleep>>),
    Contending(Contending),
}

type Contending = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

impl LockRequest {
    /// The first poll: a lock that is free in this process's own store is had at once.
    fn start(&mut self) -> Poll<Result<Guard>> {
        self.started = self.engine.clock.now();
        let key = self.checked_key()?;
        self.progress = match begin(self, key, self.started)? {
            Start::Held(held, by) => {
                return Poll::Ready(Ok(guard(self.engine.clone(), held, by, Timings::default())));
            }
            Start::Busy => return Poll::Ready(Err(Error::Closed)),
            Start::Represent(keeper) => Progress::Contending(contend(self, key, self.started, keeper)),
            Start::Wait(waiter) => Progress::Standing(waiter, None),
        };
        Poll::Pending
    }

    /// Resolve when called from the local line, or when the wait is over.
    fn poll_called(&mut self, cx: &mut Context<'_>) -> Poll<Result<Call>> {
        let Progress::Standing(waiter, timer) = &mut self.progress else { return Poll::Pending };
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
            Call::Held(held) => {
                let timings = Timings { local: now - self.started, ..Timings::default() };
                return Poll::Ready(Ok(guard(engine.clone(), held, GrantedBy::HandOn, timings)));
            }
            Call::Represent(keeper) => keeper,
        };
        let key = self.checked_key()?;
        if engine.is_private {
            let held = Keeper::hold_privately(engine, key, &self.ask, now);
            if engine.queue.seat(held.clone(), self.ask.owner.clone()).is_err() {
                return Poll::Ready(Err(Error::Closed));
            }
            engine.rounds.expect(&held, engine);
            let timings = Timings { local: now - self.started, ..Timings::default() };
            return Poll::Ready(Ok(guard(engine.clone(), held, GrantedBy::Store, timings)));
        }
        match keeper.map_or_else(|| Keeper::enter(engine, key, &self.ask, self.label()), Ok) {
            Ok(keeper) => {
                self.progress = Progress::Contending(contend(self, key, now, keeper));
                Poll::Pending
            }
            Err(error) => {
                keeper::step_down(engine, key, None);
                Poll::Ready(Err(error))
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
        let Progress::Contending(future) = &mut it.progress else { return Poll::Pending };
        it.engine.background.with_runtime(|| future.as_mut().poll(cx))
    }
}

/// A caller that goes away gives up its place in the local line, or what it was just called for.
impl Drop for LockRequest {
    fn drop(&mut self) {
        let (Progress::Standing(waiter, _), Ok(key)) = (&self.progress, &self.key) else { return };
        match self.engine.queue.withdraw(key, waiter) {
            None | Some(Call::Closed) => {}
            Some(Call::Held(held)) => self.engine.release(&held.tenure, held.fence),
            Some(Call::Represent(keeper)) => keeper::step_down(&self.engine, key, keeper),
        }
    }
}

/// A try: one look at the local line and, if nobody is there, one at the store.
pub(crate) async fn attempt(request: LockRequest) -> Result<Option<Guard>> {
    let (engine, key, ask) = (request.engine.clone(), request.checked_key()?.clone(), request.ask.clone());
    let started = engine.clock.now();
    let start = begin(&request, &key, started);
    drop(request);
    let keeper = match start? {
        Start::Held(held, by) => return Ok(Some(guard(engine, held, by, Timings::default()))),
        Start::Busy | Start::Wait(_) => return Ok(None),
        Start::Represent(keeper) => keeper,
    };
    let won = Contest::new(&engine, &key, &ask, keeper).win(started, Moment::NEVER).await?;
    let timings = Timings { remote: engine.clock.now() - started, ..Timings::default() };
    Ok(won.map(|held| guard(engine, held, GrantedBy::Store, timings)))
}

/// What the first step led to.
enum Start {
    Held(Held, GrantedBy),
    Represent(Keeper),
    Wait(Arc<Waiter>),
    Busy,
}

/// Arrive at the local line.
fn begin(request: &LockRequest, key: &Key, now: Moment) -> Result<Start> {
    let (engine, ask) = (&request.engine, &request.ask);
    engine.background.start()?;
    let mut entered = None;
    let arrival = engine.queue.arrive(key, ask, now, || {
        if engine.is_private {
            return Some(Keeper::hold_privately(engine, key, ask, now));
        }
        match Keeper::enter(engine, key, ask, request.label()) {
            Ok(keeper) => keeper.at_once(engine, key, ask, now).map_err(|it| entered = Some(Ok(it))).ok(),
            Err(error) => {
                entered = Some(Err(error));
                None
            }
        }
    });
    match (arrival, entered) {
        (Arrival::Granted(held), _) => {
            engine.rounds.expect(&held, engine);
            Ok(Start::Held(held, GrantedBy::Store))
        }
        (Arrival::Represent, Some(Ok(keeper))) => Ok(Start::Represent(keeper)),
        (Arrival::Represent, Some(Err(error))) => {
            keeper::step_down(engine, key, None);
            Err(error)
        }
        (Arrival::Reentered(held), _) => Ok(Start::Held(held, GrantedBy::Reentry)),
        (Arrival::Wait(waiter), _) => Ok(Start::Wait(waiter)),
        (Arrival::Busy, _) => Ok(Start::Busy),
        (Arrival::TooDeep, _) => Err(engine.too_deep()),
        (Arrival::Full, _) => {
            engine.observe(&Event::Refused { key });
            Err(Error::Full { waiters: engine.queue.waiters_max() })
        }
        (Arrival::Closed | Arrival::Represent, _) => Err(Error::Closed),
    }
}

/// The contest at the store, as a future that owns all it needs.
fn contend(request: &LockRequest, key: &Key, called_at: Moment, keeper: Keeper) -> Contending {
    let (engine, key, ask) = (request.engine.clone(), key.clone(), request.ask.clone());
    let (started, until) = (request.started, request.started.after(request.wait.into()));
    Box::pin(async move {
        let held =
            Contest::new(&engine, &key, &ask, keeper).win(started, until).await?.ok_or(Error::Closed)?;
        let timings = Timings { local: called_at - started, remote: engine.clock.now() - called_at };
        Ok(guard(engine, held, GrantedBy::Store, timings))
    })
}

fn guard(engine: Arc<Engine>, held: Held, by: GrantedBy, timings: Timings) -> Guard {
    let Timings { local, remote } = timings;
    engine.observe(&Event::Granted { key: &held.tenure.key, fence: held.fence, by, local, remote });
    Guard::new(engine, held, timings)
}
