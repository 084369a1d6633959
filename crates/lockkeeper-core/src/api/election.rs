//! One leader among many: a lock, a value that everybody can read, and a term that grows.
//!
//! ```text
//!  campaign ─▶ wins the lock ─▶ proclaims (a memo, kept for the ttl and written anew at a third of it) ─▶ leads
//!                                                       │ lost: the work is stopped, then it stands again
//!                                                       └ resigns: the memo is removed, and the lock given back, side by side
//!  observers read the memo: there is none, so nobody leads; or it tells of another term, so nobody led in between
//! ```

mod blocking;
mod leaders;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::api::guard::{Guard, Lost};
use crate::api::request::LockRequest;
use crate::clock::Moment;
use crate::engine::background::InRuntime;
use crate::engine::hold::Hold;
use crate::engine::memo::{Change, MemoOf};
use crate::engine::shared::Engine;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::key::Key;
use crate::kit::locked;
use crate::spi::claim::Label;

use self::leaders::memo_of;
pub use self::leaders::{Leader, Leaders};

/// The longest value of a leader, in bytes.
pub const LEADER_BYTES_MAX: usize = 1024;

/// Before a campaign stands again where the store failed.
const STAND_AGAIN: Duration = Duration::from_millis(200);

/// Somebody who wants to lead. See [`win`](Campaign::win) and [`run`](Campaign::run).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let leadership = locker.campaign("scheduler", "10.0.0.7:8080").win().await?;
/// let leader = locker.leader("scheduler").await?.expect("we lead");
/// assert_eq!((leader.value.as_str(), leader.term), ("10.0.0.7:8080", leadership.term()));
/// leadership.resign().await?;
/// assert!(locker.leader("scheduler").await?.is_none());
/// # Ok(())
/// # }
/// ```
#[must_use = "a campaign does nothing until it stands"]
#[derive(Clone)]
pub struct Campaign {
    engine: Arc<Engine>,
    name: String,
    value: String,
    ttl: Duration,
    wait: Option<Duration>,
    note: Option<String>,
}

impl fmt::Debug for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Campaign")
            .field("name", &self.name)
            .field("value", &self.value)
            .finish_non_exhaustive()
    }
}

