//! Numbers about locks, for dashboards and alerts: an observer of atomics, a snapshot, and OpenMetrics text.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! use lockkeeper::Meters;
//!
//! let meters = Meters::new();
//! let locker = lockkeeper::open("memory:").await?.locker.observer(meters.clone()).build();
//! locker.lock("orders/42").await?.release().await?;
//! let text = meters.openmetrics(); // what `/metrics` answers
//! assert!(text.contains("lockkeeper_hold_duration_seconds_count{store=\"memory\",end=\"released\"} 1\n"));
//! # Ok(())
//! # }
//! ```
//!
//! The key is never a label: a service has a million keys, and each would be a series for ever. [`Meters::by_class`] tells
//! kinds of keys apart, at most [`CLASSES_MAX`] of them. [`METERS`] is the whole table; `docs/guides/monitoring.md` says
//! what to watch.

mod classes;
mod counts;
mod places;
mod table;
mod text;
#[cfg(feature = "twophase")]
mod two_phase;

use std::fmt;
use std::sync::{Arc, Mutex};

use lockkeeper_core::Key;
use lockkeeper_core::kit::locked;
use lockkeeper_core::observe::{Event, Observer, Source};

use classes::OTHER;
pub use classes::{CLASSES_MAX, Classes, ClassesOfLocker};
use counts::{Counts, OfLocker};
pub use table::{
    ABANDONED, ACQUIRE, DAMAGED, FAULTS, FENCES_REFUSED, HELD, HOLD, IN_DOUBT, IN_DOUBT_AGE, Kind, LOST,
    MARGIN, METERS, Meter, PARTS, RENEWALS, Reading, SECONDS, STORE, TWO_PHASE, TWO_PHASE_METERS, WAIT,
    WAITING, bounds, counters_at_zero, readings,
};
pub use text::{Series, Snapshot, Value};
#[cfg(feature = "twophase")]
pub use two_phase::{SurveyReading, survey_readings, two_phase_reading};

/// How many lockers are told apart. The numbers of all others are those of a locker `other`.
const LOCKERS_MAX: usize = 100;

/// Counts what happens to locks. Cheap to clone; one can observe all lockers of a process. See the
/// [module](crate::meters).
#[derive(Clone, Default)]
pub struct Meters {
    lockers: Arc<Mutex<Vec<Arc<Counts>>>>,
    classes: Option<Classes>,
    #[cfg(feature = "twophase")]
    two_phase: Arc<two_phase::TwoPhaseCounts>,
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meters").field("classes", &self.classes.is_some()).finish_non_exhaustive()
    }
}

impl Meters {
    /// Meters that do not look at keys.
    ///
    /// ```
    /// assert_eq!(lockkeeper::Meters::new().openmetrics(), "# EOF\n"); // nobody is observed yet
    /// ```
    pub fn new() -> Self {
        Meters::default()
    }

    /// Meters that tell keys apart by a class: a part of the key, or a word for it. An empty one is `other`, and so is each
    /// class after the first [`CLASSES_MAX`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// use lockkeeper::{Key, Meters};
    ///
    /// let meters = Meters::by_class(|key: &Key| if key.as_str().starts_with("mail") { "mail" } else { "" });
    /// let locker = lockkeeper::open("memory:").await?.locker.observer(meters.clone()).build();
    /// let _guards = (locker.lock("mail:7").await?, locker.lock("orders/42").await?);
    /// assert_eq!(meters.snapshot().sum("lockkeeper.held", &[("class", "mail")]), 1);
    /// assert_eq!(meters.snapshot().sum("lockkeeper.held", &[("class", "other")]), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_class(classify: impl for<'a> Fn(&'a Key) -> &'a str + Send + Sync + 'static) -> Self {
        Meters { classes: Some(Classes::by_class(classify)), ..Meters::default() }
    }

    /// Meters that tell keys apart by what stands before the first `end`: `orders/42` is of the class `orders`. Keys without
    /// it are `other`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// let meters = lockkeeper::Meters::by_prefix('/');
    /// let locker = lockkeeper::open("memory:").await?.locker.observer(meters.clone()).build();
    /// let _guard = locker.lock("orders/42").await?;
    /// assert_eq!(meters.snapshot().sum("lockkeeper.held", &[("class", "orders")]), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_prefix(end: char) -> Self {
        Meters { classes: Some(Classes::by_prefix(end)), ..Meters::default() }
    }

    /// All numbers, as they are now.
    pub fn snapshot(&self) -> Snapshot {
        let lockers = locked(&self.lockers).clone();
        let mut series = Vec::new();
        for it in &lockers {
            it.series(&mut series);
        }
        #[cfg(feature = "twophase")]
        self.two_phase.series(&mut series);
        Snapshot { series }
    }

    /// All numbers as OpenMetrics text, which Prometheus and most others read. Its content type is
    /// `application/openmetrics-text; version=1.0.0; charset=utf-8`.
    pub fn openmetrics(&self) -> String {
        self.snapshot().openmetrics()
    }

    /// The numbers of one locker. Those of the same name on the same kind of store share them.
    fn of(&self, store: &str, locker: &str) -> Arc<Counts> {
        let mut lockers = locked(&self.lockers);
        let find = |all: &[Arc<Counts>], locker: &str| {
            all.iter().find(|it| it.store == store && it.locker == locker).cloned()
        };
        let full = LOCKERS_MAX <= lockers.len();
        let locker = if full && find(&lockers, locker).is_none() { OTHER } else { locker };
        find(&lockers, locker).unwrap_or_else(|| {
            let counts = Arc::new(Counts::new(store, locker, self.classes.clone()));
            lockers.push(counts.clone());
            counts
        })
    }
}

impl Observer for Meters {
    /// For events of no locker, which only a test has.
    fn observe(&self, event: &Event<'_>) {
        OfLocker(self.of("", "")).observe(event);
    }

    fn for_locker(&self, source: &Source<'_>) -> Option<Arc<dyn Observer>> {
        Some(Arc::new(OfLocker(self.of(source.store, source.locker))))
    }
}
