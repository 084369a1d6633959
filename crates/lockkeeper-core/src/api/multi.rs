//! Several locks at once: all or none, always taken in one order, so that nobody waits in a circle.
//!
//! ```text
//!  wishes ─▶ sorted by name, each name once ─▶ try all at the same time ─┬─ all free ──▶ held
//!                                                                        └─ keep those before the first that is
//!                                                                           taken, give back the rest, and wait for
//!                                                                           one after the other ──▶ held
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::api::guard::{Guard, Lost};
use crate::api::request::LockRequest;
use crate::engine::shared::Engine;
use crate::error::{Error, LostReason, Result};
use crate::fence::{Fence, SharedFence};
use crate::key::Key;
use crate::kit::company::in_company;
use crate::owner::Owner;
use crate::spi::claim::Load;

/// The most locks that can be taken at once.
pub const KEYS_MAX: usize = 1000;

/// One of several locks that are wanted together: a name, and whether to have it alone. A plain name is a lock.
///
/// ```
/// use lockkeeper_core::Wish;
///
/// let wishes = [Wish::from("accounts/1"), Wish::write("accounts/2"), Wish::read("rates"), Wish::permits("mail", 1, 5)];
/// assert_eq!(wishes[2], Wish::read("rates"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a wish does nothing by itself"]
pub struct Wish {
    name: String,
    load: Load,
}

impl Wish {
    /// To have it alone. See [`Locker::lock`](crate::Locker::lock).
    pub fn lock(name: impl Into<String>) -> Self {
        Wish { name: name.into(), load: Load::MUTEX }
    }

    /// To write. See [`Locker::write`](crate::Locker::write).
    pub fn write(name: impl Into<String>) -> Self {
        Wish { name: name.into(), load: Load::WRITER }
    }

    /// To read. See [`Locker::read`](crate::Locker::read).
    pub fn read(name: impl Into<String>) -> Self {
        Wish { name: name.into(), load: Load::READER }
    }

    /// For permits. See [`Locker::permits`](crate::Locker::permits).
    pub fn permits(name: impl Into<String>, count: u32, of: u32) -> Self {
        Wish { name: name.into(), load: Load::new(count, of) }
    }
}

impl From<&str> for Wish {
    fn from(name: &str) -> Self {
        Wish::lock(name)
    }
}

impl From<String> for Wish {
    fn from(name: String) -> Self {
        Wish::lock(name)
    }
}

impl From<&String> for Wish {
    fn from(name: &String) -> Self {
        Wish::lock(name)
    }
}

/// A request for several locks: all of them, or none. Await it, or [`attempt`](MultiRequest::attempt) it.
///
/// They are taken in the order of their names, whatever the order in which they are given, so two such requests never
/// wait for each other in a circle. If all are free they cost one trip to a store that takes requests together (Redis, SQL).
/// A name that stands there twice is taken once; the stronger wish counts.
///
/// A single [`Locker::lock`](crate::Locker::lock) held while another is asked for is outside of that order, and so is a second request of this
/// kind: take all that you need in one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use std::time::Duration;
/// # use lockkeeper_core::{Locker, Memory, Wish};
/// # let locker = Locker::new(Memory::default());
/// let both = locker.lock_all(["accounts/7", "accounts/3"]).wait_at_most(Duration::from_secs(3)).await?;
/// assert!(both.is_valid() && both.fence("accounts/3").is_some());
/// both.release().await?;
///
/// let mixed = locker.lock_all([Wish::write("accounts/3"), Wish::read("rates")]).await?;
/// assert!(locker.read("rates").attempt().await?.is_some()); // beside ours
/// # drop(mixed);
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// Dropping the future gives back all that it has so far, and its place in line.
///
/// # Errors
/// As for [`LockRequest`]; whatever was taken before is given back. [`Error::Lost`] if one was lost while others were waited
/// for. [`Error::Invalid`] for no name at all, or more than [`KEYS_MAX`].
#[must_use = "a request does nothing unless awaited"]
pub struct MultiRequest {
    engine: Arc<Engine>,
    /// One more than allowed is enough to know.
    wishes: Vec<Wish>,
    options: Options,
}

