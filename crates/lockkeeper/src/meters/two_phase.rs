//! Numbers about two-phase commit: what callers were answered, and what was in doubt when somebody looked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::kit::locked;
use lockkeeper_twophase::{Outcome, Step, Survey};

use super::Meters;
use super::counts::{Buckets, NANOS, Times, nanos};
use super::table::{DAMAGED, IN_DOUBT, IN_DOUBT_AGE, Meter, Reading, SECONDS, TWO_PHASE};
use super::text::{Series, Value};

/// What a step of an office adds to one meter: nothing, unless it is the answer to a call of `commit`. Adapters to other libraries
/// stand on this, as they do on [`readings`](super::readings) for locks.
///
/// ```
/// use lockkeeper::meters::two_phase_reading;
/// use lockkeeper::twophase::Step;
///
/// let print = |step: &Step<'_>| {
///     if let Some(it) = two_phase_reading(step) {
///         println!("{} {:?} {}", it.meter.name, it.labels().collect::<Vec<_>>(), it.value);
///     }
/// };
/// # let _ = print;
/// ```
pub fn two_phase_reading(step: &Step<'_>) -> Option<Reading> {
    let (outcome, took) = step.answered?;
    Some(Reading::of(&TWO_PHASE, [outcome.word(), ""], took.as_secs_f64()))
}

/// What a survey says of one participant, or of all together.
///
/// ```
/// use lockkeeper::meters::{IN_DOUBT_AGE, survey_readings};
/// use lockkeeper::twophase::Survey;
///
/// let nothing = survey_readings(&Survey::default());
/// assert_eq!((nothing.len(), nothing[0].meter, nothing[0].value), (1, &IN_DOUBT_AGE, 0));
/// assert!(nothing[0].participant.is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SurveyReading {
    /// Of which meter.
    pub meter: &'static Meter,
    /// Its label, if the meter has it.
    pub participant: Option<String>,
    /// What the gauge shows now.
    pub value: u64,
}

/// What a survey says, as gauges: also zeros, for each participant that the log knows.
pub fn survey_readings(survey: &Survey) -> Vec<SurveyReading> {
    let mut of: BTreeMap<String, (u64, u64)> =
        survey.participants.iter().map(|it| (it.name.clone(), (0, 0))).collect();
    for (participant, _) in survey.transactions.iter().flat_map(|it| &it.branches) {
        of.entry(participant.clone()).or_default().0 += 1;
    }
    for damage in &survey.damages {
        of.entry(damage.participant.clone()).or_default().1 += 1;
    }
    let begun = survey.transactions.iter().map(|it| Duration::from_secs(it.id.begun())).min();
    let oldest = begun.map_or(Duration::ZERO, |it| time_of_day().saturating_sub(it));
    let mut all = Vec::new();
    for (participant, (in_doubt, damaged)) in of {
        let some = Some(participant);
        all.push(SurveyReading { meter: &IN_DOUBT, participant: some.clone(), value: in_doubt });
        all.push(SurveyReading { meter: &DAMAGED, participant: some, value: damaged });
    }
    all.push(SurveyReading { meter: &IN_DOUBT_AGE, participant: None, value: oldest.as_secs() });
    all
}

/// What is counted, and what was seen last.
#[derive(Debug, Default)]
pub(super) struct TwoPhaseCounts {
    answers: [Times; Outcome::ALL.len()],
    /// Nothing where nobody has looked, or nobody could.
    seen: Mutex<Vec<SurveyReading>>,
}

impl TwoPhaseCounts {
    fn count(&self, step: &Step<'_>) {
        let Some((outcome, took)) = step.answered else { return };
        if let Some(at) = Outcome::ALL.iter().position(|it| *it == outcome) {
            self.answers[at].add(&NANOS, nanos(took));
        }
    }

    /// All series, as they are now.
    pub(super) fn series(&self, out: &mut Vec<Series>) {
        let mut tell = |meter: &'static Meter, label: Option<&str>, value: Value| {
            let labels = meter.labels.iter().copied().zip(label.map(str::to_owned)).collect();
            out.push(Series { meter, labels, value });
        };
        for (outcome, times) in Outcome::ALL.into_iter().zip(&self.answers) {
            if !times.is_empty() {
                tell(&TWO_PHASE, Some(outcome.word()), Buckets::value_of(&[times], SECONDS));
            }
        }
        for it in locked(&self.seen).iter() {
            tell(it.meter, it.participant.as_deref(), Value::Gauge(it.value));
        }
    }
}

impl Meters {
    /// What counts the transactions of an office; give it to [`TwoPhase::observer`](crate::twophase::TwoPhase::observer).
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockkeeper::Meters;
    /// use lockkeeper::twophase::{Participant, TwoPhase};
    ///
    /// let meters = Meters::new();
    /// let locker = lockkeeper::connect("sqlite:locks.db").await?;
    /// let office = TwoPhase::open("sqlite:2pc.db", &locker)
    ///     .await?
    ///     .participant("orders", Participant::postgres("postgres://shop@db-1/orders")?)
    ///     .observer(meters.two_phase())
    ///     .start()
    ///     .await?;
    /// # drop(office);
    /// println!("{}", meters.openmetrics()); // lockkeeper_twophase_duration_seconds …
    /// # Ok(())
    /// # }
    /// ```
    pub fn two_phase(&self) -> impl Fn(&Step<'_>) + Send + Sync + 'static {
        let counts: Arc<TwoPhaseCounts> = self.two_phase.clone();
        move |step| counts.count(step)
    }

    /// Show what [`TwoPhase::survey`](crate::twophase::TwoPhase::survey) found: what is in doubt and what is damaged. `None` if
    /// nobody could look: then nothing is shown, not the last that was seen.
    ///
    /// ```no_run
    /// # async fn example(meters: lockkeeper::Meters, setup: lockkeeper::twophase::TwoPhase) {
    /// meters.in_doubt(setup.survey().await.ok().as_ref());
    /// # }
    /// ```
    pub fn in_doubt(&self, survey: Option<&Survey>) {
        let seen = survey.map(survey_readings).unwrap_or_default();
        *locked(&self.two_phase.seen) = seen;
    }
}
