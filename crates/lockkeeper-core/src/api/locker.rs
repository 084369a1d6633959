//! The locker: where requests begin. One per store and process; clones share everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use lockkeeper_fork::Origin;
use tokio::sync::Notify;

use crate::api::request::{Attempt, LockRequest};
use crate::api::shared::SharedRequest;
use crate::clock::Clock;
use crate::engine::background::{Background, InRuntime, Spawn};
use crate::engine::leave;
use crate::engine::line::Bounds;
use crate::engine::queue::Queue;
use crate::engine::schedule::Schedule;
use crate::engine::shared::{Engine, Settings};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::observe::Observer;
use crate::spi::backend::{Backend, DynBackend, Profile};
use crate::spi::claim::{Label, Load};

/// Takes locks in one store. Cheap to clone; make one per process and store, and share it.
///
/// ```
/// # use std::time::Duration;
/// # use lockkeeper_core::{Locker, Memory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// let locker = Locker::new(Memory::default());
/// let guard = locker.lock("orders/42").wait_at_most(Duration::from_secs(3)).await?;
/// assert!(locker.try_lock("orders/42").await?.is_none());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locker(Arc<Engine>);

impl Locker {
    /// A locker with default settings.
    pub fn new(backend: impl Backend) -> Self {
        Locker::builder(backend).build()
    }

    /// A locker with settings of your own.
    ///
    /// ```
    /// # use lockkeeper_core::{Locker, Memory};
    /// let locker = Locker::builder(Memory::default()).ttl(std::time::Duration::from_secs(5)).build();
    /// ```
    pub fn builder(backend: impl Backend) -> LockerBuilder {
        LockerBuilder::new(backend)
    }

    /// Ask for a lock and wait for it. See [`LockRequest`] for the options.
    #[inline]
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        self.lock_key(Key::new(name.as_ref()))
    }

    /// Ask for a lock without waiting. See [`Attempt`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// if let Some(guard) = locker.try_lock("nightly-report").await? {
    ///     guard.run(async { /* nobody else builds it */ }).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock(&self, name: impl AsRef<str>) -> Attempt {
        self.lock(name).attempt()
    }

    /// Ask to read: beside other readers, never beside somebody who writes. A plain [`lock`](Locker::lock) of the same name
    /// is a writer to readers. Readers of one process share one place at the store and join it without a trip.
    ///
    /// An owner that reads may read again; if it asks to write, it is refused at once, because it would wait for itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let price = locker.read("prices").await?;
    /// let tax = locker.read("prices").await?; // at the same time
    /// # drop((price, tax));
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self, name: impl AsRef<str>) -> SharedRequest {
        SharedRequest::new(self.lock(name), Load::READER)
    }

    /// Ask to write: beside nobody, of any kind. The same as [`lock`](Locker::lock) to everybody else, and the word
    /// that goes with [`read`](Locker::read).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let writer = locker.write("prices").await?;
    /// assert!(locker.read("prices").attempt().await?.is_none());
    /// # drop(writer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(&self, name: impl AsRef<str>) -> LockRequest {
        self.lock(name).load(Load::WRITER)
    }

    /// Ask for `count` permits `of` so many that may be out at a time, over all processes. All of them or none; who
    /// asks for many is not passed by those who ask for few. If claims disagree about `of`, the smallest counts.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let permits = locker.permits("mail-server", 2, 5).await?; // two of five connections
    /// permits.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn permits(&self, name: impl AsRef<str>, count: u32, of: u32) -> SharedRequest {
        SharedRequest::new(self.lock(name), Load::new(count, of))
    }

    /// As [`Locker::lock`], for a key that was checked before, or for the error of that check.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Key, Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let key = Key::new("orders/42")?; // checked and hashed once
    /// for _ in 0..3 {
    ///     locker.lock_key(Ok(key.clone())).await?.release().await?;
    /// }
    /// assert_eq!(locker.lines(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn lock_key(&self, key: Result<Key>) -> LockRequest {
        LockRequest::new(self.0.clone(), key)
    }

    /// What the store promises.
    pub fn profile(&self) -> Profile {
        self.0.profile
    }

    /// How many keys of this process are held or waited for right now.
    pub fn lines(&self) -> usize {
        self.0.queue.len()
    }

    /// End everything: refuse new requests, call off the waiting, take back what is held (its guards are
    /// lost), and wait until the store has confirmed, at most `bound`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use std::time::Duration;
    /// # use lockkeeper_core::{Error, Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// locker.shutdown(Duration::from_secs(5)).await?;
    /// assert!(matches!(locker.lock("orders/42").await, Err(Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// The end goes on in the background if this future is dropped.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if something was not confirmed in time. It is freed by its ttl.
    pub async fn shutdown(&self, bound: Duration) -> Result<()> {
        let engine = &self.0;
        engine.check_process()?;
        leave::close(engine);
        let until = engine.clock.now().after(bound);
        let drained = async { engine.clock.within(until, std::pin::pin!(engine.background.drained())).await };
        if InRuntime::new(&engine.background, drained).await.is_some() {
            return Ok(());
        }
        let text = format!("not everything was given back within {bound:?}; the ttl frees the rest");
        Err(Error::unavailable(format!("the {} store", engine.profile.name), std::io::Error::other(text)))
    }
}

