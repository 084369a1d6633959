//! The label `class`: there if it is asked for, and never more than a fixed number of them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use lockkeeper::Locker;
use lockkeeper::meters::CLASSES_MAX;
use lockkeeper::spi::Memory;
use lockkeeper_metrics::ToMetrics;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Each series that was asked for, by name and labels.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<BTreeSet<String>>>);

impl Book {
    fn note(&self, key: &Key) {
        let labels: Vec<_> = key.labels().map(|it| format!("{}={}", it.key(), it.value())).collect();
        self.0.lock().unwrap().insert(format!("{} {}", key.name(), labels.join(",")));
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.note(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.note(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.note(key);
        Histogram::noop()
    }
}

/// Lock a hundred thousand keys, and tell which series there are.
fn series(observer: ToMetrics, name: impl Fn(u32) -> String) -> BTreeSet<String> {
    let book = Book::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    metrics::with_local_recorder(&book, || {
        let locker = Locker::builder(Memory::default()).observer(observer).build();
        runtime.block_on(async {
            for number in 0..100_000 {
                locker.lock(name(number)).await.unwrap().release().await.unwrap();
            }
        });
    });
    let all = book.0.lock().unwrap();
    all.clone()
}

fn classes(series: &BTreeSet<String>) -> BTreeSet<&str> {
    series.iter().filter_map(|it| it.split_once("class=")?.1.split(',').next()).collect()
}

#[test]
fn a_hundred_thousand_keys_make_no_series_and_two_prefixes_make_two_classes() {
    let plain = series(ToMetrics::new(), |it| format!("orders/{it}"));
    assert!(plain.len() < 50 && classes(&plain).is_empty(), "{plain:?}");
    let name = |it| if it % 2 == 0 { format!("orders/{it}") } else { format!("mail/{it}") };
    let apart = series(ToMetrics::by_prefix('/'), name);
    assert_eq!(classes(&apart), BTreeSet::from(["mail", "orders"]));
}

#[test]
fn a_hundred_thousand_classes_are_a_hundred_and_one() {
    let all = series(ToMetrics::by_class(|key| key.as_str()), |it| format!("class-{it}"));
    let classes = classes(&all);
    assert_eq!(classes.len(), CLASSES_MAX + 1);
    assert!(classes.contains("other"), "{classes:?}");
}
