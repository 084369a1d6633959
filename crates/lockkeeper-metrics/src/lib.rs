//! What Lockkeeper counts about locks, told to the [`metrics`] facade.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! // Install your recorder before a locker is built: what is counted before goes nowhere, and stays there.
//! let store = lockkeeper::open("memory:").await?;
//! let locker = store.locker.observer(lockkeeper_metrics::ToMetrics::new()).build();
//! locker.lock("orders/42").await?.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Names are those of [`Meter::openmetrics_name`](lockkeeper::meters::Meter::openmetrics_name), such as `lockkeeper_lost_total`, with the labels of
//! [`METERS`], `store` and, if it has a name, `locker`. The key is never a label. Dashboards and alerts of the
//! repository read them as they are, if your recorder keeps histograms as histograms:
//! [`bounds`](lockkeeper::meters::bounds) are the buckets they expect. Counters are there as soon as a locker is built, at
//! zero: an alert on an increase rings for the first one, too. With the feature `twophase` also two-phase commit is told:
//! `ToMetrics::two_phase` and `ToMetrics::in_doubt`.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "twophase")]
mod two_phase;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use lockkeeper::Key as Name;
use lockkeeper::meters::{
    Classes, ClassesOfLocker, Kind, METERS, Meter, Reading, counters_at_zero, readings,
};
use lockkeeper::observe::{Event, Observer, Source};
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};

/// An observer that tells the installed recorder. One can observe all lockers of a process.
///
/// ```
/// use lockkeeper_metrics::ToMetrics;
///
/// let observer = ToMetrics::new();
/// # let _ = observer;
/// ```
#[derive(Clone, Debug, Default)]
pub struct ToMetrics {
    classes: Option<Classes>,
    #[cfg(feature = "twophase")]
    shown: two_phase::Shown,
}

impl ToMetrics {
    /// One for the recorder that is installed when a locker is first used.
    pub fn new() -> Self {
        ToMetrics::default()
    }

    /// One that tells keys apart by a class, in the label `class`: a part of the key, or a word for it. An empty one is `other`, and so is
    /// each after the first [`CLASSES_MAX`](lockkeeper::meters::CLASSES_MAX) of a locker.
    ///
    /// ```
    /// use lockkeeper_metrics::ToMetrics;
    ///
    /// let mail = ToMetrics::by_class(|key| if key.as_str().starts_with("mail") { "mail" } else { "" });
    /// let tables = ToMetrics::by_prefix('/');
    /// # let _ = (mail, tables);
    /// ```
    pub fn by_class(classify: impl for<'a> Fn(&'a Name) -> &'a str + Send + Sync + 'static) -> Self {
        ToMetrics { classes: Some(Classes::by_class(classify)), ..ToMetrics::default() }
    }

    /// The same by what stands before the first `end`: `orders/42` is of the class `orders`. Keys without it are `other`.
    pub fn by_prefix(end: char) -> Self {
        ToMetrics { classes: Some(Classes::by_prefix(end)), ..ToMetrics::default() }
    }

    fn of(&self, source: &Source<'_>) -> OfLocker {
        OfLocker::new(source, self.classes.as_ref().map(Classes::of_locker))
    }
}

impl Observer for ToMetrics {
    /// For events of no locker, which only a test has.
    fn observe(&self, event: &Event<'_>) {
        self.of(&Source::new("", "")).observe(event);
    }

    fn for_locker(&self, source: &Source<'_>) -> Option<Arc<dyn Observer>> {
        metrics::with_recorder(|recorder| METERS.iter().for_each(|it| describe(recorder, it)));
        let of_locker = self.of(source);
        for it in counters_at_zero() {
            of_locker.handle(&it, None).add(it.value);
        }
        Some(Arc::new(of_locker))
    }
}

fn describe(recorder: &dyn Recorder, meter: &Meter) {
    let unit = (meter.unit == "s").then_some(Unit::Seconds);
    let (name, help) = (meter.openmetrics_name().into(), meter.help.into());
    match meter.kind {
        Kind::Counter => recorder.describe_counter(name, unit, help),
        Kind::Gauge => recorder.describe_gauge(name, unit, help),
        _ => recorder.describe_histogram(name, unit, help),
    }
}

/// Where it is told.
fn about() -> Metadata<'static> {
    Metadata::new("lockkeeper", Level::INFO, Some(module_path!()))
}

/// What tells one series of a locker from another: the meter, its two labels, and the class of the key if that matters.
type Series = (&'static str, [&'static str; 2], Option<Arc<str>>);

/// The observer of one locker. It asks the recorder once for each series: that is dearer than a lock.
struct OfLocker {
    labels: Vec<Label>,
    classes: Option<ClassesOfLocker>,
    known: RwLock<HashMap<Series, Handle>>,
}

impl fmt::Debug for OfLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfLocker").field("labels", &self.labels).finish_non_exhaustive()
    }
}

#[derive(Clone)]
enum Handle {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

impl Handle {
    fn add(&self, value: f64) {
        match self {
            // A counter counts one at a time, or it only begins.
            Handle::Counter(it) => it.increment(u64::from(0.0 < value)),
            Handle::Gauge(it) => it.increment(value),
            Handle::Histogram(it) => it.record(value),
        }
    }
}

impl OfLocker {
    fn new(source: &Source<'_>, classes: Option<ClassesOfLocker>) -> Self {
        let labels = [("store", source.store), ("locker", source.locker)];
        let given = labels.into_iter().filter(|it| !it.1.is_empty());
        let labels = given.map(|(name, value)| Label::new(name, value.to_owned())).collect();
        OfLocker { labels, classes, known: RwLock::default() }
    }

    fn handle(&self, reading: &Reading, class: Option<&Arc<str>>) -> Handle {
        let class = class.filter(|_| reading.meter.has_class).cloned();
        let series = (reading.meter.name, reading.labels.map(|it| it.1), class);
        if let Some(it) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&series) {
            return it.clone();
        }
        let made = self.register(reading, series.2.as_deref());
        self.known.write().unwrap_or_else(PoisonError::into_inner).entry(series).or_insert(made).clone()
    }

    fn register(&self, reading: &Reading, class: Option<&str>) -> Handle {
        let mut labels = self.labels.clone();
        labels.extend(class.map(|it| Label::new("class", it.to_owned())));
        labels.extend(reading.labels().map(|(name, value)| Label::new(name, value)));
        let key = Key::from_parts(reading.meter.openmetrics_name(), labels);
        let about = about();
        metrics::with_recorder(|recorder| match reading.meter.kind {
            Kind::Counter => Handle::Counter(recorder.register_counter(&key, &about)),
            Kind::Gauge => Handle::Gauge(recorder.register_gauge(&key, &about)),
            _ => Handle::Histogram(recorder.register_histogram(&key, &about)),
        })
    }
}

impl Observer for OfLocker {
    fn observe(&self, event: &Event<'_>) {
        let class = self.classes.as_ref().map(|it| it.label(event.key()));
        readings(event, &mut |it| self.handle(&it, class.as_ref()).add(it.value));
    }
}