/// Settings of a [`Locker`].
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Locker, Memory};
///
/// let locker = Locker::builder(Memory::default())
///     .ttl(Duration::from_secs(30))
///     .wait_at_most(Duration::from_secs(3))
///     .max_hold(Duration::from_secs(60))
///     .waiters_max(100)
///     .build();
/// locker.lock("orders/42").await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LockerBuilder {
    backend: Box<dyn DynBackend>,
    profile: Profile,
    settings: Settings,
    bounds: Bounds,
    clock: Clock,
    label: Label,
    observers: Vec<Arc<dyn Observer>>,
    spawner: Option<Arc<dyn Spawn>>,
}

impl LockerBuilder {
    fn new(backend: impl Backend) -> Self {
        let hand_on_span_max = Duration::from_millis(100);
        LockerBuilder {
            profile: backend.profile(),
            backend: Box::new(backend),
            settings: Settings {
                ttl: Duration::from_secs(10),
                max_hold: Duration::MAX,
                wait: Duration::MAX,
                outage_max: Duration::from_secs(5),
                hand_on_span_max,
            },
            bounds: Bounds { waiters_max: 1024, depth_max: 64, hand_on_count_max: 32, hand_on_span_max },
            clock: Clock::boot(),
            label: Label::of_this_process(),
            observers: Vec::new(),
            spawner: None,
        }
    }

    /// The ttl of requests that name none. Default 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// The longest hold of requests that name none. Default: no cap.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.max_hold = max_hold;
        self
    }

    /// The wait of requests that name none. Default: without end.
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// How long a request bears a store that gives no usable answer before it fails. Default 5 s.
    pub fn outage_max(mut self, outage: Duration) -> Self {
        self.settings.outage_max = outage;
        self
    }

    /// How many callers of this process may wait for one key; the next is refused at once. Default 1024.
    pub fn waiters_max(mut self, waiters: usize) -> Self {
        self.bounds.waiters_max = waiters;
        self
    }

    /// How often one owner may hold the same key at a time. Default 64.
    pub fn depth_max(mut self, depth: u32) -> Self {
        self.bounds.depth_max = depth.max(1);
        self
    }

    /// How many callers of this process are served in a row while another process waits. Default 32.
    /// Zero switches the hand-on off as soon as somebody outside waits.
    pub fn hand_on_count_max(mut self, count: u64) -> Self {
        self.bounds.hand_on_count_max = count;
        self
    }

    /// How long callers of this process are served in a row while another process waits, and how often
    /// the store is asked whether one does. Default 100 ms.
    pub fn hand_on_span_max(mut self, span: Duration) -> Self {
        self.bounds.hand_on_span_max = span;
        self.settings.hand_on_span_max = span.max(Duration::from_millis(1));
        self
    }

    /// Who wants to know what happens.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// How this process is called in the store. Default: its host and pid.
    pub fn label(mut self, label: Label) -> Self {
        self.label = label;
        self
    }

    /// Another clock. For tests and simulation.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Another place for background work than a thread of our own. For tests and simulation.
    pub fn spawner(mut self, spawner: Arc<dyn Spawn>) -> Self {
        self.spawner = Some(spawner);
        self
    }

    /// The locker.
    pub fn build(self) -> Locker {
        let queue = Queue::new(self.bounds, self.backend.is_private_dyn(), self.clock.clone());
        Locker(Arc::new(Engine {
            backend: self.backend,
            profile: self.profile,
            clock: self.clock,
            settings: self.settings,
            queue,
            schedule: Schedule::new(),
            background: Background::new(self.spawner),
            label: Arc::new(self.label),
            observers: self.observers,
            made_in: Origin::here(),
            answered_at: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
        }))
    }
}
