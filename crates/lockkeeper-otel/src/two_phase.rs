//! Two-phase commit: what an office answers, and what a survey finds.

use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper::meters::{
    DAMAGED, IN_DOUBT, IN_DOUBT_AGE, Meter as Row, SurveyReading, TWO_PHASE, survey_readings,
    two_phase_reading,
};
use lockkeeper::twophase::{Step, Survey};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter};
use opentelemetry::trace::Tracer;

use crate::ToOtel;
use crate::instruments::histogram;

/// What counts answers, and what was seen last: nothing where nobody has looked, or nobody could.
pub(crate) struct TwoPhase {
    answers: Histogram<f64>,
    seen: Arc<Mutex<Vec<SurveyReading>>>,
}

impl TwoPhase {
    pub(crate) fn of(meter: &Meter) -> Self {
        let seen = Arc::<Mutex<Vec<SurveyReading>>>::default();
        for row in [&IN_DOUBT, &DAMAGED, &IN_DOUBT_AGE] {
            show(meter, row, seen.clone());
        }
        TwoPhase { answers: histogram(meter, &TWO_PHASE), seen }
    }
}

/// Asked for whenever something is exported, so that what nobody can see is not exported.
fn show(meter: &Meter, row: &'static Row, seen: Arc<Mutex<Vec<SurveyReading>>>) {
    let gauge = meter.u64_observable_gauge(row.name).with_description(row.help);
    // A gauge of the unit `1` is called a ratio by exporters to Prometheus, and a number of branches is none.
    let gauge = if row.unit == "s" { gauge.with_unit("s") } else { gauge };
    let _shown_by_its_meter = gauge
        .with_callback(move |to| {
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            for it in seen.iter().filter(|it| it.meter == row) {
                let names = row.labels.iter().zip(&it.participant);
                let labels: Vec<_> = names.map(|(name, value)| KeyValue::new(*name, value.clone())).collect();
                to.observe(it.value, &labels);
            }
        })
        .build();
}

impl<T> ToOtel<T>
where
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync + 'static,
{
    /// What counts the transactions of an office; give it to `TwoPhase::observer`.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockkeeper::twophase::{Participant, TwoPhase};
    /// use lockkeeper_otel::ToOtel;
    ///
    /// let to_otel = ToOtel::global();
    /// let store = lockkeeper::open("sqlite:locks.db").await?;
    /// let locker = store.locker.observer(to_otel.clone()).build();
    /// let office = TwoPhase::open("sqlite:2pc.db", &locker)
    ///     .await?
    ///     .participant("orders", Participant::postgres("postgres://shop@db-1/orders")?)
    ///     .observer(to_otel.two_phase())
    ///     .start()
    ///     .await?;
    /// # drop(office);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "twophase")))]
    pub fn two_phase(&self) -> impl Fn(&Step<'_>) + Send + Sync + 'static {
        let answers = self.two_phase.answers.clone();
        move |step| {
            if let Some(it) = two_phase_reading(step) {
                let labels: Vec<_> = it.labels().map(|(name, value)| KeyValue::new(name, value)).collect();
                answers.record(it.value, &labels);
            }
        }
    }

    /// Show what [`TwoPhase::survey`](lockkeeper::twophase::TwoPhase::survey) found: what is in doubt and what is damaged. `None` if
    /// nobody could look: then nothing is exported, not the last that was seen.
    ///
    /// ```no_run
    /// # async fn example(to_otel: lockkeeper_otel::ToOtel, setup: lockkeeper::twophase::TwoPhase) {
    /// to_otel.in_doubt(setup.survey().await.ok().as_ref());
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "twophase")))]
    pub fn in_doubt(&self, survey: Option<&Survey>) {
        let seen = survey.map(survey_readings).unwrap_or_default();
        *self.two_phase.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}
