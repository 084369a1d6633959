//! The SPI: what a store must do to keep locks. Written by backend authors, called by the engine alone.
//!
//! # Contract
//!
//! Each line is a case of the conformance suite in `lockkeeper-testkit`.
//!
//! 1. The weight held never exceeds the capacity, at any time of the store.
//! 2. Every verb repeated with the same claim id is harmless.
//! 3. `Err` means *unknown*: the effect may or may not exist. Everything known is a value.
//! 4. [`Backend::enter`] does no I/O.
//! 5. [`Place::changed`] may be early, late, silent, or dropped half-way.
//! 6. [`Place::leave`] is legal in every state, and twice.
//! 7. [`Place::renew`] never acquires.
//! 8. Counters grow strictly from grant to grant of one key.
//! 9. `valid_for` is never optimistic: it counts from when the verb was called.
//! 10. A place unheard of for its ttl is forgotten.
//! 11. If the profile says FIFO, the first `turn` that answered `Wait` decides the order.
//! 12. A store judges expiry by its own clock, never by a caller's.
//! 13. A tenure ends when its deadline passes, even while a verb is under way: the verb is outrun, not
//!     cancelled. No verb but `changed` is ever dropped half-way.
//! 14. A claim that can never fit ([`Load::can_fit`](crate::Load::can_fit)) is refused with a permanent fault, and
//!     leaves nothing behind.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::clock::Moment;
use crate::spi::claim::Claim;
pub use crate::spi::fault::{Fault, FaultKind, Result};

/// A store in which locks live.
///
/// ```
/// # use std::sync::Arc;
/// # use std::sync::atomic::{AtomicU64, Ordering};
/// use lockkeeper_core::backend::{Backend, Place, Profile, Renewal, Result, Turn};
/// use lockkeeper_core::memory::{Memory, MemoryPlace};
/// use lockkeeper_core::{Claim, Locker};
///
/// /// Another store that counts how often it is asked.
/// #[derive(Clone, Debug, Default)]
/// struct Counting(Memory, Arc<AtomicU64>);
///
/// struct CountingPlace(MemoryPlace, Arc<AtomicU64>);
///
/// impl Backend for Counting {
///     type Place = CountingPlace;
///
///     fn profile(&self) -> Profile {
///         self.0.profile().named("counting")
///     }
///
///     fn enter(&self, claim: Claim) -> CountingPlace {
///         CountingPlace(self.0.enter(claim), self.1.clone())
///     }
/// }
///
/// impl Place for CountingPlace {
///     async fn turn(&mut self) -> Result<Turn> {
///         self.1.fetch_add(1, Ordering::Relaxed);
///         self.0.turn().await
///     }
///
///     async fn changed(&mut self) {
///         self.0.changed().await;
///     }
///
///     async fn renew(&mut self) -> Result<Renewal> {
///         self.0.renew().await
///     }
///
///     async fn leave(&mut self) -> Result<()> {
///         self.0.leave().await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper_core::Result<()> {
/// let store = Counting::default();
/// let locker = Locker::new(store.clone());
/// locker.lock("orders/42").await?.release().await?;
/// assert_eq!(store.1.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The backend's way to stand in a line.
    type Place: Place;

    /// What this store promises. Must not change while the backend lives.
    fn profile(&self) -> Profile;

    /// Make a place for a claim. Does no I/O and cannot fail: an owner exists before the store hears of us.
    fn enter(&self, claim: Claim) -> Self::Place;

    /// Whether nobody but the holder of this very value can ever reach the store. Then the local line of its
    /// locker is the whole lock, and the store is not asked.
    fn is_private(&self) -> bool {
        false
    }
}

