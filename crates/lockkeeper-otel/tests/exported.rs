//! What an exporter gets: spans under the caller's, the link from who waited to who held, and the meters of the table.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::spi::{Clock, Memory};
use lockkeeper::{Locker, LockerBuilder};
use lockkeeper_otel::ToOtel;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::{
    FutureExt as _, SpanId, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracer, SdkTracerProvider, SpanData};

struct Exported {
    tracer: SdkTracer,
    spans: InMemorySpanExporter,
    meters: SdkMeterProvider,
    metrics: InMemoryMetricExporter,
}

impl Exported {
    fn new() -> Self {
        let (spans, metrics) = (InMemorySpanExporter::default(), InMemoryMetricExporter::default());
        let tracer = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build().tracer("test");
        let meters =
            SdkMeterProvider::builder().with_reader(PeriodicReader::builder(metrics.clone()).build()).build();
        Exported { tracer, spans, meters, metrics }
    }

    fn observe(&self, builder: LockerBuilder) -> LockerBuilder {
        builder.observer(ToOtel::with(&self.meters.meter("test"), self.tracer.clone()))
    }

    fn locker(&self) -> Locker {
        self.observe(Locker::builder(Memory::default())).build()
    }

    /// A context whose span is the caller's, and that span's id.
    fn caller(&self, name: &'static str) -> (Context, SpanId) {
        let context = Context::new().with_span(self.tracer.start_with_context(name, &Context::new()));
        let id = context.span().span_context().span_id();
        (context, id)
    }

    fn spans(&self, name: &str) -> Vec<SpanData> {
        let all = self.spans.get_finished_spans().unwrap();
        all.into_iter().filter(|it| it.name == name).collect()
    }
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    span.attributes.iter().find(|it| it.key.as_str() == name).map(|it| it.value.to_string())
}

#[tokio::test]
async fn who_waited_links_to_who_held_and_both_are_under_their_callers() {
    let exported = Exported::new();
    let locker = exported.locker();
    let ((first, first_id), (second, second_id)) = (exported.caller("first"), exported.caller("second"));
    let holder = locker.lock("orders/42").with_context(first).await.unwrap();
    let waiter = tokio::spawn(locker.lock("orders/42").with_context(second));
    tokio::task::yield_now().await; // it stands in line now
    Clock::boot().sleep(Duration::from_millis(1)).await;
    drop(holder);
    drop(waiter.await.unwrap().unwrap());

    let (acquired, held) = (exported.spans("acquire lock"), exported.spans("hold lock"));
    assert_eq!((acquired.len(), held.len()), (2, 2));
    let parents = |spans: &[SpanData]| spans.iter().map(|it| it.parent_span_id).collect::<Vec<_>>();
    assert_eq!(parents(&acquired), [first_id, second_id]);
    assert_eq!(parents(&held), [first_id, second_id]);
    assert!(acquired[0].links.is_empty(), "nobody was in its way");
    let links: Vec<_> = acquired[1].links.iter().map(|it| it.span_context.clone()).collect();
    assert_eq!(links, [held[0].span_context.clone()]);
    assert_eq!(attribute(&acquired[0], "lockkeeper.by").as_deref(), Some("store"));
    assert_eq!(attribute(&acquired[1], "lockkeeper.by").as_deref(), Some("hand_on"));
    assert_eq!(attribute(&acquired[1], "lockkeeper.key").as_deref(), Some("orders/42"));
    assert_eq!(attribute(&acquired[1], "lockkeeper.store").as_deref(), Some("memory"));
    assert!(acquired[1].start_time < acquired[1].end_time, "it waited");
    assert_ne!(attribute(&held[0], "lockkeeper.fence"), attribute(&held[1], "lockkeeper.fence"));
}

