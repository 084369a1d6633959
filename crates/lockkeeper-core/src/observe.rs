//! What happens to locks, told as events to an observer: logs, metrics and dashboards all stand here.

mod how;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, LostReason, Stage};
use crate::fence::Fence;
use crate::key::Key;
use crate::spi::backend::{self, Fault, Renewal, Turn};

pub use crate::spi::trace::TraceContext;
pub use how::{CooledBy, GrantedBy, Verb};

/// Something that happened to a lock of this process.
///
/// Two laws hold once everybody who asked has gone:
/// - each `Arrived` is followed by one of `Granted`, `Busy`, `TimedOut`, `Refused`, `Withdrawn`, `Failed`;
/// - each `Granted` that `begins` a hold is followed by one `Released`, or one `Lost` that says how long it was `held`.
///
/// So callers that wait are arrivals without their end, and locks that are held are beginnings without theirs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A caller asks. Requests that make no sense are refused before they arrive.
    #[non_exhaustive]
    Arrived {
        /// What it wants.
        key: &'a Key,
        /// Whether it waits; `false` for a try.
        patient: bool,
    },
    /// A caller got a guard.
    #[non_exhaustive]
    Granted {
        /// What is locked.
        key: &'a Key,
        /// The guard's fence.
        fence: Fence,
        /// How it came.
        by: GrantedBy,
        /// Whether a hold begins with it; `false` for a guard that joins one: of the same owner, or of other readers.
        begins: bool,
        /// How long the caller stood in this process's queue.
        local: Duration,
        /// How long it stood in the store's queue.
        remote: Duration,
    },
    /// A try found it taken.
    #[non_exhaustive]
    Busy {
        /// What it wanted.
        key: &'a Key,
        /// How long it took to find out.
        waited: Duration,
    },
    /// A caller gave up waiting.
    #[non_exhaustive]
    TimedOut {
        /// What it waited for.
        key: &'a Key,
        /// Where it stood.
        stage: Stage,
        /// How long it waited.
        waited: Duration,
        /// How many stood before it, if known.
        ahead: Option<u64>,
    },
    /// A caller was refused because too many wait already.
    #[non_exhaustive]
    Refused {
        /// What it wanted.
        key: &'a Key,
    },
    /// A caller went away before it had an answer: its future was dropped.
    #[non_exhaustive]
    Withdrawn {
        /// What it waited for.
        key: &'a Key,
        /// Where it stood.
        stage: Stage,
        /// How long it waited.
        waited: Duration,
    },
    /// A caller got an error that none of the others tells.
    #[non_exhaustive]
    Failed {
        /// What it wanted.
        key: &'a Key,
        /// What it was told.
        error: &'a Error,
        /// How long it waited.
        waited: Duration,
    },
    /// A caller whose [trace](Observer::trace) is recorded waits at the store, and this is where a holder comes from, as far as
    /// it has a trace, too. Told soon after the wait began, from another thread, once for each holder.
    #[non_exhaustive]
    Behind {
        /// What is waited for.
        key: &'a Key,
        /// The span from which the holder asked.
        holder: TraceContext,
    },
    /// The store was asked and has answered. A store inside this process that answers at once is not asked in this sense.
    #[non_exhaustive]
    Asked {
        /// About which key.
        key: &'a Key,
        /// What was asked.
        verb: Verb,
        /// How long the answer took.
        took: Duration,
        /// What it said.
        answer: Answer,
    },
    /// The store confirmed that we still hold.
    #[non_exhaustive]
    Renewed {
        /// What is held.
        key: &'a Key,
        /// The fence of the guard at that time.
        fence: Fence,
        /// The ttl that was asked for.
        ttl: Duration,
        /// How much was left of the tenure when this was confirmed. A small part of the ttl is a warning: the next one may
        /// come too late.
        left: Duration,
        /// How long from now the tenure lasts.
        valid_for: Duration,
    },
    /// The store gave no usable answer; it is asked again while there is time.
    #[non_exhaustive]
    Faulted {
        /// About which key.
        key: &'a Key,
        /// What was asked.
        verb: Verb,
        /// What went wrong.
        fault: &'a Fault,
    },
    /// A held lock is gone.
    #[non_exhaustive]
    Lost {
        /// What was held.
        key: &'a Key,
        /// The fence of the guard at that time.
        fence: Fence,
        /// How it was lost.
        reason: LostReason,
        /// How long it was held; `None` if no caller has its guard yet.
        held: Option<Duration>,
    },
    /// A hold was given back, with its last guard.
    #[non_exhaustive]
    Released {
        /// What was held.
        key: &'a Key,
        /// The guard's fence.
        fence: Fence,
        /// Whether the next caller of this process got it without asking the store.
        handed_on: bool,
        /// How long it was held.
        held: Duration,
    },
    /// The store confirmed that a lock or a place in line was given up.
    #[non_exhaustive]
    Left {
        /// Which key.
        key: &'a Key,
    },
    /// An owner asks for a lock while it holds another, and in this process the two were nested the other way round before: a
    /// deadlock that waits for its moment. Told once for each pair, by lockers that
    /// [check the order](crate::LockerBuilder::check_order).
    #[non_exhaustive]
    OutOfOrder {
        /// What it asks for.
        key: &'a Key,
        /// What it holds.
        held: &'a Key,
    },
    /// A lock that had stayed with this process, idle, is given back to the store.
    #[non_exhaustive]
    Cooled {
        /// What is given back.
        key: &'a Key,
        /// Why it does not stay.
        by: CooledBy,
    },
    /// Somebody waits for permits whose number others see otherwise: as long as they stand in line or hold, the smallest
    /// counts. Told once to each caller that waits at the store, where the store can tell.
    #[non_exhaustive]
    Disagreement {
        /// What it waits for.
        key: &'a Key,
        /// How many there are, as it was asked for here.
        ours: u32,
        /// How many there are, as the most careful of the others has it.
        theirs: u32,
    },
    /// This process waits for as many names as it may, so names take turns: until one of them is had, the caller does not
    /// stand in the store's queue, and others may pass it. Told once to each caller that waits so.
    #[non_exhaustive]
    TakesTurns {
        /// What it waits for.
        key: &'a Key,
    },
    /// The store did not confirm in time that a place was given up; it forgets the place by itself.
    #[non_exhaustive]
    Abandoned {
        /// Which key.
        key: &'a Key,
    },
    /// A checker of fences refused a write of somebody who had lost the lock:
    /// [`Locker::observe_fenced`](crate::Locker::observe_fenced).
    #[non_exhaustive]
    FenceRefused {
        /// What was to be written.
        key: &'a Key,
        /// Who refused.
        checker: &'static str,
        /// The fence that came too late.
        fence: Fence,
        /// The newest that had been there.
        seen: Fence,
    },
}