/// One claim's place in one line, from `enter` to `leave`.
///
/// `turn` and `leave` are polled in the caller's task where they can be, so that a free lock costs no
/// change of thread; when the caller goes away they are finished on the keeper's own thread. `renew` is
/// always polled on the keeper's thread, inside a tokio runtime that no user code can block: a
/// connection that must survive a blocked application is opened there.
///
/// ```
/// # use lockkeeper_core::{Claim, Error, Key, Memory};
/// # fn claim() -> Result<Claim, Error> {
/// #     Claim::new(Key::new("orders/42")?, std::time::Duration::from_secs(10))
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::backend::{Backend, Grant, Place, Renewal, Turn};
///
/// let store = Memory::default();
/// let (mut first, mut second) = (store.enter(claim()?), store.enter(claim()?));
/// let Turn::Held(Grant { counter, .. }) = first.turn().await? else { panic!("it was free") };
/// assert!(matches!(second.turn().await?, Turn::Wait { ahead: Some(1), .. }));
/// assert!(matches!(first.renew().await?, Renewal::Held { wanted: true, .. }));
///
/// first.leave().await?;
/// first.leave().await?; // harmless
/// second.changed().await;
/// let Turn::Held(next) = second.turn().await? else { panic!("it was given back") };
/// assert!(counter < next.counter);
/// assert_eq!(first.renew().await?, Renewal::Lost);
/// # Ok(())
/// # }
/// ```
pub trait Place: Send + 'static {
    /// Take our place if we have none, keep it alive if we do, and tell whether it is our turn.
    ///
    /// One round trip where the store allows. After an `Err`, asking again finds what the lost call did.
    /// An impatient claim that is told to wait leaves nothing behind.
    fn turn(&mut self) -> impl Future<Output = Result<Turn>> + Send;

    /// Resolve when asking again is worthwhile: our turn may have come; or, while we hold, somebody
    /// wants it or it is in doubt. May be early, late or never.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Extend what we hold. Never acquires.
    fn renew(&mut self) -> impl Future<Output = Result<Renewal>> + Send;

    /// Give up the lock, or the place, or nothing at all. Idempotent, legal in every state.
    fn leave(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// For stores inside this process: the answer of `turn` at once, without a future. `now` is the present
    /// moment of the clock that locker and store share.
    ///
    /// `None`, the default, means that asking takes time.
    fn turn_at_once(&mut self, now: Moment) -> Option<Turn> {
        let _ = now;
        None
    }

    /// For stores inside this process: `leave` at once. `false`, the default, means that it takes time.
    fn leave_at_once(&mut self) -> bool {
        false
    }
}

/// What a store promises. The suite tests what is claimed here; requests that ask for more are refused.
///
/// ```
/// use lockkeeper_core::backend::{Lease, Order, Reach, Rooms};
/// use lockkeeper_core::{Locker, Memory};
///
/// let profile = Locker::new(Memory::default()).profile();
/// assert_eq!((profile.name, profile.order, profile.reach), ("memory", Order::Fifo, Reach::Process));
/// assert_eq!((profile.rooms, profile.lease), (Rooms::Weighted, Lease::Claim));
/// assert!(profile.ttl_min <= profile.ttl_max);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The backend's name in errors and events, such as `"sqlite"`.
    pub name: &'static str,
    /// Who comes first.
    pub order: Order,
    /// Which claims the store can hold.
    pub rooms: Rooms,
    /// How far the lock reaches.
    pub reach: Reach,
    /// What the store forgets when it does not hear from us.
    pub lease: Lease,
    /// The shortest ttl that can be had.
    pub ttl_min: Duration,
    /// The longest ttl that can be had.
    pub ttl_max: Duration,
}

impl Profile {
    /// The least that a store can promise: whoever asks at the right moment is served, mutexes only, each claim
    /// expires by itself, and a ttl between ten milliseconds and a year. The methods add to it.
    ///
    /// ```
    /// use lockkeeper_core::backend::{Lease, Order, Profile, Reach, Rooms};
    /// # use std::time::Duration;
    ///
    /// let profile = Profile::new("notary", Reach::Network).fifo().weighted().ttl(Duration::from_secs(1), Duration::MAX);
    /// assert_eq!((profile.order, profile.rooms, profile.lease), (Order::Fifo, Rooms::Weighted, Lease::Claim));
    /// ```
    pub const fn new(name: &'static str, reach: Reach) -> Self {
        Profile {
            name,
            order: Order::Barging,
            rooms: Rooms::MutexOnly,
            reach,
            lease: Lease::Claim,
            ttl_min: Duration::from_millis(10),
            ttl_max: Duration::from_secs(365 * 24 * 3600),
        }
    }

