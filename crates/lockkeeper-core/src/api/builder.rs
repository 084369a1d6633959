//! The builder of a locker: its settings.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_fork::Origin;
use tokio::sync::Notify;

use crate::api::locker::Locker;
use crate::clock::{Clock, Span};
use crate::engine::background::{Background, Spawn};
use crate::engine::fresh::Fresh;
use crate::engine::order::Order;
use crate::engine::queue::Queue;
use crate::engine::rules::Bounds;
use crate::engine::schedule::Schedule;
use crate::engine::seen::Seen;
use crate::engine::shared::{Engine, Settings};
use crate::engine::warmth::Warmth;
use crate::kit::Home;
use crate::observe::{Observer, Source};
use crate::spi::backend::{Backend, Profile};
use crate::spi::claim::Label;
use crate::spi::erased::DynBackend;

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
    name: String,
    spawner: Option<Arc<dyn Spawn>>,
    home: Option<Home>,
    exit_wait: Duration,
    checks_order: bool,
    warm_max: usize,
}

impl LockerBuilder {
    pub(super) fn new(backend: impl Backend) -> Self {
        let hand_on_span_max = Duration::from_millis(100);
        LockerBuilder {
            profile: backend.profile(),
            backend: Box::new(backend),
            settings: Settings {
                ttl: Duration::from_secs(10),
                max_hold: Span::ENDLESS,
                wait: Span::ENDLESS,
                outage_max: Duration::from_secs(5),
                hand_on_span_max,
                warm: false,
            },
            bounds: Bounds { waiters_max: 1024, depth_max: 64, hand_on_count_max: 32, hand_on_span_max },
            clock: Clock::boot(),
            label: Label::of_this_process(),
            observers: Vec::new(),
            name: String::new(),
            spawner: None,
            home: None,
            exit_wait: Duration::from_secs(2),
            checks_order: false,
            warm_max: 1024,
        }
    }

    /// The ttl of requests that name none. Default 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// The longest hold of requests that name none. Default: no cap.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.max_hold = max_hold.into();
        self
    }

    /// The wait of requests that name none. Default: without end.
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.settings.wait = wait.into();
        self
    }

    /// How long a request tolerates a store that gives no usable answer before it fails. Default 5 s.
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

    /// Keep locks warm: what is given back stays with this process while nobody outside wants it, and taking it again costs no
    /// trip to the store. Each guard has a fence of its own all the same. Default off.
    ///
    /// Whoever wants the lock elsewhere has it back at once where the store notifies holders
    /// ([`Profile::notifies`](crate::backend::Profile::notifies)), and a moment later where idle holders look by themselves
    /// ([`Profile::looks`](crate::backend::Profile::looks)). On other stores nothing stays. What is idle is not renewed and goes after a
    /// third of its ttl. A process that dies blocks others for the rest of that ttl, also with nobody at work, which without this
    /// setting it would not. A [`try_lock`](Locker::try_lock) that finds the lock taken asks for it and waits a moment, because it may
    /// be idle elsewhere. Elections, [`lock_all`](Locker::lock_all) and [`once`](Locker::once) never keep anything.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// use lockkeeper_core::{Locker, Memory};
    ///
    /// let store = Memory::default();
    /// let here = Locker::builder(store.clone()).warm(true).build();
    /// let there = Locker::new(store);
    /// let first = here.lock("orders/42").await?;
    /// let fence = first.fence();
    /// first.release().await?;
    /// let second = here.lock("orders/42").await?; // the store was not asked
    /// assert!(fence < second.fence());
    /// second.release().await?;
    /// there.lock("orders/42").await?.release().await?; // recalled
    /// # Ok(())
    /// # }
    /// ```
    pub fn warm(mut self, warm: bool) -> Self {
        self.settings.warm = warm;
        self
    }

    /// How many idle locks are kept warm at the most; the one that was not used for longest goes first. Default 1024.
    pub fn warm_max(mut self, locks: usize) -> Self {
        self.warm_max = locks;
        self
    }

    /// What observers call this locker, where a process has several: [`Source::locker`]. Default: nothing.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How long the normal end of the process waits for what was given back and not yet confirmed by the store, so that a
    /// short program that drops its guard leaves no lock behind. Default 2 s; it is as long as that only if the store does
    /// not answer. Zero: the end waits for nothing, and the ttl frees the rest. A process that is killed waits for nothing.
    pub fn exit_wait(mut self, wait: Duration) -> Self {
        self.exit_wait = wait;
        self
    }

    /// Watch in which order locks are nested, and tell the observers of opposite ones, which can deadlock:
    /// [`Event::OutOfOrder`](crate::observe::Event::OutOfOrder). Nested are locks of one [`Owner`](crate::Owner), so whoever
    /// asks has one. For tests and staging; costs nothing unless it is on. Default off.
    ///
    /// ```
    /// # use std::sync::{Arc, Mutex};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// use lockkeeper_core::observe::{Event, Observer};
    /// use lockkeeper_core::{Locker, Memory, Owner};
    ///
    /// #[derive(Debug, Default)]
    /// struct Crossed(Arc<Mutex<Vec<String>>>);
    ///
    /// impl Observer for Crossed {
    ///     fn observe(&self, event: &Event<'_>) {
    ///         if let Event::OutOfOrder { key, held, .. } = event {
    ///             self.0.lock().expect("nobody panics").push(format!("{key} inside {held}"));
    ///         }
    ///     }
    /// }
    ///
    /// let crossed = Arc::<Mutex<Vec<String>>>::default();
    /// let locker = Locker::builder(Memory::default()).observer(Crossed(crossed.clone())).check_order(true).build();
    /// for (outer, inner) in [("stock", "orders"), ("orders", "stock")] {
    ///     let owner = Owner::new("import");
    ///     let outer = locker.lock(outer).owner(&owner).await?;
    ///     locker.lock(inner).owner(&owner).await?.release().await?;
    ///     outer.release().await?;
    /// }
    /// assert_eq!(*crossed.lock().expect("nobody panics"), ["stock inside orders"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_order(mut self, check: bool) -> Self {
        self.checks_order = check;
        self
    }

    /// Who wants to know what happens. May be called several times: each is told.
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

    /// The thread that the store was opened on, which then is the locker's own.
    pub fn home(mut self, home: Home) -> Self {
        self.home = Some(home);
        self
    }

    /// The locker.
    pub fn build(self) -> Locker {
        let queue = Queue::new(self.bounds, self.backend.is_private_dyn(), self.clock.clone());
        let source = Source::new(self.profile.name, &self.name);
        let of_ours = |it: Arc<dyn Observer>| it.for_locker(&source).unwrap_or(it);
        let observers = self.observers.into_iter().map(of_ours).collect();
        Locker(Arc::new(Engine {
            alarm: Mutex::new(self.backend.alarm_dyn()),
            backend: self.backend,
            profile: self.profile,
            clock: self.clock,
            settings: self.settings,
            queue,
            schedule: Schedule::new(),
            fresh: Fresh::default(),
            seen: Seen::default(),
            warmth: Warmth::new(self.warm_max),
            background: Background::new(self.spawner, self.home, self.exit_wait),
            label: Arc::new(self.label),
            observers,
            order: self.checks_order.then(Order::default),
            made_in: Origin::here(),
            answered_at: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
        }))
    }
}
