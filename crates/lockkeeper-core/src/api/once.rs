//! A job that runs once for each tick of its schedule, over all instances.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::Guard;
use crate::api::limits::memo_key;
use crate::api::request::LockRequest;
use crate::engine::background::InRuntime;
use crate::engine::memo::{Change, MemoOf};
use crate::engine::shared::Engine;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::owner::Owner;

/// How long a tick that was done is remembered, if nothing else is said.
const REMEMBER: Duration = Duration::from_secs(7 * 24 * 3600);

/// What stands before job and tick: `once:`, the length of the name, and a colon.
const BEFORE_NAME: usize = 9;

/// A job and a tick of its schedule: `locker.once("nightly", "2026-11-15")`. See [`run`](OnceRequest::run).
///
/// Every instance computes the tick in the same way (the date of the night, the hour, the number of the release) and asks.
/// One runs the job, the others find that it was done, also if their clocks are apart or they come later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Error, Locker, Memory, Once};
/// # let locker = Locker::new(Memory::default());
/// let job = || locker.once("nightly", "2026-11-15").run(async |_guard| Ok::<_, Error>("report"));
/// assert_eq!(job().await?, Once::Ran("report"));
/// assert_eq!(job().await?, Once::Done);
/// # Ok(())
/// # }
/// ```
///
/// # What happens after a crash
/// That a tick was done is written when the job has ended well. An instance that dies before leaves the tick open: its lock
/// ends with the ttl, and the next instance that asks runs the job again. So a job is done once, and may be begun more than
/// once. A job that fails leaves its tick open, too.
#[must_use = "a job does nothing until it is run"]
pub struct OnceRequest {
    request: LockRequest,
    name: String,
    tick: String,
    remember: Duration,
    waits: bool,
}

impl fmt::Debug for OnceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceRequest")
            .field("name", &self.name)
            .field("tick", &self.tick)
            .finish_non_exhaustive()
    }
}

/// What became of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Once<T> {
    /// It ran now, and ended well.
    Ran(T),
    /// It was done before.
    Done,
    /// Another instance is at it. Only told to whoever does not wait.
    Busy,
}

impl OnceRequest {
    pub(crate) fn new(request: LockRequest, name: &str, tick: &str) -> Self {
        OnceRequest { request, name: name.to_owned(), tick: tick.to_owned(), remember: REMEMBER, waits: true }
    }

    /// After how long without a sign of life an instance that runs the job is given up. See [`LockRequest::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request = self.request.ttl(ttl);
        self
    }

    /// How long to wait while another instance is at it. See [`LockRequest::wait_at_most`].
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.request = self.request.wait_at_most(wait);
        self
    }

    /// Do not wait: the answer is [`Once::Busy`] while another instance is at it.
    pub fn attempt(mut self) -> Self {
        self.waits = false;
        self
    }

    /// How long it is remembered that the tick was done. Default 7 days. Longer than any instance can be late.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.remember = remember;
        self
    }

    /// Who asks, for whoever lists the locks, and for a job that takes the lock of its name again. Two runs of one owner are two
    /// all the same: the second waits for the first.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.request = self.request.owner(owner);
        self
    }

    /// A free text, shown to whoever lists the locks.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.request = self.request.note(note);
        self
    }

    /// The tick alone, for programs that run the job in their own way.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name or tick, [`Error::Unsupported`] on a store that keeps nothing but locks.
    pub fn tick(&self) -> Result<Tick> {
        Tick::new(self.request.engine.clone().ok_or(Error::Closed)?, self)
    }

    /// Run the job, unless its tick was done before. It runs under the lock of the job's name, so two ticks of one job do
    /// not overlap, and is stopped where it awaits if that lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future drops the job; the tick stays open.
    ///
    /// # Errors
    /// Whatever the job answers: then the tick stays open. As for [`LockRequest`]. [`Error::Lost`] if the lock was lost
    /// before the job ended. [`Error::Unavailable`] also if the job ended well and that could not be written: then the tick
    /// is open, and the job may run again. [`Error::Unsupported`] on a store that keeps nothing but locks.
    pub async fn run<T, E: From<Error>>(
        self,
        job: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<Once<T>, E> {
        let tick = self.tick()?;
        if tick.is_done().await? {
            return Ok(Once::Done);
        }
        let (request, waits) = (self.request, self.waits);
        let guard = if waits { Some(request.await?) } else { request.attempt().await? };
        let Some(guard) = guard else { return Ok(Once::Busy) };
        // Somebody may have done it while we waited.
        if tick.is_done().await? {
            drop(guard);
            return Ok(Once::Done);
        }
        let answer = guard.run(job(&guard)).await?;
        if answer.is_ok() {
            tick.set_done().await?;
        }
        // What was done is written; whether the lock is confirmed to be free changes nothing about it.
        let _ = guard.release().await;
        answer.map(Once::Ran)
    }
}