    /// First come, first served.
    #[must_use]
    pub const fn fifo(mut self) -> Self {
        self.order = Order::Fifo;
        self
    }

    /// Any weight and capacity.
    #[must_use]
    pub const fn weighted(mut self) -> Self {
        self.rooms = Rooms::Weighted;
        self
    }

    /// What expires is the process's session, and with it everything the process holds.
    #[must_use]
    pub const fn by_session(mut self) -> Self {
        self.lease = Lease::Session;
        self
    }

    /// The shortest and the longest ttl that can be had.
    #[must_use]
    pub const fn ttl(mut self, min: Duration, max: Duration) -> Self {
        (self.ttl_min, self.ttl_max) = (min, max);
        self
    }

    /// The same promises under another name, for a store around another.
    #[must_use]
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }
}

/// Who comes first in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served.
    Fifo,
    /// Whoever asks at the right moment.
    Barging,
}

/// Which claims a store can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rooms {
    /// Any weight and capacity.
    Weighted,
    /// Weight 1 of capacity 1 only.
    MutexOnly,
}

/// How far a lock reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reach {
    /// This process.
    Process,
    /// All processes of this host.
    Host,
    /// Every host that can reach the store.
    Network,
}

/// What expires when the store does not hear from us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lease {
    /// Each claim by itself, by its own ttl.
    Claim,
    /// The process's session, and with it everything the process holds.
    Session,
}

/// The answer to [`Place::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The lock is ours.
    Held(Grant),
    /// We stand in line (or, impatient, do not).
    #[non_exhaustive]
    Wait {
        /// Ask again after this long even if `changed` stays silent.
        recheck: Duration,
        /// How many claims stand before us, where the store can tell cheaply.
        ahead: Option<u64>,
    },
}

impl Turn {
    /// Told to wait: when to ask again even if `changed` stays silent, and how many claims stand before us, where
    /// the store can tell cheaply.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use lockkeeper_core::backend::Turn;
    ///
    /// let turn = Turn::wait(Duration::from_secs(3), Some(1));
    /// assert!(matches!(turn, Turn::Wait { ahead: Some(1), .. }));
    /// ```
    pub const fn wait(recheck: Duration, ahead: Option<u64>) -> Self {
        Turn::Wait { recheck, ahead }
    }
}

/// What the store gave.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper_core::backend::{Grant, Turn};
///
/// let turn = Turn::Held(Grant::new(17, Duration::from_secs(10)).wanted(true));
/// assert!(matches!(turn, Turn::Held(Grant { counter: 17, wanted: true, .. })));
///
/// // The request stood in a queue of the client for a while: the ttl counts from when it left.
/// let sent = lockkeeper_core::Clock::boot().now();
/// assert_eq!(Grant::new(18, Duration::from_secs(10)).sent_at(sent).sent_at, Some(sent));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Strictly grows from grant to grant of one key; at most [`COUNTER_MAX`](crate::fence::COUNTER_MAX).
    pub counter: u64,
    /// How long the grant lasts, counted from when the verb was called, or from `sent_at`.
    pub valid_for: Duration,
    /// Somebody waits behind us.
    pub wanted: bool,
    /// When the request left this process, where it may have stood in a queue of the store's client before.
    pub sent_at: Option<Moment>,
}

impl Grant {
    /// A grant with this counter that lasts so long, counted from when the verb was called. Nobody waits behind.
    pub const fn new(counter: u64, valid_for: Duration) -> Self {
        Grant { counter, valid_for, wanted: false, sent_at: None }
    }