impl Campaign {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, value: String) -> Self {
        let ttl = engine.settings.ttl;
        Campaign { engine, name: name.to_owned(), value, ttl, wait: None, note: None }
    }

    /// After how long without a sign of life a leader is replaced. See [`LockRequest::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for the role. See [`LockRequest::wait_at_most`].
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// A free text, shown to whoever lists the locks.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Wait until we lead.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in line.
    ///
    /// # Errors
    /// As for [`LockRequest`]. [`Error::Invalid`] for a value above [`LEADER_BYTES_MAX`]. [`Error::Unsupported`] on a store
    /// that keeps nothing but locks.
    pub async fn win(&self) -> Result<Leadership> {
        check_value(&self.value)?;
        let engine = &self.engine;
        engine.start()?;
        let memo = memo_of(engine, &self.name)?;
        let mut request = LockRequest::new(engine.clone(), Key::new(&self.name)).ttl(self.ttl).cold();
        // Two who stand side by side in one owner's scope are two: one leads, the other waits.
        request = request.not_reentrant();
        if let Some(wait) = self.wait {
            request = request.wait_at_most(wait);
        }
        if let Some(note) = &self.note {
            request = request.note(note);
        }
        let guard = request.await?;
        let rostrum = Arc::new(Rostrum {
            memo,
            term: guard.fence(),
            held: guard.held().clone(),
            label: engine.label.clone(),
            value: Mutex::new(self.value.clone()),
            ttl: self.ttl,
            since: engine.clock.now(),
            over: watch::Sender::new(false),
        });
        let leadership = Leadership { engine: engine.clone(), guard: Some(guard), rostrum };
        leadership.proclaim_now().await?;
        let (engine, rostrum, lost) = (engine.clone(), leadership.rostrum.clone(), leadership.lost()?);
        self.engine.background.spawn_untracked(Box::pin(async move { rostrum.beat(&engine, lost).await }));
        Ok(leadership)
    }

    /// Lead whenever we can: wait for the role, run `work`, and if the role is lost stop it where it awaits and stand again.
    /// Ends when `work` ends by itself; then we resign. The role is given back only after the work has ended.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let campaign = locker.campaign("scheduler", "10.0.0.7:8080");
    /// let term = campaign.run(async |leadership| leadership.term()).await?;
    /// println!("led in term {term}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and then gives the role back.
    ///
    /// # Errors
    /// As for [`Campaign::win`], if trying again cannot help.
    pub async fn run<T>(&self, mut work: impl AsyncFnMut(&Leadership) -> T) -> Result<T> {
        loop {
            let leadership = match self.win().await {
                Ok(it) => it,
                // Won and lost before anybody knew, as by a process that stood still.
                Err(error)
                    if matches!(error, Error::Lost { .. })
                        || (error.is_transient() && self.wait.is_none()) =>
                {
                    InRuntime::new(&self.engine.background, self.engine.clock.sleep(STAND_AGAIN)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match leadership.run(work(&leadership)).await {
                Ok(out) => {
                    // The work is done; a role that cannot be given back now ends with its ttl.
                    let _ = leadership.resign().await;
                    return Ok(out);
                }
                Err(Error::Lost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn check_value(value: &str) -> Result<()> {
    let len = value.len();
    if len <= LEADER_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the leader's value has {len} bytes; at most {LEADER_BYTES_MAX} are allowed: say where to find the rest"
    )))
}

/// The role, while we have it. Dropping it gives it back soon; [`resign`](Leadership::resign) waits for that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let leadership = locker.campaign("scheduler", "starting").win().await?;
/// leadership.proclaim("10.0.0.7:8080").await?;
/// leadership.run(async { /* lead, and send term() along with every write */ }).await?;
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "if unused, the role is given back at once"]
#[clippy::has_significant_drop]
pub struct Leadership {
    engine: Arc<Engine>,
    /// `None` only while it is given back.
    guard: Option<Guard>,
    rostrum: Arc<Rostrum>,
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("term", &self.rostrum.term).finish_non_exhaustive()
    }
}

impl Leadership {
    fn guard(&self) -> Result<&Guard> {
        self.guard.as_ref().ok_or(Error::Closed)
    }

    /// The term, which is the lock's fence: it grows from leader to leader. Send it along with every write.
    pub fn term(&self) -> Fence {
        self.rostrum.term
    }

    /// Whether we lead right now. See [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_valid)
    }

    /// How long we lead if no sign of life succeeds any more. See [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.as_ref().map(Guard::remaining).unwrap_or_default()
    }

    /// Resolves when the role is lost. See [`Guard::lost`].
    ///
    /// # Errors
    /// [`Error::Closed`] if it was given back.
    pub fn lost(&self) -> Result<Lost> {
        self.guard().map(Guard::lost)
    }

    /// Run a future, and stop it where it awaits when the role is lost. See [`Guard::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops `future`; the role stays.
    ///
    /// # Errors
    /// [`Error::Lost`] if the role was lost before the future ended.
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.guard()?.run(future).await
    }

    /// Let everybody read another value.
    ///
    /// # Cancel safety
    /// If it is dropped half-way, the value is written with the next sign of life.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is too long, [`Error::Lost`] if we do not lead any more, [`Error::Unavailable`].
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        let value = value.into();
        check_value(&value)?;
        *locked(&self.rostrum.value) = value;
        self.proclaim_now().await
    }

    async fn proclaim_now(&self) -> Result<()> {
        let guard = self.guard()?;
        guard.check()?;
        InRuntime::new(&self.engine.background, self.rostrum.proclaim(&self.engine)).await?;
        // What was lost meanwhile was not written, or is not ours to say any more.
        guard.check()
    }

    /// Give the role back. The next may lead at once. When this resolves nobody sees us lead any more, and whoever leads by
    /// then is seen from before it knows it: what we said is removed only if it is still ours.
    ///
    /// # Cancel safety
    /// Dropped half-way, the role is given back in the background.
    ///
    /// # Errors
    /// As for [`Guard::release`].
    pub async fn resign(mut self) -> Result<()> {
        self.engine.check_process()?;
        let Some(guard) = self.guard.take() else { return Err(Error::Closed) };
        let mut vacating = Vacating::begin(&self.engine, &self.rostrum);
        // Side by side, so that the next one is let in by one hand-off, not after the trips that the memo takes.
        let (released, removed) = tokio::join!(guard.release(), vacating.end());
        released.and(removed)
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        // The role of a process that forked is not ours to give back.
        if !self.engine.is_here() {
            return;
        }
        let vacating = Vacating::begin(&self.engine, &self.rostrum);
        drop(guard);
        drop(vacating);
    }
}