#[tokio::test]
async fn who_does_not_get_it_links_to_who_has_it() {
    let exported = Exported::new();
    let locker = exported.locker();
    let holder = locker.lock("a").await.unwrap();
    assert!(locker.lock("a").wait_at_most(Duration::from_millis(1)).await.is_err());
    assert!(locker.try_lock("a").await.unwrap().is_none());
    drop(holder);
    let (acquired, held) = (exported.spans("acquire lock"), exported.spans("hold lock"));
    let outcomes: Vec<_> = acquired.iter().map(|it| attribute(it, "lockkeeper.outcome").unwrap()).collect();
    assert_eq!(outcomes, ["granted", "timed_out", "busy"]);
    for span in &acquired[1..] {
        assert_eq!(span.links.iter().next().unwrap().span_context, held[0].span_context);
    }
    assert_eq!(attribute(&acquired[1], "lockkeeper.ahead").as_deref(), Some("1"));
}

#[tokio::test]
async fn a_renewal_and_a_loss_are_events_of_the_hold() {
    let exported = Exported::new();
    let clock = Clock::virtual_from(Duration::from_secs(100));
    let store = Memory::new(clock.clone());
    let builder = Locker::builder(store.clone()).clock(clock.clone()).ttl(Duration::from_secs(30));
    // Another observer, after the one that makes spans, says when there is something to see.
    let meters = lockkeeper::Meters::new();
    let locker = exported.observe(builder).observer(meters.clone()).build();
    let guard = locker.lock("a").await.unwrap();
    clock.advance_by(Duration::from_secs(12));
    let renewed = || meters.snapshot().sum("lockkeeper.renewal.margin", &[]) == 1;
    for _ in 0..6_000 {
        if renewed() {
            break;
        }
        Clock::boot().sleep(Duration::from_millis(10)).await;
    }
    locker.shutdown(Duration::from_secs(60)).await.unwrap();
    drop(guard);
    let held = exported.spans("hold lock");
    let events: Vec<_> = held[0].events.iter().map(|it| it.name.to_string()).collect();
    assert_eq!((held.len(), events), (1, vec!["renewed".to_owned(), "lost".to_owned()]));
    assert!(matches!(held[0].status, Status::Error { .. }), "{:?}", held[0].status);
}

