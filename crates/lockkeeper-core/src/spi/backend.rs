//! The SPI: what a store must do to keep locks. Written by backend authors, called by the engine, and by stores that are made of stores.
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
//! 8. Counters grow strictly from grant to grant of one key. Those of claims that enter together differ, in any order.
//! 9. `valid_for` is never optimistic: it counts from when the verb was called.
//! 10. A place unheard of for its ttl is forgotten.
//! 11. If the profile says FIFO, the first `turn` that answered `Wait` decides the order.
//! 12. A store judges expiry by its own clock, never by a caller's.
//! 13. A tenure ends when its deadline passes, even while a verb is under way: the verb is outrun, not
//!     cancelled. No verb but `changed` is ever dropped half-way.
//! 14. A claim that can never fit ([`Load::can_fit`](crate::Load::can_fit)) is refused with a permanent fault, and
//!     leaves nothing behind.
//! 15. Where the profile says FIFO, claims at the front of the line that fit together enter together: none of them waits
//!     until another was told.
//! 16. Memos, where there are any, keep the contract of [`memos`](crate::memos).
//! 17. Where the profile says lingering, [`Place::linger`] keeps the lock for that time and no longer.
//! 18. Where the profile says lowering, [`Place::lower`] makes what is held weigh less where it stands: those who fit beside
//!     it now enter, in their order, and nobody gets in between. What is not held is not acquired by it.
//! 19. Where the profile says notifying, [`Place::changed`] of a place that holds resolves when somebody begins to wait, and when
//!     what it holds was taken away by [`break_lock`](crate::inspect::Inspect::break_lock), also if that was before it was called. Where it
//!     says looking, too, though a moment later.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::spi::claim::{Claim, Load};
pub use crate::spi::fault::{Fault, FaultKind, Result};
use crate::spi::inspect::DynInspect;
use crate::spi::memos::DynMemos;
pub use crate::spi::profile::{Lease, Order, Profile, Reach, Rooms};
use tokio::sync::watch;

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

    /// The store's memos, if it can keep any: small durable values, on which jobs that run once, elections, latches and
    /// barriers stand. `None`, the default, refuses those.
    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        None
    }

    /// The operator's view of the same store. Asked who holds a lock when somebody who makes traces waits for it, so that the
    /// two can be linked; and when a try did not get it and the answer did not say whether the holder may be idle. `None`, the default, links
    /// nobody, and then only those who keep locks themselves expect it of others.
    fn inspect(&self) -> Option<Arc<dyn DynInspect>> {
        None
    }

    /// Changes when something that is held may be lost, such as when the connection broke that keeps it: the locker then
    /// renews everything at once, and tells what is lost, instead of waiting until the next renewal is due. A hint; `None`,
    /// the default, where renewals are soon enough.
    fn alarm(&self) -> Option<watch::Receiver<u64>> {
        None
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
    /// wants it or it is in doubt. May be early, late or never. Whoever holds is listened to on the keeper's own
    /// thread, where the profile says [`notifying`](Profile::notifying).
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Why [`changed`](Place::changed) resolved the last time, while we held: `true`, the default, if somebody called us, who wants
    /// what we hold or took it away; `false` if nobody did that we know of, and a call may have been missed, as when a connection
    /// broke. What is idle goes in both cases, and only the first counts against keeping it.
    fn was_called(&self) -> bool {
        true
    }

    /// Extend what we hold. Never acquires.
    fn renew(&mut self) -> impl Future<Output = Result<Renewal>> + Send;

    /// Give up the lock, or the place, or nothing at all. Idempotent, legal in every state.
    fn leave(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Give up what we hold when `span` has passed, and not before: the store keeps it that long without hearing from us,
    /// whatever the ttl was. Idempotent; nothing happens if it is not ours any more. Only asked of stores whose profile says
    /// [`lingering`](Profile::lingering).
    fn linger(&mut self, span: Duration) -> impl Future<Output = Result<()>> + Send {
        let _ = span;
        async {
            Err(Fault::permanent(
                "this store",
                "giving the lock back later",
                "it cannot keep a lock for nobody",
            ))
        }
    }

    /// Hold less of the room from now on: what we hold counts as `load`, which weighs no more than before in a room no
    /// smaller. `false` if it is not ours any more, which is final. Idempotent, never acquires. Only asked of stores whose
    /// profile says [`lowering`](Profile::lowering).
    fn lower(&mut self, load: Load) -> impl Future<Output = Result<bool>> + Send {
        let _ = load;
        let what = "it cannot make what is held weigh less";
        async move { Err(Fault::permanent("this store", "sharing what is held", what)) }
    }

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
        /// [Another capacity](Load::differing) than ours that others name, where the store can tell cheaply.
        theirs: Option<u32>,
        /// We do not stand in line: this process waits for as many names as it may, and names take turns.
        crowded: bool,
        /// Whether somebody in our way may be idle, because its process [keeps such locks](crate::claim::Label::warm): then
        /// standing in line for a moment calls it. Asked of stores for those who will not wait; `None` where it cannot be told cheaply.
        may_be_idle: Option<bool>,
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
    /// let turn = Turn::wait(Duration::from_secs(3), Some(1)).theirs(Some(8));
    /// assert!(matches!(turn, Turn::Wait { ahead: Some(1), theirs: Some(8), .. }));
    /// ```
    pub const fn wait(recheck: Duration, ahead: Option<u64>) -> Self {
        Turn::Wait { recheck, ahead, theirs: None, crowded: false, may_be_idle: None }
    }

    /// Others name this capacity, which is not ours.
    #[must_use]
    pub const fn theirs(mut self, capacity: Option<u32>) -> Self {
        if let Turn::Wait { theirs, .. } = &mut self {
            *theirs = capacity;
        }
        self
    }

    /// Whether somebody in our way may be idle.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use lockkeeper_core::backend::Turn;
    ///
    /// let turn = Turn::wait(Duration::from_secs(3), None).may_be_idle(Some(true));
    /// assert!(matches!(turn, Turn::Wait { may_be_idle: Some(true), .. }));
    /// ```
    #[must_use]
    pub const fn may_be_idle(mut self, it: Option<bool>) -> Self {
        if let Turn::Wait { may_be_idle, .. } = &mut self {
            *may_be_idle = it;
        }
        self
    }

    /// We do not stand in line: this process waits for as many names as it may, and names take turns.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use lockkeeper_core::backend::Turn;
    ///
    /// let turn = Turn::wait(Duration::from_millis(20), None).crowded();
    /// assert!(matches!(turn, Turn::Wait { crowded: true, .. }));
    /// ```
    #[must_use]
    pub const fn crowded(mut self) -> Self {
        if let Turn::Wait { crowded, .. } = &mut self {
            *crowded = true;
        }
        self
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
