//! A request for a lock: what the caller wants, and the future that gets it.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::Profile;
use crate::background::InRuntime;
use crate::claim::Label;
use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::{Error, Result, Stage};
use crate::guard::{Guard, Timings};
use crate::keeper::{self, Contest, Keeper};
use crate::key::Key;
use crate::observe::{Event, GrantedBy};
use crate::owner::Owner;
use crate::queue::{Arrival, Ask, Call, Held, Waiter};

/// A request for a lock. Await it to wait for the lock, or [`attempt`](LockRequest::attempt) it.
///
/// # Cancel safety
/// Dropping the future gives up the place in line; nothing is left in the store. A grant that arrives too
/// late goes to the next caller in line or is given back.
///
/// # Errors
/// [`Error::TimedOut`], [`Error::Full`], [`Error::Unavailable`], [`Error::Unsupported`],
/// [`Error::Invalid`] for a bad name or option, [`Error::Closed`].
///
/// # Fairness
/// First come, first served within the process. Between processes as the store's profile says, and a
/// process that holds the lock may serve a bounded number of its own callers first.
#[must_use = "a request does nothing unless awaited"]
pub struct LockRequest {
    engine: Arc<Engine>,
    key: Result<Key>,
    owner: Option<Owner>,
    ttl: Duration,
    max_hold: Duration,
    wait: Duration,
    note: Option<String>,
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockRequest")
            .field("key", &self.key)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

impl LockRequest {
    pub(crate) fn new(engine: Arc<Engine>, key: Result<Key>) -> Self {
        let settings = &engine.settings;
        let (ttl, max_hold, wait) = (settings.ttl, settings.max_hold, settings.wait);
        LockRequest {
            key,
            owner: Owner::current(),
            ttl,
            max_hold,
            wait,
            note: None,
            engine,
        }
    }

    /// How long the store keeps the lock without hearing from this process. While the guard lives it is
    /// renewed at a third of this; after a crash others wait at most this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait, over both lines together. Without it the request waits as the locker's
    /// settings say, by default without end.
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long the guard may live at the longest, renewals or not; after that it is lost.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = max_hold;
        self
    }

    /// Who asks, for reentrancy. Without it: the owner of the running task, if it has one.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// A word for whoever lists the locks.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Do not wait: the answer is `None` if somebody else holds the lock or waits for it.
    pub fn attempt(self) -> Attempt {
        Attempt(self)
    }

    /// Wait on this thread. For threads without a runtime; it blocks a runtime's worker as any wait does.
    ///
    /// # Errors
    /// As for the request awaited.
    pub fn blocking(self) -> Result<Guard> {
        self.engine.background.start()?;
        let engine = self.engine.clone();
        engine.background.block_on(self.into_future())
    }

    /// What the queue must know, if the options make sense.
    fn ask(&self, patient: bool) -> Result<Ask> {
        check_ttl(self.ttl, &self.engine.profile)?;
        if self.max_hold.is_zero() {
            return Err(Error::invalid(
                "`max_hold` is zero: the lock would be lost at once",
            ));
        }
        Ok(Ask {
            owner: self.owner.clone(),
            ttl: self.ttl,
            max_hold: self.max_hold,
            patient,
        })
    }

    fn label(&self) -> Arc<Label> {
        if self.owner.is_none() && self.note.is_none() {
            return self.engine.label.clone();
        }
        let owner = self.owner.as_ref().map(Owner::name);
        Arc::new(self.engine.label.with(owner, self.note.as_deref()))
    }

