//! What a recorder hears: the same as `Meters` counts, described once, and asked for each series once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::meters::{Kind, METERS};
use lockkeeper::spi::Memory;
use lockkeeper::{Locker, Meters};
use lockkeeper_metrics::ToMetrics;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// Each series with what it was told: a sum, and how often.
type Told = BTreeMap<String, (f64, u64)>;

#[derive(Clone, Default)]
struct Book {
    told: Arc<Mutex<Told>>,
    described: Arc<Mutex<Vec<String>>>,
    registered: Arc<Mutex<u64>>,
}

struct Line(Book, String);

impl Line {
    fn add(&self, value: f64) {
        let mut told = self.0.told.lock().unwrap();
        let line = told.entry(self.1.clone()).or_default();
        *line = (line.0 + value, line.1 + 1);
    }
}

impl CounterFn for Line {
    fn increment(&self, value: u64) {
        self.add(f64::from(u32::try_from(value).unwrap()));
    }

    fn absolute(&self, _: u64) {
        panic!("a counter only grows");
    }
}

impl GaugeFn for Line {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        panic!("several processes add up");
    }
}

impl HistogramFn for Line {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Book {
    fn line(&self, key: &Key) -> Arc<Line> {
        *self.registered.lock().unwrap() += 1;
        let labels: Vec<String> = key.labels().map(|it| format!("{}={}", it.key(), it.value())).collect();
        Arc::new(Line(self.clone(), format!("{} {}", key.name(), labels.join(","))))
    }

    fn describe(&self, name: &KeyName) {
        self.described.lock().unwrap().push(name.as_str().to_owned());
    }
}

impl Recorder for Book {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.line(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.line(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.line(key))
    }
}

/// All counters that the recorder was told of, with their values.
fn counters_of(book: &Book) -> BTreeMap<String, f64> {
    let told = book.told.lock().unwrap();
    told.iter().filter(|it| it.0.contains("_total ")).map(|(series, it)| (series.clone(), it.0)).collect()
}

/// The counters that `Meters` has, all still zero.
fn counters_at_zero(meters: &Meters) -> BTreeMap<String, f64> {
    let series = meters.snapshot().series;
    let counters = series.iter().filter(|it| it.meter.kind == Kind::Counter);
    let zeros: BTreeMap<_, _> = counters
        .map(|it| {
            assert_eq!(it.value.count(), 0);
            let labels: Vec<_> = it.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            (format!("{} {}", it.meter.openmetrics_name(), labels.join(",")), 0.0)
        })
        .collect();
    assert!(zeros.keys().any(|it| it.contains("lockkeeper_lost_total")), "{zeros:?}");
    zeros
}

/// One test: the recorder is the process's.
#[tokio::test]
async fn a_recorder_hears_what_meters_count() {
    let (book, meters) = (Book::default(), Meters::new());
    metrics::set_global_recorder(book.clone()).unwrap_or_else(|_| panic!("nobody else installs one"));
    let builder = Locker::builder(Memory::default()).name("payments");
    let locker = builder.observer(ToMetrics::new()).observer(meters.clone()).build();
    assert_eq!(counters_of(&book), counters_at_zero(&meters), "the first loss is an increase");
    for key in 0..1_000 {
        drop(locker.lock(format!("orders/{key}")).await.unwrap());
    }
    let held = locker.lock("a").await.unwrap();
    assert!(locker.try_lock("a").await.unwrap().is_none());
    assert!(locker.lock("a").wait_at_most(Duration::from_millis(1)).await.is_err());

    let told = |name: &str| book.told.lock().unwrap().get(name).copied();
    let of = |name: &str, rest: &str| told(&format!("{name} store=memory,locker=payments{rest}"));
    let acquire = |rest| of("lockkeeper_acquire_duration_seconds", rest).map(|it| it.1);
    assert_eq!(acquire(",outcome=granted,by=store"), Some(1_001));
    assert_eq!((acquire(",outcome=busy"), acquire(",outcome=timed_out")), (Some(1), Some(1)));
    assert_eq!(of("lockkeeper_hold_duration_seconds", ",end=released").map(|it| it.1), Some(1_000));
    assert_eq!(of("lockkeeper_held", "").map(|it| it.0), Some(1.0));
    assert_eq!(of("lockkeeper_waiting", "").map(|it| it.0), Some(0.0));
    drop(held);
    assert_eq!(of("lockkeeper_held", "").map(|it| it.0), Some(0.0));
    let snapshot = meters.snapshot();
    assert_eq!(snapshot.sum("lockkeeper.hold.duration", &[]), 1_001, "both hear the same");

    let mut described = book.described.lock().unwrap().clone();
    described.sort();
    let mut names: Vec<String> = METERS.iter().map(lockkeeper::meters::Meter::openmetrics_name).collect();
    names.sort();
    assert_eq!(described, names);
    let series = u64::try_from(book.told.lock().unwrap().len()).unwrap();
    assert_eq!(*book.registered.lock().unwrap(), series, "each series was asked for once, whatever the keys");
}