#[derive(Clone, Debug, Default)]
struct Options {
    ttl: Option<Duration>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Owner>,
    note: Option<String>,
}

impl fmt::Debug for MultiRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiRequest").field("wishes", &self.wishes).finish_non_exhaustive()
    }
}

impl MultiRequest {
    pub(crate) fn new(engine: Arc<Engine>, wishes: impl Iterator<Item = Wish>) -> Self {
        MultiRequest { engine, wishes: wishes.take(KEYS_MAX + 1).collect(), options: Options::default() }
    }

    /// The ttl of each. See [`LockRequest::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// How long to wait for all of them together. See [`LockRequest::wait_at_most`].
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// How long each may be held at the longest. See [`LockRequest::max_hold`].
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Who asks. See [`LockRequest::owner`].
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.options.owner = Some(owner.clone());
        self
    }

    /// A free text, shown to whoever lists the locks.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.options.note = Some(note.into());
        self
    }

    /// Do not wait: the answer is `None` if one of them is taken; then none is held.
    pub fn attempt(self) -> MultiAttempt {
        MultiAttempt(self)
    }

    /// Wait on this thread. See [`LockRequest::blocking`].
    ///
    /// # Errors
    /// As for the request awaited.
    pub fn blocking(self) -> Result<MultiGuard> {
        let engine = self.engine.clone();
        engine.start()?;
        engine.background.block_on(self.take())
    }

    /// Each name once, with the stronger of its wishes, in the one order.
    fn sorted(&self) -> Result<BTreeMap<Key, Load>> {
        if self.wishes.is_empty() {
            return Err(Error::invalid("no lock was named; name at least one"));
        }
        if KEYS_MAX < self.wishes.len() {
            return Err(Error::invalid(format!(
                "more than {KEYS_MAX} locks at once; split the work, or lock what they have in common"
            )));
        }
        let mut all = BTreeMap::new();
        for Wish { name, load } in &self.wishes {
            let key = Key::new(name)?;
            // Built only to be checked: nothing may be taken if one of them can never be granted.
            let request = self.request(key.clone(), *load);
            request.checked_key(&self.engine)?;
            merge(&mut all, &key, *load)?;
        }
        Ok(all)
    }

    fn request(&self, key: Key, load: Load) -> LockRequest {
        let Options { ttl, max_hold, owner, note, .. } = &self.options;
        let mut request = LockRequest::new(self.engine.clone(), Ok(key)).load(load).cold();
        if let Some(ttl) = ttl {
            request = request.ttl(*ttl);
        }
        if let Some(max_hold) = max_hold {
            request = request.max_hold(*max_hold);
        }
        if let Some(owner) = owner {
            request = request.owner(owner);
        }
        if let Some(note) = note {
            request = request.note(note);
        }
        request
    }

    /// Try all of them at the same time. What comes back are those before the first that is taken; the others are given
    /// back already.
    async fn try_all(&self, keys: &BTreeMap<Key, Load>) -> Result<MultiGuard> {
        let attempts =
            keys.iter().map(|(key, load)| self.request(key.clone(), *load).attempt().into_future());
        let (mut held, mut beyond) = (MultiGuard::default(), MultiGuard::default());
        let mut error = None;
        let mut taken = false;
        for (answer, load) in all(attempts.collect()).await.into_iter().zip(keys.values()) {
            match answer {
                Ok(Some(guard)) if taken => beyond.push(guard, *load),
                Ok(Some(guard)) => held.push(guard, *load),
                Ok(None) => taken = true,
                Err(it) => error = error.or(Some(it)),
            }
        }
        drop(beyond);
        error.map_or(Ok(held), Err)
    }

    async fn take(self) -> Result<MultiGuard> {
        let keys = self.sorted()?;
        let engine = &self.engine;
        let wait = self.options.wait.unwrap_or_else(|| engine.settings.wait.into());
        let until = engine.clock.now().after(wait);
        let mut held = self.try_all(&keys).await?;
        for (key, load) in keys.into_iter().skip(held.parts.len()) {
            let left = until - engine.clock.now();
            let request = self.request(key, load).wait_at_most(left);
            let guard = held.run(request).await??;
            held.push(guard, load);
        }
        held.check()?;
        Ok(held)
    }

    async fn take_if_free(self) -> Result<Option<MultiGuard>> {
        let keys = self.sorted()?;
        let held = self.try_all(&keys).await?;
        Ok((held.parts.len() == keys.len()).then_some(held))
    }
}