#[tokio::test]
async fn keys_can_be_left_out_of_spans() {
    let exported = Exported::new();
    let observer = ToOtel::with(&exported.meters.meter("test"), exported.tracer.clone()).without_keys();
    let locker = Locker::builder(Memory::default()).observer(observer).name("payments").build();
    drop(locker.lock("a patient's name").await.unwrap());
    let all = [exported.spans("acquire lock"), exported.spans("hold lock")].concat();
    assert_eq!(all.len(), 2);
    for span in all {
        assert_eq!(attribute(&span, "lockkeeper.key"), None);
        assert_eq!(attribute(&span, "lockkeeper.locker").as_deref(), Some("payments"));
        assert!(!format!("{span:?}").contains("patient"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_the_names_of_the_table_and_no_keys() {
    let exported = Exported::new();
    let locker = exported.locker();
    for key in 0..1_000 {
        drop(locker.lock(format!("orders/{key}")).await.unwrap());
    }
    let _held = locker.lock("a").await.unwrap();
    exported.meters.force_flush().unwrap();
    let all = exported.metrics.get_finished_metrics().unwrap();
    let metrics: Vec<_> =
        all.iter().flat_map(ResourceMetrics::scope_metrics).flat_map(ScopeMetrics::metrics).collect();
    let find = |name: &str| metrics.iter().find(|it| it.name() == name).unwrap().data();
    let AggregatedMetrics::F64(MetricData::Histogram(hold)) = find("lockkeeper.hold.duration") else {
        panic!("no histogram")
    };
    let points: Vec<_> = hold.data_points().collect();
    assert_eq!((points.len(), points[0].count()), (1, 1_000), "keys make no series");
    let labels: Vec<KeyValue> = points[0].attributes().cloned().collect();
    assert!(labels.contains(&KeyValue::new("store", "memory")), "{labels:?}");
    assert!(labels.contains(&KeyValue::new("end", "released")), "{labels:?}");
    let AggregatedMetrics::I64(MetricData::Sum(held)) = find("lockkeeper.held") else { panic!("no sum") };
    assert_eq!(held.data_points().map(SumDataPoint::value).sum::<i64>(), 1);
}

/// An alert on an increase does not see a counter that is born with one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_there_before_the_first_lock() {
    let exported = Exported::new();
    let meters = lockkeeper::Meters::new();
    let builder = exported.observe(Locker::builder(Memory::default())).observer(meters.clone());
    let _locker = builder.name("payments").build();
    exported.meters.force_flush().unwrap();
    let mut told = Vec::new();
    for metric in exported
        .metrics
        .get_finished_metrics()
        .unwrap()
        .iter()
        .flat_map(ResourceMetrics::scope_metrics)
        .flat_map(ScopeMetrics::metrics)
    {
        let AggregatedMetrics::U64(MetricData::Sum(sum)) = metric.data() else { continue };
        for point in sum.data_points() {
            assert_eq!(point.value(), 0, "{metric:?}");
            let labels = point.attributes().map(|it| (it.key.to_string(), it.value.to_string())).collect();
            told.push((metric.name().to_owned(), labels));
        }
    }
    let series = meters.snapshot().series;
    let counters = series.iter().filter(|it| it.meter.kind == lockkeeper::meters::Kind::Counter);
    let mut known: Vec<(String, BTreeMap<String, String>)> = counters
        .map(|it| {
            let labels = it.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            (it.meter.name.to_owned(), labels)
        })
        .collect();
    told.sort();
    known.sort();
    assert!(known.iter().any(|it| it.0 == "lockkeeper.lost"), "{known:?}");
    assert_eq!(told, known);
}

/// The values of the attribute `class` in what is exported.
fn classes_of(exported: &Exported) -> std::collections::BTreeSet<String> {
    exported.meters.force_flush().unwrap();
    let all = exported.metrics.get_finished_metrics().unwrap();
    let scopes = all.last().unwrap().scope_metrics().flat_map(ScopeMetrics::metrics);
    let mut classes = std::collections::BTreeSet::new();
    for metric in scopes {
        if let AggregatedMetrics::F64(MetricData::Histogram(it)) = metric.data() {
            let attributes =
                it.data_points().flat_map(opentelemetry_sdk::metrics::data::HistogramDataPoint::attributes);
            let found = attributes.filter(|it| it.key.as_str() == "class").map(|it| it.value.to_string());
            classes.extend(found);
        }
    }
    classes
}

#[tokio::test]
async fn classes_are_opt_in_and_have_a_cap() {
    let exported = Exported::new();
    let make = || ToOtel::with(&exported.meters.meter("test"), exported.tracer.clone()).without_keys();
    let lock = async |observer: ToOtel<SdkTracer>, count: u32, name: &dyn Fn(u32) -> String| {
        let locker = Locker::builder(Memory::default()).observer(observer).build();
        for number in 0..count {
            locker.lock(name(number)).await.unwrap().release().await.unwrap();
            if number % 1000 == 0 {
                exported.spans.reset();
            }
        }
    };
    lock(make(), 1000, &|it| format!("orders/{it}")).await;
    assert!(classes_of(&exported).is_empty());
    lock(make().by_prefix('/'), 1000, &|it| format!("orders/{it}")).await;
    assert_eq!(classes_of(&exported).into_iter().collect::<Vec<_>>(), ["orders"]);
    lock(make().by_class(|key| key.as_str()), 100_000, &|it| format!("class-{it}")).await;
    let classes = classes_of(&exported);
    // Those of before are exported, too.
    assert_eq!(classes.len(), lockkeeper::meters::CLASSES_MAX + 2);
    assert!(classes.contains("other"), "{classes:?}");
}

/// As docs/guides/monitoring.md shows it.
#[rustfmt::skip]
#[expect(dead_code, reason = "there is no such server; that it compiles is what is tested")]
async fn of_the_guide() -> lockkeeper::Result<()> {
    // Install your OpenTelemetry providers first.
    let locker = lockkeeper::open("redis://db-1").await?.locker.observer(lockkeeper_otel::ToOtel::global()).build();
    locker.lock("k").await?.release().await
}