impl<'a> Event<'a> {
    /// What it is about.
    ///
    /// ```
    /// use lockkeeper_core::observe::{Event, Observer};
    ///
    /// #[derive(Debug)]
    /// struct Names;
    ///
    /// impl Observer for Names {
    ///     fn observe(&self, event: &Event<'_>) {
    ///         assert!(event.key().as_str().starts_with("orders/"));
    ///     }
    /// }
    /// ```
    pub fn key(&self) -> &'a Key {
        match self {
            Event::Arrived { key, .. }
            | Event::Granted { key, .. }
            | Event::Busy { key, .. }
            | Event::TimedOut { key, .. }
            | Event::Refused { key }
            | Event::Withdrawn { key, .. }
            | Event::Failed { key, .. }
            | Event::Behind { key, .. }
            | Event::Asked { key, .. }
            | Event::Renewed { key, .. }
            | Event::Faulted { key, .. }
            | Event::Lost { key, .. }
            | Event::Released { key, .. }
            | Event::Left { key }
            | Event::OutOfOrder { key, .. }
            | Event::Disagreement { key, .. }
            | Event::TakesTurns { key }
            | Event::Abandoned { key }
            | Event::Cooled { key, .. }
            | Event::FenceRefused { key, .. } => key,
        }
    }
}