/// One more wish for a name: the stronger counts, and permits of two totals are counted by the smaller.
fn merge(all: &mut BTreeMap<Key, Load>, key: &Key, load: Load) -> Result<()> {
    let both = all.get(key).map_or(load, |it| it.stronger(load));
    if let Some(before) = all.insert(key.clone(), both)
        && !both.can_fit()
    {
        return Err(Error::invalid(format!(
            "\"{key}\" is wanted twice, for {before} and for {load} permits: the smaller total counts, and so many are not in it"
        )));
    }
    Ok(())
}

impl IntoFuture for MultiRequest {
    type Output = Result<MultiGuard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.take())
    }
}

/// A [`MultiRequest`] that does not wait.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let one = locker.lock("b").await?;
/// assert!(locker.lock_all(["a", "b"]).attempt().await?.is_none());
/// assert!(locker.try_lock("a").await?.is_some()); // it was given back
/// # drop(one);
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// As for [`MultiRequest`].
///
/// # Errors
/// As for [`MultiRequest`], without [`Error::TimedOut`] and [`Error::Full`].
#[derive(Debug)]
#[must_use = "an attempt does nothing unless awaited"]
pub struct MultiAttempt(MultiRequest);

impl MultiAttempt {
    /// Try on this thread, without a runtime.
    ///
    /// # Errors
    /// As for the attempt awaited.
    pub fn blocking(self) -> Result<Option<MultiGuard>> {
        let engine = self.0.engine.clone();
        engine.start()?;
        engine.background.block_on(self.0.take_if_free())
    }
}

impl IntoFuture for MultiAttempt {
    type Output = Result<Option<MultiGuard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.take_if_free())
    }
}

/// Several locks that are held together. The loss of one is the loss of all: [`is_valid`](MultiGuard::is_valid),
/// [`check`](MultiGuard::check), [`run`](MultiGuard::run) and [`lost`](MultiGuard::lost) speak for all of them.
///
/// Dropping it gives all back soon, the last first; [`release`](MultiGuard::release) waits until the store has them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory, Wish};
/// # let locker = Locker::new(Memory::default());
/// let held = locker.lock_all([Wish::lock("from"), Wish::lock("to"), Wish::read("rates")]).await?;
/// let names: Vec<&str> = held.keys().map(|it| it.as_str()).collect();
/// assert_eq!(names, ["from", "rates", "to"]); // in the order in which they were taken
/// assert!(held.fence("from").is_some() && held.shared_fence("rates").is_some());
/// assert!(held.fence("rates").is_none(), "a reader has no fence to write with");
/// held.run(async { /* move the money */ }).await?;
/// held.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "if unused, the locks are given back at once"]
#[clippy::has_significant_drop]
pub struct MultiGuard {
    /// In the order in which they were taken.
    parts: Vec<(Guard, Load)>,
}

impl MultiGuard {
    fn push(&mut self, guard: Guard, load: Load) {
        self.parts.push((guard, load));
    }

    pub(crate) fn guards(&self) -> impl DoubleEndedIterator<Item = &Guard> {
        self.parts.iter().map(|it| &it.0)
    }

