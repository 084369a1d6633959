//! What a recorder hears of two-phase commit, on a real server: answers, doubts, and that nobody could look.

#![cfg(feature = "twophase")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lockkeeper::twophase::tokio_postgres::Client;
use lockkeeper::twophase::{Participant, Point, TwoPhase};
use lockkeeper_metrics::ToMetrics;
use lockkeeper_servers::{Postgres, PostgresOptions};
use metrics::{
    Counter, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// What was recorded last of each series.
#[derive(Clone, Default)]
struct Book {
    told: Arc<Mutex<BTreeMap<String, f64>>>,
    described: Arc<Mutex<Vec<String>>>,
}

struct Line(Book, String);

impl Line {
    fn is(&self, value: f64) {
        self.0.told.lock().unwrap().insert(self.1.clone(), value);
    }
}

impl GaugeFn for Line {
    fn increment(&self, _: f64) {
        panic!("what was seen is not added up");
    }

    fn decrement(&self, _: f64) {
        panic!("what was seen is not added up");
    }

    fn set(&self, value: f64) {
        self.is(value);
    }
}

impl HistogramFn for Line {
    fn record(&self, value: f64) {
        self.is(value);
    }
}

impl Book {
    fn line(&self, key: &Key) -> Arc<Line> {
        let labels: Vec<String> = key.labels().map(|it| format!("{}={}", it.key(), it.value())).collect();
        Arc::new(Line(self.clone(), format!("{} {}", key.name(), labels.join(","))))
    }

    fn of(&self, series: &str) -> Option<f64> {
        self.told.lock().unwrap().get(series).copied()
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("two-phase commit counts by its histogram");
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().push(name.as_str().to_owned());
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().push(name.as_str().to_owned());
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        panic!("two-phase commit counts by its histogram");
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.line(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.line(key))
    }
}

const COMMITTED: &str = "lockkeeper_twophase_duration_seconds outcome=committed";
const AT_HERE: &str = "lockkeeper_twophase_in_doubt participant=here";
const AT_THERE: &str = "lockkeeper_twophase_in_doubt participant=there";
const DAMAGED: &str = "lockkeeper_twophase_damaged participant=here";
const AGE: &str = "lockkeeper_twophase_in_doubt_age_max_seconds ";

/// One test: the recorder is the process's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorder_hears_answers_and_what_is_in_doubt() {
    let book = Book::default();
    metrics::set_global_recorder(book.clone()).unwrap_or_else(|_| panic!("nobody else installs one"));
    let options = PostgresOptions::default().set("max_prepared_transactions", "10");
    let (server, folder) = (Postgres::start(options).await.unwrap(), tempfile::tempdir().unwrap());
    for database in ["here", "there"] {
        server.sql(&format!("CREATE DATABASE {database}")).await.unwrap();
    }
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let locker = lockkeeper::connect(&file("locks.db")).await.unwrap();
    let setup = async || {
        let at = |name: &str| {
            Participant::postgres(&format!("postgres://postgres@{}/{name}", server.address())).unwrap()
        };
        let log = TwoPhase::open(&file("2pc.db"), &locker).await.unwrap();
        log.participant("here", at("here")).participant("there", at("there"))
    };
    let to_metrics = ToMetrics::new();

    let office = setup().await.observer(to_metrics.two_phase()).start().await.unwrap();
    let create = async |db: &Client| Ok(db.batch_execute("CREATE TABLE it (id int)").await?);
    office.transaction().on("here", create).on("there", create).commit().await.unwrap();
    office.close().await.unwrap();
    assert!(book.of(COMMITTED).is_some_and(|it| 0.0 < it), "{:?}", book.told);
    to_metrics.in_doubt(Some(&setup().await.survey().await.unwrap()));
    assert_eq!([AT_HERE, AT_THERE, DAMAGED, AGE].map(|it| book.of(it)), [Some(0.0); 4], "{:?}", book.told);

    // A coordinator that ends when both have promised leaves both in doubt.
    let count = to_metrics.two_phase();
    let office = setup().await.observer(move |step| {
        count(step);
        assert_ne!(step.point, Point::AllPrepared, "the coordinator ends here, as it was told to");
    });
    let office = office.start().await.unwrap();
    let insert = async |db: &Client| Ok(db.batch_execute("INSERT INTO it VALUES (1)").await?);
    office.transaction().on("here", insert).on("there", insert).commit().await.unwrap_err();
    office.close().await.unwrap();
    to_metrics.clone().in_doubt(Some(&setup().await.survey().await.unwrap()));
    assert_eq!([AT_HERE, AT_THERE, DAMAGED].map(|it| book.of(it)), [Some(1.0), Some(1.0), Some(0.0)]);

    // Whoever cannot look shows no number, not the last one.
    to_metrics.in_doubt(None);
    for series in [AT_HERE, AT_THERE, DAMAGED, AGE] {
        assert!(book.of(series).unwrap().is_nan(), "{series}: {:?}", book.told);
    }
    setup().await.recover().await.unwrap();
    to_metrics.in_doubt(Some(&setup().await.survey().await.unwrap()));
    assert_eq!([AT_HERE, AT_THERE, AGE].map(|it| book.of(it)), [Some(0.0); 3]);
    let mut described = book.described.lock().unwrap().clone();
    described.sort();
    described.dedup();
    assert_eq!(described.len(), lockkeeper::meters::TWO_PHASE_METERS.len(), "{described:?}");
}