/// What a store said. See [`Event::Asked`].
///
/// ```
/// use lockkeeper_core::observe::{Answer, Event};
///
/// fn is_slow_grant(event: &Event<'_>) -> bool {
///     matches!(event, Event::Asked { answer: Answer::Held, took, .. } if took.as_millis() > 100)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The lock is ours, or still ours.
    Held,
    /// Somebody else is first.
    Wait,
    /// It is not ours any more.
    Lost,
    /// It was given back.
    Left,
    /// Nothing that could be used.
    Fault,
}

impl Answer {
    pub(crate) fn to_turn(answer: &backend::Result<Turn>) -> Self {
        match answer {
            Ok(Turn::Held(_)) => Answer::Held,
            Ok(Turn::Wait { .. }) => Answer::Wait,
            Err(_) => Answer::Fault,
        }
    }

    pub(crate) fn to_renew(answer: &backend::Result<Renewal>) -> Self {
        match answer {
            Ok(Renewal::Held { .. }) => Answer::Held,
            Ok(Renewal::Lost) => Answer::Lost,
            Err(_) => Answer::Fault,
        }
    }

    pub(crate) fn to_lower(answer: &backend::Result<bool>) -> Self {
        match answer {
            Ok(true) => Answer::Held,
            Ok(false) => Answer::Lost,
            Err(_) => Answer::Fault,
        }
    }

    pub(crate) fn to_leave(answer: &backend::Result<()>) -> Self {
        if answer.is_ok() { Answer::Left } else { Answer::Fault }
    }
}

/// Something that wants to know. Called on the path of every lock: be quick, do not block, do not panic.
///
/// ```
/// # use std::sync::Arc;
/// # use std::sync::atomic::{AtomicU64, Ordering};
/// use lockkeeper_core::observe::{Event, GrantedBy, Observer};
/// use lockkeeper_core::{Locker, Memory};
///
/// /// Counts the guards that cost no trip to the store.
/// #[derive(Debug, Default)]
/// struct HandedOn(Arc<AtomicU64>);
///
/// impl Observer for HandedOn {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::Granted { by: GrantedBy::HandOn, .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// let count = Arc::<AtomicU64>::default();
/// let locker = Locker::builder(Memory::default()).observer(HandedOn(count.clone())).build();
/// let first = locker.lock("orders/42").await?;
/// let second = tokio::spawn(async move { locker.lock("orders/42").await });
/// tokio::task::yield_now().await; // it stands in line now
/// first.release().await?;
/// drop(second.await);
/// assert_eq!(count.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Something happened.
    fn observe(&self, event: &Event<'_>);

    /// An arrival and its grant, of a lock that was free in this process's own store: nothing happened between the two.
    /// The default observes one after the other. One that counts can look up once where it counts.
    fn observe_at_once(&self, arrived: &Event<'_>, granted: &Event<'_>) {
        self.observe(arrived);
        self.observe(granted);
    }

    /// The span from which the present caller asks for this key, if its trace is recorded: it is kept with the claim, and
    /// whoever waits for it elsewhere is told of it ([`Event::Behind`]). Called in the caller's task before the store is
    /// asked. `None`, the default, traces nothing.
    fn trace(&self, key: &Key) -> Option<TraceContext> {
        let _ = key;
        None
    }

    /// Who observes this locker, asked once when it is built. `None`, the default, is this observer itself. One that tells
    /// several lockers or stores apart makes an observer for each.
    fn for_locker(&self, source: &Source<'_>) -> Option<Arc<dyn Observer>> {
        let _ = source;
        None
    }
}