    /// Everything up to the first wait.
    fn begin(&self, key: &Key, ask: &Ask, now: Moment) -> Result<Start> {
        let engine = &self.engine;
        engine.background.start()?;
        let mut entered = None;
        let arrival = engine.queue.arrive(key, ask, now, || {
            match Keeper::enter(engine, key, ask, self.label()) {
                Ok(keeper) => keeper
                    .at_once(engine, key, ask, now)
                    .map_err(|it| entered = Some(Ok(it)))
                    .ok(),
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
                Err(Error::Full {
                    waiters: engine.queue.waiters_max(),
                })
            }
            (Arrival::Closed | Arrival::Represent, _) => Err(Error::Closed),
        }
    }

    /// Get the lock; `None` for a try that did not.
    async fn acquire(self, patient: bool) -> Result<Option<Guard>> {
        let (key, ask) = (self.key.clone()?, self.ask(patient)?);
        let started = self.engine.clock.now();
        let start = self.begin(&key, &ask, started)?;
        self.go_on(&key, &ask, started, start).await
    }

    /// Everything after the first step.
    async fn go_on(&self, key: &Key, ask: &Ask, started: Moment, start: Start) -> Result<Option<Guard>> {
        let engine = &self.engine;
        let until = if ask.patient {
            started.after(self.wait)
        } else {
            Moment::NEVER
        };
        let (called_at, keeper) = match start {
            Start::Busy => return Ok(None),
            Start::Held(held, by) => return Ok(Some(self.guard(held, by, Timings::default()))),
            Start::Represent(keeper) => (started, keeper),
            Start::Wait(waiter) => match (Standing { engine, key, waiter }).called(started, until).await? {
                Call::Closed => return Err(Error::Closed),
                Call::Held(held) => {
                    let local = engine.clock.now() - started;
                    let timings = Timings {
                        local,
                        remote: Duration::ZERO,
                    };
                    return Ok(Some(self.guard(held, GrantedBy::HandOn, timings)));
                }
                Call::Represent(Some(keeper)) => (engine.clock.now(), keeper),
                Call::Represent(None) => match Keeper::enter(engine, key, ask, self.label()) {
                    Ok(keeper) => (engine.clock.now(), keeper),
                    Err(error) => {
                        keeper::step_down(engine, key, None);
                        return Err(error);
                    }
                },
            },
        };
        let won = Contest::new(engine, key, ask, keeper).win(started, until).await?;
        let timings = Timings {
            local: called_at - started,
            remote: engine.clock.now() - called_at,
        };
        Ok(won.map(|held| self.guard(held, GrantedBy::Store, timings)))
    }

    fn guard(&self, held: Held, by: GrantedBy, timings: Timings) -> Guard {
        let Timings { local, remote } = timings;
        self.engine.observe(&Event::Granted {
            key: &held.tenure.key,
            fence: held.fence,
            by,
            local,
            remote,
        });
        Guard::new(self.engine.clone(), held, timings)
    }
}

/// What the first step led to.
enum Start {
    Held(Held, GrantedBy),
    Represent(Keeper),
    Wait(Arc<Waiter>),
    Busy,
}

fn check_ttl(ttl: Duration, profile: &Profile) -> Result<()> {
    let Profile {
        name,
        ttl_min,
        ttl_max,
        ..
    } = *profile;
    if (ttl_min..=ttl_max).contains(&ttl) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a ttl of {ttl:?} cannot be had: {name} takes {ttl_min:?} to {ttl_max:?}"
    )))
}

/// A caller in the local line. Dropping it gives up the place, or what it was just called for.
struct Standing<'a> {
    engine: &'a Arc<Engine>,
    key: &'a Key,
    waiter: Arc<Waiter>,
}

impl Standing<'_> {
    async fn called(self, started: Moment, until: Moment) -> Result<Call> {
        let mut timer = None;
        let called = poll_fn(|cx| {
            if let Poll::Ready(call) = self.waiter.poll_called(cx) {
                return Poll::Ready(Some(call));
            }
            if until == Moment::NEVER {
                return Poll::Pending;
            }
            let timer = timer.get_or_insert_with(|| self.engine.clock.sleep_until(until));
            Pin::new(timer).poll(cx).map(|()| None)
        })
        .await;
        if let Some(call) = called {
            return Ok(call);
        }
        let (engine, key) = (self.engine, self.key);
        let ahead = engine.queue.ahead_of(key, &self.waiter);
        let waited = engine.clock.now() - started;
        engine.observe(&Event::TimedOut {
            key,
            stage: Stage::Local,
            waited,
        });
        Err(Error::TimedOut {
            stage: Stage::Local,
            waited,
            ahead,
        })
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        match self.engine.queue.withdraw(self.key, &self.waiter) {
            None | Some(Call::Closed) => {}
            Some(Call::Held(held)) => self.engine.release(&held.tenure, held.fence),
            Some(Call::Represent(keeper)) => keeper::step_down(self.engine, self.key, keeper),
        }
    }
}