    /// What is locked, in the order of the names.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.guards().map(Guard::key)
    }

    fn part(&self, name: &str) -> Option<&(Guard, Load)> {
        self.parts.iter().find(|it| it.0.key().as_str() == name)
    }

    /// The number to send along with every write to what this name protects; `None` if it is not held, or not alone.
    pub fn fence(&self, name: &str) -> Option<Fence> {
        self.part(name).filter(|it| it.1.is_exclusive()).map(|it| it.0.fence())
    }

    /// The fence of what is shared; `None` if it is not held, or held alone.
    pub fn shared_fence(&self, name: &str) -> Option<SharedFence> {
        self.part(name).filter(|it| !it.1.is_exclusive()).map(|it| SharedFence::of(it.0.fence()))
    }

    /// Whether all are held right now. See [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guards().all(Guard::is_valid)
    }

    /// How long all of them last if no renewal succeeds any more.
    pub fn remaining(&self) -> Duration {
        self.guards().map(Guard::remaining).min().unwrap_or_default()
    }

    /// `Ok` while all are held.
    ///
    /// # Errors
    /// [`Error::Lost`] with the fence of one that is not; [`Error::Forked`] in a fork of the process that holds them.
    pub fn check(&self) -> Result<()> {
        self.guards().try_for_each(Guard::check)
    }

    /// Resolves when the first of them is lost, or when they are given back. See [`Guard::lost`].
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
        let mut each: Vec<Lost> = self.guards().map(Guard::lost).collect();
        poll_fn(move |cx| poll_any(&mut each, cx))
    }

    /// Run a future, and stop it where it awaits when one of the locks is lost. See [`Guard::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops `future`; the locks stay.
    ///
    /// # Errors
    /// [`Error::Lost`] if one was lost before the future ended.
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        let (mut future, mut each) = (pin!(future), self.guards().map(Guard::lost).collect::<Vec<_>>());
        poll_fn(|cx| {
            let _ = poll_any(&mut each, cx);
            if let Err(lost) = self.check() {
                return Poll::Ready(Err(lost));
            }
            future.as_mut().poll(cx).map(|out| self.check().map(|()| out))
        })
        .await
    }

    /// Give all back, the last first, and wait until the store, or the next callers of this process, have them.
    ///
    /// # Cancel safety
    /// Once polled the release goes on, even if this future is dropped.
    ///
    /// # Errors
    /// As for [`Guard::release`], of the first that failed; the others are given back all the same.
    pub async fn release(mut self) -> Result<()> {
        let releases = self.parts.drain(..).rev().map(|it| Box::pin(it.0.release())).collect();
        all(releases).await.into_iter().collect()
    }

    /// [`release`](MultiGuard::release) for threads without a runtime.
    ///
    /// # Errors
    /// As for [`release`](MultiGuard::release).
    pub fn release_blocking(mut self) -> Result<()> {
        let releases: Vec<Result<()>> =
            self.parts.drain(..).rev().map(|it| it.0.release_blocking()).collect();
        releases.into_iter().collect()
    }
}

/// The last first.
impl Drop for MultiGuard {
    fn drop(&mut self) {
        while self.parts.pop().is_some() {}
    }
}

fn poll_any(each: &mut [Lost], cx: &mut Context<'_>) -> Poll<LostReason> {
    // All are polled, so that each knows whom to wake.
    let mut first = Poll::Pending;
    for lost in each {
        let polled = Pin::new(lost).poll(cx);
        first = if first.is_ready() { first } else { polled };
    }
    first
}

/// The answers of all, which run at the same time, in their order.
async fn all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut each: Vec<(Option<F>, Option<F::Output>)> =
        futures.into_iter().map(|it| (Some(it), None)).collect();
    poll_fn(|cx| {
        in_company(|| {
            for (future, answer) in &mut each {
                let Some(it) = future else { continue };
                if let Poll::Ready(out) = Pin::new(it).poll(cx) {
                    (*future, *answer) = (None, Some(out));
                }
            }
        });
        if each.iter().any(|it| it.0.is_some()) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    each.into_iter().filter_map(|it| it.1).collect()
}