/// Where events come from.
///
/// ```
/// # use std::sync::Arc;
/// use lockkeeper_core::observe::{Event, Observer, Source};
/// use lockkeeper_core::{Locker, Memory};
///
/// /// Prints losses, and of which store.
/// #[derive(Debug, Default)]
/// struct Losses(String);
///
/// impl Observer for Losses {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::Lost { key, reason, .. } = event {
///             println!("{}: {key} {reason}", self.0);
///         }
///     }
///
///     fn for_locker(&self, source: &Source<'_>) -> Option<Arc<dyn Observer>> {
///         Some(Arc::new(Losses(format!("{} {}", source.store, source.locker))))
///     }
/// }
///
/// let locker = Locker::builder(Memory::default()).name("payments").observer(Losses::default()).build();
/// let source = Source::new("memory", "payments");
/// assert_eq!((source.store, source.locker), ("memory", "payments"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Source<'a> {
    /// The kind of store: [`Profile::name`](crate::backend::Profile).
    pub store: &'a str,
    /// The locker's name; empty unless [`LockerBuilder::name`](crate::LockerBuilder::name) gave it one.
    pub locker: &'a str,
}

impl<'a> Source<'a> {
    /// A locker of this name on this kind of store.
    pub const fn new(store: &'a str, locker: &'a str) -> Self {
        Source { store, locker }
    }
}

/// Writes every event to `tracing`: losses and faults as warnings, the rest at debug level.
///
/// ```
/// use lockkeeper_core::observe::TracingObserver;
/// use lockkeeper_core::{Locker, Memory};
///
/// let locker = Locker::builder(Memory::default()).observer(TracingObserver).build();
/// ```
#[cfg(feature = "tracing")]
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingObserver;

#[cfg(feature = "tracing")]
impl Observer for TracingObserver {
    fn observe(&self, event: &Event<'_>) {
        use tracing::{debug, warn};
        match event {
            Event::Arrived { key, patient } => debug!(%key, patient, "lock asked for"),
            Event::Granted { key, fence, by, local, remote, .. } => {
                debug!(%key, %fence, ?by, ?local, ?remote, "lock granted");
            }
            Event::Busy { key, waited } => debug!(%key, ?waited, "lock taken by somebody else"),
            Event::TimedOut { key, stage, waited, ahead } => {
                debug!(%key, ?stage, ?waited, ahead, "lock not obtained in time");
            }
            Event::Refused { key } => warn!(%key, "too many callers wait for this lock"),
            Event::Withdrawn { key, stage, waited } => {
                debug!(%key, ?stage, ?waited, "the caller went away before it had the lock");
            }
            Event::Failed { key, error, waited } => warn!(%key, %error, ?waited, "lock not obtained"),
            Event::Behind { key, holder } => debug!(%key, %holder, "somebody else holds the lock"),
            Event::Asked { key, verb, took, answer } => {
                debug!(%key, verb = verb.word(), ?took, ?answer, "lock store asked");
            }
            Event::Renewed { key, left, valid_for, .. } => {
                debug!(%key, ?left, ?valid_for, "lock renewed");
            }
            Event::Faulted { key, verb, fault } => {
                warn!(%key, verb = verb.word(), %fault, "the lock store gave no usable answer");
            }
            Event::Lost { key, fence, reason, held } => warn!(%key, %fence, %reason, ?held, "lock lost"),
            Event::Released { key, fence, handed_on, held } => {
                debug!(%key, %fence, handed_on, ?held, "lock released");
            }
            Event::Left { key } => debug!(%key, "place given up"),
            Event::OutOfOrder { key, held } => {
                warn!(%key, %held, "locks are nested in opposite orders: take them in one order, or by lock_all");
            }
            Event::Cooled { key, by } => debug!(%key, ?by, "idle lock given back"),
            Event::Disagreement { key, ours, theirs } => {
                warn!(%key, ours, theirs, "others name another number of permits: the smallest counts");
            }
            Event::TakesTurns { key } => {
                warn!(%key, "as many names are waited for as may be: they take turns (waiting_max)");
            }
            Event::Abandoned { key } => warn!(%key, "giving up a place was not confirmed; it will expire"),
            Event::FenceRefused { key, checker, fence, seen } => {
                warn!(%key, checker, %fence, %seen, "a late write was refused");
            }
        }
    }
}