impl IntoFuture for LockRequest {
    type Output = Result<Guard>;
    type IntoFuture = LockFuture;

    fn into_future(self) -> LockFuture {
        LockFuture(Progress::Fresh(self))
    }
}

/// The future of a [`LockRequest`].
#[must_use = "a future does nothing unless awaited"]
pub struct LockFuture(Progress);

enum Progress {
    Fresh(LockRequest),
    Waiting(Arc<Engine>, Pin<Box<dyn Future<Output = Result<Guard>> + Send>>),
    Done,
}

impl fmt::Debug for LockFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockFuture")
    }
}

impl Future for LockFuture {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Guard>> {
        if let Progress::Fresh(_) = &self.0
            && let Progress::Fresh(request) = std::mem::replace(&mut self.0, Progress::Done)
        {
            match request.first_step() {
                First::Done(answer) => return Poll::Ready(answer),
                First::Waiting(progress) => self.0 = progress,
            }
        }
        let Progress::Waiting(engine, future) = &mut self.0 else {
            return Poll::Pending;
        };
        let answer = engine.background.with_runtime(|| future.as_mut().poll(cx));
        if answer.is_ready() {
            self.0 = Progress::Done;
        }
        answer
    }
}

enum First {
    Done(Result<Guard>),
    Waiting(Progress),
}

impl LockRequest {
    /// The first poll: a lock that is had at once needs no box.
    fn first_step(self) -> First {
        let begun = self.key.clone().and_then(|key| {
            let (ask, started) = (self.ask(true)?, self.engine.clock.now());
            let start = self.begin(&key, &ask, started)?;
            Ok((key, ask, started, start))
        });
        match begun {
            Err(error) => First::Done(Err(error)),
            Ok((.., Start::Held(held, by))) => First::Done(Ok(self.guard(held, by, Timings::default()))),
            Ok((key, ask, started, start)) => {
                let engine = self.engine.clone();
                let future = async move {
                    let guard = self.go_on(&key, &ask, started, start).await?;
                    guard.ok_or(Error::Closed)
                };
                First::Waiting(Progress::Waiting(engine, Box::pin(future)))
            }
        }
    }
}

/// A [`LockRequest`] that does not wait. Its answer is `None` if the lock is taken.
///
/// # Cancel safety
/// As for [`LockRequest`].
///
/// # Errors
/// As for [`LockRequest`], without [`Error::TimedOut`] and [`Error::Full`].
#[derive(Debug)]
#[must_use = "an attempt does nothing unless awaited"]
pub struct Attempt(LockRequest);

impl Attempt {
    /// See [`LockRequest::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Attempt(self.0.ttl(ttl))
    }

    /// See [`LockRequest::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Attempt(self.0.max_hold(max_hold))
    }

    /// See [`LockRequest::owner`].
    pub fn owner(self, owner: &Owner) -> Self {
        Attempt(self.0.owner(owner))
    }

    /// See [`LockRequest::note`].
    pub fn note(self, note: impl Into<String>) -> Self {
        Attempt(self.0.note(note))
    }

    /// Try on this thread, without a runtime.
    ///
    /// # Errors
    /// As for the attempt awaited.
    pub fn blocking(self) -> Result<Option<Guard>> {
        self.0.engine.background.start()?;
        let engine = self.0.engine.clone();
        engine.background.block_on(self.into_future())
    }
}

impl IntoFuture for Attempt {
    type Output = Result<Option<Guard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Option<Guard>>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let engine = self.0.engine.clone();
        Box::pin(async move { InRuntime::new(&engine.background, self.0.acquire(false)).await })
    }
}