/// The end of what a leader tells. Dropped half-way, it is done in the background.
struct Vacating {
    engine: Arc<Engine>,
    rostrum: Arc<Rostrum>,
    done: bool,
}

impl Vacating {
    fn begin(engine: &Arc<Engine>, rostrum: &Arc<Rostrum>) -> Self {
        rostrum.over.send_replace(true);
        Vacating { engine: engine.clone(), rostrum: rostrum.clone(), done: false }
    }

    async fn end(&mut self) -> Result<()> {
        let removed = InRuntime::new(&self.engine.background, self.rostrum.vacate(&self.engine)).await;
        self.done = true;
        removed
    }
}

impl Drop for Vacating {
    fn drop(&mut self) {
        if !self.done {
            let (engine, rostrum) = (self.engine.clone(), self.rostrum.clone());
            // A memo that cannot be removed is gone with its ttl.
            self.engine.background.spawn(async move { drop(rostrum.vacate(&engine).await) });
        }
    }
}

/// What a leader tells.
struct Rostrum {
    memo: MemoOf,
    term: Fence,
    /// By which it is judged whether we still lead: the clock knows it before anybody tells.
    held: Hold,
    label: Arc<Label>,
    value: Mutex<String>,
    ttl: Duration,
    since: Moment,
    /// We have resigned, or lost the role: nothing is told any more.
    over: watch::Sender<bool>,
}

impl Rostrum {
    fn leader(&self, engine: &Engine) -> Leader {
        Leader {
            value: locked(&self.value).clone(),
            term: self.term,
            holder: (*self.label).clone(),
            age: engine.clock.now() - self.since,
        }
    }

    /// Write who leads, unless a later leader has.
    async fn proclaim(&self, engine: &Engine) -> Result<()> {
        let decide = |there: Option<&[u8]>| {
            let later = there.and_then(Leader::read).is_some_and(|it| self.term < it.term);
            // Asked anew after each conflict: whoever has gone in between is not written again.
            if later || *self.over.borrow() || !self.held.is_valid_by(&engine.clock) {
                return Ok(Change::Leave(()));
            }
            Ok(Change::Write(self.leader(engine).text().into_bytes(), self.ttl))
        };
        self.memo.change(engine, decide).await.map(drop)
    }

    /// Write that nobody leads, unless another does.
    async fn vacate(&self, engine: &Engine) -> Result<()> {
        let ours = |there: &[u8]| Leader::read(there).is_some_and(|it| it.term == self.term);
        let decide = |there: Option<&[u8]>| {
            Ok(if there.is_some_and(ours) { Change::Remove } else { Change::Leave(()) })
        };
        self.memo.change(engine, decide).await.map(drop)
    }

    /// Tell again and again that we lead, as long as we do.
    async fn beat(&self, engine: &Arc<Engine>, lost: Lost) {
        let mut over = self.over.subscribe();
        let beats = async {
            let mut ended = std::pin::pin!(over.wait_for(|it| *it));
            while engine.clock.within(engine.clock.now().after(self.ttl / 3), ended.as_mut()).await.is_none()
            {
                // A store that fails is asked again at the next beat.
                let _ = self.proclaim(engine).await;
            }
        };
        let listens = async {
            lost.await;
            self.over.send_replace(true);
            // A sign of life that is under way is never dropped half-way.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = listens => {}
            () = beats => {}
        }
    }
}
