//! Numbers at one moment, and the text by which Prometheus and others read them.

use std::fmt::Write as _;

use super::table::{Kind, METERS, Meter, TWO_PHASE_METERS};

/// What a series shows.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// How many, ever.
    Counter(u64),
    /// How many, now.
    Gauge(u64),
    /// How many were how large.
    #[non_exhaustive]
    Histogram {
        /// The upper bounds of the buckets. There is one bucket more, for what is larger than all.
        bounds: &'static [f64],
        /// How many fell into each bucket.
        counts: Vec<u64>,
        /// All values together.
        sum: f64,
    },
}

impl Value {
    /// The number itself; for a histogram how many values it has.
    pub fn count(&self) -> u64 {
        match self {
            Value::Counter(it) | Value::Gauge(it) => *it,
            Value::Histogram { counts, .. } => counts.iter().sum(),
        }
    }
}

/// One meter with one set of labels.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Series {
    /// What is counted.
    pub meter: &'static Meter,
    /// By what it is told apart.
    pub labels: Vec<(&'static str, String)>,
    /// What it shows.
    pub value: Value,
}

/// All numbers at one moment. See [`Meters::snapshot`](super::Meters::snapshot).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::meters::{Meters, Series, Snapshot, Value};
///
/// let meters = Meters::new();
/// let locker = lockkeeper::open("memory:").await?.locker.observer(meters.clone()).build();
/// drop(locker.lock("orders/42").await?);
/// let now: Snapshot = meters.snapshot();
/// for Series { meter, labels, value, .. } in &now.series {
///     match value {
///         Value::Histogram { sum, .. } => println!("{} {labels:?}: {} in {sum} s", meter.name, value.count()),
///         value => println!("{} {labels:?}: {}", meter.name, value.count()),
///     }
/// }
/// assert_eq!(now.openmetrics(), meters.openmetrics());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// All series that there are. A histogram without values is left out.
    pub series: Vec<Series>,
}

impl Snapshot {
    /// The sum of all series of a meter that have these labels; for a histogram how many values they have.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// let meters = lockkeeper::Meters::new();
    /// let locker = lockkeeper::open("memory:").await?.locker.observer(meters.clone()).build();
    /// let _guard = locker.lock("orders/42").await?;
    /// assert_eq!(meters.snapshot().sum("lockkeeper.held", &[]), 1);
    /// assert_eq!(meters.snapshot().sum("lockkeeper.acquire.duration", &[("outcome", "granted")]), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn sum(&self, meter: &str, labels: &[(&str, &str)]) -> u64 {
        let has = |series: &Series, (name, value): (&str, &str)| {
            series.labels.iter().any(|it| it.0 == name && it.1 == value)
        };
        let ours = self.series.iter().filter(|it| it.meter.name == meter);
        ours.filter(|it| labels.iter().all(|label| has(it, *label))).map(|it| it.value.count()).sum()
    }

    /// The text.
    pub fn openmetrics(&self) -> String {
        let mut out = String::new();
        for meter in METERS.iter().chain(TWO_PHASE_METERS) {
            let mut ours = self.series.iter().filter(|it| it.meter.name == meter.name).peekable();
            if ours.peek().is_some() {
                head(&mut out, meter);
                ours.for_each(|it| lines(&mut out, it));
            }
        }
        out + "# EOF\n"
    }
}

fn head(out: &mut String, meter: &Meter) {
    let family = meter.family();
    let kind = match meter.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let _ = writeln!(out, "# TYPE {family} {kind}");
    if meter.unit == "s" {
        let _ = writeln!(out, "# UNIT {family} seconds");
    }
    let _ = writeln!(out, "# HELP {family} {}", meter.help);
}

fn lines(out: &mut String, series: &Series) {
    let (family, labels) = (series.meter.family(), &series.labels);
    let Value::Histogram { bounds, counts, sum } = &series.value else {
        let _ = writeln!(
            out,
            "{}{} {}",
            series.meter.openmetrics_name(),
            braced(labels, None),
            series.value.count()
        );
        return;
    };
    let mut so_far = 0;
    let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (bound, count) in bounds.zip(counts) {
        so_far += count;
        // OpenMetrics wants bounds that are numbers with a point.
        let bound = if bound.contains(['.', '+']) { bound } else { bound + ".0" };
        let _ = writeln!(out, "{family}_bucket{} {so_far}", braced(labels, Some(&bound)));
    }
    let _ = writeln!(out, "{family}_count{} {so_far}", braced(labels, None));
    let _ = writeln!(out, "{family}_sum{} {sum}", braced(labels, None));
}

fn braced(labels: &[(&'static str, String)], bound: Option<&str>) -> String {
    if labels.is_empty() && bound.is_none() {
        return String::new();
    }
    let own = labels.iter().map(|it| format!("{}=\"{}\"", it.0, escaped(&it.1)));
    let all: Vec<String> = own.chain(bound.map(|it| format!("le=\"{it}\""))).collect();
    format!("{{{}}}", all.join(","))
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