impl OnceRequest {
    /// [`run`](OnceRequest::run) on this thread, for a job that does not await. It is not stopped when the lock is lost; what it
    /// answers is refused then.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Error, Locker, Memory, Once};
    /// # let locker = Locker::new(Memory::default());
    /// let once = locker.once("nightly", "2026-11-15").run_blocking(|_guard| Ok::<_, Error>("report"))?;
    /// assert_eq!(once, Once::Ran("report"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`run`](OnceRequest::run).
    pub fn run_blocking<T, E: From<Error>>(
        self,
        job: impl FnOnce(&Guard) -> Result<T, E>,
    ) -> Result<Once<T>, E> {
        let engine = self.request.engine.clone().ok_or(Error::Closed)?;
        engine.start()?;
        engine.background.block_on(self.run(async |guard| job(guard)))
    }
}

/// A tick of a job: whether it was done, and that it is. [`OnceRequest::run`] does all of it; this is for programs that run
/// the job in their own way, under the lock of the job's name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let tick = locker.once("nightly", "2026-11-15").tick()?;
/// let guard = locker.lock("nightly").await?;
/// if !tick.is_done().await? {
///     // … the job …
///     tick.set_done().await?;
/// }
/// guard.release().await?;
/// assert!(tick.is_done().await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tick {
    engine: Arc<Engine>,
    memo: MemoOf,
    /// Ours, for people who look into the store.
    text: Vec<u8>,
    remember: Duration,
}

impl Tick {
    fn new(engine: Arc<Engine>, asked: &OnceRequest) -> Result<Self> {
        let OnceRequest { name, tick, remember, .. } = asked;
        if tick.is_empty() {
            return Err(Error::invalid(
                "the tick is empty; name the night, the hour or the number that the job is for",
            ));
        }
        if remember.is_zero() {
            return Err(Error::invalid("a tick that is remembered for no time would run every time"));
        }
        Key::new(name)?;
        // The length keeps names and ticks apart, whatever is in them.
        let (what, len) = ("the name of a job, with its tick,", name.len() + tick.len());
        let key = memo_key(what, len, BEFORE_NAME, &format!("once:{}:{name}{tick}", name.len()))?;
        engine.start()?;
        let memo = MemoOf::new(&engine, key, "remember what was done")?;
        let text = format!("done\nhost={}\npid={}\n", engine.label.host, engine.label.pid).into_bytes();
        Ok(Tick { engine, memo, text, remember: *remember })
    }

    /// Whether the job was done for this tick.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn is_done(&self) -> Result<bool> {
        Ok(InRuntime::new(&self.engine.background, self.memo.read(&self.engine)).await?.is_some())
    }

    /// Remember that it was done. Done is done: whoever says so first counts.
    ///
    /// # Cancel safety
    /// Dropped half-way it is unknown whether it was written.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: then it may not be remembered.
    pub async fn set_done(&self) -> Result<()> {
        let decide = |there: Option<&[u8]>| {
            Ok(there.map_or_else(|| Change::Write(self.text.clone(), self.remember), |_| Change::Leave(())))
        };
        InRuntime::new(&self.engine.background, self.memo.change(&self.engine, decide)).await.map(drop)
    }

    /// [`is_done`](Tick::is_done) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Tick::is_done`].
    pub fn is_done_blocking(&self) -> Result<bool> {
        self.engine.background.block_on(self.is_done())
    }

    /// [`set_done`](Tick::set_done) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Tick::set_done`].
    pub fn set_done_blocking(&self) -> Result<()> {
        self.engine.background.block_on(self.set_done())
    }
}
