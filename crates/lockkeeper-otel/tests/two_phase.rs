//! What an exporter gets of two-phase commit, on a real server: answers, doubts, and nothing where nobody could look.

#![cfg(feature = "twophase")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper::twophase::tokio_postgres::Client;
use lockkeeper::twophase::{Participant, Point, TwoPhase};
use lockkeeper_otel::ToOtel;
use lockkeeper_servers::{Postgres, PostgresOptions};
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;

/// What one export says of two-phase commit: gauges with their values, histograms with their counts.
fn exported(meters: &SdkMeterProvider, exporter: &InMemoryMetricExporter) -> BTreeMap<String, u64> {
    exporter.reset();
    meters.force_flush().unwrap();
    let all = exporter.get_finished_metrics().unwrap();
    let mut told = BTreeMap::new();
    let mut tell = |name: &str, labels: Vec<&KeyValue>, value: u64| {
        let labels: Vec<String> = labels.iter().map(|it| format!("{}={}", it.key, it.value)).collect();
        told.insert(
            format!("{} {}", name.trim_start_matches("lockkeeper.twophase."), labels.join(",")),
            value,
        );
    };
    let scopes = all.iter().flat_map(ResourceMetrics::scope_metrics);
    for metric in scopes.flat_map(ScopeMetrics::metrics).filter(|it| it.name().contains("twophase")) {
        match metric.data() {
            AggregatedMetrics::U64(MetricData::Gauge(it)) => {
                it.data_points().for_each(|it| tell(metric.name(), it.attributes().collect(), it.value()));
            }
            AggregatedMetrics::F64(MetricData::Histogram(it)) => {
                it.data_points().for_each(|it| tell(metric.name(), it.attributes().collect(), it.count()));
            }
            other => panic!("{}: {other:?}", metric.name()),
        }
    }
    told
}

fn told(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    expected.iter().map(|(series, value)| ((*series).to_owned(), *value)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exporter_gets_answers_and_what_is_in_doubt() {
    let options = PostgresOptions::default().set("max_prepared_transactions", "10");
    let (server, folder) = (Postgres::start(options).await.unwrap(), tempfile::tempdir().unwrap());
    for database in ["here", "there"] {
        server.sql(&format!("CREATE DATABASE {database}")).await.unwrap();
    }
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let locker = lockkeeper::connect(&file("locks.db")).await.unwrap();
    let setup = async || {
        let url = |name: &str| format!("postgres://postgres@{}/{name}", server.address());
        let of = |name: &str| Participant::postgres(&url(name)).unwrap();
        let log = TwoPhase::open(&file("2pc.db"), &locker).await.unwrap();
        log.participant("here", of("here")).participant("there", of("there"))
    };
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).build();
    let meters = SdkMeterProvider::builder().with_reader(reader).build();
    let to_otel = ToOtel::with(&meters.meter("test"), SdkTracerProvider::builder().build().tracer("test"));
    assert_eq!(exported(&meters, &exporter), told(&[]), "nobody has looked, and nothing was committed");

    let (count, ends) = (to_otel.two_phase(), Arc::<AtomicBool>::default());
    let to_end = ends.clone();
    let office = setup().await.observer(move |step| {
        count(step);
        let here = step.point == Point::AllPrepared && to_end.load(Ordering::SeqCst);
        assert!(!here, "the coordinator ends here, as it was told to");
    });
    let office = office.start().await.unwrap();
    let create = async |db: &Client| Ok(db.batch_execute("CREATE TABLE it (id int)").await?);
    let insert = async |db: &Client| Ok(db.batch_execute("INSERT INTO it VALUES (1)").await?);
    office.transaction().on("here", create).commit().await.unwrap();
    ends.store(true, Ordering::SeqCst);
    office.transaction().on("here", insert).on("there", create).commit().await.unwrap_err();
    office.close().await.unwrap();
    let answered = [("duration outcome=committed", 1), ("duration outcome=unknown", 1)];
    assert_eq!(exported(&meters, &exporter), told(&answered), "nobody has looked");

    to_otel.clone().in_doubt(Some(&setup().await.survey().await.unwrap()));
    let mut seen = exported(&meters, &exporter);
    assert!(seen.remove("in_doubt.age.max ").is_some(), "{seen:?}");
    let doubts = ["in_doubt participant=here", "in_doubt participant=there"].map(|it| (it, 1));
    let damages = ["damaged participant=here", "damaged participant=there"].map(|it| (it, 0));
    assert_eq!(seen, told(&[answered, doubts, damages].concat()));

    to_otel.in_doubt(None);
    assert_eq!(exported(&meters, &exporter), told(&answered), "what nobody can see is not exported");
}
