//! Two-phase commit: what an office answers, and what a survey finds.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper::meters::{SurveyReading, TWO_PHASE, survey_readings, two_phase_reading};
use lockkeeper::observe::Source;
use lockkeeper::twophase::{Step, Survey};
use metrics::{Gauge, Key, Label};

use crate::{OfLocker, ToMetrics, about, describe};

/// Of one meter, and of one participant or of all together.
type Of = (&'static str, Option<String>);

/// The gauges that were shown.
#[derive(Clone, Default)]
pub(crate) struct Shown(Arc<Mutex<HashMap<Of, Gauge>>>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl Shown {
    fn show(&self, seen: Vec<SurveyReading>) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_seen = |meter: &str, participant: &Option<String>| {
            seen.iter().any(|it| it.meter.name == meter && it.participant == *participant)
        };
        // A recorder forgets no series, and the last number that was seen is not what is so now.
        shown.iter().filter(|it| !is_seen(it.0.0, &it.0.1)).for_each(|it| it.1.set(f64::NAN));
        for it in seen {
            let value = u32::try_from(it.value).unwrap_or(u32::MAX);
            let gauge = shown.entry((it.meter.name, it.participant.clone())).or_insert_with(|| register(&it));
            gauge.set(value);
        }
    }
}

fn register(reading: &SurveyReading) -> Gauge {
    let values = reading.participant.iter().cloned();
    let labels: Vec<_> =
        reading.meter.labels.iter().zip(values).map(|(name, value)| Label::new(*name, value)).collect();
    let key = Key::from_parts(reading.meter.openmetrics_name(), labels);
    metrics::with_recorder(|recorder| {
        describe(recorder, reading.meter);
        recorder.register_gauge(&key, &about())
    })
}

impl ToMetrics {
    /// What counts the transactions of an office; give it to `TwoPhase::observer`.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockkeeper::twophase::{Participant, TwoPhase};
    /// use lockkeeper_metrics::ToMetrics;
    ///
    /// let locker = lockkeeper::connect("sqlite:locks.db").await?;
    /// let office = TwoPhase::open("sqlite:2pc.db", &locker)
    ///     .await?
    ///     .participant("orders", Participant::postgres("postgres://shop@db-1/orders")?)
    ///     .observer(ToMetrics::new().two_phase())
    ///     .start()
    ///     .await?;
    /// # drop(office);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "twophase")))]
    pub fn two_phase(&self) -> impl Fn(&Step<'_>) + Send + Sync + 'static {
        metrics::with_recorder(|recorder| describe(recorder, &TWO_PHASE));
        // Its numbers are of no locker.
        let told = OfLocker::new(&Source::new("", ""), None);
        move |step| {
            if let Some(it) = two_phase_reading(step) {
                told.handle(&it, None).add(it.value);
            }
        }
    }

    /// Show what [`TwoPhase::survey`](lockkeeper::twophase::TwoPhase::survey) found: what is in doubt and what is damaged. `None` if
    /// nobody could look: then the gauges are no numbers (`NaN`), for which no alert rings, and not the last that was seen.
    ///
    /// ```no_run
    /// # async fn example(to_metrics: lockkeeper_metrics::ToMetrics, setup: lockkeeper::twophase::TwoPhase) {
    /// to_metrics.in_doubt(setup.survey().await.ok().as_ref());
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "twophase")))]
    pub fn in_doubt(&self, survey: Option<&Survey>) {
        self.shown.show(survey.map(survey_readings).unwrap_or_default());
    }
}
