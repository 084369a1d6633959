//! Numbers about two-phase commit: what callers were answered, and what was in doubt when somebody looked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::kit::locked;
use lockkeeper_twophase::{Outcome, Step, Survey};

use super::Meters;
use super::counts::{Buckets, NANOS, Times, nanos};
use super::table::{DAMAGED, IN_DOUBT, IN_DOUBT_AGE, Meter, SECONDS, TWO_PHASE};
use super::text::{Series, Value};

/// What is counted, and what was seen last.
#[derive(Debug, Default)]
pub(super) struct TwoPhaseCounts {
    answers: [Times; Outcome::ALL.len()],
    /// Nothing where nobody has looked, or nobody could.
    seen: Mutex<Option<Seen>>,
}

#[derive(Debug)]
struct Seen {
    /// In doubt, and damaged, by participant.
    of: BTreeMap<String, (u64, u64)>,
    oldest: Duration,
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
        let seen = locked(&self.seen);
        let Some(seen) = &*seen else { return };
        for (participant, (in_doubt, damaged)) in &seen.of {
            tell(&IN_DOUBT, Some(participant), Value::Gauge(*in_doubt));
            tell(&DAMAGED, Some(participant), Value::Gauge(*damaged));
        }
        tell(&IN_DOUBT_AGE, None, Value::Gauge(seen.oldest.as_secs()));
    }
}

impl Seen {
    fn of(survey: &Survey) -> Self {
        // All that the log knows, so that a participant without doubts has a zero.
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
        Seen { of, oldest }
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
        *locked(&self.two_phase.seen) = survey.map(Seen::of);
    }
}