    /// Whether somebody waits behind us.
    #[must_use]
    pub const fn wanted(mut self, wanted: bool) -> Self {
        self.wanted = wanted;
        self
    }

    /// `valid_for` counts from this moment instead: just before the request was written to the connection. A
    /// store whose requests queue up inside the process says so, or a crowd's grants end before they are used.
    #[must_use]
    pub const fn sent_at(mut self, at: Moment) -> Self {
        self.sent_at = Some(at);
        self
    }
}

/// The answer to [`Place::renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours.
    #[non_exhaustive]
    Held {
        /// How long, counted from when the verb was called, or from `sent_at`.
        valid_for: Duration,
        /// Somebody waits behind us.
        wanted: bool,
        /// When the request left this process; see [`Grant::sent_at`].
        sent_at: Option<Moment>,
    },
    /// Not ours any more. Final.
    Lost,
}

impl Renewal {
    /// Still ours, for so long from when the verb was called.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use lockkeeper_core::backend::Renewal;
    ///
    /// let renewal = Renewal::held(Duration::from_secs(10), true);
    /// assert!(matches!(renewal, Renewal::Held { wanted: true, .. }));
    /// ```
    pub const fn held(valid_for: Duration, wanted: bool) -> Self {
        Renewal::Held { valid_for, wanted, sent_at: None }
    }

    /// `valid_for` counts from this moment instead: just before the request was written to the connection.
    #[must_use]
    pub fn sent_at(mut self, at: Moment) -> Self {
        if let Renewal::Held { sent_at, .. } = &mut self {
            *sent_at = Some(at);
        }
        self
    }
}

// ===== The erased twin: the one place where futures are boxed =====

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A place that moves into its verb and comes back with the answer, so that whoever holds the future
/// holds the place: a caller that goes away can hand both to the keeper's thread.
pub(crate) type Step<T> = BoxFuture<(Box<dyn DynPlace>, Result<T>)>;

/// [`Backend`] without its type, so that a locker can hold any.
pub(crate) trait DynBackend: fmt::Debug + Send + Sync {
    fn enter_dyn(&self, claim: Claim) -> Box<dyn DynPlace>;
    fn is_private_dyn(&self) -> bool;
}

/// [`Place`] without its type.
pub(crate) trait DynPlace: Send {
    fn turn_dyn(self: Box<Self>) -> Step<Turn>;
    fn changed_dyn(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    fn renew_dyn(self: Box<Self>) -> Step<Renewal>;
    fn leave_dyn(self: Box<Self>) -> Step<()>;
    fn turn_at_once_dyn(&mut self, now: Moment) -> Option<Turn>;
    fn leave_at_once_dyn(&mut self) -> bool;
}

impl<B: Backend> DynBackend for B {
    fn enter_dyn(&self, claim: Claim) -> Box<dyn DynPlace> {
        Box::new(self.enter(claim))
    }

    fn is_private_dyn(&self) -> bool {
        self.is_private()
    }
}

impl<P: Place> DynPlace for P {
    fn turn_dyn(mut self: Box<Self>) -> Step<Turn> {
        Box::pin(async move {
            let answer = self.turn().await;
            (self as Box<dyn DynPlace>, answer)
        })
    }

    fn changed_dyn(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.changed())
    }

    fn renew_dyn(mut self: Box<Self>) -> Step<Renewal> {
        Box::pin(async move {
            let answer = self.renew().await;
            (self as Box<dyn DynPlace>, answer)
        })
    }

    fn leave_dyn(mut self: Box<Self>) -> Step<()> {
        Box::pin(async move {
            let answer = self.leave().await;
            (self as Box<dyn DynPlace>, answer)
        })
    }

    fn turn_at_once_dyn(&mut self, now: Moment) -> Option<Turn> {
        self.turn_at_once(now)
    }

    fn leave_at_once_dyn(&mut self) -> bool {
        self.leave_at_once()
    }
}
